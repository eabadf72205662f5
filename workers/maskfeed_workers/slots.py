"""Which row of the batch is bound to which set, and how far it has walked.

Pure bookkeeping between the engine's batch updates and the batched walk of the core: no torch, no vLLM, no feed. Two
invariants. A row's state is a function of its set and its token history alone, so preemption, partial prefill, reuse
and moves can't leave anything behind. And trouble is sticky per row: a row that once saw an impossible token stays
refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskfeed_automata import Automaton, Batch, Vocabulary

__all__ = ["Constraint", "Refusal", "SlotTable", "Step"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A row bound to a set.

    `release` ends the slot's reference to the set; it is called exactly once, when the row lets go of it.
    """

    automaton: Automaton
    # of exactly these arrays, among all sets that this process meets
    name: str
    # ids that may end this request's answer: never empty, never text
    stop_token_ids: tuple[int, ...]
    # what the row permits once it is refused
    refusal: "Refusal"
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that must not answer: it permits only `token_ids` (the reserved id; offline, the stop ids)."""

    token_ids: tuple[int, ...]


@dataclass(slots=True)
class _Row:
    output_ids: Sequence[int]  # the engine's live list; only read
    refusal: Refusal
    constraint: Constraint | None  # None once the row is refused
    slot: int
    n_seen: int = 0
    last_seen: int = -1


@dataclass(frozen=True, slots=True)
class _Order:
    """The rows of a step, the same until one comes, goes, moves or is refused."""

    entries: Sequence[_Row]  # those that are not refused, by row
    rows: NDArray[np.int64]  # int64 [n]
    slots: NDArray[np.int32]  # int32 [n]
    one_each: NDArray[np.int64]  # int64 [n + 1]: pointers for one new token in each row
    even: Sequence[int]  # the same as a list
    refused: Sequence[tuple[int, Refusal]]


class Step(NamedTuple):
    """What one step permits.

    Arrays are valid until the next call. Rows not named are not ours and must not be touched.
    """

    # int64 [n]: batch rows that are masked; ascending
    rows: NDArray[np.int64]
    # int64 [n + 1]: row i permits token_ids[row_ptr[i] : row_ptr[i + 1]]
    row_ptr: NDArray[np.int64]
    # int32 [row_ptr[-1]]: not sorted
    token_ids: NDArray[np.int32]
    # rows to be written whole
    refused: Sequence[tuple[int, Refusal]]


class SlotTable:
    """Rows of one engine's batch.

    Args:
        vocabulary: of the masks.
        max_rows: the engine's max_num_seqs.
    """

    def __init__(self, vocabulary: Vocabulary, max_rows: int) -> None:
        self._batch = Batch(vocabulary, max_rows)
        self._free = list(range(max_rows - 1, -1, -1))
        self._rows: dict[int, _Row] = {}
        self._order: _Order | None = None
        self.n_refused_total = 0

    def __len__(self) -> int:
        """How many rows are ours, refused ones included."""
        return len(self._rows)

    def add(self, row: int, verdict: Constraint | Refusal, output_ids: Sequence[int]) -> None:
        """Bind `row`, whatever it held before.

        Args:
            row: batch index.
            verdict: the set, or a refusal.
            output_ids: the engine's live list of the request's output ids; it holds tokens already after preemption.
        """
        self.remove(row)
        self._order = None
        if isinstance(verdict, Refusal):
            self.n_refused_total += 1
            self._rows[row] = _Row(output_ids, verdict, None, -1)
            return
        slot = self._free.pop()
        self._batch.start(slot, verdict.automaton, verdict.stop_token_ids)
        self._rows[row] = _Row(output_ids, verdict.refusal, verdict, slot)

    def remove(self, row: int) -> None:
        """Forget `row`. A row that is not ours is no error: the engine names every row that leaves."""
        entry = self._rows.pop(row, None)
        if entry is not None:
            self._order = None
            self._let_go(entry)

    def move(self, source: int, target: int, *, swap: bool) -> None:
        """Move `source` to `target`, or exchange both. What `target` held is forgotten unless swapped."""
        self._order = None
        moving = self._rows.pop(source, None)
        displaced = self._rows.pop(target, None)
        if moving is not None:
            self._rows[target] = moving
        if displaced is not None:
            if swap:
                self._rows[source] = displaced
            else:
                self._let_go(displaced)

    def clear(self) -> None:
        """Forget every row."""
        for row in list(self._rows):
            self.remove(row)

    def step(self) -> Step:
        """Advance every row by the tokens that its list has gained, and say what each permits now."""
        order = self._order or self._put_in_order()
        tokens: list[int] = []
        ends = [0]
        for entry in order.entries:
            tokens += self._new_tokens(entry)
            ends.append(len(tokens))
        ptr = order.one_each if ends == order.even else np.array(ends, np.int64)
        made = self._batch.step(order.slots, ptr, np.array(tokens, np.int32))
        if not np.count_nonzero(made.failed):
            return Step(order.rows, made.row_ptr, made.token_ids, order.refused)
        for i in np.flatnonzero(made.failed):
            self._refuse(order.entries[int(i)])
        kept = np.flatnonzero(~made.failed)
        # A failed row is empty, so the pointers of the others stay right when it is left out.
        row_ptr = np.append(made.row_ptr[:-1][kept], made.row_ptr[-1])
        return Step(order.rows[kept], row_ptr, made.token_ids, self._put_in_order().refused)

    def _put_in_order(self) -> _Order:
        live = sorted((row, entry) for row, entry in self._rows.items() if entry.constraint is not None)
        self._order = _Order(
            entries=[entry for _, entry in live],
            rows=np.array([row for row, _ in live], np.int64),
            slots=np.array([entry.slot for _, entry in live], np.int32),
            one_each=np.arange(len(live) + 1),
            even=list(range(len(live) + 1)),
            refused=[(row, entry.refusal) for row, entry in self._rows.items() if entry.constraint is None],
        )
        return self._order

    def _new_tokens(self, entry: _Row) -> Sequence[int]:
        ids, seen = entry.output_ids, entry.n_seen
        if len(ids) < seen or (seen and ids[seen - 1] != entry.last_seen):
            # The engine took tokens back: begin again from the history that it has now.
            constraint = entry.constraint
            assert constraint is not None
            self._batch.start(entry.slot, constraint.automaton, constraint.stop_token_ids)
            seen = entry.n_seen = 0
        new = ids[seen:]
        if new:
            entry.n_seen, entry.last_seen = seen + len(new), new[-1]
        return new

    def _refuse(self, entry: _Row) -> None:
        self.n_refused_total += 1
        self._let_go(entry)

    def _let_go(self, entry: _Row) -> None:
        if entry.constraint is None:
            return
        self._batch.clear(entry.slot)
        self._free.append(entry.slot)
        entry.constraint.release()
        entry.constraint, entry.slot = None, -1
