"""Who gets the next free thread of which actor.

It knows how loaded actors are and what they hold, and nothing of Ray. Invariants: those who wait are served in order
of asking; a thread that was given to somebody who left in the same moment goes to the next. For one event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from maskfeed_automata.errors import CompileFailed

__all__ = ["Places", "Seat"]


class Seat(Protocol):
    """An actor, as far as it matters here."""

    # jobs that were given to it from here
    in_flight: int

    @property
    def is_warm(self) -> bool:
        """Whether it takes work."""
        ...

    @property
    def failure(self) -> CompileFailed | None:
        """Why it will not take any, if that is known."""
        ...

    def holds(self, fingerprint: str) -> bool:
        """Whether it has the vocabulary in memory."""
        ...


S = TypeVar("S", bound=Seat)


@dataclass(slots=True, eq=False)
class _Waiter(Generic[S]):
    fingerprint: str
    granted: asyncio.Future[S]


class Places(Generic[S]):
    """The free threads of all actors, and those who wait for one.

    Args:
        seats: the actors; borrowed, and may grow before the first use.
        n_threads: of each.
    """

    def __init__(self, seats: Sequence[S], n_threads: int) -> None:
        self._seats = seats
        self._n_threads = n_threads
        self._waiters: deque[_Waiter[S]] = deque()

    @asynccontextmanager
    async def take(self, fingerprint: str) -> AsyncIterator[S]:
        """Have a thread of a warm actor for the length of the block: of one that has the vocabulary, if one is free.

        Raises:
            CompileFailed: no actor takes work, and each has said why.
        """
        waiter = _Waiter[S](fingerprint, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self.hand_out()
        try:
            yield await waiter.granted
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
                # given, also where the waiter was cancelled in the same moment
                waiter.granted.result().in_flight -= 1
                self.hand_out()

    def hand_out(self) -> None:
        """Give free threads to those who wait. Call it when an actor has become warm, or is known not to."""
        while self._waiters:
            waiter = self._waiters[0]
            seat, failure = self._best(waiter.fingerprint), self._failure()
            if waiter.granted.done():
                # cancelled, and not come round yet to leave the line itself
                self._waiters.popleft()
            elif seat is not None:
                seat.in_flight += 1
                self._waiters.popleft().granted.set_result(seat)
            elif failure is not None:
                self._waiters.popleft().granted.set_exception(failure)
            else:
                return

    def _best(self, fingerprint: str) -> S | None:
        """Of the warm actors with a free thread the one that has the vocabulary; of several, the least loaded."""
        free = [seat for seat in self._seats if seat.is_warm and seat.in_flight < self._n_threads]
        return min(free, key=lambda seat: (not seat.holds(fingerprint), seat.in_flight), default=None)

    def _failure(self) -> CompileFailed | None:
        """Why no actor will take work, if none does."""
        failures = [seat.failure for seat in self._seats]
        if not failures or any(failure is None for failure in failures):
            return None
        first = failures[0]
        assert first is not None
        return CompileFailed(first.message, **first.context)
