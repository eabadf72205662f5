"""Sorting byte strings and merging equal ones.

Strings are ordered by their next eight bytes as one integer (zero padded), and only runs of equal integers are looked
at again, eight bytes further on. A string that ended inside the padding is a prefix of, or equal to, every other string
of its run, so it comes before them and the shorter comes first; NUL bytes in candidates are therefore no special case.

After the first eight bytes the strings are copied in the order that is known so far. Runs then lie together, and what
is left to do stays in the processor's caches. The caller allocates the copies: numpy asks for huge pages where they
are large, and numba does not; a first touch of 64 MB in small pages takes as long as sorting them.
"""

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, kernel
from maskfeed_automata.word_kernels import AHEAD, common_length, copy_bytes, prefetch, prefix_key, zero_at

__all__ = [
    "common_prefix",
    "finish_order",
    "gather_strings",
    "is_ascending",
    "merge_equal",
    "prefix_keys",
    "split_at_zeros",
]

# Up to this many strings are sorted by insertion.
_SMALL: Final = 24


@kernel
def split_at_zeros(data: U8, n_strings: int) -> tuple[I64, I64, bool]:
    """Starts and lengths (int64 [n_strings]) of the strings between zero bytes.

    The last item is whether there are n_strings - 1 zeros; if not, a string contains one, and the arrays are void.
    """
    starts = np.empty(n_strings, np.int64)
    lengths = np.empty(n_strings, np.int64)
    start = 0
    for i in range(n_strings):
        end = zero_at(data, start)
        starts[i] = start
        lengths[i] = end - start
        if (end == data.shape[0]) != (i == n_strings - 1):
            return starts, lengths, False
        start = end + 1
    return starts, lengths, True


@kernel
def common_prefix(data: U8, starts: I64, lengths: I64) -> int:
    """Length of the longest prefix of all strings."""
    common: int = lengths[0]
    for i in range(1, starts.shape[0]):
        if common == 0:
            break
        common = common_length(data, starts[0], starts[i], min(common, lengths[i]))
    return common


@kernel
def is_ascending(data: U8, starts: I64, lengths: I64) -> bool:
    """Whether the strings are in order already (equal neighbours allowed)."""
    for i in range(1, starts.shape[0]):
        limit = min(lengths[i - 1], lengths[i])
        common = common_length(data, starts[i - 1], starts[i], limit)
        if common < limit:
            if data[starts[i - 1] + common] > data[starts[i] + common]:
                return False
        elif lengths[i - 1] > lengths[i]:
            return False
    return True


@kernel
def prefix_keys(data: U8, starts: I64, lengths: I64, skip: int) -> U64:
    """uint64 [n]: the key of each string after its first `skip` bytes."""
    keys = np.empty(starts.shape[0], np.uint64)
    for i in range(starts.shape[0]):
        keys[i] = prefix_key(data, starts[i] + skip, lengths[i] - skip)
    return keys


@kernel
def gather_strings(data: U8, starts: I64, lengths: I64, order: I64, gathered: U8) -> I64:
    """Write the strings one after the other, in this order, to `gathered`; return offsets, int64 [n + 1].

    `gathered` is uint8 [n_bytes + 8]: what lies behind the strings is overwritten, too.
    """
    n = order.shape[0]
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = 0
    for i in range(n):
        # Far apart in memory: asked for ahead, reads do not wait for each other.
        if i + 2 * AHEAD < n:
            prefetch(starts, order[i + 2 * AHEAD])
            prefetch(lengths, order[i + 2 * AHEAD])
        if i + AHEAD < n:
            later = order[i + AHEAD]
            prefetch(data, starts[later])
            prefetch(data, starts[later] + lengths[later] - 1)
        length = lengths[order[i]]
        copy_bytes(data, starts[order[i]], length, gathered, offsets[i])
        offsets[i + 1] = offsets[i] + length
    return offsets


@kernel
def _sort_small(keys: U64, order: I64, low: int, high: int) -> None:
    """Sort keys[low:high], and order[low:high] along with them."""
    for i in range(low + 1, high):
        key = keys[i]
        entry = order[i]
        k = i
        while k > low and keys[k - 1] > key:
            keys[k] = keys[k - 1]
            order[k] = order[k - 1]
            k -= 1
        keys[k] = key
        order[k] = entry


@kernel
def _exchange(keys: U64, order: I64, a: int, b: int) -> None:
    key = keys[a]
    keys[a] = keys[b]
    keys[b] = key
    entry = order[a]
    order[a] = order[b]
    order[b] = entry


