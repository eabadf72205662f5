"""A clock that stands still until a test moves it, and a way to let every ready task run."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Implements `maskfeed_cache.clock.Clock`."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._planned: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object], /) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._planned, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, calling what falls due in order."""
        end = self._now + seconds
        while self._planned and self._planned[0][0] <= end:
            when, _, timer = heapq.heappop(self._planned)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = end

    @property
    def n_planned(self) -> int:
        """Calls that are still to come."""
        return sum(timer.callback is not None for _, _, timer in self._planned)


async def settle() -> None:
    """Let every task run until it waits for something that only the test can bring about."""
    for _ in range(50):
        await asyncio.sleep(0)
