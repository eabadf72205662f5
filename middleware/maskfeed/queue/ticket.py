"""One constrained request on its way: its state, its stage, its deadline, and the time each stage took.

A ticket does no work and knows neither HTTP nor engines. Invariants: the state moves only along `_NEXT`, an end state
is final, and a deadline that passes is reported with the stage in which it passed.

    received ── hit ─────────────────────────────┐
       └────── miss ─▶ queued ─▶ compiling ─▶ committed ─▶ ready ─▶ dispatched ─▶ done
    from every state before done: failed(code, stage) | expired(stage) | cancelled
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Final, Protocol

from maskfeed_automata.errors import DeadlineExceeded, InternalInvariant, MaskfeedError

__all__ = ["END_STATES", "Clock", "Stage", "State", "Ticket", "Timer"]


class State(StrEnum):
    """What is true of a request. The last four are ends."""

    RECEIVED = "received"
    QUEUED = "queued"
    COMPILING = "compiling"
    COMMITTED = "committed"
    READY = "ready"
    DISPATCHED = "dispatched"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Stage(StrEnum):
    """What a request is waiting for. The name that errors and metrics carry."""

    PARSE = "parse"
    LOOKUP = "lookup"
    QUEUE = "queue"
    COMPILE = "compile"
    COMMIT = "commit"
    READY = "ready"
    GENERATE = "generate"


END_STATES: Final = frozenset({State.DONE, State.FAILED, State.EXPIRED, State.CANCELLED})

_NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.RECEIVED: frozenset({State.QUEUED, State.READY}),
    State.QUEUED: frozenset({State.COMPILING}),
    State.COMPILING: frozenset({State.COMMITTED}),
    State.COMMITTED: frozenset({State.READY}),
    State.READY: frozenset({State.DISPATCHED}),
    State.DISPATCHED: frozenset({State.DONE}),
}


class Timer(Protocol):
    """A call that is planned and can be called off."""

    def cancel(self) -> None:
        """Call it off. Harmless when it has happened."""
        ...


class Clock(Protocol):
    """Seconds from any fixed instant, never going back, and calls at an instant. An asyncio loop is one."""

    def time(self) -> float:
        """Now, in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Plan `callback` for the instant `when`, on the event loop's thread."""
        ...


class Ticket:
    """The progress of one request.

    Args:
        clock: shared; decides when the deadline has passed.
        received_at: the clock's reading when the request came.
        deadline_ms: milliseconds from then within which the set must be ready.
        observe: called with the ticket after each move, ends included; must not raise.
    """

    __slots__ = ("_clock", "_due", "_observe", "_seconds", "deadline_ms", "failure", "stage", "state")

    def __init__(
        self,
        clock: Clock,
        *,
        received_at: float,
        deadline_ms: int,
        observe: Callable[["Ticket"], None] = lambda ticket: None,
    ) -> None:
        self.state = State.RECEIVED
        self.stage = Stage.PARSE
        self.deadline_ms = deadline_ms
        # the stable code of the error that ended it
        self.failure: str | None = None
        self._clock = clock
        self._due = received_at + deadline_ms / 1000
        self._observe = observe
        self._seconds: dict[Stage, float] = {}

    def move(self, state: State) -> None:
        """Enter `state`.

        Raises:
            InternalInvariant: no way leads there from the present state.
        """
        ends_early = state in END_STATES - {State.DONE} and self.state not in END_STATES
        if not ends_early and state not in _NEXT.get(self.state, frozenset()):
            raise InternalInvariant(f"a ticket can't go from {self.state} to {state}", stage=self.stage)
        self.state = state
        self._observe(self)

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Be in `stage` for the length of the block. Times of one stage add up. The stage stays named afterwards."""
        self.stage = stage
        start = self._clock.time()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + self._clock.time() - start

    def rebook(self, seconds: float, source: Stage, target: Stage) -> None:
        """Count `seconds` that were measured in `source` as time of `target`."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def milliseconds(self, stage: Stage) -> float:
        """Time spent in `stage` so far; 0.0 if it was not entered."""
        return self._seconds.get(stage, 0.0) * 1000

    def seconds_by_stage(self) -> Mapping[Stage, float]:
        """Time spent in each stage that was entered and left."""
        return self._seconds

    @asynccontextmanager
    async def within_deadline(self) -> AsyncIterator[None]:
        """Cancel the block when the deadline passes, wherever it waits.

        Raises:
            DeadlineExceeded: it passed. Context: `stage` (where the block was), `limit_ms`.
        """
        task = asyncio.current_task()
        assert task is not None
        already_cancelling = task.cancelling()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            task.cancel()

        timer = self._clock.call_at(self._due, expire)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            # a client that leaves in the same instant has cancelled too, and that wins
            if expired and task.uncancel() <= already_cancelling:
                raise DeadlineExceeded(
                    f"not done within {self.deadline_ms} ms (stage: {self.stage})",
                    stage=self.stage,
                    limit_ms=self.deadline_ms,
                ) from cancelled
            raise
        finally:
            timer.cancel()

    @contextmanager
    def followed_to_its_end(self) -> Iterator[None]:
        """Record how the block ends: done, expired, cancelled (the client left) or failed. Exceptions go on.

        A block that has called `fail` itself has ended already.
        """
        try:
            yield
        except DeadlineExceeded as error:
            self._end(State.EXPIRED, error.code)
            raise
        except MaskfeedError as error:
            self.fail(error.code)
            raise
        except (asyncio.CancelledError, ConnectionError):
            self._end(State.CANCELLED, None)
            raise
        except BaseException:
            self.fail(InternalInvariant.code)
            raise
        if self.state is State.DISPATCHED:
            self.move(State.DONE)

    def fail(self, code: str) -> None:
        """End as failed, for a failure that is told to the client inside the answer. Nothing if it has ended."""
        self._end(State.FAILED, code)

    def _end(self, state: State, failure: str | None) -> None:
        if self.state not in END_STATES:
            self.failure = failure
            self.move(state)
