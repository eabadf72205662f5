"""One process's ear at its index: the news, read once for all who need them, and the sweeping of blobs.

It knows who listens, and not what they make of the news. Invariant: a reader that stopped for a defect is never taken
for one that has nothing to tell.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Never

from maskfeed_automata.errors import InternalInvariant
from maskfeed_cache.clock import Clock
from maskfeed_cache.fence import News
from maskfeed_cache.store import CacheIndex
from maskfeed_cache.sweeping import keep_sweeping

__all__ = ["IndexFollower"]

_SWEEP_EVERY_S: Final = 30.0

_LOG = logging.getLogger("maskfeed.cache")


class IndexFollower:
    """For one event loop.

    Args:
        index: borrowed; closed by whoever made it.
        clock: for waits; an asyncio loop is one.
        sweep_every_s: how often blobs that nothing refers to are looked for.
    """

    def __init__(self, index: CacheIndex, *, clock: Clock, sweep_every_s: float = _SWEEP_EVERY_S) -> None:
        self.index = index
        self._clock = clock
        self._sweep_every_s = sweep_every_s
        self._listeners: list[Callable[[News], None]] = []
        self._sweep_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._defect: BaseException | None = None

    def subscribe(self, take: Callable[[News], None]) -> None:
        """Have `take` called with all news from here on; it must not raise."""
        self._listeners.append(take)

    def start(self) -> None:
        """Begin to read and to sweep. Call once."""
        sweeping = keep_sweeping(self.index, self._clock, wanted=self._sweep_wanted, every_s=self._sweep_every_s)
        for work in (self._follow(), sweeping):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._stopped)
            self._tasks.append(task)

    def want_sweep(self) -> None:
        """Sweep soon."""
        self._sweep_wanted.set()

    def check(self) -> None:
        """Return unless the news are no longer read.

        Raises:
            InternalInvariant: they are not, because of a defect.
        """
        if self._defect is not None:
            raise InternalInvariant("the cache no longer follows its index") from self._defect

    async def close(self) -> None:
        """Stop. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _follow(self) -> Never:
        async for news in self.index.news():
            for take in self._listeners:
                take(news)
        raise InternalInvariant("the index's news ended")

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._defect = task.exception()
            _LOG.error("event=cache-follower-stopped", exc_info=self._defect)
