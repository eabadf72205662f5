"""Rows of a token bitmask: the only module that knows 32.

The layout is that of xgrammar and vLLM: int32 words, bit i % 32 of word i // 32 stands for token i, 1 means permitted.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32
from maskfeed_automata.step_kernels import set_bits

__all__ = ["allocate_bitmask", "bitmask_width", "write_bitmask"]

_BITS: Final = 32


def bitmask_width(vocabulary_size: int) -> int:
    """Words in a row: ceil(vocabulary_size / 32)."""
    return -(-vocabulary_size // _BITS)


def allocate_bitmask(n_rows: int, vocabulary_size: int) -> I32:
    """int32 [n_rows, bitmask_width(vocabulary_size)], nothing permitted; owned by the caller."""
    return np.zeros((n_rows, bitmask_width(vocabulary_size)), np.int32)


def write_bitmask(token_ids: I32, row: I32, vocabulary_size: int) -> None:
    """Overwrite a row: the listed tokens are permitted, nothing else; tail bits are 0.

    Args:
        token_ids: int32 [n], each in [0, vocabulary_size).
        row: int32 [bitmask_width(vocabulary_size)], C-contiguous, writeable; overwritten completely.
        vocabulary_size: number of ids.

    Raises:
        ValueError: `row` has another shape, dtype or layout, or is read-only.
    """
    width = bitmask_width(vocabulary_size)
    if row.shape != (width,) or row.dtype != np.int32 or not row.flags.c_contiguous or not row.flags.writeable:
        raise ValueError(f"a bitmask row is a writeable, contiguous int32 [{width}], not {row.dtype} {list(row.shape)}")
    set_bits(token_ids, row)
