"""One way to one result that callers of a process share: who is on board, where it is, and when it is given up.

It knows no index and no computation. Invariants: a caller that leaves hurts nobody else on board; when the last one
leaves, the flight ends at its next wait, but never inside a call to the index, whose outcome would then be unknown; who
comes on board late is told where the flight is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from maskfeed_automata.errors import InternalInvariant, MaskfeedError
from maskfeed_cache.fence import Fence, IndexEntry, Pin

__all__ = ["Compute", "Flight", "Found", "Passenger", "Report", "Source", "Step"]


class Source(StrEnum):
    """Where a caller's result came from."""

    # it was there
    HIT = "hit"
    # this caller's own computation made it
    COMPILED = "compiled"
    # somebody else's did, here or in another process, while this caller waited
    WAITED = "waited"


@dataclass(frozen=True, slots=True)
class Found:
    """A result. `fence` is the generation that it belongs to, which may be over."""

    entry: IndexEntry
    fence: Fence
    source: Source


class Step(StrEnum):
    """Where a flight is, as far as the cache knows; a computation names steps of its own before COMMIT."""

    LOOKUP = "lookup"
    WAIT = "wait"
    COMMIT = "commit"


class Report(Protocol):
    """Takes the steps of a flight as they come."""

    def __call__(self, step: str, since_s: float = 0.0, /) -> None:
        """The flight is in `step`, and has been for `since_s` seconds. Must not raise."""
        ...


# Makes the artifact, stores its blob, and tells in which step it is.
Compute = Callable[[Report], Awaitable[IndexEntry]]


class Passenger:
    """One caller on board.

    Args:
        report: told of every step.
        pin_ms: longest life of the pin that it wants; 0: none.
    """

    __slots__ = ("pin_ms", "report")

    def __init__(self, report: Report, pin_ms: int) -> None:
        self.report = report
        self.pin_ms = pin_ms


class Flight:
    """Begun by its first passenger. For one event loop.

    Args:
        key: of the result.
        compute: the first passenger's.
        replaces: an artifact that is no good although the index knows it; None for most.
        pin_token: of the one pin that all passengers share.
    """

    def __init__(self, key: str, compute: Compute, *, replaces: str | None, pin_token: str) -> None:
        self.key = key
        self.compute = compute
        self.replaces = replaces
        self.pin_token = pin_token
        # the index may have given us the pin
        self.is_pinned = False
        # the generation that the index last named; None: it has not answered yet
        self.fence: Fence | None = None
        # set when it may be worth asking the index again
        self.news = asyncio.Event()
        self._passengers: dict[Passenger, None] = {}
        self._leader: Passenger | None = None
        self._pin_ms = 0
        self._step: str | None = None
        self._task: asyncio.Task[Found] | None = None
        self._is_waiting = False
        self._is_abandoned = False

    def depart(self, work: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        """Start the task that carries the flight."""
        self._task = asyncio.get_running_loop().create_task(work)
        return self._task

    @property
    def is_empty(self) -> bool:
        """Nobody is on board."""
        return not self._passengers

    def board(self, passenger: Passenger) -> None:
        """Come on board."""
        self._leader = self._leader or passenger
        self._passengers[passenger] = None
        self._pin_ms = max(self._pin_ms, passenger.pin_ms)
        if self._step is not None:
            passenger.report(self._step)

    def leave(self, passenger: Passenger) -> None:
        """Leave. Who is last gives the flight up, unless it has ended."""
        del self._passengers[passenger]
        if self.is_empty:
            self.abandon()

    def abandon(self) -> None:
        """End at the next wait."""
        assert self._task is not None
        self._is_abandoned = True
        if self._is_waiting:
            self._task.cancel()

    def ask_for_pin(self) -> Pin | None:
        """The pin to ask the index for; None if nobody on board wants one."""
        if self._pin_ms == 0:
            return None
        self.is_pinned = True
        return Pin(self.pin_token, self._pin_ms)

    def tell(self, step: str, since_s: float = 0.0, /) -> None:
        """Tell everybody on board where the flight is. A `Report`."""
        self._step = step
        for passenger in self._passengers:
            passenger.report(step, since_s)

    async def result_for(self, passenger: Passenger) -> Found:
        """Wait for the end. Cancelling this wait does not touch the flight.

        Raises:
            Exception: what ended the flight; each passenger gets an object of his own.
        """
        assert self._task is not None
        await asyncio.wait({self._task})
        if self._task.cancelled():
            raise InternalInvariant("the cache was closed while a request waited")
        error = self._task.exception()
        if isinstance(error, MaskfeedError):
            # one object raised by many would gather a traceback from each
            raise type(error)(error.message, **error.context) from error.__cause__ or error
        found = self._task.result()
        if found.source is Source.COMPILED and passenger is not self._leader:
            return replace(found, source=Source.WAITED)
        return found

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Around what the flight's own task awaits and may be given up in."""
        if self._is_abandoned:
            raise asyncio.CancelledError
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
