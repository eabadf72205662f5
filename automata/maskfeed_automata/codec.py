"""Artifact: a compiled set as bytes, and the proof that bytes are one.

The bytes come over a network and are read in place by kernels that check nothing, so everything that a kernel relies
on is proven here, once: the trie completely, of masks only that they are tokens. It knows nothing of how masks are
computed: that a mask is the right one is guarded by the checksum here and by the hash under which an artifact is
stored. Invariants: what `decode` returns can't make a kernel read outside of its arrays, whatever the bytes are; and
`encode` makes the very same bytes of it again.
"""

from dataclasses import dataclass, fields
from typing import Any, Final, cast, get_args

import numpy as np

from maskfeed_automata.candidates import FORMAT_VERSION, LeadingSpace
from maskfeed_automata.check_kernels import (
    ids_are_sound,
    live_is_sound,
    ranks_are_sound,
    rows_are_sound,
    trie_is_sound,
)
from maskfeed_automata.errors import CorruptArtifact, VocabularyMismatch
from maskfeed_automata.kernels import I32, U8, U64
from maskfeed_automata.sections import Buffer, Sections, read_sections, size_of_sections, write_sections
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["CompiledArrays", "DecodedArtifact", "decode", "encode", "encoded_size"]

_KIND: Final = b"set "
_N_META: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class CompiledArrays:
    """The arrays of an artifact, each a section of the same name. Made read-only on construction."""

    # uint8 [n_nodes]: byte on the edge into the node; nodes in preorder
    byte: U8
    # uint64 [n_words], n_words = ceil(n_nodes / 64): nodes without children
    leaf: U64
    # uint64 [n_words]: nodes at which a variant ends; every leaf is one
    terminal: U64
    # int32 [n_words + 1]: terminal nodes before each word
    terminal_rank: I32
    # uint64 [n_words]: nodes with more than one path below them; the only child of any other node n is n + 1
    branch: U64
    # int32 [n_words + 1]: branching nodes before each word
    branch_rank: I32
    # int32 [n_branches + 1]: children of branch k are the entries child_ptr[k] .. child_ptr[k + 1] - 1
    child_ptr: I32
    # uint8 [n_children]: byte of each child, ascending in a row
    child_byte: U8
    # int32 [n_children]: node of each child
    child_node: I32
    # int32 [n_branches + 1]: ids of branch k are mask_ids[mask_ptr[k] : mask_ptr[k + 1]]
    mask_ptr: I32
    # int32 [n_ids]: permitted tokens, by their bytes
    mask_ids: I32
    # uint64 [n_words], or [0] if all nodes are live: nodes from which a candidate can be completed
    live: U64
    # int32 [n_variants], or [0] if variants are candidates: candidate rank of each variant
    variant_rank: I32

    def __post_init__(self) -> None:
        for array in self.by_name().values():
            array.flags.writeable = False

    def by_name(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays in the order of their sections."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


_SECTIONS: Final = ("meta", *(item.name for item in fields(CompiledArrays)))


@dataclass(frozen=True, slots=True)
class DecodedArtifact:
    """A validated artifact; `arrays` are views of `buffer`."""

    digest: str
    leading_space: LeadingSpace
    n_candidates: int
    arrays: CompiledArrays
    buffer: memoryview


def encoded_size(arrays: CompiledArrays) -> int:
    """Length of the artifact in bytes."""
    return size_of_sections([8 * _N_META] + [array.nbytes for array in arrays.by_name().values()])


def encode(
    arrays: CompiledArrays, *, fingerprint: str, digest: str, leading_space: LeadingSpace, n_candidates: int
) -> bytes:
    """The artifact. Equal arguments give equal bytes."""
    option = get_args(LeadingSpace).index(leading_space)
    meta = np.array([n_candidates, option, arrays.byte.size], np.int64)
    identities = (bytes.fromhex(fingerprint), bytes.fromhex(digest))
    return write_sections(_KIND, FORMAT_VERSION, identities, {"meta": meta, **arrays.by_name()})


def decode(buffer: Buffer, vocabulary: Vocabulary) -> DecodedArtifact:
    """Validate and read in place.

    Raises:
        CorruptArtifact: damaged, or not what `encode` could have written.
        FormatVersionError: written in another format version.
        VocabularyMismatch: for another vocabulary. Context: `expected`, `found`.
    """
    sections = read_sections(buffer, _KIND, FORMAT_VERSION, _SECTIONS)
    found = sections.identities[0].hex()
    if found != vocabulary.fingerprint:
        raise VocabularyMismatch(
            f"the artifact is for vocabulary {found}, not {vocabulary.fingerprint}",
            expected=vocabulary.fingerprint,
            found=found,
        )
    n_candidates, option, n_nodes = sections.array("meta", np.int64, _N_META).tolist()
    if not 0 <= option < len(get_args(LeadingSpace)) or not 1 < n_nodes < 1 << 31:
        raise CorruptArtifact(f"leading space option {option}, {n_nodes} nodes", section="meta")
    leading_space = cast("LeadingSpace", get_args(LeadingSpace)[option])
    arrays = _read_arrays(sections, n_nodes)
    _check(arrays, vocabulary, n_candidates, leading_space)
    return DecodedArtifact(sections.identities[1].hex(), leading_space, n_candidates, arrays, sections.buffer)


def _read_arrays(sections: Sections, n_nodes: int) -> CompiledArrays:
    n_words = -(-n_nodes // 64)
    live = sections.array("live", np.uint64)
    return CompiledArrays(
        byte=sections.array("byte", np.uint8, n_nodes),
        leaf=sections.array("leaf", np.uint64, n_words),
        terminal=sections.array("terminal", np.uint64, n_words),
        terminal_rank=sections.array("terminal_rank", np.int32, n_words + 1),
        branch=sections.array("branch", np.uint64, n_words),
        branch_rank=sections.array("branch_rank", np.int32, n_words + 1),
        child_ptr=sections.array("child_ptr", np.int32),
        child_byte=sections.array("child_byte", np.uint8),
        child_node=sections.array("child_node", np.int32),
        mask_ptr=sections.array("mask_ptr", np.int32),
        mask_ids=sections.array("mask_ids", np.int32),
        live=sections.array("live", np.uint64, n_words if live.size else 0),
        variant_rank=sections.array("variant_rank", np.int32),
    )


def _check(arrays: CompiledArrays, vocabulary: Vocabulary, n_candidates: int, leading_space: LeadingSpace) -> None:
    n_words = arrays.branch.size
    for name in ("terminal", "branch"):
        if not ranks_are_sound(getattr(arrays, name), getattr(arrays, f"{name}_rank")):
            raise CorruptArtifact("counts that do not match their bitmap", section=f"{name}_rank")
    n_branches = int(arrays.branch_rank[n_words])
    if arrays.child_ptr.size != n_branches + 1 or arrays.mask_ptr.size != n_branches + 1:
        raise CorruptArtifact("another number of rows than of branching nodes", section="child_ptr")
    if not rows_are_sound(arrays.child_ptr, arrays.child_node.size) or arrays.child_byte.size != arrays.child_node.size:
        raise CorruptArtifact("rows of children that do not ascend", section="child_ptr")
    children = (arrays.child_ptr, arrays.child_byte, arrays.child_node)
    if not trie_is_sound(arrays.byte, arrays.leaf, arrays.terminal, arrays.branch, *children):
        raise CorruptArtifact("no trie in preorder", section="child_node")
    if arrays.live.size and not live_is_sound(arrays.live, arrays.terminal, arrays.byte.size):
        raise CorruptArtifact("ends of candidates that are not live", section="live")
    if not rows_are_sound(arrays.mask_ptr, arrays.mask_ids.size):
        raise CorruptArtifact("rows of masks that do not ascend", section="mask_ptr")
    if not ids_are_sound(arrays.mask_ids, vocabulary.offsets):
        raise CorruptArtifact("masks that are no tokens of the vocabulary", section="mask_ids")
    n_variants = int(arrays.terminal_rank[n_words])
    rank = arrays.variant_rank
    if leading_space == "optional":
        sound = rank.size == n_variants and rank.min() >= 0 and rank.max() == n_candidates - 1
    else:
        sound = rank.size == 0 and n_variants == n_candidates
    if not sound:
        raise CorruptArtifact(f"{n_variants} variants of {n_candidates} candidates", section="variant_rank")
