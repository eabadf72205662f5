"""A compiled candidate set in memory: the trie, the masks of its branching nodes, and the stop ids of one use.

Arrays are read-only and shared; an automaton is immutable and safe to use from any thread. It knows nothing of where
its bytes came from or how they were compiled. Invariant: its arrays passed validation, or were built by the builder,
so no kernel leaves them; stop ids belong to this object and never to its bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from maskfeed_automata.candidates import LeadingSpace
from maskfeed_automata.codec import CompiledArrays, decode, encode, encoded_size
from maskfeed_automata.errors import ParameterError
from maskfeed_automata.kernels import (
    A_BRANCH,
    A_BRANCH_RANK,
    A_BYTE,
    A_CHILD_BYTE,
    A_CHILD_NODE,
    A_CHILD_PTR,
    A_HAS_TEXT_STOP,
    A_LEAF,
    A_LIVE,
    A_MASK_IDS,
    A_MASK_PTR,
    A_N_BRANCHES,
    A_N_NODES,
    A_N_STOP,
    A_ROW_LENGTH,
    A_STOP,
    A_TERMINAL,
    I32,
    I64,
    address_of,
)
from maskfeed_automata.sections import Buffer
from maskfeed_automata.vocabulary import Vocabulary

if TYPE_CHECKING:
    from maskfeed_automata.cursor import Cursor

__all__ = ["Automaton"]


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """Made by `compile`, `build` or `from_bytes`."""

    vocabulary: Vocabulary
    # what was asked for, 64 hex digits
    digest: str
    leading_space: LeadingSpace
    # unique candidates
    n_candidates: int
    arrays: CompiledArrays
    # the buffer that the arrays are views of, if they are
    buffer: memoryview | None
    # int32 [n_candidates]: index of each rank in the caller's list; None where only ranks are known
    input_of_rank: I32 | None
    # int32 [n_stop], ascending
    stop_ids: I32
    # addresses for the step kernels, int64 [A_ROW_LENGTH]; the other fields keep the memory alive
    row: I64

    @classmethod
    def from_arrays(
        cls,
        vocabulary: Vocabulary,
        *,
        digest: str,
        leading_space: LeadingSpace,
        n_candidates: int,
        arrays: CompiledArrays,
        buffer: memoryview | None = None,
    ) -> Self:
        """Put a compiled set together, without stop ids. The arrays are trusted, and made read-only."""
        row = np.zeros(A_ROW_LENGTH, np.int64)
        row[A_BYTE] = address_of(arrays.byte)
        row[A_LEAF] = address_of(arrays.leaf)
        row[A_TERMINAL] = address_of(arrays.terminal)
        row[A_BRANCH] = address_of(arrays.branch)
        row[A_BRANCH_RANK] = address_of(arrays.branch_rank)
        row[A_CHILD_PTR] = address_of(arrays.child_ptr)
        row[A_CHILD_BYTE] = address_of(arrays.child_byte)
        row[A_CHILD_NODE] = address_of(arrays.child_node)
        row[A_MASK_PTR] = address_of(arrays.mask_ptr)
        row[A_MASK_IDS] = address_of(arrays.mask_ids)
        row[A_LIVE] = address_of(arrays.live) if arrays.live.size else 0
        row[A_N_NODES] = arrays.byte.size
        row[A_N_BRANCHES] = arrays.mask_ptr.size - 1
        no_stop_ids = np.empty(0, np.int32)
        row[A_STOP] = address_of(no_stop_ids)
        return cls(vocabulary, digest, leading_space, n_candidates, arrays, buffer, None, no_stop_ids, row)

    @classmethod
    def from_bytes(cls, buffer: Buffer, vocabulary: Vocabulary, stop_token_ids: Iterable[int] = ()) -> Self:
        """Read an artifact in place: validated once, not copied; the automaton keeps the buffer alive.

        Args:
            buffer: bytes, or a view of a memory map; must not change afterwards.
            vocabulary: the one it was compiled for.
            stop_token_ids: permitted where a candidate ends.

        Raises:
            CorruptArtifact: not an artifact, damaged, or crafted so that a kernel could leave its arrays.
            FormatVersionError: written in another format version.
            VocabularyMismatch: compiled for another vocabulary.
            ParameterError: a stop id outside of the vocabulary.

        Cost: O(length of the buffer), about 1.5 ms per megabyte.
        """
        decoded = decode(buffer, vocabulary)
        automaton = cls.from_arrays(
            vocabulary,
            digest=decoded.digest,
            leading_space=decoded.leading_space,
            n_candidates=decoded.n_candidates,
            arrays=decoded.arrays,
            buffer=decoded.buffer,
        )
        return automaton.with_stop_token_ids(stop_token_ids)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary."""
        return self.vocabulary.fingerprint

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that are permitted exactly where a candidate ends, ascending."""
        return tuple(self.stop_ids.tolist())

    @property
    def n_nodes(self) -> int:
        """Nodes of the trie."""
        return int(self.arrays.byte.size)

    @property
    def nbytes(self) -> int:
        """Length of the artifact in bytes."""
        return self.buffer.nbytes if self.buffer is not None else encoded_size(self.arrays)

    def to_bytes(self) -> bytes:
        """The artifact. The same candidates, options and vocabulary give the same bytes in every process."""
        if self.buffer is not None:
            return bytes(self.buffer)
        return encode(
            self.arrays,
            fingerprint=self.fingerprint,
            digest=self.digest,
            leading_space=self.leading_space,
            n_candidates=self.n_candidates,
        )

    def with_stop_token_ids(self, stop_token_ids: Iterable[int]) -> Self:
        """The same compiled set, arrays shared, with other stop ids.

        Raises:
            ParameterError: an id outside of the vocabulary. Context: `field`, `token_id`.
        """
        ids = sorted({int(token_id) for token_id in stop_token_ids})
        for token_id in ids:
            if not 0 <= token_id < self.vocabulary.size:
                raise ParameterError(
                    f"stop_token_ids: {token_id} is outside of [0, {self.vocabulary.size})",
                    field="stop_token_ids",
                    token_id=token_id,
                )
        stop_ids = np.array(ids, np.int32)
        row = self.row.copy()
        row[A_STOP] = address_of(stop_ids)
        row[A_N_STOP] = stop_ids.size
        offsets = self.vocabulary.offsets
        row[A_HAS_TEXT_STOP] = bool((offsets[stop_ids] != offsets[stop_ids + 1]).any())
        return replace(self, stop_ids=stop_ids, row=row)

    def with_input_indices(self, input_of_rank: I32) -> Self:
        """The same compiled set, whose cursors report indices of the caller's list.

        Args:
            input_of_rank: int32 [n_candidates]; borrowed.
        """
        return replace(self, input_of_rank=input_of_rank)

    def candidate_rank(self, node: int) -> int | None:
        """Rank of the candidate that ends at a node in [0, n_nodes), or None."""
        word, bit = divmod(node, 64)
        bits = int(self.arrays.terminal[word])
        if not bits >> bit & 1:
            return None
        variant = int(self.arrays.terminal_rank[word]) + (bits & ((1 << bit) - 1)).bit_count()
        return int(self.arrays.variant_rank[variant]) if self.arrays.variant_rank.size else variant

    def cursor(self) -> "Cursor":
        """A new cursor at the start."""
        from maskfeed_automata.cursor import Cursor

        return Cursor(self)
