"""Proof that no kernel can leave the arrays of an artifact, whatever bytes they came from."""

# ruff: noqa: SIM110 - numba compiles loops, not generator expressions

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, bit_at, kernel, popcount

__all__ = ["ids_are_sound", "ranks_are_sound", "rows_are_sound", "trie_is_sound"]


@kernel
def trie_is_sound(
    byte: U8, leaf: U64, terminal: U64, branch: U64, child_ptr: I32, child_byte: U8, child_node: I32
) -> bool:
    """Whether every way downward stays inside the arrays and ends at a terminal leaf.

    Children come after their parent, so no walk can loop; a node is a leaf, a branch with children, or has the next
    node as its only child; leaves are terminal.

    Args:
        byte: uint8 [n_nodes], n_nodes >= 1.
        leaf: uint64 [ceil(n_nodes / 64)]; `terminal` and `branch` too.
        terminal: uint64.
        branch: uint64.
        child_ptr: int32 [n_branches + 1], sound rows of the other two; n_branches is the number of bits in `branch`.
        child_byte: uint8 [n_children].
        child_node: int32 [n_children].
    """
    n_nodes = byte.shape[0]
    unused = leaf.shape[0] * 64 - n_nodes
    if unused > 0 and (leaf[-1] | terminal[-1] | branch[-1]) >> np.uint64(64 - unused) != 0:
        return False
    k = 0
    for n in range(n_nodes):
        if bit_at(leaf, n):
            if bit_at(branch, n) or not bit_at(terminal, n):
                return False
        elif not bit_at(branch, n):
            if n + 1 == n_nodes:
                return False
        else:
            low = child_ptr[k]
            high = child_ptr[k + 1]
            k += 1
            if low == high or child_node[low] != n + 1:
                return False
            for i in range(low, high):
                # The first is n + 1, and they ascend: none is negative when it becomes an index.
                if i > low and (child_node[i] <= child_node[i - 1] or child_byte[i] <= child_byte[i - 1]):
                    return False
                if child_node[i] >= n_nodes or byte[child_node[i]] != child_byte[i]:
                    return False
    return True


@kernel
def ranks_are_sound(bits: U64, ranks: I32) -> bool:
    """Whether `ranks` (int32 [n_words + 1]) counts the set bits before each word of `bits` (uint64 [n_words])."""
    total = 0
    for w in range(bits.shape[0]):
        if ranks[w] != total:
            return False
        total += popcount(bits[w])
    return ranks[bits.shape[0]] == total  # type: ignore[no-any-return]


@kernel
def rows_are_sound(row_ptr: I32, n_entries: int) -> bool:
    """Whether rows (int32 [n_rows + 1]) start at 0, never go back and end at `n_entries`."""
    if row_ptr[0] != 0 or row_ptr[-1] != n_entries:
        return False
    for k in range(1, row_ptr.shape[0]):
        if row_ptr[k] < row_ptr[k - 1]:
            return False
    return True


@kernel
def ids_are_sound(token_ids: I32, token_offsets: I64) -> bool:
    """Whether every id (int32 [n]) is a token with bytes (int64 [n_tokens + 1])."""
    n_tokens = token_offsets.shape[0] - 1
    for t in token_ids:
        if t < 0 or t >= n_tokens or token_offsets[t] == token_offsets[t + 1]:
            return False
    return True
