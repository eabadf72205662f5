"""The Ray cluster that a process belongs to, joins or starts, and how many compilers fit on it.

It knows addresses and resources; it knows no compiler. Invariant: a cluster that was not started or joined here is
left as it was found.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import ray

from maskfeed_automata.errors import ParameterError

__all__ = ["NAMESPACE", "address_of_cluster", "check_address", "cluster_cpus", "joined_cluster", "pool_size"]

# Actors are found by name in it, whatever namespace the process's own job has.
NAMESPACE: Final = "maskfeed"

# Large candidate lists on their way to an actor lie in the object store; the largest has 64 MiB.
_LOCAL_OBJECT_STORE_BYTES: Final = 512 * 1024 * 1024
# more than any job has that is not put there
_INLINE_BYTES: Final = 2 * 1024 * 1024
_ANSWER_S: Final = 5.0
_CPUS_PER_ACTOR: Final = 4
_MAX_ACTORS: Final = 16


@contextmanager
def joined_cluster(address: str | None = None) -> Iterator[None]:
    """Be connected to a Ray cluster inside the block.

    A process that is connected already (a Serve replica, an actor, a caller's own `ray.init`) stays as it is. Otherwise
    the cluster at `address`, else at RAY_ADDRESS, is joined; without either, one is started on this machine, which ends
    with the block, and also with the calling thread. Blocks for seconds.

    Raises:
        ParameterError: no cluster at the address.
    """
    if ray.is_initialized():
        yield
        return
    with _own_signal_handlers():
        _connect(address_of_cluster(address))
    try:
        yield
    finally:
        ray.shutdown()


def address_of_cluster(address: str | None) -> str | None:
    """Of the cluster that `joined_cluster` would join; None if it would start one."""
    return address or os.environ.get("RAY_ADDRESS") or None


def check_address(address: str) -> None:
    """Return if something listens at the address: Ray itself would try for a minute. `auto` is taken as it is.

    Raises:
        ParameterError: nothing listens there.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address) from error


def cluster_cpus() -> float:
    """CPUs of all nodes of the connected cluster, whoever uses them."""
    return float(ray.cluster_resources().get("CPU", 0))


def pool_size(n_cpus: float) -> int:
    """How many compile actors a cluster gets: one for every four of its CPUs, at least 1, at most 16.

    Each reserves one CPU. A set of 10,000 candidates takes an actor a few milliseconds, so a quarter of the CPUs is
    plenty, and the rest stays free for what else runs there.
    """
    return min(_MAX_ACTORS, max(1, int(n_cpus) // _CPUS_PER_ACTOR))


def _connect(address: str | None) -> None:
    # Read by this process only: how long a call to an actor that has died waits to hear why, and up to which size
    # (bytes) arguments travel with a call. Beyond it they take the way through the object store, which costs a
    # millisecond more; lists that are worth that go there by themselves.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "100")
    os.environ.setdefault("RAY_max_direct_call_object_size", str(_INLINE_BYTES))
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", include_dashboard=False, object_store_memory=_LOCAL_OBJECT_STORE_BYTES, **options)
        return
    check_address(address)
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        # another release of Ray or Python there, or no node of the cluster on this machine
        raise ParameterError(f"the Ray cluster at {address} can't be joined: {error}", field="ray_address") from error


def _no_cluster(address: str) -> ParameterError:
    return ParameterError(f"no Ray cluster answers at {address}", field="ray_address")


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, in whose place Ray puts one that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
