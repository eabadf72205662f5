"""Many sequences at once: one kernel call advances all listed slots and lists what each permits.

A slot is a row of an engine's batch. State follows from the tokens a slot was given, nothing else; so a slot that is
started again and given its whole history is where it was. It knows nothing of engines, logits or devices, and belongs
to one thread. Invariants: a row that is not failed lists at least one id; a failed slot stays failed until it is
started again; memory that the address table points to is kept alive by the slot's automaton.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.errors import InternalInvariant, VocabularyMismatch
from maskfeed_automata.kernels import A_ROW_LENGTH, BOOL, I32, I64
from maskfeed_automata.step_kernels import BAD_SLOT, VACANT, step_slots
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["Batch", "Rows"]


class Rows(NamedTuple):
    """What the slots of a step permit, in the order they were listed. Views, valid until the batch's next step."""

    # int64 [n + 1]: ids of row i are token_ids[row_ptr[i] : row_ptr[i + 1]]
    row_ptr: I64
    # int32 [row_ptr[-1]]: in no particular order, none twice in a row
    token_ids: I32
    # bool [n]: the slot was given a token outside of its mask; its row is empty
    failed: BOOL


class Batch:
    """Slots 0 .. n_slots - 1 over automata of one vocabulary."""

    __slots__ = ("_automata", "_failed", "_out", "_positions", "_row_ptr", "_table", "vocabulary")

    def __init__(self, vocabulary: Vocabulary, n_slots: int) -> None:
        self.vocabulary = vocabulary
        self._automata: list[Automaton | None] = [None] * n_slots
        self._table = np.zeros((n_slots, A_ROW_LENGTH), np.int64)
        self._positions = np.full(n_slots, VACANT, np.int64)
        self._out = np.empty(1 << 16, np.int32)
        self._row_ptr = np.empty(n_slots + 1, np.int64)
        self._failed = np.empty(n_slots, np.bool_)

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return len(self._automata)

    def automaton(self, slot: int) -> Automaton | None:
        """The automaton in a slot, or None."""
        return self._automata[slot]

    def start(self, slot: int, automaton: Automaton, stop_token_ids: Iterable[int]) -> None:
        """Put a sequence without tokens into a slot, whatever was there.

        Args:
            slot: in [0, n_slots).
            automaton: kept alive until the slot is cleared or started again. Its own stop ids do not count.
            stop_token_ids: permitted where a candidate ends.

        Raises:
            VocabularyMismatch: the automaton is for another vocabulary.
            ParameterError: a stop id outside of the vocabulary.
        """
        if automaton.fingerprint != self.vocabulary.fingerprint:
            raise VocabularyMismatch(
                f"the automaton is for vocabulary {automaton.fingerprint}, not {self.vocabulary.fingerprint}",
                expected=self.vocabulary.fingerprint,
                found=automaton.fingerprint,
            )
        self._automata[slot] = automaton = automaton.with_stop_token_ids(stop_token_ids)
        self._table[slot] = automaton.row
        self._positions[slot] = 0

    def clear(self, slot: int) -> None:
        """Empty a slot; an empty slot stays empty."""
        self._automata[slot] = None
        self._table[slot] = 0
        self._positions[slot] = VACANT

    def move(self, source: int, target: int) -> None:
        """Move a sequence (or emptiness) to another slot, whatever was there; the source is empty afterwards."""
        if source != target:
            self._automata[target] = self._automata[source]
            self._table[target] = self._table[source]
            self._positions[target] = self._positions[source]
            self.clear(source)

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        self._automata[a], self._automata[b] = self._automata[b], self._automata[a]
        for array in (self._table, self._positions):
            array[[a, b]] = array[[b, a]]

    def step(self, slots: I32, new_tokens_ptr: I64, new_tokens: I32) -> Rows:
        """Advance slots by their new tokens and list what they permit.

        Args:
            slots: int32 [n], each started; C-contiguous, as the others.
            new_tokens_ptr: int64 [n + 1]; slot slots[i] takes new_tokens[new_tokens_ptr[i] : new_tokens_ptr[i + 1]].
            new_tokens: int32 [new_tokens_ptr[-1]]; an id outside of the mask (-1 for instance) fails the slot.

        Raises:
            InternalInvariant: a slot is out of range or empty, or the pointers do not fit; no slot has advanced.

        Cost: one kernel call; per row the ids that it lists and the bytes of its new tokens.
        """
        if slots.size > self._failed.size:
            raise InternalInvariant(f"{slots.size} slots are listed, of {self._failed.size}")
        row_ptr, failed = self._row_ptr[: slots.size + 1], self._failed[: slots.size]
        state = (self._table, self._positions, self.vocabulary.row, slots)
        n_ids = step_slots(*state, new_tokens_ptr, new_tokens, row_ptr, self._out, failed)
        if n_ids < 0:
            raise InternalInvariant(
                f"{slots.size} slots: one is out of range or empty"
                if n_ids == BAD_SLOT
                else f"new_tokens_ptr does not ascend from 0 to {new_tokens.size} in {slots.size} steps"
            )
        if n_ids > self._out.size:
            self._out = np.empty(n_ids + n_ids // 2, np.int32)
            n_ids = step_slots(*state, np.zeros_like(new_tokens_ptr), new_tokens[:0], row_ptr, self._out, failed)
        return Rows(row_ptr, self._out[:n_ids], failed)
