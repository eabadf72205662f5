"""Proof that no kernel can leave the arrays of an artifact, whatever bytes they came from."""

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, bit_at, kernel, popcount

__all__ = ["masks_are_sound", "ranks_are_sound", "trie_is_sound"]


@kernel
def trie_is_sound(byte: U8, end: I32, terminal: U64, branch: U64) -> bool:
    """Whether the arrays are a trie in preorder with right bitmaps.

    Each subtree lies inside its parent's, siblings ascend strictly and fill it, each leaf is terminal, and a node is
    marked as a branch exactly if more than one path lies below it.

    Args:
        byte: uint8 [n_nodes], n_nodes >= 1.
        end: int32 [n_nodes].
        terminal: uint64 [ceil(n_nodes / 64)].
        branch: uint64 [ceil(n_nodes / 64)].
    """
    n_nodes = byte.shape[0]
    if end[0] != n_nodes:
        return False
    for n in range(n_nodes):
        if end[n] <= n or end[n] > n_nodes:
            return False
    tail = False
    for n in range(n_nodes - 1, -1, -1):
        child = n + 1
        stop = end[n]
        previous = -1
        while child < stop:
            if end[child] > stop or byte[child] <= previous:
                return False
            previous = np.int64(byte[child])
            child = np.int64(end[child])
        leaf = stop == n + 1
        if leaf and not bit_at(terminal, n):
            return False
        tail = leaf or (tail and end[n + 1] == stop)
        if bit_at(branch, n) == tail:
            return False
    unused = terminal.shape[0] * 64 - n_nodes
    if unused > 0:
        last = terminal[terminal.shape[0] - 1] | branch[branch.shape[0] - 1]
        if last >> np.uint64(64 - unused) != 0:
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
    return ranks[bits.shape[0]] == total


@kernel
def masks_are_sound(mask_ptr: I32, mask_ids: I32, token_offsets: I64) -> bool:
    """Whether the rows are monotone and fill `mask_ids`, and every id is a token with bytes.

    Args:
        mask_ptr: int32 [n_branches + 1].
        mask_ids: int32 [n_ids].
        token_offsets: int64 [n_tokens + 1].
    """
    n_tokens = token_offsets.shape[0] - 1
    if mask_ptr[0] != 0 or mask_ptr[mask_ptr.shape[0] - 1] != mask_ids.shape[0]:
        return False
    for k in range(1, mask_ptr.shape[0]):
        if mask_ptr[k] < mask_ptr[k - 1]:
            return False
    for t in mask_ids:
        if t < 0 or t >= n_tokens or token_offsets[t] == token_offsets[t + 1]:
            return False
    return True
