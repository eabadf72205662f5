"""Blobs that nothing refers to any more, deleted in the background in small steps. It decides when, the index what."""

import asyncio
import logging
from typing import Final, Never

from maskfeed_automata.errors import CapacityError, StoreUnavailable
from maskfeed_cache.clock import Clock, pause, wait_until
from maskfeed_cache.store import CacheIndex

__all__ = ["keep_sweeping"]

# A sweep is wanted in the middle of somebody's request, and often by many at once.
_SETTLE_S: Final = 0.1

_LOG = logging.getLogger("maskfeed.cache")


async def keep_sweeping(index: CacheIndex, clock: Clock, *, wanted: asyncio.Event, every_s: float) -> Never:
    """Sweep now, a moment after `wanted` is set (once for all who set it meanwhile), and every `every_s` seconds."""
    while True:
        wanted.clear()
        try:
            # each step is bounded, and others are served between two
            while await index.sweep():
                continue
        except (StoreUnavailable, CapacityError) as error:
            # what is left now is found the next time
            _LOG.warning("event=sweep-failed reason=%r", error.message)
        await wait_until(wanted, clock, every_s)
        await pause(clock, _SETTLE_S)
