"""Which of an engine's ranks this process is, and how the ranks speak to each other while the engine starts.

The one module that asks vLLM for its tensor-parallel group: those are the ranks that sample the same requests. It knows
nothing of sets. Invariant: all ranks make the same calls of the group in the same order, because all of them construct
the processor, and nothing here depends on what a rank finds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.parallel_state import get_tp_group, in_the_same_node_as
from vllm.utils.network_utils import get_ip

from maskfeed_workers.star import Exchange

__all__ = ["Place", "find_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """One rank among those that sample the same requests.

    `broadcast` returns rank 0's argument on every rank; every rank must call it, in the same order. While the engine
    serves it is called in the decode thread only: it is the engine's own queue.
    """

    rank: int
    size: int
    broadcast: Callable[[Any], Any]
    # how the feeds of the ranks connect; None for one rank
    exchange: Exchange | None


def find_place() -> Place:
    """This process's place. Called once by every rank, after the engine has connected them."""
    group = get_tp_group()
    if group.world_size == 1:
        return Place(0, 1, lambda said: said, None)

    def broadcast(said: Any) -> Any:
        return group.broadcast_object(said, src=0)

    # A host is who shares memory: containers with one host name may not, and only TCP connects them.
    on_one_host = all(in_the_same_node_as(group.cpu_group, source_rank=0))
    exchange = Exchange(broadcast, None if on_one_host else get_ip())
    return Place(group.rank_in_group, group.world_size, broadcast, exchange)
