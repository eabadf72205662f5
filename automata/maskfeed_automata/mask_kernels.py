"""Which tokens may follow at each node: the trie and the tokenizer automaton walked together.

A token is permitted at node n if its bytes are a path downward from n. The trie is walked once, in preorder, together
with all walks through token bytes that are on their way: one for each branching node above at which a token that
reaches down to here could start. So the cost is that of the answer and does not contain the size of the vocabulary;
and the walks do not wait for each other's reads, as the steps of a single one would.

Where the vocabulary lacks some single bytes, a path can lead to a node from which no token goes on. `live_bits`
finds the nodes from which a tokenisation reaches a terminal node; masks then contain only tokens that end at those.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32, U8, U64, bit_at, cell_base, cell_token, kernel, next_cell

__all__ = ["TOO_DEEP", "gather_masks", "live_bits", "reached_bits", "shortest_count", "walk_masks"]

TOO_DEEP: Final = -1

# A walk and a find are uint64: row of a branching node << 32, and the base that was reached, or the token.
_ROW: Final = np.uint64(32)
_WHAT: Final = np.uint64(0xFFFFFFFF)
_NONE: Final = np.uint64(0)


@kernel
def walk_masks(
    byte: U8,
    end: I32,
    branch: U64,
    live: U64,
    cells: U64,
    twin: I32,
    depth: int,
    most: int,
    found: U64,
) -> int:
    """Find the permitted tokens of the nodes with more than one path below them.

    Arrays that grow in here would cost three times the whole walk, because their addresses could not stay in
    registers; so the caller guesses how much is found, and calls again if it was more.

    Args:
        byte: uint8 [n_nodes].
        end: int32 [n_nodes].
        branch: uint64 bitmap of the nodes in question; row k belongs to the k-th of them.
        live: uint64 bitmap of live nodes, or of length 0 if all are.
        cells: uint64 [n_cells], of a `TokenizerAutomaton`.
        twin: int32 [n_tokens], of the same.
        depth: space for branching nodes that are open at once, and for walks on their way.
        most: stop when more than this many are found; at most 2**31 - 1.
        found: uint64 [space], row << 32 | token; overwritten as far as it goes. In the order of the nodes at which
            tokens end: those of a row by their bytes, ids with equal bytes ascending.

    Returns:
        How many are found; more than found.shape[0] if they did not fit. TOO_DEEP: `depth` was not enough.
    """
    if not bit_at(branch, 0):
        return 0
    n_nodes = byte.shape[0]
    root = cell_base(cells[0])
    # Branching nodes with children to come: where the subtree ends, and which walks have reached the node.
    frame_end = np.empty(depth, np.int64)
    frame_low = np.empty(depth, np.int64)
    frame_high = np.empty(depth, np.int64)
    walks = np.empty(depth, np.uint64)
    frame_end[0] = n_nodes
    frame_low[0] = 0
    frame_high[0] = 1
    walks[0] = root
    n_frames = 1
    n_rows = np.uint64(1)
    n_found = 0
    m = 1
    while m < n_nodes:
        low = frame_low[n_frames - 1]
        high = frame_high[n_frames - 1]
        last: int = end[m]
        out = high
        if last == frame_end[n_frames - 1]:
            # The last child of its parent: its walks may take the place of the parent's.
            n_frames -= 1
            out = low
        if n_found > most:
            return n_found
        if n_frames == depth or out + high - low >= depth:
            return TOO_DEEP
        start = out
        for i in range(low, high):
            cell = next_cell(cells, walks[i] & _WHAT, byte[m])
            if cell == _NONE:
                continue
            row = walks[i] & ~_WHAT
            n_found = _add_tokens(found, n_found, row, cell, twin, live, m)
            if cell_base(cell) != _NONE:
                walks[out] = row | cell_base(cell)
                out += 1
        if bit_at(branch, m):
            walks[out] = n_rows << _ROW | root
            n_rows += np.uint64(1)
            frame_end[n_frames] = last
            frame_low[n_frames] = start
            frame_high[n_frames] = out + 1
            n_frames += 1
            m += 1
            continue
        # A single path from here on: each walk goes down as far as it gets.
        for i in range(start, out):
            row = walks[i] & ~_WHAT
            base = walks[i] & _WHAT
            for n in range(m + 1, last):
                cell = next_cell(cells, base, byte[n])
                if cell == _NONE:
                    break
                n_found = _add_tokens(found, n_found, row, cell, twin, live, n)
                base = cell_base(cell)
                if base == _NONE:
                    break
        m = last
    return n_found


@kernel
def _add_tokens(found: U64, n_found: int, row: np.uint64, cell: np.uint64, twin: I32, live: U64, n: int) -> int:
    """Write the tokens that end at `cell` and node `n` behind the first `n_found`; returns how many there are then."""
    token = cell_token(cell)
    if live.shape[0] == 0 or bit_at(live, n):
        while token >= 0:
            if n_found < found.shape[0]:
                found[n_found] = row | np.uint64(token)
            n_found += 1
            token = twin[token]
    return n_found


@kernel
def gather_masks(found: U64, mask_ptr: I32, mask_ids: I32) -> None:
    """Bring the finds of `walk_masks` together by rows.

    Args:
        found: uint64 [n_ids], row << 32 | token.
        mask_ptr: int32 [n_rows + 1], overwritten: ids of row k are mask_ids[mask_ptr[k] : mask_ptr[k + 1]].
        mask_ids: int32 [n_ids], overwritten: in each row in the order in which they were found.
    """
    n_rows = mask_ptr.shape[0] - 1
    place = np.zeros(n_rows, np.int32)
    for i in range(found.shape[0]):
        place[found[i] >> _ROW] += 1
    total = np.int32(0)
    for k in range(n_rows):
        mask_ptr[k] = total
        total += place[k]
        place[k] = mask_ptr[k]
    mask_ptr[n_rows] = total
    for i in range(found.shape[0]):
        row = found[i] >> _ROW
        mask_ids[place[row]] = np.int32(found[i] & _WHAT)
        place[row] += np.int32(1)


@kernel
def live_bits(
    byte: U8,
    end: I32,
    terminal: U64,
    cells: U64,
    longest: int,
) -> U64:
    """Bitmap of the nodes from which some sequence of tokens reaches a terminal node (terminal nodes included).

    Arguments as in `walk_masks`; `longest` is the bytes of the longest token. Nodes are visited backwards, so every
    node below is decided already.
    """
    n_nodes = byte.shape[0]
    live = np.zeros((n_nodes + 63) >> 6, np.uint64)
    root = cell_base(cells[0])
    at = np.empty(longest + 1, np.uint64)  # open frames: the base in token bytes, and where the subtree ends
    stop = np.empty(longest + 1, np.int64)
    for n in range(n_nodes - 1, -1, -1):
        found = bit_at(terminal, n)
        depth = 0
        place = root
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
            cell = next_cell(cells, place, byte[child])
            below = end[child]
            if cell == _NONE:
                child = below
                continue
            found = cell_token(cell) >= 0 and bit_at(live, child)
            child += 1
            if below > child:
                if cell_base(cell) != _NONE:
                    at[depth] = place
                    stop[depth] = last
                    depth += 1
                    place = cell_base(cell)
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
    cells: U64,
    longest: int,
) -> U64:
    """Bitmap of the nodes that some sequence of tokens reaches from the root. Arguments as in `live_bits`."""
    n_nodes = byte.shape[0]
    reached = np.zeros((n_nodes + 63) >> 6, np.uint64)
    reached[0] = np.uint64(1)
    root = cell_base(cells[0])
    at = np.empty(longest + 1, np.uint64)  # open frames: the base in token bytes, and where the subtree ends
    stop = np.empty(longest + 1, np.int64)
    for n in range(n_nodes):
        if not bit_at(reached, n):
            continue
        depth = 0
        place = root
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
            cell = next_cell(cells, place, byte[child])
            below = end[child]
            if cell == _NONE:
                child = below
                continue
            if cell_token(cell) >= 0:
                reached[child >> 6] |= np.uint64(1) << np.uint64(child & 63)
            child += 1
            if below > child:
                if cell_base(cell) != _NONE:
                    at[depth] = place
                    stop[depth] = last
                    depth += 1
                    place = cell_base(cell)
                    last = below
                else:
                    child = below
    return reached


@kernel
def shortest_count(data: U8, cells: U64) -> int:
    """Fewest tokens whose bytes spell `data` (uint8 [n], n >= 1), or -1."""
    n = data.shape[0]
    fewest = np.full(n + 1, np.int64(n + 1))
    fewest[0] = 0
    for start in range(n):
        if fewest[start] > n:
            continue
        cell = cells[0]
        for position in range(start, n):
            cell = next_cell(cells, cell_base(cell), data[position])
            if cell == _NONE:
                break
            if cell_token(cell) >= 0:
                fewest[position + 1] = min(fewest[position + 1], fewest[start] + 1)
    return fewest[n] if fewest[n] <= n else -1  # type: ignore[return-value]
