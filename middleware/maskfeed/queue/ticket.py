"""One constrained request on its way: its state, its stage, its deadlines, and the time each stage took.

A ticket does no work and knows neither HTTP nor engines. Invariants: the state moves only along `_NEXT`, an end state
is final, the times of the stages add up to the time since receipt, and a deadline that passes is reported with the
stage in which it passed.

    received ── hit ──────────────────────────────────────────────▶ ready ─▶ dispatched ─▶ done
       ├─────── miss ─▶ queued ─▶ compiling ─▶ committed ────────────▲  │
       └─ another gateway's ─▶ waiting ───────────▲  └── lost since ────┘
                                 └─▶ queued (the other one has died)
    from every state before done: failed(code, stage) | expired(stage) | cancelled

Requests that share one compile move together; who joins late enters where the others are.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from maskfeed_automata.errors import DeadlineExceeded, InternalInvariant, MaskfeedError
from maskfeed_cache.clock import Clock, Timer

__all__ = ["DEFAULT_TENANT", "END_STATES", "Stage", "State", "Ticket"]

# of requests without a bearer token
DEFAULT_TENANT: Final = "default"


class State(StrEnum):
    """What is true of a request. The last four are ends."""

    RECEIVED = "received"
    WAITING = "waiting"
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
    # for another gateway, which compiles the set
    WAIT = "wait"
    QUEUE = "queue"
    COMPILE = "compile"
    COMMIT = "commit"
    READY = "ready"
    GENERATE = "generate"


END_STATES: Final = frozenset({State.DONE, State.FAILED, State.EXPIRED, State.CANCELLED})

_ON_THE_WAY: Final = frozenset({State.WAITING, State.QUEUED, State.COMPILING, State.COMMITTED})
_NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.RECEIVED: _ON_THE_WAY | {State.READY},
    State.WAITING: frozenset({State.QUEUED, State.COMMITTED}),
    State.QUEUED: frozenset({State.COMPILING}),
    State.COMPILING: frozenset({State.COMMITTED}),
    State.COMMITTED: _ON_THE_WAY - {State.COMMITTED} | {State.READY},
    State.READY: frozenset({State.DISPATCHED}),
    State.DISPATCHED: frozenset({State.DONE}),
}
# stages that say by themselves what is true of the request
_STATE_IN: Final[Mapping[Stage, State]] = {
    Stage.WAIT: State.WAITING,
    Stage.QUEUE: State.QUEUED,
    Stage.COMPILE: State.COMPILING,
}


class Ticket:
    """The progress of one request.

    Args:
        clock: shared; decides when a deadline has passed.
        received_at: the clock's reading when the request came.
        deadline_ms: milliseconds from then within which the set must be ready.
        stage_limits_ms: longest stay in a stage at one go, for those that have a limit of their own.
        tenant: whose request it is.
        observe: called with the ticket after each move, ends included; must not raise.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_entered_at",
        "_expire",
        "_observe",
        "_seconds",
        "_stage_limits_ms",
        "_timer",
        "deadline_ms",
        "failure",
        "stage",
        "state",
        "tenant",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        received_at: float,
        deadline_ms: int,
        stage_limits_ms: Mapping[Stage, int] = MappingProxyType({}),
        tenant: str = DEFAULT_TENANT,
        observe: Callable[["Ticket"], None] = lambda ticket: None,
    ) -> None:
        self.state = State.RECEIVED
        self.stage = Stage.PARSE
        self.deadline_ms = deadline_ms
        self.tenant = tenant
        # the stable code of the error that ended it
        self.failure: str | None = None
        self._clock = clock
        self._due = received_at + deadline_ms / 1000
        self._stage_limits_ms = stage_limits_ms
        self._observe = observe
        self._entered_at = received_at
        self._seconds: dict[Stage, float] = {}
        # while a deadline is watched
        self._expire: Callable[[], None] | None = None
        self._timer: Timer | None = None

    def move(self, state: State) -> None:
        """Enter `state`.

        Raises:
            InternalInvariant: no way leads there from the present state.
        """
        ends_early = state in END_STATES - {State.DONE} and self.state not in END_STATES
        if not ends_early and state not in _NEXT.get(self.state, frozenset()):
            raise InternalInvariant(f"a ticket can't go from {self.state} to {state}", stage=self.stage)
        self.state = state
        if state in END_STATES:
            self._book(self._clock.time())
        self._observe(self)

    def enter(self, stage: Stage, since_s: float = 0.0) -> None:
        """Be in `stage` from now on, or since so many seconds, at most since the last stage began.

        Waiting, queueing and compiling are states, too, and entered with their stage.

        Raises:
            InternalInvariant: no way leads there from the present state.
        """
        if stage is self.stage:
            return
        self._book(max(self._entered_at, self._clock.time() - since_s))
        self.stage = stage
        state = _STATE_IN.get(stage, self.state)
        if state is not self.state:
            self.move(state)
        self._plan()

    def milliseconds(self, stage: Stage) -> float:
        """Time spent in `stage`, until now if it goes on; 0.0 if it was not entered."""
        goes_on = stage is self.stage and self.state not in END_STATES
        running_s = self._clock.time() - self._entered_at if goes_on else 0.0
        return (self._seconds.get(stage, 0.0) + running_s) * 1000

    def seconds_by_stage(self) -> Mapping[Stage, float]:
        """Time spent in each stage that was entered and left."""
        return self._seconds

    @asynccontextmanager
    async def within_deadline(self) -> AsyncIterator[None]:
        """Cancel the block, wherever it waits, when the request's deadline passes or that of its stage.

        Raises:
            DeadlineExceeded: it passed. Context: `stage` (where the block was), `limit_ms` (of the one that passed).
        """
        task = asyncio.current_task()
        assert task is not None
        already_cancelling = task.cancelling()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            task.cancel()

        self._expire = expire
        self._plan()
        try:
            yield
        except asyncio.CancelledError as cancelled:
            # a client that leaves in the same instant has cancelled too, and that wins
            if expired and task.uncancel() <= already_cancelling:
                raise self._lateness() from cancelled
            raise
        finally:
            self._expire = None
            self._plan()

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
            # a defect; it goes on to whoever logs it, and the request counts as failed
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

    def _book(self, until: float) -> None:
        self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + until - self._entered_at
        self._entered_at = until

    def _stage_due(self) -> float:
        limit_ms = self._stage_limits_ms.get(self.stage)
        return float("inf") if limit_ms is None else self._entered_at + limit_ms / 1000

    def _plan(self) -> None:
        """Plan the next deadline anew, if one is watched."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expire is not None:
            self._timer = self._clock.call_at(min(self._due, self._stage_due()), self._expire)

    def _lateness(self) -> DeadlineExceeded:
        if self._stage_due() < self._due:
            limit_ms = self._stage_limits_ms[self.stage]
            message = f"the stage {self.stage} was not over within {limit_ms} ms"
        else:
            limit_ms = self.deadline_ms
            message = f"not done within {limit_ms} ms (stage: {self.stage})"
        return DeadlineExceeded(message, stage=self.stage, limit_ms=limit_ms)
