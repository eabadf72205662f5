"""Flattening the tokenizer automaton, and checking a flattened one.

Nodes are numbered breadth first, children by byte, so that the children of node v are the consecutive nodes
first[v] .. first[v + 1] - 1, the upper levels, which every walk visits, lie together in memory, and a node takes nine
bytes.
"""

import numpy as np

from maskfeed_automata.kernels import FIRST, I32, I64, TOKEN, U8, kernel

__all__ = ["breadth_first", "dense_rows", "is_sound", "place_tokens"]


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
def dense_rows(first: I32, label: U8) -> I32:
    """Children by byte of the root and of the nodes of depth one: int32 [256 * n_dense], -1 where there is none."""
    n_dense = first[1]
    rows = np.full(256 * n_dense, np.int32(-1), np.int32)
    for v in range(n_dense):
        for child in range(first[v], first[v + 1]):
            rows[256 * v + label[child]] = child
    return rows


@kernel
def place_tokens(first: I32, label: U8, data: U8, offsets: I64) -> tuple[I32, I32, int]:
    """Find the node of each token.

    Args:
        first: int32 [n_nodes + 1], sound.
        label: uint8 [n_nodes].
        data: uint8 [n_bytes], bytes of all tokens.
        offsets: int64 [n_tokens + 1]; an empty token is skipped.

    Returns:
        links: int32 [n_nodes + 1, 2]: column FIRST is `first`, column TOKEN the smallest id whose
            bytes lead to the node, or -1.
        twin: int32 [n_tokens], the next larger id with the same bytes, or -1.
        n_missing: tokens without a path, plus leaves without a token; 0 if this is the trie of these tokens.
    """
    n_tokens = offsets.shape[0] - 1
    n_nodes = label.shape[0]
    links = np.empty((n_nodes + 1, 2), np.int32)
    links[:, FIRST] = first
    links[:, TOKEN] = -1
    twin = np.full(n_tokens, np.int32(-1), np.int32)
    n_missing = 0
    for t in range(n_tokens - 1, -1, -1):
        if offsets[t] == offsets[t + 1]:
            continue
        node = 0
        for position in range(offsets[t], offsets[t + 1]):
            low = first[node]
            high = first[node + 1]
            while low < high:
                middle = (low + high) >> 1
                if label[middle] < data[position]:
                    low = middle + 1
                else:
                    high = middle
            if low == first[node + 1] or label[low] != data[position]:
                node = -1
                break
            node = low
        if node < 0:
            n_missing += 1
            continue
        # Ids descend: what the node has already is the next larger one.
        twin[t] = links[node, TOKEN]
        links[node, TOKEN] = t
    for v in range(1, n_nodes):
        if first[v] == first[v + 1] and links[v, TOKEN] < 0:
            n_missing += 1
    return links, twin, n_missing
