"""What of a compiled set the device walks, and where: the columns that kernels and host code agree on.

The arrays of an artifact are the device's tables as they are; nothing is computed from them. A token is followed by
its bytes, and what a branching node permits is listed in the artifact already. Rows of tokens for every node would
take two and a half to seven times the memory, and up to 0.3 s of each rank to make them (docs/performance.md).

Offsets of a set's arrays are counted in items from the start of the arena, which kernels see as three views of one
memory: bytes, int32, int64. It knows no torch and no device. Invariant: the host, the reference and the kernels read
these columns from here and from nowhere else.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskfeed_automata import Automaton

__all__ = [
    "ALIGNMENT",
    "CONSTRAINED",
    "FAILED",
    "FREE",
    "MAX_IDS",
    "REFUSED",
    "SET_BRANCH",
    "SET_BRANCH_RANK",
    "SET_BYTE",
    "SET_CHILD_BYTE",
    "SET_CHILD_NODE",
    "SET_CHILD_PTR",
    "SET_COLUMNS",
    "SET_GENERATION",
    "SET_LEAF",
    "SET_LIVE",
    "SET_MASK_IDS",
    "SET_MASK_PTR",
    "SET_TERMINAL",
    "SLOT_CACHED",
    "SLOT_COLUMNS",
    "SLOT_GENERATION",
    "SLOT_IDS",
    "SLOT_KIND",
    "SLOT_N_REFUSAL",
    "SLOT_N_STOP",
    "SLOT_SET",
    "SLOT_START",
    "SetLayout",
    "packed",
]

# Where a set's memory, and each of its arrays, may begin. As in an artifact, so no set is larger here than its own, and
# a limit on the bytes of artifacts is one on the bytes of the arena.
ALIGNMENT: Final = 64

# Columns of the directory of sets, int64. A generation of 0 is no set.
SET_GENERATION: Final = 0
SET_BYTE: Final = 1
SET_LEAF: Final = 2
SET_TERMINAL: Final = 3
SET_BRANCH: Final = 4
SET_BRANCH_RANK: Final = 5
SET_CHILD_PTR: Final = 6
SET_CHILD_BYTE: Final = 7
SET_CHILD_NODE: Final = 8
SET_MASK_PTR: Final = 9
SET_MASK_IDS: Final = 10
SET_LIVE: Final = 11  # -1 when every node is live
SET_COLUMNS: Final = 12

_ARRAYS: Final = (
    (SET_BYTE, "byte"),
    (SET_LEAF, "leaf"),
    (SET_TERMINAL, "terminal"),
    (SET_BRANCH, "branch"),
    (SET_BRANCH_RANK, "branch_rank"),
    (SET_CHILD_PTR, "child_ptr"),
    (SET_CHILD_BYTE, "child_byte"),
    (SET_CHILD_NODE, "child_node"),
    (SET_MASK_PTR, "mask_ptr"),
    (SET_MASK_IDS, "mask_ids"),
    (SET_LIVE, "live"),
)

# Columns of the table of slots, int64. The row of a free slot has only its kind; what follows it is left over.
SLOT_KIND: Final = 0
SLOT_SET: Final = 1  # row of the directory
SLOT_GENERATION: Final = 2  # the slot's set is there only while the directory has this generation
SLOT_START: Final = 3  # index of the first output token in the slot's history
SLOT_CACHED: Final = 4  # see `packed`
SLOT_N_STOP: Final = 5
SLOT_N_REFUSAL: Final = 6
SLOT_IDS: Final = 8  # MAX_IDS stop ids, then MAX_IDS ids that a refusal permits
MAX_IDS: Final = 128
SLOT_COLUMNS: Final = SLOT_IDS + 2 * MAX_IDS

# Kinds of a slot, and of a row of logits.
FREE: Final = 0
CONSTRAINED: Final = 1
REFUSED: Final = 2

# A position is a node, or ~node once a stop id was accepted there, or this; nodes are below 2**31 - 1.
FAILED: Final = -(1 << 31)


def packed(n_read: int, position: int) -> int:
    """How far a slot has walked, as one int64: a position, and how many tokens of the history lead to it.

    One word, because rows of the same slot read it while another one stores it: each sees the old or the new pair,
    and both are true.
    """
    return n_read << 32 | position & 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Where the arrays of one set lie, relative to the start of its memory."""

    # bytes of the whole, a multiple of ALIGNMENT
    size_bytes: int
    # of each array that is not empty: column of the directory, its name, first byte, bytes of an item
    _places: tuple[tuple[int, str, int, int], ...]

    @classmethod
    def of(cls, automaton: Automaton) -> "SetLayout":
        """Lay out a set."""
        places = []
        end = 0
        for column, name in _ARRAYS:
            array = getattr(automaton.arrays, name)
            if array.size:
                places.append((column, name, end, array.itemsize))
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(end, tuple(places))

    def directory_row(self, start: int, generation: int) -> NDArray[np.int64]:
        """The set's row of the directory.

        Args:
            start: byte of the arena at which its memory begins; a multiple of ALIGNMENT.
            generation: above 0.

        Returns:
            int64 [SET_COLUMNS], owned by the caller.
        """
        row = np.full(SET_COLUMNS, -1, np.int64)
        row[SET_GENERATION] = generation
        for column, _, first, itemsize in self._places:
            row[column] = (start + first) // itemsize
        return row

    def pieces(self, automaton: Automaton) -> list[tuple[int, NDArray[np.uint8]]]:
        """What must be copied: first byte relative to the set's memory, and the bytes (uint8 [n], views)."""
        return [(first, getattr(automaton.arrays, name).view(np.uint8)) for _, name, first, _ in self._places]
