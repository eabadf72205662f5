"""Which tokens may follow at each node: the trie and the tokenizer automaton walked together.

A token is permitted at node n if its bytes are a path downward from n. Walking both structures from n visits exactly
the nodes on such paths, so the cost is that of the answer and does not contain the size of the vocabulary.

Where the vocabulary lacks some single bytes, a path can lead to a node from which no token goes on. `live_bits`
finds the nodes from which a tokenisation reaches a terminal node; masks then contain only tokens that end at those.
"""

import numpy as np

from maskfeed_automata.kernels import FIRST, I32, TOKEN, U8, U64, bit_at, goto, kernel

__all__ = ["branch_masks", "live_bits", "reached_bits", "shortest_count"]


@kernel
def branch_masks(
    byte: U8,
    end: I32,
    branch: U64,
    live: U64,
    links: I32,
    label: U8,
    twin: I32,
    dense: I32,
    n_dense: int,
    longest: int,
    n_branches: int,
    most: int,
) -> tuple[I32, I32]:
    """Permitted tokens of every node with more than one path below it.

    Args:
        byte: uint8 [n_nodes].
        end: int32 [n_nodes].
        branch: uint64 bitmap of the nodes in question; their number is `n_branches`.
        live: uint64 bitmap of live nodes, or of length 0 if all are.
        links: int32; with `label`, `twin`, `dense` and `n_dense` the arrays of a `TokenizerAutomaton`.
        label: uint8.
        twin: int32.
        dense: int32.
        n_dense: int.
        longest: bytes of the longest token.
        n_branches: int.
        most: stop when there are more than this many ids, at twice as many at the latest; at most 2**29.

    Returns:
        mask_ptr: int32 [n_branches + 1].
        mask_ids: int32 [>= mask_ptr[-1]], ids of branch k in mask_ids[mask_ptr[k] : mask_ptr[k + 1]], by their
            bytes; ids with equal bytes ascending. mask_ptr[-1] > most means: stopped.
    """
    n_nodes = byte.shape[0]
    mask_ptr = np.zeros(n_branches + 1, np.int32)
    ids = np.empty(1024 + n_nodes, np.int32)
    at = np.empty(longest + 1, np.int64)  # open frames: the place in token bytes, and where its subtree ends
    stop = np.empty(longest + 1, np.int64)
    all_live = live.shape[0] == 0
    size = 0
    k = 0
    for n in range(n_nodes):
        if not bit_at(branch, n):
            continue
        depth = 0
        place = 0
        last = end[n]
        child = n + 1
        while True:
            if child == last:
                if depth == 0:
                    break
                depth -= 1
                place = at[depth]
                last = stop[depth]
                continue
            node = goto(links, label, dense, n_dense, place, byte[child])
            below = end[child]
            if node < 0:
                child = below
                continue
            t = links[node, TOKEN]
            if not (all_live or bit_at(live, child)):
                t = np.int32(-1)
            while t >= 0:
                if size == ids.shape[0]:
                    # Only here, because a check for each node costs a fifth of the whole walk.
                    if size > most:
                        mask_ptr[n_branches] = size
                        return mask_ptr, ids
                    grown = np.empty(size * 2, np.int32)
                    grown[:size] = ids
                    ids = grown
                ids[size] = t
                size += 1
                t = twin[t]
            child += 1
            if below > child:
                if links[node, FIRST] < links[node + 1, FIRST]:
                    at[depth] = place
                    stop[depth] = last
                    depth += 1
                    place = node
                    last = below
                else:
                    child = below
        k += 1
        mask_ptr[k] = size
    return mask_ptr, ids


@kernel
def live_bits(
    byte: U8,
    end: I32,
    terminal: U64,
    links: I32,
    label: U8,
    dense: I32,
    n_dense: int,
    longest: int,
) -> U64:
    """Bitmap of the nodes from which some sequence of tokens reaches a terminal node (terminal nodes included).

    Arguments as in `branch_masks`. Nodes are visited backwards, so every node below is decided already.
    """
    n_nodes = byte.shape[0]
    live = np.zeros((n_nodes + 63) >> 6, np.uint64)
    at = np.empty(longest + 1, np.int64)  # open frames: the place in token bytes, and where its subtree ends
    stop = np.empty(longest + 1, np.int64)
    for n in range(n_nodes - 1, -1, -1):
        found = bit_at(terminal, n)
        depth = 0
        place = 0
        last = end[n]
        child = n + 1
        while not found:
            if child == last:
                if depth == 0:
                    break
                depth -= 1
                place = at[depth]
                last = stop[depth]
                continue
            node = goto(links, label, dense, n_dense, place, byte[child])
            below = end[child]
            if node < 0:
                child = below
                continue
            found = links[node, TOKEN] >= 0 and bit_at(live, child)
            child += 1
            if below > child:
                if links[node, FIRST] < links[node + 1, FIRST]:
                    at[depth] = place
                    stop[depth] = last
                    depth += 1
                    place = node
                    last = below
                else:
                    child = below
        if found:
            live[n >> 6] |= np.uint64(1) << np.uint64(n & 63)
    return live


@kernel
def reached_bits(
    byte: U8,
    end: I32,
    links: I32,
    label: U8,
    dense: I32,
    n_dense: int,
    longest: int,
) -> U64:
    """Bitmap of the nodes that some sequence of tokens reaches from the root. Arguments as in `branch_masks`."""
    n_nodes = byte.shape[0]
    reached = np.zeros((n_nodes + 63) >> 6, np.uint64)
    reached[0] = np.uint64(1)
    at = np.empty(longest + 1, np.int64)  # open frames: the place in token bytes, and where its subtree ends
    stop = np.empty(longest + 1, np.int64)
    for n in range(n_nodes):
        if not bit_at(reached, n):
            continue
        depth = 0
        place = 0
        last = end[n]
        child = n + 1
        while True:
            if child == last:
                if depth == 0:
                    break
                depth -= 1
                place = at[depth]
                last = stop[depth]
                continue
            node = goto(links, label, dense, n_dense, place, byte[child])
            below = end[child]
            if node < 0:
                child = below
                continue
            if links[node, TOKEN] >= 0:
                reached[child >> 6] |= np.uint64(1) << np.uint64(child & 63)
            child += 1
            if below > child:
                if links[node, FIRST] < links[node + 1, FIRST]:
                    at[depth] = place
                    stop[depth] = last
                    depth += 1
                    place = node
                    last = below
                else:
                    child = below
    return reached


@kernel
def shortest_count(data: U8, links: I32, label: U8, dense: I32, n_dense: int) -> int:
    """Fewest tokens whose bytes spell `data` (uint8 [n], n >= 1), or -1."""
    n = data.shape[0]
    fewest = np.full(n + 1, np.int64(n + 1))
    fewest[0] = 0
    for start in range(n):
        if fewest[start] > n:
            continue
        node = 0
        for position in range(start, n):
            node = goto(links, label, dense, n_dense, node, data[position])
            if node < 0:
                break
            if links[node, TOKEN] >= 0:
                fewest[position + 1] = min(fewest[position + 1], fewest[start] + 1)
    return fewest[n] if fewest[n] <= n else -1  # type: ignore[return-value]
