"""Byte strings that are sorted and unique already: some of them picked out, others found among them."""

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, kernel
from maskfeed_automata.word_kernels import AHEAD, copy_bytes, prefetch, prefix_key

__all__ = ["find_members", "pick_ranks"]


@kernel
def pick_ranks(data: U8, offsets: I64, keys: I64) -> tuple[U8, I64, I32, I32]:
    """Gather some of the strings that are sorted and unique already, each once.

    Args:
        data: uint8 [n_bytes].
        offsets: int64 [n_strings + 1].
        keys: int64 [n], ascending; rank << 32 | place, the places being 0 .. n - 1.

    Returns:
        As `maskfeed_automata.sort_kernels.merge_equal`, the inputs being the places.
    """
    n = keys.shape[0]
    picked_offsets = np.empty(n + 1, np.int64)
    starts = np.empty(n, np.int64)
    rank_of_input = np.empty(n, np.int32)
    first_input = np.empty(n, np.int32)
    picked_offsets[0] = 0
    n_unique = 0
    size = 0
    previous = -1
    for i in range(n):
        # Far apart in memory: asked for ahead, reads do not wait for each other.
        if i + 2 * AHEAD < n:
            prefetch(offsets, keys[i + 2 * AHEAD] >> 32)
        if i + AHEAD < n:
            later = keys[i + AHEAD] >> 32
            prefetch(data, offsets[later])
            prefetch(data, offsets[later + 1] - 1)
        rank = keys[i] >> 32
        place = keys[i] & 0xFFFFFFFF
        if rank != previous:
            start = offsets[rank]
            size += offsets[rank + 1] - start
            starts[n_unique] = start
            first_input[n_unique] = place
            n_unique += 1
            picked_offsets[n_unique] = size
            previous = rank
        rank_of_input[place] = n_unique - 1
    picked = np.empty(size + 8, np.uint8)
    for i in range(n_unique):
        copy_bytes(data, starts[i], picked_offsets[i + 1] - picked_offsets[i], picked, picked_offsets[i])
    return picked[:size], picked_offsets[: n_unique + 1].copy(), rank_of_input, first_input[:n_unique].copy()


@kernel
def _is_before(data: U8, start_a: int, length_a: int, other: U8, start_b: int, length_b: int, key_b: np.uint64) -> bool:
    """Whether string a of `data` sorts before string b of `other`, whose first eight bytes are `key_b`."""
    key_a = prefix_key(data, start_a, length_a)
    if key_a != key_b:
        return key_a < key_b  # type: ignore[return-value]
    limit = min(length_a, length_b)
    k = 8
    while k < limit and data[start_a + k] == other[start_b + k]:
        k += 1
    return data[start_a + k] < other[start_b + k] if k < limit else length_a < length_b


@kernel
def _is_equal(data: U8, start_a: int, length_a: int, other: U8, start_b: int, length_b: int) -> bool:
    k = 0
    while k < min(length_a, length_b) and data[start_a + k] == other[start_b + k]:
        k += 1
    return k == length_a == length_b


@kernel
def find_members(data: U8, offsets: I64, sought: U8, sought_offsets: I64) -> I32:
    """Where strings are among others; both are sorted and unique.

    Args:
        data: uint8 [n_bytes], the others.
        offsets: int64 [n_strings + 1].
        sought: uint8 [n_sought_bytes].
        sought_offsets: int64 [n_sought + 1].

    Returns:
        int32 [n_sought]: rank among the others, -1 for none.

    Cost: O(n_sought log(n_strings / n_sought)) comparisons, most of them of neighbours in memory.
    """
    n_sought = sought_offsets.shape[0] - 1
    n_strings = offsets.shape[0] - 1
    ranks = np.empty(n_sought, np.int32)
    low = 0
    for i in range(n_sought):
        start = sought_offsets[i]
        length = sought_offsets[i + 1] - start
        key = prefix_key(sought, start, length)
        # What is sought next lies behind what was sought last, and rarely far: strides that double find the stretch.
        high = low
        stride = 1
        while high < n_strings and _is_before(
            data, offsets[high], offsets[high + 1] - offsets[high], sought, start, length, key
        ):
            low = high + 1
            high += stride
            stride *= 2
        high = min(high, n_strings)
        while low < high:
            middle = (low + high) // 2
            other = offsets[middle]
            if _is_before(data, other, offsets[middle + 1] - other, sought, start, length, key):
                low = middle + 1
            else:
                high = middle
        is_there = low < n_strings and _is_equal(
            data, offsets[low], offsets[low + 1] - offsets[low], sought, start, length
        )
        ranks[i] = low if is_there else -1
    return ranks
