"""Rows of 32-bit logits in this process's memory, masked one after the other.

One compiled call instead of a dozen of torch's: for a single row those take longer than filling it does. A row is
written while it is in the processor's cache, and what stays is copied as bits. The kernel validates ids, and nothing
else: `masking` hands it the memory of a tensor. Invariant: nothing is written if an id or a row is out of range.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32, I64, kernel, u32_view

__all__ = ["keep_only"]

# -inf as float32
_FORBIDDEN: Final = np.uint32(0xFF800000)


@kernel
def keep_only(address: int, n_rows: int, width: int, row_stride: int, rows: I64, row_ptr: I64, token_ids: I32) -> bool:
    """Set rows of a float32 matrix to -inf, except for the listed columns.

    Args:
        address: of element (0, 0); columns lie one after the other.
        n_rows: int.
        width: columns.
        row_stride: elements from one row to the next.
        rows: int64 [n], each once.
        row_ptr: int64 [n + 1]; row i keeps token_ids[row_ptr[i] : row_ptr[i + 1]].
        token_ids: int32 [row_ptr[-1]].

    Returns:
        False if a row or an id is out of range; then nothing was written.
    """
    for i in range(rows.shape[0]):
        if rows[i] < 0 or rows[i] >= n_rows:
            return False
    for k in range(row_ptr[rows.shape[0]]):
        if token_ids[k] < 0 or token_ids[k] >= width:
            return False
    kept = np.empty(row_ptr[rows.shape[0]], np.uint32)
    for i in range(rows.shape[0]):
        row = u32_view(address + 4 * row_stride * rows[i], width)
        for k in range(row_ptr[i], row_ptr[i + 1]):
            kept[k] = row[token_ids[k]]
        row[:] = _FORBIDDEN
        for k in range(row_ptr[i], row_ptr[i + 1]):
            row[token_ids[k]] = kept[k]
    return True
