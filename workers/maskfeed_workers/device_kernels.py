"""The walk and the mask on the device: two Triton kernels. Columns and kinds are described in `device_layout`.

`permit` walks each row of logits from its slot's cached position through the tokens that the history has gained, then
through the drafts before the row, and sets the bits of what may follow. `mask` applies the bits. They read histories,
tables and logits, know nothing of requests, and nothing here waits for the host.

Invariants: what a row permits is a function of its slot's set, its history and the drafts before it, whatever was
cached; drafts are never cached, so a rejected one leaves no trace; a row of a free slot is not written at all; an
entry that was -inf stays -inf, except in a refused row, which is written whole.
"""

# ruff: noqa: ANN001, ANN201 - what Triton compiles is not Python: it knows tensors only

from typing import Any, Final

import triton
import triton.language as tl

from maskfeed_workers import device_layout as layout
from maskfeed_workers.device_walk import bit_at, branch_at, follow, permit_tail, set_bits

__all__ = ["MASK_BLOCK", "N_SPLITS", "mask", "permit"]

# Programs that share the listed ids of one row.
N_SPLITS: Final = 8
# Entries of logits that one program masks.
MASK_BLOCK: Final = 4096

_constexpr: Any = tl.constexpr
_KIND = _constexpr(layout.SLOT_KIND)
_SET = _constexpr(layout.SLOT_SET)
_GENERATION = _constexpr(layout.SLOT_GENERATION)
_START = _constexpr(layout.SLOT_START)
_CACHED = _constexpr(layout.SLOT_CACHED)
_N_STOP = _constexpr(layout.SLOT_N_STOP)
_N_REFUSAL = _constexpr(layout.SLOT_N_REFUSAL)
_IDS = _constexpr(layout.SLOT_IDS)
_MAX_IDS = _constexpr(layout.MAX_IDS)
_SLOT_COLUMNS = _constexpr(layout.SLOT_COLUMNS)
_SET_COLUMNS = _constexpr(layout.SET_COLUMNS)
_SET_GENERATION = _constexpr(layout.SET_GENERATION)
_SET_BYTE = _constexpr(layout.SET_BYTE)
_SET_LEAF = _constexpr(layout.SET_LEAF)
_SET_TERMINAL = _constexpr(layout.SET_TERMINAL)
_SET_BRANCH = _constexpr(layout.SET_BRANCH)
_SET_BRANCH_RANK = _constexpr(layout.SET_BRANCH_RANK)
_SET_CHILD_PTR = _constexpr(layout.SET_CHILD_PTR)
_SET_CHILD_BYTE = _constexpr(layout.SET_CHILD_BYTE)
_SET_CHILD_NODE = _constexpr(layout.SET_CHILD_NODE)
_SET_MASK_PTR = _constexpr(layout.SET_MASK_PTR)
_SET_MASK_IDS = _constexpr(layout.SET_MASK_IDS)
_SET_LIVE = _constexpr(layout.SET_LIVE)
_FREE = _constexpr(layout.FREE)
_CONSTRAINED = _constexpr(layout.CONSTRAINED)
_REFUSED = _constexpr(layout.REFUSED)
_FAILED = _constexpr(layout.FAILED)


