"""The candidate set as a byte trie.

Over bytes, not characters, because tokens end inside UTF-8 sequences. It knows no tokens. Invariant: nodes are in
preorder, so the k-th terminal node is the k-th variant (the candidate itself, or with a space before it).
"""

from dataclasses import dataclass

import numpy as np

from maskfeed_automata.candidates import CandidateSet, LeadingSpace
from maskfeed_automata.kernels import I32, U8, U64
from maskfeed_automata.trie_kernels import build_nodes, child_lists, count_before, merge_spaced

__all__ = ["Trie", "build_trie"]


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """Nodes in preorder: first child of n is n + 1, next sibling of c is end[c]."""

    # uint8 [n_nodes]: byte on the edge into the node; 0 for the root
    byte: U8
    # int32 [n_nodes]: one past the last node of the subtree
    end: I32
    # uint64 [ceil(n_nodes / 64)]: nodes at which a variant ends; every leaf is one
    terminal: U64
    # int32 [n_words + 1]: terminal nodes before each word
    terminal_rank: I32
    # uint64 [ceil(n_nodes / 64)]: nodes with more than one path below them
    branch: U64
    # int32 [n_words + 1]: branching nodes before each word
    branch_rank: I32
    # uint64 [ceil(n_nodes / 64)]: nodes without children
    leaf: U64
    # int32 [n_branches + 1]: children of branch k are the entries child_ptr[k] .. child_ptr[k + 1] - 1
    child_ptr: I32
    # uint8 [n_children]: byte of each child, ascending in a row
    child_byte: U8
    # int32 [n_children]: node of each child
    child_node: I32
    # int32 [n_variants]: candidate rank of each variant; of length 0 if the two are the same
    variant_rank: I32

    @property
    def n_nodes(self) -> int:
        """Prefixes of variants, the empty one included."""
        return int(self.byte.size)

    @property
    def n_branches(self) -> int:
        """Nodes that need a mask of their own."""
        return int(self.branch_rank[-1])


def build_trie(candidates: CandidateSet, leading_space: LeadingSpace) -> Trie:
    """Trie of the candidates, of the candidates with a space before them, or of both.

    Cost: O(n_bytes).
    """
    data, offsets = candidates.data, candidates.offsets
    variant_rank = np.empty(0, np.int32)
    if leading_space != "never":
        data, offsets, rank = merge_spaced(data, offsets, keep_exact=leading_space == "optional")
        for array in (data, offsets):
            array.flags.writeable = False
        if leading_space == "optional":
            variant_rank = rank
    byte, end, terminal, branch, leaf = build_nodes(data, offsets)
    branch_rank = count_before(branch)
    child_ptr, child_byte, child_node = child_lists(byte, end, branch, branch_rank[-1])
    return Trie(
        byte=byte,
        end=end,
        terminal=terminal,
        terminal_rank=count_before(terminal),
        branch=branch,
        branch_rank=branch_rank,
        leaf=leaf,
        child_ptr=child_ptr,
        child_byte=child_byte,
        child_node=child_node,
        variant_rank=variant_rank,
    )