@kernel
def _sort(keys: U64, order: I64, low: int, high: int, pending: I64) -> None:
    """The same for any number: quicksort in three parts, because equal keys are many where strings look alike.

    `pending` (int64 [64, 2]) is enough for the larger parts: each is put off for one at most half as long.
    """
    n_pending = 0
    while True:
        while high - low > _SMALL:
            a, b, c = keys[low], keys[(low + high) >> 1], keys[high - 1]
            pivot = max(min(a, b), min(max(a, b), c))
            below = low
            above = high
            i = low
            while i < above:
                if keys[i] < pivot:
                    _exchange(keys, order, i, below)
                    below += 1
                    i += 1
                elif keys[i] > pivot:
                    above -= 1
                    _exchange(keys, order, i, above)
                else:
                    i += 1
            if below - low < high - above:
                pending[n_pending, 0] = above
                pending[n_pending, 1] = high
                high = below
            else:
                pending[n_pending, 0] = low
                pending[n_pending, 1] = below
                low = above
            n_pending += 1
        _sort_small(keys, order, low, high)
        if n_pending == 0:
            break
        n_pending -= 1
        low = pending[n_pending, 0]
        high = pending[n_pending, 1]


@kernel
def _ended_first(offsets: I64, order: I64, low: int, high: int, depth: int) -> int:
    """Move strings of at most `depth` bytes to the front of a run, shortest first; returns where the others start."""
    front = low
    for i in range(low, high):
        entry = order[i]
        length = offsets[entry + 1] - offsets[entry]
        if length <= depth:
            order[i] = order[front]
            k = front
            while k > low and offsets[order[k - 1] + 1] - offsets[order[k - 1]] > length:
                order[k] = order[k - 1]
                k -= 1
            order[k] = entry
            front += 1
    return front


@kernel
def finish_order(data: U8, offsets: I64, keys: U64, skip: int) -> I64:
    """The order of strings that are sorted by the bytes [skip, skip + 8).

    Args:
        data: uint8 [n_bytes].
        offsets: int64 [n + 1]; string i is data[offsets[i] : offsets[i + 1]].
        keys: uint64 [n], ascending: the keys of `prefix_keys` with the same `skip`; overwritten.
        skip: bytes that all strings share.

    Returns:
        int64 [n]; of equal strings any may come first.
    """
    n = keys.shape[0]
    order = np.arange(n)
    # Runs that are put off: disjoint, and of two strings or more.
    pending = np.empty((n // 2 + 1, 3), np.int64)
    halves = np.empty((64, 2), np.int64)
    first = 0
    while first < n:
        end = first + 1
        while end < n and keys[end] == keys[first]:
            end += 1
        pending[0, 0] = first
        pending[0, 1] = end
        pending[0, 2] = skip + 8
        n_pending = 1 if end - first > 1 else 0
        while n_pending > 0:
            n_pending -= 1
            low = pending[n_pending, 0]
            high = pending[n_pending, 1]
            depth = pending[n_pending, 2]
            if keys[low] & np.uint64(0xFF) == np.uint64(0):
                # Padding, perhaps. If not, the strings go on, or end right here and get a key of 0 in the next round.
                low = _ended_first(offsets, order, low, high, depth)
                if high - low < 2:
                    continue
            for i in range(low, high):
                start = offsets[order[i]] + depth
                keys[i] = prefix_key(data, start, offsets[order[i] + 1] - start)
            _sort(keys, order, low, high, halves)
            run = low
            for i in range(low + 1, high + 1):
                if i == high or keys[i] != keys[run]:
                    if i - run > 1:
                        pending[n_pending, 0] = run
                        pending[n_pending, 1] = i
                        pending[n_pending, 2] = depth + 8
                        n_pending += 1
                    run = i
        first = end
    return order


@kernel
def merge_equal(data: U8, offsets: I64, order: I64, input_of: I64, merged: U8) -> tuple[U8, I64, I32, I32]:
    """Gather the strings in order, each once.

    Args:
        data: uint8 [n_bytes].
        offsets: int64 [n + 1].
        order: int64 [n], from `finish_order`.
        input_of: int64 [n], the given index of each string.
        merged: uint8, as long as `data`; overwritten.

    Returns:
        data: uint8 [n_unique_bytes], the beginning of `merged`: the unique strings one after the other.
        offsets: int64 [n_unique + 1].
        rank_of_input: int32 [n].
        first_input_of_rank: int32 [n_unique], the smallest index among equal strings.
    """
    n = order.shape[0]
    merged_offsets = np.empty(n + 1, np.int64)
    rank_of_input = np.empty(n, np.int32)
    first_input = np.empty(n, np.int32)
    merged_offsets[0] = 0
    rank = -1
    size = 0
    previous_start = 0
    previous_length = -1
    for entry in order:
        start = offsets[entry]
        length = offsets[entry + 1] - start
        given = input_of[entry]
        if length == previous_length and common_length(data, previous_start, start, length) == length:
            first_input[rank] = min(first_input[rank], given)
        else:
            copy_bytes(data, start, length, merged, size)
            size += length
            rank += 1
            first_input[rank] = given
            merged_offsets[rank + 1] = size
        rank_of_input[given] = rank
        previous_start = start
        previous_length = length
    return merged[:size], merged_offsets[: rank + 2], rank_of_input, first_input[: rank + 1]
