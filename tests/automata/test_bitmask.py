"""Bitmask rows at every word boundary."""

import numpy as np
import pytest

from maskfeed_automata import Vocabulary, allocate_bitmask, bitmask_width, compile

SIZES = [*range(1, 100), *range(1024 - 33, 1024 + 34), *range(32768 - 2, 32768 + 3)]


def test_a_row_has_a_bit_for_every_token_and_zeros_behind():
    for size in SIZES:
        # "a" under the first and the last id, and at every word boundary
        ids = sorted({0, size - 1, *range(31, size, 32), *range(32, size, 32)})
        tokens: list[bytes | None] = [None] * size
        for token_id in ids:
            tokens[token_id] = b"a"
        cursor = compile(Vocabulary.from_token_bytes(tokens), ["a"]).cursor()
        width = bitmask_width(size)
        assert 32 * (width - 1) < size <= 32 * width
        guarded = np.full(width + 2, 0x5A5A5A5A, np.int32)
        cursor.fill_bitmask(guarded[1:-1])
        assert guarded[0] == guarded[-1] == 0x5A5A5A5A
        bits = np.unpackbits(guarded[1:-1].copy().view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == ids


def test_rows_of_an_allocated_bitmask_are_independent():
    cursor = compile(Vocabulary.from_token_bytes([b"a", b"b"] * 40), ["b"]).cursor()
    bitmask = allocate_bitmask(3, 80)
    assert (bitmask.shape, bitmask.dtype) == ((3, 3), np.int32)
    cursor.fill_bitmask(bitmask[1])
    assert bitmask.tolist() == [
        [0, 0, 0],
        np.array([0xAAAAAAAA, 0xAAAAAAAA, 0xAAAA], np.uint32).view(np.int32).tolist(),
        [0, 0, 0],
    ]


@pytest.mark.parametrize(
    "row",
    [
        np.zeros(2, np.int32),
        np.zeros(4, np.int32),
        np.zeros((1, 3), np.int32),
        np.zeros(3, np.int64),
        np.zeros(6, np.int32)[::2],
        np.frombuffer(bytes(12), np.int32),
    ],
    ids=["short", "long", "two-dimensional", "int64", "strided", "read-only"],
)
def test_a_row_of_another_form_is_refused(row):
    cursor = compile(Vocabulary.from_token_bytes([b"a"] * 80), ["a"]).cursor()
    with pytest.raises(ValueError, match=r"int32 \[3\]"):
        cursor.fill_bitmask(row)
