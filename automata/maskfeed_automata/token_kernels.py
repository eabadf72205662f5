"""Flattening the tokenizer automaton, checking a flattened one, and laying it out for walks.

Flat: nodes are numbered breadth first, children by byte, so that the children of node v are the consecutive nodes
first[v] .. first[v + 1] - 1. That form is small, has one way to be written, and is easy to check; it is what is kept on
disk. Walks use cells (described in `maskfeed_automata.kernels`), which answer with one read where the flat form has
to search: they follow from the flat form and are made again whenever it is read.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import (
    BOOL,
    CELL_BASE_SHIFT,
    CELL_TOKEN_SHIFT,
    I32,
    I64,
    U8,
    U64,
    cell_base,
    cell_token,
    kernel,
    next_cell,
)

__all__ = ["breadth_first", "is_sound", "pack_cells", "place_tokens"]

# A base and its cells differ in the low eight bits only: they lie in one block.
_BLOCK: Final = 256
# Blocks that are tried for a place with several children before a new one is opened. Four take twice the time and
# save nothing: places with one child fill what is left.
_OPEN_BLOCKS: Final = 2


@kernel
def breadth_first(ids: I64, parents: I64, edge_labels: U8) -> tuple[I32, U8]:
    """Number a trie breadth first.

    Args:
        ids: int64 [n_nodes], names of the nodes in preorder.
        parents: int64 [n_nodes - 1], the parent of each edge; grouped by parent, the groups in preorder, the edges of
            a group in the order in which the subtrees follow.
        edge_labels: uint8 [n_nodes - 1].

    Returns:
        first: int32 [n_nodes + 1], first child of each node; the children end where those of the next node start.
        label: uint8 [n_nodes], byte on the edge into the node; 0 for the root.
    """
    n_nodes = ids.shape[0]
    n_edges = parents.shape[0]
    degree = np.zeros(n_nodes, np.int32)
    depth = np.zeros(n_nodes, np.int32)
    preorder_label = np.zeros(n_nodes, np.uint8)
    # One frame per open node: its next edge, and the end of its edges.
    next_edge = np.empty(n_nodes + 1, np.int32)
    last_edge = np.empty(n_nodes + 1, np.int32)
    open_nodes = 0
    edge = 0
    for n in range(n_nodes):
        if n > 0:
            while open_nodes > 0 and next_edge[open_nodes - 1] == last_edge[open_nodes - 1]:
                open_nodes -= 1
            preorder_label[n] = edge_labels[next_edge[open_nodes - 1]]
            next_edge[open_nodes - 1] += 1
            depth[n] = open_nodes
        start = edge
        while edge < n_edges and parents[edge] == ids[n]:
            edge += 1
        degree[n] = edge - start
        next_edge[open_nodes] = start
        last_edge[open_nodes] = edge
        open_nodes += 1
    # Breadth-first order is preorder sorted by depth.
    place = np.zeros(depth.max() + 2, np.int64)
    for n in range(n_nodes):
        place[depth[n] + 1] += 1
    for d in range(1, place.shape[0]):
        place[d] += place[d - 1]
    label = np.empty(n_nodes, np.uint8)
    degrees = np.empty(n_nodes, np.int32)
    for n in range(n_nodes):
        position = place[depth[n]]
        place[depth[n]] += 1
        label[position] = preorder_label[n]
        degrees[position] = degree[n]
    first = np.empty(n_nodes + 1, np.int32)
    first[0] = 1
    for n in range(n_nodes):
        first[n + 1] = first[n] + degrees[n]
    return first, label


@kernel
def is_sound(first: I32, label: U8) -> bool:
    """Whether `first` and `label` are a trie in breadth-first order: no index can leave the arrays, no walk can loop.

    With the tokens it spells it is the only one: the root's label, which nothing reads, must be 0.

    Args:
        first: int32 [n_nodes + 1].
        label: uint8 [n_nodes].
    """
    n_nodes = label.shape[0]
    if n_nodes < 1 or label[0] != 0:
        return False
    if first.shape[0] != n_nodes + 1 or first[0] != 1 or first[n_nodes] != n_nodes:
        return False
    for v in range(n_nodes):
        if first[v] <= v or first[v + 1] < first[v] or first[v + 1] > n_nodes:
            return False
        for child in range(first[v] + 1, first[v + 1]):
            if label[child] <= label[child - 1]:
                return False
    return True


@kernel
def pack_cells(first: I32, label: U8, n_blocks: int) -> U64:
    """Lay a trie out as cells without tokens.

    Places with several children come first, from the root down, so that what every walk visits lies together; places
    with one child then fill the gaps.

    Args:
        first: int32 [n_nodes + 1], sound; below 2**30 nodes.
        label: uint8 [n_nodes].
        n_blocks: how many blocks of 256 cells there may be.

    Returns:
        uint64 [n_cells], the root at 0; of length 0 if the blocks were not enough.
    """
    n_nodes = label.shape[0]
    most = n_blocks * _BLOCK
    cell_used = np.zeros(most, np.bool_)
    base_used = np.zeros(most, np.bool_)
    n_free = np.full(n_blocks, _BLOCK, np.int32)
    cell_of = np.zeros(n_nodes, np.int64)
    base_of = np.zeros(n_nodes, np.int64)
    # The root's own cell; and 0 is what a place without children has for a base.
    cell_used[0] = True
    base_used[0] = True
    n_free[0] -= 1
    n_open = 1
    for v in range(n_nodes):
        low: int = first[v]
        high: int = first[v + 1]
        if high - low < 2:
            continue
        block = max(0, n_open - _OPEN_BLOCKS)
        base = -1
        while base < 0:
            if block == n_blocks:
                return np.empty(0, np.uint64)
            n_open = max(n_open, block + 1)
            if n_free[block] >= high - low:
                base = _free_base(label, low, high, cell_used, base_used, block)
            block += 1
        base_used[base] = True
        base_of[v] = base
        n_free[base // _BLOCK] -= high - low
        for child in range(low, high):
            cell_of[child] = base ^ np.int64(label[child])
            cell_used[cell_of[child]] = True
    gap = 0
    for v in range(n_nodes):
        low = first[v]
        if first[v + 1] - low != 1:
            continue
        byte = np.int64(label[low])
        while gap < most and (cell_used[gap] or base_used[gap ^ byte]):
            gap += 1
        if gap == most:
            return np.empty(0, np.uint64)
        cell_used[gap] = True
        base_used[gap ^ byte] = True
        cell_of[low] = gap
        base_of[v] = gap ^ byte
    cells = np.zeros(max(n_open, gap // _BLOCK + 1) * _BLOCK, np.uint64)
    for v in range(n_nodes):
        mark = np.uint64(label[v]) + np.uint64(1) if v > 0 else np.uint64(0)
        cells[cell_of[v]] = np.uint64(base_of[v]) << np.uint64(CELL_BASE_SHIFT) | mark
    return cells


@kernel
def _free_base(label: U8, low: int, high: int, cell_used: BOOL, base_used: BOOL, block: int) -> int:
    """The first base of a block that no place has and whose cells for label[low:high] are free, or -1."""
    for cell in range(block * _BLOCK, (block + 1) * _BLOCK):
        base = cell ^ np.int64(label[low])
        if cell_used[cell] or base_used[base]:
            continue
        fits = True
        for child in range(low + 1, high):
            if cell_used[base ^ np.int64(label[child])]:
                fits = False
                break
        if fits:
            return base  # type: ignore[return-value]
    return -1


@kernel
def place_tokens(cells: U64, data: U8, offsets: I64) -> tuple[I32, int]:
    """Write each token's id to the cell that its bytes lead to.

    Args:
        cells: uint64 [n_cells], from `pack_cells`; changed in place.
        data: uint8 [n_bytes], bytes of all tokens.
        offsets: int64 [n_tokens + 1]; an empty token is skipped. At most 2**24 tokens.

    Returns:
        twin: int32 [n_tokens], the next larger id with the same bytes, or -1.
        n_missing: tokens without a path, plus leaves without a token; 0 if this is the trie of these tokens.
    """
    n_tokens = offsets.shape[0] - 1
    twin = np.full(n_tokens, np.int32(-1), np.int32)
    n_missing = 0
    token_bits = ~((np.uint64(1) << np.uint64(CELL_TOKEN_SHIFT)) - np.uint64(1))
    for t in range(n_tokens - 1, -1, -1):
        if offsets[t] == offsets[t + 1]:
            continue
        place = np.uint64(0)
        cell = cells[0]
        for position in range(offsets[t], offsets[t + 1]):
            base = cell_base(cell)
            place = base ^ np.uint64(data[position])
            cell = next_cell(cells, base, data[position])
            if cell == np.uint64(0):
                break
        if cell == np.uint64(0):
            n_missing += 1
            continue
        # Ids descend: what the cell has already is the next larger one.
        twin[t] = cell_token(cell)
        cells[place] = cell & ~token_bits | np.uint64(t + 1) << np.uint64(CELL_TOKEN_SHIFT)
    for cell in cells[1:]:
        if cell != np.uint64(0) and cell_base(cell) == np.uint64(0) and cell_token(cell) < 0:
            n_missing += 1
    return twin, n_missing
