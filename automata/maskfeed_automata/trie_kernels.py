"""Building the byte trie of sorted strings, and its bitmaps.

Nodes are numbered in preorder: the first child of n is n + 1, the next sibling of c is end[c]. Preorder is the order
of the sorted strings, so the k-th terminal node belongs to the k-th string and no table of ranks is needed.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, bit_at, kernel, popcount
from maskfeed_automata.word_kernels import common_length, copy_bytes

__all__ = ["build_nodes", "child_lists", "count_before", "merge_spaced"]

_SPACE: Final = 0x20


@kernel
def build_nodes(data: U8, offsets: I64) -> tuple[U8, I32, U64, U64, U64]:
    """Trie of sorted, unique, non-empty byte strings.

    Args:
        data: uint8 [n_bytes]; at most 2**30 bytes, so that nodes fit into int32.
        offsets: int64 [n_strings + 1].

    Returns:
        byte: uint8 [n_nodes], the byte on the edge into the node; 0 for the root.
        end: int32 [n_nodes], one past the last node of the subtree.
        terminal: uint64 [ceil(n_nodes / 64)], bitmap of the nodes at which a string ends.
        branch: the same, of the nodes with more than one leaf below them.
        leaf: the same, of the nodes without children.
    """
    n_strings = offsets.shape[0] - 1
    # shared[i]: bytes that string i has in common with the one before it; none before the first, none after the last.
    shared = np.zeros(n_strings + 1, np.int32)
    n_nodes = 1 + offsets[1]
    longest = offsets[1]
    for i in range(1, n_strings):
        length = offsets[i + 1] - offsets[i]
        limit = min(length, offsets[i] - offsets[i - 1])
        shared[i] = common_length(data, offsets[i - 1], offsets[i], limit)
        n_nodes += length - shared[i]
        longest = max(longest, length)
    byte = np.empty(n_nodes, np.uint8)
    end = np.empty(n_nodes, np.int32)
    terminal = np.zeros((n_nodes + 63) >> 6, np.uint64)
    branch = np.zeros((n_nodes + 63) >> 6, np.uint64)
    leaf = np.zeros((n_nodes + 63) >> 6, np.uint64)
    # Of the open nodes, which the next string passes, by depth: the node, and how many leaves came before it.
    path = np.empty(longest + 1, np.int32)
    leaves_before = np.empty(longest + 1, np.int32)
    byte[0] = 0
    path[0] = 0
    leaves_before[0] = 0
    n_leaves = 0
    node = 1
    for i in range(n_strings):
        length = offsets[i + 1] - offsets[i]
        above = shared[i]
        below = shared[i + 1]
        copy_bytes(data, offsets[i] + above, length - above, byte, node)
        for depth in range(above + 1, below + 1):
            path[depth] = node + depth - above - 1
            leaves_before[depth] = n_leaves
        next_node = node + length - above
        for depth in range(max(above, below) + 1, length + 1):
            end[node + depth - above - 1] = next_node
        node = next_node
        bit = np.uint64(1) << np.uint64((node - 1) & 63)
        terminal[(node - 1) >> 6] |= bit
        if below < length:
            leaf[(node - 1) >> 6] |= bit
            n_leaves += 1
        # Those that the next string does not pass are complete; after the last string, the root is, too.
        for depth in range(below + 1 if i + 1 < n_strings else 0, above + 1):
            n = path[depth]
            end[n] = node
            if n_leaves - leaves_before[depth] > 1:
                branch[n >> 6] |= np.uint64(1) << np.uint64(n & 63)
    return byte, end, terminal, branch, leaf


@kernel
def child_lists(byte: U8, end: I32, branch: U64, n_branches: int) -> tuple[I32, U8, I32]:
    """Children of the branching nodes, for finding one without hopping over its siblings' subtrees.

    Returns:
        child_ptr: int32 [n_branches + 1], row of each branching node.
        child_byte: uint8 [n_children], ascending in a row.
        child_node: int32 [n_children].
    """
    n_nodes = byte.shape[0]
    child_ptr = np.empty(n_branches + 1, np.int32)
    child_byte = np.empty(n_nodes, np.uint8)
    child_node = np.empty(n_nodes, np.int32)
    child_ptr[0] = 0
    size = 0
    k = 0
    for n in range(n_nodes):
        if not bit_at(branch, n):
            continue
        child = n + 1
        while child < end[n]:
            child_byte[size] = byte[child]
            child_node[size] = child
            size += 1
            child = end[child]
        k += 1
        child_ptr[k] = size
    return child_ptr, child_byte[:size].copy(), child_node[:size].copy()


@kernel
def count_before(bits: U64) -> I32:
    """int32 [n_words + 1]: the number of set bits before each word, and in all words."""
    counts = np.empty(bits.shape[0] + 1, np.int32)
    total = 0
    for w in range(bits.shape[0]):
        counts[w] = total
        total += popcount(bits[w])
    counts[bits.shape[0]] = total
    return counts


@kernel
def _compare_spaced(data: U8, start: int, length: int, spaced_start: int, spaced_length: int) -> int:
    """Sign of data[start:][:length] against a space followed by data[spaced_start:][:spaced_length]."""
    if data[start] != _SPACE:
        return -1 if data[start] < _SPACE else 1
    limit = min(length - 1, spaced_length)
    for k in range(limit):
        a = data[start + 1 + k]
        b = data[spaced_start + k]
        if a != b:
            return -1 if a < b else 1
    return length - 1 - spaced_length


@kernel
def merge_spaced(data: U8, offsets: I64, *, keep_exact: bool) -> tuple[U8, I64, I32]:
    """Sorted strings, each also (or only) with a space before it.

    Args:
        data: uint8 [n_bytes]
        offsets: int64 [n + 1]; sorted, unique, non-empty strings.
        keep_exact: whether the strings themselves stay; if so they win over an equal spaced one.

    Returns:
        data, offsets: the variants, sorted and unique.
        rank: int32 [n_variants], the string that each variant stands for.
    """
    n = offsets.shape[0] - 1
    most = 2 * n if keep_exact else n
    out = np.empty(data.shape[0] * 2 + n, np.uint8)
    out_offsets = np.empty(most + 1, np.int64)
    rank = np.empty(most, np.int32)
    out_offsets[0] = 0
    size = 0
    count = 0
    exact = 0 if keep_exact else n
    spaced = 0
    while exact < n or spaced < n:
        if spaced == n:
            order = -1
        elif exact == n:
            order = 1
        else:
            order = _compare_spaced(
                data,
                offsets[exact],
                offsets[exact + 1] - offsets[exact],
                offsets[spaced],
                offsets[spaced + 1] - offsets[spaced],
            )
        if order <= 0:
            source = exact
            exact += 1
        else:
            source = spaced
            out[size] = _SPACE
            size += 1
        if order >= 0:
            spaced += 1
        for k in range(offsets[source], offsets[source + 1]):
            out[size] = data[k]
            size += 1
        rank[count] = source
        count += 1
        out_offsets[count] = size
    return out[:size], out_offsets[: count + 1], rank[:count]
