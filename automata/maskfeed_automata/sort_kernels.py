"""Sorting byte strings and merging equal ones.

Strings lie in one flat array; string i is data[starts[i] : starts[i] + lengths[i]]. They are ordered by their next
eight bytes as one integer (zero padded), and only runs of equal integers are looked at again, eight bytes further on.
A string that ended inside the padding is a prefix of, or equal to, every other string of its run, so it comes before
them and the shorter comes first; NUL bytes in candidates are therefore no special case.
"""

# ruff: noqa: SIM110 - numba compiles loops, not generator expressions

from typing import Final

import numpy as np

from maskfeed_automata.kernels import I32, I64, U8, U64, kernel

__all__ = ["common_prefix", "finish_order", "is_ascending", "merge_equal", "pick_ranks", "prefix_keys", "split_at"]

# Below this many strings comparing is faster than making keys.
_SMALL: Final = 20


@kernel
def split_at(data: U8, separator: int, n_strings: int) -> tuple[I64, I64, bool]:
    """Starts and lengths (int64 [n_strings]) of the strings between separators.

    The last item is whether there are n_strings - 1 separators; if not, a string contains one, and the arrays are void.
    """
    starts = np.empty(n_strings, np.int64)
    lengths = np.empty(n_strings, np.int64)
    start = 0
    i = 0
    for position in range(data.shape[0]):
        if data[position] == separator:
            if i == n_strings - 1:
                return starts, lengths, False
            starts[i] = start
            lengths[i] = position - start
            start = position + 1
            i += 1
    starts[i] = start
    lengths[i] = data.shape[0] - start
    return starts, lengths, i == n_strings - 1


@kernel
def _key(data: U8, start: int, length: int) -> np.uint64:
    """The first eight bytes as a big-endian integer, zero padded."""
    key = np.uint64(0)
    if length >= 8:
        for k in range(8):
            key = (key << np.uint64(8)) | np.uint64(data[start + k])
        return key
    for k in range(length):
        key = (key << np.uint64(8)) | np.uint64(data[start + k])
    for _ in range(length, 8):
        key <<= np.uint64(8)
    return key


@kernel
def _common(data: U8, start_a: int, start_b: int, limit: int) -> int:
    """How many of the first `limit` bytes at two places agree."""
    k = 0
    while k < limit and data[start_a + k] == data[start_b + k]:
        k += 1
    return k


@kernel
def _compare(data: U8, starts: I64, lengths: I64, a: int, b: int, depth: int) -> int:
    """Sign of string a against string b, whose first `depth` bytes are known to be equal."""
    limit = min(lengths[a], lengths[b])
    k = depth + _common(data, starts[a] + depth, starts[b] + depth, limit - depth)
    if k < limit:
        return -1 if data[starts[a] + k] < data[starts[b] + k] else 1
    return lengths[a] - lengths[b]  # type: ignore[no-any-return]


@kernel
def common_prefix(data: U8, starts: I64, lengths: I64) -> int:
    """Length of the longest prefix of all strings."""
    common = lengths[0]
    for i in range(1, starts.shape[0]):
        if common == 0:
            break
        common = _common(data, starts[0], starts[i], min(common, lengths[i]))
    return common  # type: ignore[no-any-return]


@kernel
def is_ascending(data: U8, starts: I64, lengths: I64) -> bool:
    """Whether the strings are in order already (equal neighbours allowed)."""
    for i in range(1, starts.shape[0]):
        if _compare(data, starts, lengths, i - 1, i, 0) > 0:
            return False
    return True


@kernel
def prefix_keys(data: U8, starts: I64, lengths: I64, skip: int) -> U64:
    """uint64 [n]: the key of each string after its first `skip` bytes."""
    keys = np.empty(starts.shape[0], np.uint64)
    for i in range(starts.shape[0]):
        keys[i] = _key(data, starts[i] + skip, lengths[i] - skip)
    return keys


@kernel
def _insertion_sort(data: U8, starts: I64, lengths: I64, order: I64, low: int, high: int, depth: int) -> None:
    for i in range(low + 1, high):
        x = order[i]
        k = i
        while k > low and _compare(data, starts, lengths, x, order[k - 1], depth) < 0:
            order[k] = order[k - 1]
            k -= 1
        order[k] = x


@kernel
def _ended_first(lengths: I64, order: I64, low: int, high: int, depth: int) -> int:
    """Move strings of at most `depth` bytes to the front of a run, shortest first; returns where the others start."""
    n_ended = 0
    for i in range(low, high):
        if lengths[order[i]] <= depth:
            n_ended += 1
    if n_ended == 0:
        return low
    run = order[low:high].copy()
    ended = np.empty(n_ended, np.int64)
    ended_lengths = np.empty(n_ended, np.int64)
    k = 0
    rest = low + n_ended
    for x in run:
        if lengths[x] <= depth:
            ended[k] = x
            ended_lengths[k] = lengths[x]
            k += 1
        else:
            order[rest] = x
            rest += 1
    by_length = np.argsort(ended_lengths)
    for i in range(n_ended):
        order[low + i] = ended[by_length[i]]
    return low + n_ended


