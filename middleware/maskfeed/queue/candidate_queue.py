"""The line in front of the compilers: bounded, first in first out, event-driven.

It knows tickets, not what a compile is. Invariants: at most `parallelism` places are held at once; a freed place goes
to the ticket that has waited longest; a waiter that is cancelled leaves no place behind and takes none with it.
For one event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from maskfeed.queue.ticket import Stage, State, Ticket
from maskfeed_automata.errors import CapacityError

__all__ = ["CandidateQueue"]


class CandidateQueue:
    """Places at the compilers, and the tickets that wait for one.

    Args:
        parallelism: places; at least 1.
        limit: tickets that may wait; 0 means that a place must be free at once.
    """

    def __init__(self, *, parallelism: int, limit: int) -> None:
        self._parallelism = parallelism
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Tickets that wait for a place."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Places that are held."""
        return self._taken

    @asynccontextmanager
    async def place(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait in line, then hold a place for the length of the block. The ticket becomes queued, then compiling.

        Raises:
            CapacityError: the line is full. Context: `limit`, `value`, `stage`, `retry_after_s`.
        """
        with ticket.measure(Stage.QUEUE):
            await self._enter(ticket)
        try:
            ticket.move(State.COMPILING)
            yield
        finally:
            self._leave()

    async def _enter(self, ticket: Ticket) -> None:
        must_wait = self._taken >= self._parallelism
        if must_wait and len(self._waiting) >= self._limit:
            raise CapacityError(
                f"{len(self._waiting)} requests wait for a compiler already; the limit is {self._limit}",
                limit=self._limit,
                value=len(self._waiting),
                stage=Stage.QUEUE,
                retry_after_s=1,
            )
        ticket.move(State.QUEUED)
        if not must_wait:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                # the place was handed over in the instant of the cancellation; it goes to the next in line
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
