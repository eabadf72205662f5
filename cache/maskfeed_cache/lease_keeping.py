"""A lease for as long as its holder computes: renewed every third of its life, and ended in one of three ways.

It knows no computation. Invariant: whoever leaves without a commit has ended the lease, or cannot reach the index, and
then the lease ends by itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from maskfeed_automata.errors import CapacityError, RequestError, StoreUnavailable
from maskfeed_cache.clock import Clock, pause
from maskfeed_cache.failures import failure_of
from maskfeed_cache.fence import Lease
from maskfeed_cache.store import CacheIndex

__all__ = ["release", "remember", "renewed"]

_RENEWALS_PER_LIFE: Final = 3

_LOG = logging.getLogger("maskfeed.cache")


@asynccontextmanager
async def renewed(
    index: CacheIndex, lease: Lease, *, lease_ms: int, clock: Clock, on_loss: Callable[[], None]
) -> AsyncIterator[None]:
    """Renew the lease for the length of the block; `on_loss` is called once if it is lost, and the block goes on."""
    renewing = asyncio.create_task(_renew(index, lease, lease_ms, clock, on_loss))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        if not renewing.cancelled():
            renewing.result()


async def remember(index: CacheIndex, lease: Lease, error: RequestError, *, remember_ms: int) -> None:
    """End the lease with a failure that lies in its key. Never fails."""
    try:
        await index.fail(lease, failure_of(error), remember_ms=remember_ms)
    except (StoreUnavailable, CapacityError) as lost:
        # the failure itself is what the caller must hear of; others find it out for themselves
        _LOG.warning("event=failure-not-remembered reason=%r", lost.message)


async def release(index: CacheIndex, lease: Lease) -> None:
    """End the lease without a result. Never fails."""
    try:
        await index.release(lease)
    except (StoreUnavailable, CapacityError) as error:
        _LOG.warning("event=lease-not-released reason=%r", error.message)


async def _renew(index: CacheIndex, lease: Lease, lease_ms: int, clock: Clock, on_loss: Callable[[], None]) -> None:
    is_ours = True
    while is_ours:
        await pause(clock, lease_ms / 1000 / _RENEWALS_PER_LIFE)
        try:
            is_ours = await index.heartbeat(lease, lease_ms=lease_ms)
        except (StoreUnavailable, CapacityError) as error:
            # the lease may yet last until the next try; if not, the commit is refused
            _LOG.warning("event=lease-not-renewed reason=%r", error.message)
    on_loss()
