"""One sequence's position in an automaton.

A cursor is cheap (a list of positions) and belongs to one thread; any number of cursors share an automaton. It knows
nothing of logits or engines. Invariants: `advance` accepts exactly the tokens that `allowed_token_ids` lists; a
refused token changes nothing; `rollback(n)` restores the state of n tokens ago exactly.
"""

from typing import Self

import numpy as np

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.bitmask import write_bitmask
from maskfeed_automata.errors import TokenNotAllowed
from maskfeed_automata.kernels import I32
from maskfeed_automata.step_kernels import FAILED, end_of_forced, follow, permitted

__all__ = ["Cursor"]

_FIRST_GUESS = 256


class Cursor:
    """Made by `Automaton.cursor()`, at the start."""

    __slots__ = ("_automaton", "_positions")

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        # After each token: a node, or ~node once a stop id was accepted there.
        self._positions = [0]

    @property
    def automaton(self) -> Automaton:
        """The automaton that this cursor walks."""
        return self._automaton

    @property
    def n_tokens(self) -> int:
        """Tokens accepted so far, stop ids included."""
        return len(self._positions) - 1

    def allowed_token_ids(self) -> I32:
        """Ids that `advance` accepts now: int32 [n], ascending, owned by the caller.

        Stop ids are among them where a candidate ends; after one was accepted they are all there is. Empty only at
        the end of a candidate that nothing continues, if there are no stop ids.
        """
        automaton = self._automaton
        row, vocabulary, position = automaton.row, automaton.vocabulary.row, self._positions[-1]
        ids = np.empty(_FIRST_GUESS, np.int32)
        n = permitted(row, vocabulary, position, ids, 0)
        if n > ids.size:
            ids = np.empty(n, np.int32)
            n = permitted(row, vocabulary, position, ids, 0)
        return np.sort(ids[:n])

    def fill_bitmask(self, row: I32) -> None:
        """Write the same ids as one bitmask row.

        Args:
            row: int32 [ceil(vocabulary.size / 32)], C-contiguous; overwritten completely. Bit i % 32 of word i // 32
                is token i, 1 means permitted. Tail bits are 0.

        Raises:
            ValueError: `row` has another shape, dtype or layout, or is read-only.
        """
        write_bitmask(self.allowed_token_ids(), row, self._automaton.vocabulary.size)

    def advance(self, token_id: int) -> None:
        """Accept a token.

        Raises:
            TokenNotAllowed: it is not permitted now; the cursor is unchanged. Context: `token_id`.
        """
        automaton = self._automaton
        position = FAILED
        if 0 <= token_id < automaton.vocabulary.size:
            position = follow(automaton.row, automaton.vocabulary.row, self._positions[-1], int(token_id))
        if position == FAILED:
            raise TokenNotAllowed(
                f"token id {token_id} is not permitted after {self.n_tokens} tokens", token_id=int(token_id)
            )
        self._positions.append(position)

    def rollback(self, n: int) -> None:
        """Take back the last `n` tokens.

        Raises:
            ValueError: `n` is negative, or more than were accepted; the cursor is unchanged.
        """
        if not 0 <= n <= self.n_tokens:
            raise ValueError(f"can't take back {n} of {self.n_tokens} tokens")
        del self._positions[len(self._positions) - n :]

    @property
    def is_terminal(self) -> bool:
        """The text so far is a candidate (with its leading space, where there may be one)."""
        return self._automaton.candidate_rank(self._node) is not None

    @property
    def is_finished(self) -> bool:
        """A stop id was accepted."""
        return self._positions[-1] < 0

    @property
    def candidate_index(self) -> int | None:
        """The candidate that the text so far is, or None.

        Index in the list given to `compile()`; canonical rank if the automaton came from `build` or `from_bytes`.
        """
        rank = self._automaton.candidate_rank(self._node)
        if rank is None or self._automaton.input_of_rank is None:
            return rank
        return int(self._automaton.input_of_rank[rank])

    @property
    def forced_text(self) -> bytes:
        """Bytes that can only follow now; b"" if there is a choice, ending included."""
        if self.is_finished:
            return b""
        last = end_of_forced(self._automaton.row, self._node)
        return self._automaton.arrays.byte[self._node + 1 : last + 1].tobytes()

    def copy(self) -> Self:
        """An independent cursor at the same position, with the same history."""
        twin = type(self)(self._automaton)
        twin._positions = self._positions.copy()
        return twin

    @property
    def _node(self) -> int:
        position = self._positions[-1]
        return position if position >= 0 else ~position
