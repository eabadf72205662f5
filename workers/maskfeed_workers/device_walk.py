"""Steps of the walk on the device, of which the kernels are made: one token down the trie, and a text's own tokens.

Triton functions over pointers into one set's arrays; they know no slot, no row and no history. Numbers are int64.
Invariant: `follow` accepts a token at a position exactly if `permit` of the kernels lists it there, as on the host
(`maskfeed_automata.step_kernels`, whose words these are).
"""

# ruff: noqa: ANN001, ANN201, ANN202 - what Triton compiles is not Python: it knows tensors only

from typing import Any

import triton
import triton.language as tl

from maskfeed_automata.kernels import CELL_BASE_SHIFT, CELL_TOKEN_SHIFT
from maskfeed_workers import device_layout as layout

__all__ = ["bit_at", "branch_at", "follow", "permit_tail", "set_bits"]

_constexpr: Any = tl.constexpr
_MAX_IDS = _constexpr(layout.MAX_IDS)
_FAILED = _constexpr(layout.FAILED)
_BASE_SHIFT = _constexpr(CELL_BASE_SHIFT)
_TOKEN_SHIFT = _constexpr(CELL_TOKEN_SHIFT)
_MARK = _constexpr((1 << CELL_BASE_SHIFT) - 1)
_BASE = _constexpr((1 << (CELL_TOKEN_SHIFT - CELL_BASE_SHIFT)) - 1)
_TOKEN = _constexpr((1 << (64 - CELL_TOKEN_SHIFT)) - 1)
_POPCOUNT_1 = _constexpr(0x5555555555555555)
_POPCOUNT_2 = _constexpr(0x3333333333333333)
_POPCOUNT_4 = _constexpr(0x0F0F0F0F0F0F0F0F)
_POPCOUNT_SUM = _constexpr(0x0101010101010101)


@triton.jit
def bit_at(words, n):
    """Bit `n` of a bitmap of int64 words: 0 or 1."""
    return (tl.load(words + (n >> 6)) >> (n & 63)) & 1


@triton.jit
def branch_at(branch, branch_rank, node):
    """Which branching node this one is."""
    below = tl.load(branch + (node >> 6)) & ((tl.full((), 1, tl.int64) << (node & 63)) - 1)
    # `below` lacks at least its highest bit, so it is not negative and shifting it brings in zeros.
    below = below - ((below >> 1) & _POPCOUNT_1)
    below = (below & _POPCOUNT_2) + ((below >> 2) & _POPCOUNT_2)
    below = (below + (below >> 4)) & _POPCOUNT_4
    return tl.load(branch_rank + (node >> 6)).to(tl.int64) + ((below * _POPCOUNT_SUM) >> 56)


@triton.jit
def _entry_of(bytes_at, low, high, byte):
    """Entry of `byte` in bytes_at[low:high], at most 256 different ones, or -1."""
    entry = low + tl.arange(0, 256)
    found = tl.load(bytes_at + entry, mask=entry < high, other=0).to(tl.int64)
    return tl.max(tl.where((entry < high) & (found == byte), entry, -1), axis=0)


@triton.jit
def _child(byte, leaf, branch, branch_rank, child_ptr, child_byte, child_node, node, label):
    """Node below `node` under `label`, or -1."""
    if bit_at(branch, node) != 0:
        k = branch_at(branch, branch_rank, node)
        low = tl.load(child_ptr + k).to(tl.int64)
        high = tl.load(child_ptr + k + 1).to(tl.int64)
        entry = _entry_of(child_byte, low, high, label)
        child = tl.load(child_node + tl.maximum(entry, 0)).to(tl.int64)
        below = tl.where(entry >= 0, child, -1)
    else:
        # The only child of a node that does not branch is the next one; after the last node there may be no byte.
        is_leaf = bit_at(leaf, node) != 0
        next_byte = tl.load(byte + node + 1, mask=is_leaf == 0, other=0).to(tl.int64)
        below = tl.where(is_leaf | (next_byte != label), -1, node + 1)
    return below


@triton.jit
def follow(
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
    stop_ids,
    n_stop,
    token_offsets,
    token_data,
    n_tokens,
    position,
    token,
):
    """The position after `token`: FAILED if it is not permitted at `position`. All int64."""
    lane = tl.arange(0, _MAX_IDS)
    listed = tl.load(stop_ids + lane, mask=lane < n_stop, other=-1)
    is_stop = tl.max(((lane < n_stop) & (listed == token)).to(tl.int32), axis=0) != 0
    after = tl.full((), _FAILED, tl.int64)
    if is_stop:
        after = position  # ended stays ended, failed stays failed
        if position >= 0:
            after = tl.where(bit_at(terminal, position) != 0, -1 - position, _FAILED)
    else:
        if (position >= 0) & (token >= 0) & (token < n_tokens):
            k = tl.load(token_offsets + token).to(tl.int64)
            end = tl.load(token_offsets + token + 1).to(tl.int64)
            node = tl.where(k < end, position, -1)
            while (k < end) & (node >= 0):
                label = tl.load(token_data + k).to(tl.int64)
                node = _child(byte, leaf, branch, branch_rank, child_ptr, child_byte, child_node, node, label)
                k += 1
            if has_live & (node >= 0):
                node = tl.where(bit_at(live, node) != 0, node, -1)
            after = tl.where(node >= 0, node, _FAILED)
    return after


@triton.jit
def set_bits(bits, ids, where):
    """Set the bits of `ids` (int) where `where`. Other programs set bits of the same words."""
    ids = ids.to(tl.int32)
    one = tl.full(ids.shape, 1, tl.int32)
    tl.atomic_or(bits + (ids >> 5), one << (ids & 31), mask=where, sem="relaxed")


@triton.jit
def permit_tail(bits, byte, leaf, live, has_live, cells, twin, position):
    """Set the bits of the tokens that are a prefix of the only text below `position`; returns how many there are.

    Goes down that text and through the cells of the tokenizer automaton at once.
    """
    count = tl.full((), 0, tl.int64)
    node = position
    base = _cell_base(tl.load(cells))
    while (base != 0) & (bit_at(leaf, node) == 0):
        node += 1
        label = tl.load(byte + node).to(tl.int64)
        cell = tl.load(cells + (base ^ label))
        leads_here = (cell & _MARK) == label + 1
        base = tl.where(leads_here, _cell_base(cell), 0)
        token = tl.where(leads_here, ((cell >> _TOKEN_SHIFT) & _TOKEN) - 1, -1)
        if has_live:
            token = tl.where(bit_at(live, node) != 0, token, -1)
        while token >= 0:
            set_bits(bits, token, token >= 0)
            count += 1
            token = tl.load(twin + token).to(tl.int64)
    return count


@triton.jit
def _cell_base(cell):
    """Base of the cells below a cell; 0 if nothing is below."""
    return (cell >> _BASE_SHIFT) & _BASE