@kernel
def finish_order(data: U8, starts: I64, lengths: I64, sorted_keys: U64, order: I64, skip: int) -> None:
    """Make a full order of one that is right for the bytes [skip, skip + 8).

    Args:
        data: uint8 [n_bytes].
        starts: int64 [n].
        lengths: int64 [n].
        sorted_keys: uint64 [n], keys[order] for the keys of `prefix_keys` with the same `skip`.
        order: int64 [n], from argsort(keys); sorted in place.
        skip: bytes that all strings share.
    """
    n = order.shape[0]
    # Pending runs are disjoint and have two members or more.
    pending = np.empty((n // 2 + 1, 3), np.int64)
    n_pending = 0
    low = 0
    while low < n:
        high = low + 1
        while high < n and sorted_keys[high] == sorted_keys[low]:
            high += 1
        if high - low > 1:
            pending[n_pending] = (low, high, skip + 8)
            n_pending += 1
        low = high
    while n_pending > 0:
        n_pending -= 1
        low, high, depth = pending[n_pending]
        low = _ended_first(lengths, order, low, high, depth)
        if high - low <= _SMALL:
            _insertion_sort(data, starts, lengths, order, low, high, depth)
            continue
        head = order[low]
        common = lengths[head] - depth
        for i in range(low + 1, high):
            x = order[i]
            common = _common(data, starts[head] + depth, starts[x] + depth, min(common, lengths[x] - depth))
            if common == 0:
                break
        depth += common
        run = order[low:high].copy()
        run_keys = np.empty(high - low, np.uint64)
        for i in range(run.shape[0]):
            run_keys[i] = _key(data, starts[run[i]] + depth, lengths[run[i]] - depth)
        permutation = np.argsort(run_keys)
        first = low
        for i in range(run.shape[0]):
            order[low + i] = run[permutation[i]]
            if i > 0 and run_keys[permutation[i]] != run_keys[permutation[i - 1]]:
                if low + i - first > 1:
                    pending[n_pending] = (first, low + i, depth + 8)
                    n_pending += 1
                first = low + i
        if high - first > 1:
            pending[n_pending] = (first, high, depth + 8)
            n_pending += 1


@kernel
def merge_equal(data: U8, starts: I64, lengths: I64, order: I64) -> tuple[U8, I64, I32, I32]:
    """Gather the strings in order, each once.

    Returns:
        data: uint8 [n_bytes], the unique strings one after the other.
        offsets: int64 [n_unique + 1].
        rank_of_input: int32 [n].
        first_input_of_rank: int32 [n_unique], the smallest index among equal strings.
    """
    n = order.shape[0]
    merged = np.empty(lengths.sum(), np.uint8)
    offsets = np.empty(n + 1, np.int64)
    rank_of_input = np.empty(n, np.int32)
    first_input = np.empty(n, np.int32)
    offsets[0] = 0
    n_unique = 0
    size = 0
    previous = -1
    for i in order:
        length = lengths[i]
        start = starts[i]
        if previous >= 0 and lengths[previous] == length and _common(data, starts[previous], start, length) == length:
            first_input[n_unique - 1] = min(first_input[n_unique - 1], i)
        else:
            for k in range(length):
                merged[size + k] = data[start + k]
            size += length
            first_input[n_unique] = i
            n_unique += 1
            offsets[n_unique] = size
        rank_of_input[i] = n_unique - 1
        previous = i
    return merged[:size], offsets[: n_unique + 1], rank_of_input, first_input[:n_unique]


@kernel
def pick_ranks(data: U8, offsets: I64, keys: I64) -> tuple[U8, I64, I32, I32]:
    """Gather some of the strings that are sorted and unique already, each once.

    Args:
        data: uint8 [n_bytes].
        offsets: int64 [n_strings + 1].
        keys: int64 [n], ascending; rank << 32 | place, the places being 0 .. n - 1.

    Returns:
        As `merge_equal`, the inputs being the places.
    """
    n = keys.shape[0]
    picked_offsets = np.empty(n + 1, np.int64)
    ranks = np.empty(n, np.int64)
    rank_of_input = np.empty(n, np.int32)
    first_input = np.empty(n, np.int32)
    picked_offsets[0] = 0
    n_unique = 0
    size = 0
    previous = -1
    touched = np.uint8(0)
    for key in keys:
        rank = key >> 32
        place = key & 0xFFFFFFFF
        if rank != previous:
            start = offsets[rank]
            size += offsets[rank + 1] - start
            # Far apart in memory: asked for here, one read does not wait for the one before, as copies do.
            touched |= data[start]
            ranks[n_unique] = rank
            first_input[n_unique] = place
            n_unique += 1
            picked_offsets[n_unique] = size
            previous = rank
        rank_of_input[place] = n_unique - 1
    picked = np.empty(size + 1, np.uint8)
    picked[size] = touched
    at = 0
    for i in range(n_unique):
        for position in range(offsets[ranks[i]], offsets[ranks[i] + 1]):
            picked[at] = data[position]
            at += 1
    return picked[:size], picked_offsets[: n_unique + 1].copy(), rank_of_input, first_input[:n_unique].copy()
