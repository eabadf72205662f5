"""Positions in a trie: following tokens, and the ids permitted next.

A position (int64) is a node, or ~node once a stop id was accepted there, or one of two marks below every node:
FAILED and VACANT. Rows of addresses are described in `maskfeed_automata.kernels`.

Invariants: `follow` accepts a token at a position exactly if `permitted` lists it there; stop ids are permitted at
terminal nodes and nowhere else, also where a stop id has bytes.
"""

# ruff: noqa: SIM110 - numba compiles loops, not generator expressions

from typing import Final

import numpy as np

from maskfeed_automata.kernels import (
    A_BRANCH,
    A_BRANCH_RANK,
    A_BYTE,
    A_CHILD_BYTE,
    A_CHILD_NODE,
    A_CHILD_PTR,
    A_HAS_TEXT_STOP,
    A_LEAF,
    A_LIVE,
    A_MASK_IDS,
    A_MASK_PTR,
    A_N_BRANCHES,
    A_N_NODES,
    A_N_STOP,
    A_STOP,
    A_TERMINAL,
    BOOL,
    I32,
    I64,
    U8,
    V_CELLS,
    V_N_CELLS,
    V_SIZE,
    V_TOKEN_DATA,
    V_TOKEN_OFFSETS,
    V_TWIN,
    bit_at,
    cell_base,
    cell_token,
    i32_view,
    i64_view,
    kernel,
    next_cell,
    rank_at,
    u8_view,
    u64_view,
)

__all__ = [
    "BAD_POINTERS",
    "BAD_SLOT",
    "FAILED",
    "VACANT",
    "end_of_forced",
    "follow",
    "permitted",
    "set_bits",
    "step_slots",
]

FAILED: Final = -(1 << 40)
VACANT: Final = FAILED - 1

BAD_SLOT: Final = -1
BAD_POINTERS: Final = -2


@kernel
def _is_stop(row: I64, token: int) -> bool:
    stop = i32_view(row[A_STOP], row[A_N_STOP])
    for k in range(row[A_N_STOP]):
        if stop[k] == token:
            return True
    return False


@kernel
def _child_at(child_byte: U8, low: int, high: int, byte: int) -> int:
    """Entry of `byte` in child_byte[low:high], which ascends, or -1."""
    while high - low > 8:
        middle = (low + high) >> 1
        if child_byte[middle] <= byte:
            low = middle
        else:
            high = middle
    for i in range(low, high):
        if child_byte[i] == byte:
            return i
    return -1


@kernel
def follow(row: I64, vocabulary: I64, position: int, token: int) -> int:
    """The position after `token`, or FAILED if it is not permitted at `position` (neither FAILED nor VACANT).

    Args:
        row: int64 [A_ROW_LENGTH].
        vocabulary: int64 [V_ROW_LENGTH].
        position: int64.
        token: any int32.
    """
    if _is_stop(row, token):
        if position < 0:
            return position
        n_words = (row[A_N_NODES] + 63) >> 6
        return ~position if bit_at(u64_view(row[A_TERMINAL], n_words), position) else FAILED
    if position < 0 or token < 0 or token >= vocabulary[V_SIZE]:
        return FAILED
    offsets = i64_view(vocabulary[V_TOKEN_OFFSETS], vocabulary[V_SIZE] + 1)
    start = offsets[token]
    stop = offsets[token + 1]
    if start == stop:
        return FAILED
    data = u8_view(vocabulary[V_TOKEN_DATA], stop)
    n_nodes = row[A_N_NODES]
    n_words = (n_nodes + 63) >> 6
    byte = u8_view(row[A_BYTE], n_nodes)
    leaf = u64_view(row[A_LEAF], n_words)
    branch = u64_view(row[A_BRANCH], n_words)
    branch_rank = i32_view(row[A_BRANCH_RANK], n_words + 1)
    child_ptr = i32_view(row[A_CHILD_PTR], row[A_N_BRANCHES] + 1)
    node = position
    for k in range(start, stop):
        if bit_at(branch, node):
            b = rank_at(branch, branch_rank, node)
            high = child_ptr[b + 1]
            child = _child_at(u8_view(row[A_CHILD_BYTE], high), child_ptr[b], high, data[k])
            if child < 0:
                return FAILED
            node = i32_view(row[A_CHILD_NODE], high)[child]
        elif bit_at(leaf, node) or byte[node + 1] != data[k]:
            return FAILED
        else:
            node += 1
    if row[A_LIVE] != 0 and not bit_at(u64_view(row[A_LIVE], (row[A_N_NODES] + 63) >> 6), node):
        return FAILED
    return node


