"""Attacks on a buffer, each a function of its seed: damage that a network or a disk does, and bytes made by hand.

A *sealed* mutation has a right length and checksum again, so it gets past what guards against damage; most of those
also have a right section table, so that every check behind it is reached with one wrong value at a time.
"""

import hashlib
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hostile.targets import Target, targets
from maskfeed_automata.sections import write_sections

__all__ = ["Mutation", "mutation"]

_HEADER_BYTES = 96
_ENTRY_BYTES = 32
_VERSION_AT, _LENGTH_AT, _COUNT_AT, _CHECKSUM_AT = 12, 16, 24, 28
_BITMAPS = ("leaf", "terminal", "branch", "live")


@dataclass(frozen=True)
class Mutation:
    """Bytes to be read as if they were `target`."""

    seed: int
    target: Target
    method: str
    sealed: bool
    blob: bytes


def mutation(seed: int) -> Mutation:
    """The mutation of this seed."""
    choose = random.Random(seed)
    target = choose.choice(targets())
    method = choose.choices(_METHODS, _WEIGHTS)[0]
    blob, sealed = method(choose, target)
    return Mutation(seed, target, method.__name__, sealed, blob)


def truncated(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """Cut, or with bytes behind it."""
    if choose.random() < 0.2:
        blob = bytearray(target.blob + choose.randbytes(choose.choice((1, 4, 8, 64))))
    else:
        blob = bytearray(target.blob[: choose.randrange(len(target.blob))])
    if len(blob) >= _HEADER_BYTES and choose.random() < 0.5:
        return _sealed(blob), True
    return bytes(blob), False


def flipped(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One to eight bits turned."""
    blob = bytearray(target.blob)
    for _ in range(choose.choice((1, 1, 2, 3, 8))):
        blob[choose.randrange(len(blob))] ^= 1 << choose.randrange(8)
    return bytes(blob), False


def spliced(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """A stretch overwritten, inserted or removed."""
    blob = bytearray(target.blob)
    source = choose.choice(targets()).blob
    start = choose.randrange(len(source))
    part = source[start : start + choose.choice((1, 2, 4, 8, 32, 64, 500))]
    at = choose.randrange(len(blob))
    kind = choose.randrange(4)
    if kind == 0:
        blob[at : at + len(part)] = part
    elif kind == 1:
        blob[at:at] = part
    elif kind == 2:
        del blob[at : at + len(part)]
    else:
        blob[at : at + len(part)] = bytes(len(blob[at : at + len(part)]))
    if len(blob) >= _HEADER_BYTES and choose.random() < 0.5:
        return _sealed(blob), True
    return bytes(blob), False


def with_another_header(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One header field replaced: magic, kind, version, length, section count, fingerprint, digest."""
    blob = bytearray(target.blob)
    field = choose.randrange(7)
    other = choose.choice(targets())
    number = choose.choice((0, 1, 2, 3, 13, 14, 15, 64, 65, 255, 1 << 16, (1 << 32) - 1, choose.getrandbits(32)))
    if field == 0:
        blob[choose.randrange(8)] ^= 1 << choose.randrange(8)
    elif field == 1:
        blob[8:12] = choose.choice((b"set ", b"voca", b"toka", b"SET ", b"\0\0\0\0"))
    elif field == 2:
        struct.pack_into("<I", blob, _VERSION_AT, number)
    elif field == 3:
        length = choose.choice((number, len(blob) - 1, len(blob) + 1, (1 << 63) + len(blob), (1 << 64) - 1))
        struct.pack_into("<Q", blob, _LENGTH_AT, length)
        return _with_checksum(blob), True
    elif field == 4:
        struct.pack_into("<I", blob, _COUNT_AT, number)
    else:
        at = 32 if field == 5 else 64
        blob[at : at + 32] = choose.choice((other.blob[at : at + 32], bytes(32), choose.randbytes(32)))
    return _sealed(blob), True


def with_another_table(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One or two entries of the section table with another name, offset or length, or exchanged."""
    blob = bytearray(target.blob)
    (count,) = struct.unpack_from("<I", blob, _COUNT_AT)
    for _ in range(choose.randint(1, 2)):
        a = _HEADER_BYTES + _ENTRY_BYTES * choose.randrange(count)
        b = _HEADER_BYTES + _ENTRY_BYTES * choose.randrange(count)
        kind = choose.randrange(4)
        if kind == 0:
            blob[a : a + _ENTRY_BYTES], blob[b : b + _ENTRY_BYTES] = (
                blob[b : b + _ENTRY_BYTES],
                blob[a : a + _ENTRY_BYTES],
            )
        elif kind == 1:
            blob[a : a + 16] = choose.choice((bytes(blob[b : b + 16]), bytes(16), choose.randbytes(16), b"\xff" * 16))
        else:
            at = a + (16 if kind == 2 else 24)
            (value,) = struct.unpack_from("<Q", blob, at)
            close = value + choose.choice((-64, -8, -4, -1, 1, 4, 8, 64))
            far = choose.choice((0, len(blob), len(blob) + 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 64, (1 << 64) - 1))
            struct.pack_into("<Q", blob, at, choose.choice((close, close, far)) % (1 << 64))
    return _sealed(blob), True


def with_other_items(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One to three items of arrays replaced by values at and around every limit."""
    arrays = target.arrays()
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        array = arrays[choose.choice([name for name, array in arrays.items() if array.size])]
        if choose.random() < 0.2:
            a, b = choose.randrange(array.size), choose.randrange(array.size)
            array[a], array[b] = array[b], array[a]
        else:
            k = choose.choice((0, array.size - 1, choose.randrange(array.size)))
            array[k] = _value(choose, arrays, array, int(array[k]))
    return _written(choose, target, arrays), True


def with_another_size(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One or two arrays shorter, longer or empty; the counts that go with them put right, or not."""
    arrays = target.arrays()
    for _ in range(choose.randint(1, 2)):
        name = choose.choice(list(arrays))
        array = arrays[name]
        kind = choose.randrange(4)
        if kind == 0:
            arrays[name] = array[: choose.choice((0, max(0, array.size - 1), choose.randrange(array.size + 1)))]
        elif kind == 1:
            more = np.zeros(choose.choice((1, 2, 64)), array.dtype)
            if array.size:
                more[:] = array[choose.randrange(array.size)]
            arrays[name] = np.concatenate([array, more])
        elif kind == 2 and array.size:
            arrays[name] = np.delete(array, choose.randrange(array.size))
        elif array.size:
            k = choose.randrange(array.size)
            arrays[name] = np.insert(array, k, array[k])
    if target.kind == b"set " and choose.random() < 0.7 and arrays["meta"].size == 3:
        arrays["meta"][2] = choose.choice((arrays["byte"].size, arrays["leaf"].size * 64, arrays["byte"].size + 1))
    return _written(choose, target, arrays), True


def grafted(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """One to four sections from another target of the same kind."""
    arrays = target.arrays()
    other = choose.choice([each for each in targets() if each.kind == target.kind]).arrays()
    for name in choose.sample(list(arrays), choose.randint(1, min(4, len(arrays)))):
        arrays[name] = other[name]
    return _written(choose, target, arrays), True


def coherent(choose: random.Random, target: Target) -> tuple[bytes, bool]:
    """Changes in one place with all that depends on it put right: what only the last checks can see, or nothing."""
    arrays = target.arrays()
    if target.kind == b"toka":
        return with_other_items(choose, target)
    if target.kind == b"voca":
        _wrap_around(choose, arrays)
        return _written(choose, target, arrays), True
    for _ in range(choose.randint(1, 2)):
        choose.choice(_COHERENT)(choose, arrays, target)
    _count_again(arrays)
    return _written(choose, target, arrays), True


def _wrap_around(choose: random.Random, arrays: dict[str, np.ndarray]) -> None:
    """Offsets that leave int64 at the top and come back from below, so that no difference of neighbours is negative."""
    offsets = arrays["offsets"]
    k = choose.randrange(offsets.size)
    top, bottom = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    way = np.array([top - choose.randrange(4), bottom + choose.randrange(4), -(1 << 62), 0], np.int64)
    arrays["offsets"] = np.concatenate([offsets[:k], way[choose.randrange(2) :], offsets[k:]])


def _turn_a_bit(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    bits = arrays[choose.choice([name for name in _BITMAPS if arrays[name].size])]
    node = choose.choice((choose.randrange(arrays["byte"].size), choose.randrange(bits.size * 64)))
    bits[node >> 6] ^= np.uint64(1) << np.uint64(node & 63)


def _turn_a_branch(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    """A node starts or ceases to branch, with its rows."""
    node = choose.randrange(arrays["byte"].size)
    word, bit = node >> 6, np.uint64(1) << np.uint64(node & 63)
    k = sum(bool(arrays["branch"][n >> 6] >> np.uint64(n & 63) & np.uint64(1)) for n in range(node))
    branches = bool(arrays["branch"][word] & bit)
    arrays["branch"][word] ^= bit
    for name in ("child_ptr", "mask_ptr"):
        if branches:
            arrays[name] = np.delete(arrays[name], min(k + 1, arrays[name].size - 1))
        else:
            arrays[name] = np.insert(arrays[name], k, arrays[name][min(k, arrays[name].size - 1)])
    if not branches and node + 1 < arrays["byte"].size:
        at = int(arrays["child_ptr"][k])
        arrays["child_node"] = np.insert(arrays["child_node"], at, node + 1)
        arrays["child_byte"] = np.insert(arrays["child_byte"], at, arrays["byte"][node + 1])
        arrays["child_ptr"][k + 1 :] += 1


def _relabel(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    node = choose.randrange(arrays["byte"].size)
    arrays["byte"][node] = choose.randrange(256)
    arrays["child_byte"][arrays["child_node"] == node] = arrays["byte"][node]


def _retarget(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    """A child is another node."""
    if arrays["child_node"].size:
        entry = choose.randrange(arrays["child_node"].size)
        node = choose.randrange(arrays["byte"].size)
        arrays["child_node"][entry] = node
        arrays["child_byte"][entry] = arrays["byte"][node]


def _other_masks(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    ids = arrays["mask_ids"]
    for _ in range(choose.randint(1, 4) if ids.size else 0):
        ids[choose.randrange(ids.size)] = choose.randrange(target.vocabulary.size)


def _other_rows(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    pointers = arrays[choose.choice(("mask_ptr", "child_ptr"))]
    if pointers.size > 2:
        k = choose.randrange(1, pointers.size - 1)
        pointers[k] = choose.randint(int(pointers[k - 1]), int(pointers[k + 1]))


def _fewer_nodes(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    n_nodes = choose.randrange(1, arrays["byte"].size + 1)
    n_words = -(-n_nodes // 64)
    arrays["byte"] = arrays["byte"][:n_nodes]
    keep = np.zeros(n_words * 64, np.uint8)
    keep[:n_nodes] = 1
    for name in _BITMAPS:
        if arrays[name].size:
            arrays[name] = arrays[name][:n_words] & np.packbits(keep, bitorder="little").view(np.uint64)
    arrays["leaf"][n_nodes - 1 >> 6] |= np.uint64(1) << np.uint64(n_nodes - 1 & 63)
    arrays["terminal"] |= arrays["leaf"]
    rows = int(np.bitwise_count(arrays["branch"]).sum()) + 1
    arrays["child_ptr"], arrays["mask_ptr"] = arrays["child_ptr"][:rows], arrays["mask_ptr"][:rows]
    for pointers, names in (("child_ptr", ("child_node", "child_byte")), ("mask_ptr", ("mask_ids",))):
        for name in names:
            arrays[name] = arrays[name][: arrays[pointers][-1]]


def _other_ranks(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    ranks = arrays["variant_rank"]
    if ranks.size:
        ranks[choose.randrange(ranks.size)] = choose.randrange(int(ranks.max()) + 1)


def _other_option(choose: random.Random, arrays: dict[str, np.ndarray], target: Target) -> None:
    arrays["meta"][1] = choose.randrange(-1, 4)


def _count_again(arrays: dict[str, np.ndarray]) -> None:
    """Ranks, the number of nodes, and of candidates where it is the number of terminal nodes."""
    for name in ("terminal", "branch"):
        counts = np.cumsum(np.bitwise_count(arrays[name]), dtype=np.int32)
        arrays[f"{name}_rank"] = np.concatenate([np.zeros(1, np.int32), counts])
    n_variants = int(arrays["terminal_rank"][-1])
    arrays["meta"][2] = arrays["byte"].size
    if not arrays["variant_rank"].size:
        arrays["meta"][0] = n_variants
    else:
        arrays["variant_rank"] = np.resize(arrays["variant_rank"], n_variants)
        arrays["meta"][0] = arrays["variant_rank"].max(initial=-1) + 1


_COHERENT: Sequence[Callable[[random.Random, dict[str, np.ndarray], Target], None]] = (
    _turn_a_bit,
    _turn_a_branch,
    _relabel,
    _retarget,
    _other_masks,
    _other_rows,
    _fewer_nodes,
    _other_ranks,
    _other_option,
)

_METHODS = (
    truncated,
    flipped,
    spliced,
    with_another_header,
    with_another_table,
    with_other_items,
    with_another_size,
    grafted,
    coherent,
)
_WEIGHTS = (1, 1, 1, 1, 2, 4, 2, 1, 5)


def _value(choose: random.Random, arrays: dict[str, np.ndarray], array: np.ndarray, value: int) -> int:
    """A value at or around one of the limits that this array could be checked against."""
    limits = np.iinfo(array.dtype)
    size = choose.choice(list(arrays.values())).size
    options = (
        value + choose.choice((-1, 1)),
        value ^ 1 << choose.randrange(limits.bits),
        size + choose.choice((-1, 0, 1)),
        int(array[choose.randrange(array.size)]),
        choose.choice((0, 1, -1, 2, 63, 64, 65, limits.min, limits.max, limits.max - 1)),
        choose.getrandbits(limits.bits),
    )
    chosen = choose.choice(options) % (1 << limits.bits)
    return chosen - (1 << limits.bits) if limits.min < 0 and chosen > limits.max else chosen


def _written(choose: random.Random, target: Target, arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as a buffer, with the identities of the target; a vocabulary mostly with the fingerprint that fits."""
    first, second = target.blob[32:64], target.blob[64:96]
    if target.kind == b"voca" and choose.random() < 0.9:
        # What a fingerprint covers, lengths of any size included.
        first = _fingerprint(arrays["data"], arrays["offsets"])
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return write_sections(target.kind, 1, (first, second), arrays)


def _fingerprint(data: np.ndarray, offsets: np.ndarray) -> bytes:
    digest = hashlib.sha256(b"maskfeed vocabulary 1 ")
    digest.update(np.diff(offsets).astype("<u4").tobytes())
    digest.update(data.tobytes())
    return digest.digest()


def _sealed(blob: bytearray) -> bytes:
    struct.pack_into("<Q", blob, _LENGTH_AT, len(blob))
    return _with_checksum(blob)


def _with_checksum(blob: bytearray) -> bytes:
    struct.pack_into("<I", blob, _CHECKSUM_AT, zlib.crc32(blob[_CHECKSUM_AT + 4 :], zlib.crc32(blob[:_CHECKSUM_AT])))
    return bytes(blob)
