"""The line in front of the compilers: bounded, fair between sizes and between tenants, event-driven.

It knows sizes and tenants, not what a compile is. Two lanes, each first in, first out: small sets (at most
`SMALL_BYTES`) and big ones. The rule for a free place:

- it goes to the small lane, unless `PATIENCE` small sets in a row were let pass since a big one began to wait; then it
  goes to the big lane;
- of several places one is kept from big sets, so a small one never stands behind big ones only.

Invariants: at most `parallelism` places are held at once; no place stays free that somebody may take; of any
`PATIENCE + 1` places in a row that a waiting big set could take, a big set takes one, so the k-th big set in line waits
for at most `k * (PATIENCE + 1)` of them; a waiter that is cancelled leaves no place behind and takes none with it. For
one event loop.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from maskfeed.queue.ticket import DEFAULT_TENANT, Stage
from maskfeed_automata.errors import CapacityError

__all__ = ["PATIENCE", "SMALL_BYTES", "CandidateQueue"]

# Compiles in about 10 ms: 20,000 names of 13 bytes. A set of the largest size takes a hundred times as long.
SMALL_BYTES: Final = 256 * 1024
# Small sets that a big one lets pass: then it has waited for about as long as it takes itself.
PATIENCE: Final = 8

_RETRY_AFTER_S: Final = 1


@dataclass(eq=False, slots=True)
class _Waiter:
    """One set in line."""

    is_small: bool
    tenant: str
    turn: asyncio.Future[None]


class CandidateQueue:
    """Places at the compilers, and the sets that wait for one.

    Args:
        parallelism: places; at least 1.
        limit: sets that may wait; 0 means that a place must be free at once.
        tenant_limit: sets of one tenant that may wait; None for as many as may wait at all.
    """

    def __init__(self, *, parallelism: int, limit: int, tenant_limit: int | None = None) -> None:
        self._parallelism = parallelism
        self._big_limit = max(1, parallelism - 1)
        self._limit = limit
        self._tenant_limit = limit if tenant_limit is None else tenant_limit
        self._small_taken = 0
        self._big_taken = 0
        self._small: OrderedDict[_Waiter, None] = OrderedDict()
        self._big: OrderedDict[_Waiter, None] = OrderedDict()
        self._waiting_of: Counter[str] = Counter()
        # small sets that got a place since a big one did, while a big one waited
        self._passed = 0

    @property
    def waiting(self) -> int:
        """Sets that wait for a place."""
        return len(self._small) + len(self._big)

    @property
    def taken(self) -> int:
        """Places that are held."""
        return self._small_taken + self._big_taken

    @asynccontextmanager
    async def place(self, *, size_bytes: int, tenant: str = DEFAULT_TENANT) -> AsyncIterator[None]:
        """Wait in line, then hold a place for the length of the block.

        Args:
            size_bytes: of all candidates together.
            tenant: on whose behalf; counts against his share of the line.

        Raises:
            CapacityError: the line is full, or the tenant's share of it. Context: `limit`, `value`, `stage`,
                `retry_after_s`.
        """
        waiter = _Waiter(size_bytes <= SMALL_BYTES, tenant, asyncio.get_running_loop().create_future())
        self._line_up(waiter)
        try:
            await waiter.turn
            yield
        finally:
            self._leave(waiter)

    def _line_up(self, waiter: _Waiter) -> None:
        lane = self._small if waiter.is_small else self._big
        lane[waiter] = None
        self._waiting_of[waiter.tenant] += 1
        self._hand_out()
        if waiter.turn.done():
            return
        for value, limit, whose in (
            (self.waiting, self._limit, "sets wait"),
            (self._waiting_of[waiter.tenant], self._tenant_limit, "sets of this tenant wait"),
        ):
            if value > limit:
                self._step_out(waiter)
                raise CapacityError(
                    f"{limit} {whose} for a compiler already, and no more may",
                    limit=limit,
                    value=value - 1,
                    stage=Stage.QUEUE,
                    retry_after_s=_RETRY_AFTER_S,
                )

    def _leave(self, waiter: _Waiter) -> None:
        """Of whoever has a place, waits for one, or was given one in the instant of his cancellation."""
        if waiter in self._small or waiter in self._big:
            self._step_out(waiter)
        elif waiter.is_small:
            self._small_taken -= 1
        else:
            self._big_taken -= 1
        self._hand_out()

    def _step_out(self, waiter: _Waiter) -> None:
        del (self._small if waiter.is_small else self._big)[waiter]
        self._waiting_of[waiter.tenant] -= 1
        if not self._waiting_of[waiter.tenant]:
            del self._waiting_of[waiter.tenant]
        if not self._big:
            self._passed = 0

    def _hand_out(self) -> None:
        while self.taken < self._parallelism and (waiter := self._next()) is not None:
            if waiter.is_small:
                self._small_taken += 1
                self._passed += bool(self._big)
            else:
                self._big_taken += 1
                self._passed = 0
            self._step_out(waiter)
            # who was cancelled in this instant gives his place on as he leaves
            if not waiter.turn.done():
                waiter.turn.set_result(None)

    def _next(self) -> _Waiter | None:
        big_may = bool(self._big) and self._big_taken < self._big_limit
        if self._small and not (big_may and self._passed >= PATIENCE):
            return next(iter(self._small))
        return next(iter(self._big)) if big_may else None