@kernel
def permitted(row: I64, vocabulary: I64, position: int, out: I32, start: int) -> int:
    """Write the ids that are permitted at `position` to out[start:], as far as they fit.

    Returns:
        One past the last place that is needed; more than out.shape[0] if they did not fit. No id is written twice.
    """
    n = start
    space = out.shape[0]
    n_nodes = row[A_N_NODES]
    n_words = (n_nodes + 63) >> 6
    if position >= 0:
        leaf = u64_view(row[A_LEAF], n_words)
        branch = u64_view(row[A_BRANCH], n_words)
        text_stop = row[A_HAS_TEXT_STOP] != 0
        if bit_at(branch, position):
            k = rank_at(branch, i32_view(row[A_BRANCH_RANK], n_words + 1), position)
            mask_ptr = i32_view(row[A_MASK_PTR], row[A_N_BRANCHES] + 1)
            low: int = mask_ptr[k]
            high: int = mask_ptr[k + 1]
            ids = i32_view(row[A_MASK_IDS], high)
            if text_stop:
                for i in range(low, high):
                    if not _is_stop(row, ids[i]):
                        if n < space:
                            out[n] = ids[i]
                        n += 1
            else:
                if n + high - low <= space:
                    out[n : n + high - low] = ids[low:high]
                n += high - low
        elif not bit_at(leaf, position):
            byte = u8_view(row[A_BYTE], n_nodes)
            live = u64_view(row[A_LIVE], n_words)
            cells = u64_view(vocabulary[V_CELLS], vocabulary[V_N_CELLS])
            twin = i32_view(vocabulary[V_TWIN], vocabulary[V_SIZE])
            cell = cells[0]
            child = position
            while not bit_at(leaf, child):
                child += 1
                cell = next_cell(cells, cell_base(cell), byte[child])
                if cell == np.uint64(0):
                    break
                if row[A_LIVE] != 0 and not bit_at(live, child):
                    continue
                token = cell_token(cell)
                while token >= 0:
                    if not text_stop or not _is_stop(row, token):
                        if n < space:
                            out[n] = token
                        n += 1
                    token = twin[token]
        if not bit_at(u64_view(row[A_TERMINAL], n_words), position):
            return n
    stop = i32_view(row[A_STOP], row[A_N_STOP])
    for k in range(row[A_N_STOP]):
        if n < space:
            out[n] = stop[k]
        n += 1
    return n


@kernel
def step_slots(
    table: I64,
    positions: I64,
    vocabulary: I64,
    slots: I32,
    new_tokens_ptr: I64,
    new_tokens: I32,
    row_ptr: I64,
    out: I32,
    failed: BOOL,
) -> int:
    """Advance slots and list what they permit.

    Args:
        table: int64 [n_slots, A_ROW_LENGTH].
        positions: int64 [n_slots]; updated in place.
        vocabulary: int64 [V_ROW_LENGTH].
        slots: int32 [n], started ones.
        new_tokens_ptr: int64 [n + 1]; slot i takes new_tokens[new_tokens_ptr[i] : new_tokens_ptr[i + 1]].
        new_tokens: int32 [new_tokens_ptr[-1]].
        row_ptr: int64 [n + 1], overwritten.
        out: int32 [space], overwritten as far as it goes.
        failed: bool [n], overwritten.

    Returns:
        Number of ids in all rows; more than out.shape[0] if they did not fit. Then every slot has advanced, and a
        second call without new tokens and with more space lists the rows. BAD_SLOT or BAD_POINTERS: an argument is
        not as described, nothing was changed.
    """
    if new_tokens_ptr.shape[0] != slots.shape[0] + 1:
        return BAD_POINTERS
    if new_tokens_ptr[0] != 0 or new_tokens_ptr[slots.shape[0]] != new_tokens.shape[0]:
        return BAD_POINTERS
    for i in range(slots.shape[0]):
        if slots[i] < 0 or slots[i] >= positions.shape[0] or positions[slots[i]] == VACANT:
            return BAD_SLOT
        if new_tokens_ptr[i + 1] < new_tokens_ptr[i]:
            return BAD_POINTERS
    n = 0
    row_ptr[0] = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        row = table[slot]
        position = positions[slot]
        for k in range(new_tokens_ptr[i], new_tokens_ptr[i + 1]):
            if position == FAILED:
                break
            position = follow(row, vocabulary, position, new_tokens[k])
        if position != FAILED:
            start = n
            n = permitted(row, vocabulary, position, out, start)
            if n == start:
                position = FAILED
        positions[slot] = position
        failed[i] = position == FAILED
        row_ptr[i + 1] = n
    return n


@kernel
def end_of_forced(row: I64, position: int) -> int:
    """The last node that must be passed from node `position`: no choice, and no possible end, before it."""
    n_words = (row[A_N_NODES] + 63) >> 6
    leaf = u64_view(row[A_LEAF], n_words)
    terminal = u64_view(row[A_TERMINAL], n_words)
    branch = u64_view(row[A_BRANCH], n_words)
    branch_rank = i32_view(row[A_BRANCH_RANK], n_words + 1)
    child_ptr = i32_view(row[A_CHILD_PTR], row[A_N_BRANCHES] + 1)
    node = position
    while not bit_at(terminal, node) and not bit_at(leaf, node):
        if bit_at(branch, node):
            k = rank_at(branch, branch_rank, node)
            if child_ptr[k + 1] - child_ptr[k] > 1:
                break
        node += 1
    return node


@kernel
def set_bits(ids: I32, row: I32) -> None:
    """Overwrite a bitmask row (int32 [n_words]): bit i % 32 of word i // 32 is 1 for the listed ids, else 0."""
    row[:] = 0
    for i in ids:
        row[i >> 5] |= np.int32(1) << np.int32(i & 31)