# Each engine step calls with slices at other places; each way in which one is aligned would be compiled anew.
@triton.jit(
    do_not_specialize=["history_stride"],
    do_not_specialize_on_alignment=["histories", "total_len", "row_slot", "row_local", "row_input"],
)
def permit(
    slots,
    sets,
    arena_bytes,
    arena_int32,
    arena_int64,
    token_offsets,
    token_data,
    cells,
    twin,
    n_tokens,
    histories,
    history_stride,
    total_len,
    row_slot,
    row_local,
    row_input,
    first_row,
    kinds,
    bits,
    bits_stride,
    N_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """For each row of logits: what it is, and the bits of what it permits.

    Grid: (rows, N_SPLITS). Every program of a row walks it for itself, so that they need not wait for each other.

    Args:
        slots: int64 [n_slots, SLOT_COLUMNS]; only SLOT_CACHED is changed.
        sets: int64 [max_sets, SET_COLUMNS].
        arena_bytes: uint8; with `arena_int32` and `arena_int64` three views of one memory.
        arena_int32: int32.
        arena_int64: int64.
        token_offsets: int32 [n_tokens + 1].
        token_data: uint8: token t is token_data[token_offsets[t] : token_offsets[t + 1]].
        cells: int64 [n_cells], the bits of a `TokenizerAutomaton`'s; with its `twin`.
        twin: int32 [n_tokens].
        n_tokens: int.
        histories: int32 [n_slots, history_stride], valid up to `total_len`.
        history_stride: int.
        total_len: int32 [n_slots].
        row_slot: int [n_rows]: slot of each row.
        row_local: int [n_rows]: its offset among the rows of its slot, which are neighbours.
        row_input: int [n_rows]: at offset 1 and above, the draft that leads to the row.
        first_row: row of the grid's first programs.
        kinds: int32 [rows of the grid], overwritten.
        bits: int32 [rows of the grid, bits_stride], zero; bit i % 32 of word i // 32 becomes 1 for what is permitted.
        bits_stride: int.
        N_SPLITS: programs for each row.
        BLOCK: ids that a program sets at once.
    """
    here = tl.program_id(0)
    split = tl.program_id(1)
    row = here.to(tl.int64) + first_row
    slot = tl.load(row_slot + row).to(tl.int64)
    mine = slots + slot * _SLOT_COLUMNS
    kind = tl.load(mine + _KIND)
    if kind == _FREE:
        if split == 0:
            tl.store(kinds + here, _FREE)
        return
    bits += here.to(tl.int64) * bits_stride
    entry = sets + tl.load(mine + _SET) * _SET_COLUMNS
    # If the set was evicted since, what lies there now is another one, or half of one.
    is_gone = tl.load(entry + _SET_GENERATION) != tl.load(mine + _GENERATION)
    kind = tl.where((kind == _CONSTRAINED) & is_gone, _REFUSED, kind)
    if kind == _CONSTRAINED:
        byte = arena_bytes + tl.load(entry + _SET_BYTE)
        leaf = arena_int64 + tl.load(entry + _SET_LEAF)
        terminal = arena_int64 + tl.load(entry + _SET_TERMINAL)
        branch = arena_int64 + tl.load(entry + _SET_BRANCH)
        branch_rank = arena_int32 + tl.load(entry + _SET_BRANCH_RANK)
        child_ptr = arena_int32 + tl.load(entry + _SET_CHILD_PTR)
        child_byte = arena_bytes + tl.load(entry + _SET_CHILD_BYTE)
        child_node = arena_int32 + tl.load(entry + _SET_CHILD_NODE)
        live_at = tl.load(entry + _SET_LIVE)
        has_live = live_at >= 0
        live = arena_int64 + tl.maximum(live_at, 0)
        n_stop = tl.load(mine + _N_STOP)
        length = tl.load(total_len + slot).to(tl.int64)
        cached = tl.load(mine + _CACHED)
        n_read = cached >> 32
        position = (cached << 32) >> 32
        if n_read > length:  # the engine took tokens back: begin again from the history that there is now
            n_read = tl.load(mine + _START)
            position = tl.full((), 0, tl.int64)
        local = tl.load(row_local + row).to(tl.int64)
        # The drafts before this row are fed at the rows between the slot's first one and it.
        history = histories + slot * history_stride
        drafts = row_input + row - local + 1
        for i in range(n_read, length + local):
            is_draft = i >= length
            token = tl.load(history + i, mask=is_draft == 0, other=0).to(tl.int64)
            draft = tl.load(drafts + (i - length), mask=is_draft, other=0).to(tl.int64)
            position = follow(
                byte,
                leaf,
                terminal,
                branch,
                branch_rank,
                child_ptr,
                child_byte,
                child_node,
                live,
                has_live,
                mine + _IDS,
                n_stop,
                token_offsets,
                token_data,
                n_tokens,
                position,
                tl.where(is_draft, draft, token),
            )
        if (split == 0) & (local == 0):  # no draft is in this position
            tl.store(mine + _CACHED, (tl.maximum(length, n_read) << 32) | (position & 0xFFFFFFFF))
        count = tl.full((), 0, tl.int64)
        ends = (position < 0) & (position != _FAILED)
        if position >= 0:
            ends = bit_at(terminal, position) != 0
            if bit_at(branch, position) != 0:
                k = branch_at(branch, branch_rank, position)
                mask_ptr = arena_int32 + tl.load(entry + _SET_MASK_PTR)
                low = tl.load(mask_ptr + k).to(tl.int64)
                high = tl.load(mask_ptr + k + 1).to(tl.int64)
                count = high - low
                mask_ids = arena_int32 + tl.load(entry + _SET_MASK_IDS)
                lane = tl.arange(0, BLOCK)
                for first in range(low + split * BLOCK, high, N_SPLITS * BLOCK):
                    inside = first + lane < high
                    set_bits(bits, tl.load(mask_ids + first + lane, mask=inside, other=0), inside)
            else:
                if split == 0:
                    count = permit_tail(bits, byte, leaf, live, has_live, cells, twin, position)
        if split == 0:
            if ends:
                lane = tl.arange(0, _MAX_IDS)
                set_bits(bits, tl.load(mine + _IDS + lane, mask=lane < n_stop, other=0), lane < n_stop)
                count += n_stop
            if count == 0:
                kind = tl.full((), _REFUSED, tl.int64)
    if split == 0:
        if kind == _REFUSED:
            n_refusal = tl.load(mine + _N_REFUSAL)
            lane = tl.arange(0, _MAX_IDS)
            ids = tl.load(mine + _IDS + _MAX_IDS + lane, mask=lane < n_refusal, other=0)
            set_bits(bits, ids, lane < n_refusal)
        tl.store(kinds + here, kind.to(tl.int32))


@triton.jit
def mask(logits, row_stride, width, first_row, kinds, bits, bits_stride, BLOCK: tl.constexpr):
    """Forbid what has no bit, in place.

    Grid: (rows, ceil(width / BLOCK)).

    Args:
        logits: float [n_rows, width], columns adjacent.
        row_stride: int.
        width: int.
        first_row: row of the grid's first programs.
        kinds: int32 [rows of the grid], as `permit` wrote them.
        bits: int32 [rows of the grid, bits_stride], as `permit` wrote them.
        bits_stride: int.
        BLOCK: entries for each program.
    """
    here = tl.program_id(0)
    kind = tl.load(kinds + here)
    if kind == _FREE:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    words = tl.load(bits + here.to(tl.int64) * bits_stride + (column >> 5), mask=inside, other=0)
    kept = ((words >> (column & 31)) & 1) != 0
    line = logits + (here.to(tl.int64) + first_row) * row_stride
    # What is forbidden is not even read.
    value = tl.load(line + column, mask=inside & kept, other=float("-inf"))
    value = tl.where(kept & (kind == _REFUSED), 0.0, value)
    tl.store(line + column, value, mask=inside)
