"""Proof that no kernel can leave the arrays of an artifact, whatever bytes they came from."""

# ruff: noqa: SIM110 - numba compiles loops, not generator expressions

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, bit_at, kernel, popcount

__all__ = ["ids_are_sound", "live_is_sound", "ranks_are_sound", "rows_are_sound", "trie_is_sound"]


@kernel
def trie_is_sound(
    byte: U8, leaf: U64, terminal: U64, branch: U64, child_ptr: I32, child_byte: U8, child_node: I32
) -> bool:
    """Whether this is the trie of some strings, in preorder.

    So every node but the root has one parent, before it; the children of a node have different bytes; a node branches
    exactly if more than one path leads down from it; no string is empty, and one ends at every leaf.

    Args:
        byte: uint8 [n_nodes], n_nodes >= 2.
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
    if byte[0] != 0 or bit_at(terminal, 0):
        return False
    # Open branching nodes: the entry whose subtree comes next, and the end of the row.
    entry = np.empty(child_ptr.shape[0], np.int32)
    stop = np.empty(child_ptr.shape[0], np.int32)
    depth = 0
    k = 0
    for n in range(n_nodes):
        below = n + 1
        if bit_at(leaf, n):
            if bit_at(branch, n) or not bit_at(terminal, n):
                return False
            if depth == 0:
                return below == n_nodes  # type: ignore[no-any-return]
            i = entry[depth - 1]
            if below == n_nodes or child_node[i] != below or child_byte[i] != byte[below]:
                return False
            entry[depth - 1] = i + 1
            if i + 1 == stop[depth - 1]:
                depth -= 1
        elif below == n_nodes:
            return False
        elif not bit_at(branch, n):
            if bit_at(branch, below):
                return False
        else:
            low = child_ptr[k]
            high = child_ptr[k + 1]
            k += 1
            if low == high or child_node[low] != below or child_byte[low] != byte[below]:
                return False
            for i in range(low + 1, high):
                if child_byte[i] <= child_byte[i - 1]:
                    return False
            if high - low > 1:
                entry[depth] = low + 1
                stop[depth] = high
                depth += 1
            elif not bit_at(branch, below):
                return False
    return False


@kernel
def live_is_sound(live: U64, terminal: U64, n_nodes: int) -> bool:
    """Whether `live` (uint64 [ceil(n_nodes / 64)]) has the root, all terminal nodes, and no bit past the last node."""
    unused = live.shape[0] * 64 - n_nodes
    if not bit_at(live, 0) or (unused > 0 and live[-1] >> np.uint64(64 - unused) != 0):
        return False
    for w in range(live.shape[0]):
        if terminal[w] & ~live[w] != 0:
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
