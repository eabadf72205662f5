"""The goto function over a vocabulary: from a place in token bytes, by one byte, to the next place.

It depends on the vocabulary alone, is built once per tokenizer, and stays resident. pyahocorasick builds the trie;
what stays are flat arrays, about sixteen bytes a node. It knows nothing of candidates and touches no file.
Invariant: a cell carries token t (or a chain of ids with equal bytes) exactly if the bytes of t lead from the root
to it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

import ahocorasick
import numpy as np

from maskfeed_automata.errors import CorruptArtifact, InternalInvariant, VocabularyError
from maskfeed_automata.kernels import CELL_BASE_SHIFT, CELL_TOKEN_SHIFT, I32, I64, U8, U64
from maskfeed_automata.sections import Buffer, read_sections, write_sections
from maskfeed_automata.token_kernels import breadth_first, is_sound, pack_cells, place_tokens

__all__ = ["TokenizerAutomaton"]

_KIND: Final = b"toka"
_VERSION: Final = 1
_MAX_CELLS: Final = 1 << (CELL_TOKEN_SHIFT - CELL_BASE_SHIFT)


@dataclass(frozen=True, slots=True, eq=False)
class TokenizerAutomaton:
    """Flat arrays, read-only, shared by all threads."""

    # int32 [n_nodes + 1]: the children of v are the nodes first[v] .. first[v + 1] - 1; breadth first, 0 is the root
    first: I32
    # uint8 [n_nodes]: byte on the edge into the node; ascending among the children of a node
    label: U8
    # uint64 [n_cells]: the same trie for walks, with tokens; see `maskfeed_automata.kernels`
    cells: U64
    # int32 [n_tokens]: next larger id with the same bytes, or -1
    twin: I32
    # bytes of the longest token
    longest: int

    @property
    def n_nodes(self) -> int:
        """Places in token bytes, the root included."""
        return int(self.label.size)

    @property
    def nbytes(self) -> int:
        """Resident size in bytes."""
        return sum(array.nbytes for array in (self.first, self.label, self.cells, self.twin))

    @classmethod
    def build(cls, data: U8, offsets: I64) -> Self:
        """Build from the bytes of all tokens.

        Args:
            data: uint8 [n_bytes]; borrowed.
            offsets: int64 [n_tokens + 1]; tokens without bytes are left out.

        Raises:
            InternalInvariant: pyahocorasick's trie is not the trie of these tokens.
            VocabularyError: the tokens have more than some hundred million different prefixes.

        Cost: about 0.4 s for 150,000 tokens.
        """
        raw = data.tobytes()
        bounds = offsets.tolist()
        # Sorted, so that children of a node are inserted, and dumped, in ascending order.
        tokens = sorted({raw[a:b] for a, b in pairwise(bounds) if a != b})
        first, label = _dump(tokens) if tokens else (np.ones(2, np.int32), np.zeros(1, np.uint8))
        automaton = cls._from_trie(first, label, data, offsets)
        if automaton is None:
            raise InternalInvariant("the flattened tokenizer automaton does not spell the vocabulary")
        return automaton

    def to_bytes(self, fingerprint: str) -> bytes:
        """The trie as one buffer; the rest follows from it and the vocabulary of this fingerprint."""
        identities = (bytes.fromhex(fingerprint), bytes(32))
        return write_sections(_KIND, _VERSION, identities, {"first": self.first, "label": self.label})

    @classmethod
    def from_bytes(cls, buffer: Buffer, fingerprint: str, data: U8, offsets: I64) -> Self:
        """Read what `to_bytes` wrote, and prove that it is the automaton of these tokens.

        Raises:
            CorruptArtifact: anything else, another vocabulary's automaton included.
        """
        sections = read_sections(buffer, _KIND, _VERSION, ("first", "label"))
        if sections.identities != (bytes.fromhex(fingerprint), bytes(32)):
            raise CorruptArtifact("the automaton of another vocabulary", section="header")
        label = sections.array("label", np.uint8)
        first = sections.array("first", np.int32, label.size + 1)
        automaton = cls._from_trie(first, label, data, offsets)
        if automaton is None:
            raise CorruptArtifact("the trie does not spell the vocabulary", section="label")
        return automaton

    @classmethod
    def _from_trie(cls, first: I32, label: U8, data: U8, offsets: I64) -> Self | None:
        """Complete a trie; None if it is none, or not that of these tokens."""
        for array in (first, label):
            array.flags.writeable = False
        if label.size > data.size + 1 or not is_sound(first, label):
            return None
        cells = _cells(first, label)
        twin, n_missing = place_tokens(cells, data, offsets)
        if n_missing:
            return None
        cells.flags.writeable = False
        twin.flags.writeable = False
        return cls(first, label, cells, twin, int(np.diff(offsets).max(initial=0)))


def _cells(first: I32, label: U8) -> U64:
    """A sound trie as cells, without tokens. Raises VocabularyError if they are more than a cell can point to."""
    # Two cells for each node are more than enough for real vocabularies.
    n_blocks = label.size // 128 + 2
    while n_blocks * 256 <= _MAX_CELLS:
        cells = pack_cells(first, label, n_blocks)
        if cells.size:
            return cells
        n_blocks *= 2
    raise VocabularyError(f"the tokens have {label.size} different prefixes: too many")


def _dump(tokens: list[bytes]) -> tuple[I32, U8]:
    """Trie of sorted, unique tokens from pyahocorasick's dump: nodes in preorder, edges grouped by parent.

    The dump names nodes by truncated addresses, which need not be unique; `breadth_first` therefore goes by order,
    and whoever calls this checks the result.
    """
    trie = ahocorasick.Automaton()
    for token in tokens:
        trie.add_word(token.decode("latin-1"), True)
    trie.make_automaton()
    nodes, edges, _ = trie.dump()
    ids = np.fromiter((node[0] for node in nodes), np.int64, len(nodes))
    parents = np.fromiter((edge[0] for edge in edges), np.int64, len(edges))
    labels = np.frombuffer(b"".join([edge[1] for edge in edges]), np.uint8)
    first, label = breadth_first(ids, parents, labels)
    return first, label
