"""Permitted ids onto logits.

The only module that writes into logits. It knows tensors and ids, no sets and no requests. Invariants: a row that is
not named is not touched, not even rewritten with the same bits; an entry that was -inf stays -inf, except in a refused
row, which is written whole. Only the permitted ids travel to the device (a few to a few hundred for a row), never a
mask as wide as the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["mask_rows", "masked_copy", "write_whole"]

_FORBIDDEN = float("-inf")
# Entries that one thread fills sooner than several have agreed to.
_ONE_THREAD = 1 << 20


def mask_rows(
    logits: torch.Tensor, rows: NDArray[np.int64], row_ptr: NDArray[np.int64], token_ids: NDArray[np.int32]
) -> None:
    """Forbid everything but the permitted ids in the named rows, in place.

    Args:
        logits: [n_rows, width], any float dtype, device and layout; changed in place.
        rows: int64 [n], which rows; each at most once.
        row_ptr: int64 [n + 1]; row i permits token_ids[row_ptr[i] : row_ptr[i + 1]].
        token_ids: int32 [row_ptr[-1]], each below width. Borrowed during the call only.

    Raises:
        InternalInvariant, or IndexError of torch: a row or an id is out of range.
    """
    if not len(rows) or _keep_only(logits, rows, row_ptr, token_ids):
        return
    line, index = _entries(logits, rows, row_ptr, token_ids)
    kept = line.index_select(0, index)
    if len(rows) == logits.shape[0]:
        logits.fill_(_FORBIDDEN)
    else:
        logits[torch.from_numpy(rows).to(logits.device, non_blocking=True)] = _FORBIDDEN
    line.index_copy_(0, index, kept)


def masked_copy(logits: torch.Tensor, row_ptr: NDArray[np.int64], token_ids: NDArray[np.int32]) -> torch.Tensor:
    """New logits in which every row has only its permitted ids.

    Args:
        logits: [n_rows, width], any float dtype, device and layout; not changed.
        row_ptr: int64 [n_rows + 1]; row i permits token_ids[row_ptr[i] : row_ptr[i + 1]].
        token_ids: int32 [row_ptr[-1]], each below width. Borrowed during the call only.
    """
    masked = torch.full_like(logits, _FORBIDDEN)
    rows = np.arange(logits.shape[0])
    source, source_index = _entries(logits, rows, row_ptr, token_ids)
    target, target_index = _entries(masked, rows, row_ptr, token_ids)
    target.index_copy_(0, target_index, source.index_select(0, source_index))
    return masked


def write_whole(logits: torch.Tensor, row: int, token_ids: Sequence[int]) -> None:
    """Let `row` permit exactly `token_ids`, whatever its logits were: 0.0 there, -inf elsewhere.

    Args:
        logits: [n_rows, width]; changed in place.
        row: which row.
        token_ids: at least one, each below width.
    """
    logits[row] = _FORBIDDEN
    logits[row, list(token_ids)] = 0.0


def _keep_only(
    logits: torch.Tensor, rows: NDArray[np.int64], row_ptr: NDArray[np.int64], token_ids: NDArray[np.int32]
) -> bool:
    """The same in one compiled call; False, and nothing is done, where that is not possible or not faster."""
    if not logits.is_cpu or logits.dtype is not torch.float32:
        return False
    if logits.numel() > _ONE_THREAD and torch.get_num_threads() > 1:
        return False
    n_rows, width = logits.shape
    row_stride, column_stride = logits.stride()
    if column_stride != 1 or row_stride < width:
        return False
    # Imported late: this module is loaded where numba must not be.
    from maskfeed_workers.row_kernel import keep_only

    if not keep_only(logits.data_ptr(), n_rows, width, row_stride, rows, row_ptr, token_ids):
        from maskfeed_automata.errors import InternalInvariant

        raise InternalInvariant(f"rows or ids outside of logits of shape {n_rows} x {width}")
    return True


def _entries(
    logits: torch.Tensor, rows: NDArray[np.int64], row_ptr: NDArray[np.int64], token_ids: NDArray[np.int32]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory of the logits as one line, and where on it the permitted entries are (int64, on the same device).

    One index instead of a row and a column: half as much travels to the device, and copying by one index takes a
    third of the time of indexing by two.
    """
    row_stride, column_stride = logits.stride()
    index = np.repeat(rows * row_stride, np.diff(row_ptr))
    index += token_ids[: index.size] if column_stride == 1 else token_ids[: index.size].astype(np.int64) * column_stride
    length = (logits.shape[0] - 1) * row_stride + (logits.shape[1] - 1) * column_stride + 1
    line = logits.as_strided((length,), (1,))
    return line, torch.from_numpy(index).to(logits.device, non_blocking=True)
