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

__all__ = ["mask_rows", "write_whole"]

_FORBIDDEN = float("-inf")


def mask_rows(
    logits: torch.Tensor, rows: NDArray[np.int64], row_ptr: NDArray[np.int64], token_ids: NDArray[np.int32]
) -> None:
    """Forbid everything but the permitted ids in the named rows, in place.

    Args:
        logits: [n_rows, width], any float dtype, device and layout; changed in place.
        rows: int64 [n], which rows; each at most once.
        row_ptr: int64 [n + 1]; row i permits token_ids[row_ptr[i] : row_ptr[i + 1]].
        token_ids: int32 [row_ptr[-1]], each below width. Borrowed during the call only.
    """
    if not len(rows):
        return
    # Row and column instead of one flat index: logits may be a slice of a padded tensor.
    entries = np.stack((np.repeat(rows, np.diff(row_ptr)), token_ids[: int(row_ptr[-1])].astype(np.int64)))
    row_index, column_index = torch.from_numpy(entries).to(logits.device, non_blocking=True)
    kept = logits[row_index, column_index]
    if len(rows) == logits.shape[0]:
        logits.fill_(_FORBIDDEN)
    else:
        logits[torch.from_numpy(rows).to(logits.device, non_blocking=True)] = _FORBIDDEN
    logits[row_index, column_index] = kept


def write_whole(logits: torch.Tensor, row: int, token_ids: Sequence[int]) -> None:
    """Let `row` permit exactly `token_ids`, whatever its logits were: 0.0 there, -inf elsewhere.

    Args:
        logits: [n_rows, width]; changed in place.
        row: which row.
        token_ids: at least one, each below width.
    """
    logits[row] = _FORBIDDEN
    logits[row, list(token_ids)] = 0.0
