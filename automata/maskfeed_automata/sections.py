"""One flat little-endian buffer of named arrays, readable in place.

Artifacts, vocabularies and tokenizer automata are kept and sent in this form. This module knows nothing of what the
arrays mean. Invariant: `read_sections` accepts only what `write_sections` could have written, so what it accepts is the
one buffer for its contents; its views are read-only, lie inside the buffer and are aligned for their type.

    offset  bytes
         0      8   magic "maskfeed"
         8      4   kind, ASCII
        12      4   format version, uint32
        16      8   length of the whole buffer, uint64
        24      4   number of sections, uint32
        28      4   CRC-32 of the buffer without these four bytes, uint32
        32     32   first identity (SHA-256)
        64     32   second identity (SHA-256)
        96    32n   section table: name (16 bytes, ASCII, zero padded), offset (uint64), length in bytes (uint64)
         ...        sections in the order of the table, each at the next multiple of 64, zero bytes between
"""

import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskfeed_automata.errors import CorruptArtifact, FormatVersionError

__all__ = ["Buffer", "Sections", "read_sections", "size_of_sections", "write_sections"]

Buffer = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct("<8s4sIQII32s32s")
_ENTRY: Final = struct.Struct("<16sQQ")
_MAGIC: Final = b"maskfeed"
_CHECKSUM_AT: Final = 28
_ALIGNMENT: Final = 64
_NAME_BYTES: Final = 16

if sys.byteorder != "little":
    raise ImportError("maskfeed reads its buffers in place and needs a little-endian machine")


@dataclass(frozen=True, slots=True)
class Sections:
    """A buffer that was read. The views keep it alive."""

    identities: tuple[bytes, bytes]
    views: Mapping[str, memoryview]
    # the whole buffer, aligned; the given one unless that was not aligned
    buffer: memoryview

    def array(self, name: str, dtype: type[np.generic], length: int | None = None) -> NDArray[Any]:
        """Section `name` as a read-only array.

        Args:
            name: section name.
            dtype: little-endian item type.
            length: number of items it must have; None for any.

        Raises:
            CorruptArtifact: no such section, or another length.
        """
        view = self.views.get(name)
        size = np.dtype(dtype).itemsize
        if view is None or view.nbytes % size or (length is not None and view.nbytes != length * size):
            found = "no section" if view is None else f"{view.nbytes} bytes"
            raise CorruptArtifact(f"section {name!r}: {found}, expected {length} items of {size} bytes", section=name)
        array = np.frombuffer(view, dtype)
        array.flags.writeable = False
        return array


def size_of_sections(lengths: list[int]) -> int:
    """Length of the buffer that holds sections of these lengths (bytes)."""
    size = _HEADER.size + _ENTRY.size * len(lengths)
    for length in lengths:
        size = _aligned(size) + length
    return size


def write_sections(
    kind: bytes, version: int, identities: tuple[bytes, bytes], sections: Mapping[str, NDArray[Any]]
) -> bytes:
    """Copy arrays into one buffer.

    Args:
        kind: four ASCII bytes.
        version: format version of what the arrays mean.
        identities: two times 32 bytes, meaning left to the caller.
        sections: C-contiguous little-endian arrays by name (at most 16 ASCII characters); copied.
    """
    head = bytearray(_HEADER.size + _ENTRY.size * len(sections))
    pieces: list[bytes | memoryview] = []
    position = len(head)
    for k, (name, array) in enumerate(sections.items()):
        start = _aligned(position)
        _ENTRY.pack_into(head, _HEADER.size + _ENTRY.size * k, name.encode("ascii"), start, array.nbytes)
        pieces += [bytes(start - position), array.data.cast("B") if array.nbytes else b""]
        position = start + array.nbytes
    _HEADER.pack_into(head, 0, _MAGIC, kind, version, position, len(sections), 0, *identities)
    checksum = _checksum(memoryview(head))
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    struct.pack_into("<I", head, _CHECKSUM_AT, checksum)
    return b"".join([head, *pieces])


def read_sections(buffer: Buffer, kind: bytes, version: int, names: Sequence[str]) -> Sections:
    """Check a buffer and take it apart without copying (one copy if it is not aligned to 8 bytes).

    Args:
        buffer: C-contiguous; borrowed, must not change afterwards.
        kind: the kind it must have.
        version: the format version it must have.
        names: the sections it must have, in order.

    Raises:
        CorruptArtifact: too short, another magic or kind, wrong length, checksum, or section table, or something
            between the sections.
        FormatVersionError: written in another format version.
    """
    view = _aligned_view(buffer)
    if view.nbytes < _HEADER.size:
        raise CorruptArtifact(f"{view.nbytes} bytes are too short for a header", section="header")
    magic, found_kind, found_version, length, n_sections, checksum, first, second = _HEADER.unpack_from(view)
    if magic != _MAGIC or found_kind != kind:
        raise CorruptArtifact(f"no maskfeed buffer of kind {kind!r}", section="header")
    if found_version != version:
        raise FormatVersionError(
            f"format version {found_version}, this release reads {version}", expected=version, found=found_version
        )
    if length != view.nbytes:
        raise CorruptArtifact(f"{view.nbytes} bytes where the header says {length}", section="header")
    if checksum != _checksum(view):
        raise CorruptArtifact("the checksum does not match", section="header")
    if n_sections != len(names):
        raise CorruptArtifact(f"{n_sections} sections, expected {len(names)}", section="table")
    return Sections((first, second), _read_table(view, names), view)


def _read_table(view: memoryview, names: Sequence[str]) -> dict[str, memoryview]:
    """Views by name. Names, offsets, lengths and gaps must be the only ones that the writer could have written."""
    position = _HEADER.size + _ENTRY.size * len(names)
    if position > view.nbytes:
        raise CorruptArtifact(f"{view.nbytes} bytes are too short for {len(names)} sections", section="table")
    views: dict[str, memoryview] = {}
    for k, name in enumerate(names):
        raw_name, offset, length = _ENTRY.unpack_from(view, _HEADER.size + _ENTRY.size * k)
        start = _aligned(position)
        if raw_name != name.encode("ascii").ljust(_NAME_BYTES, b"\0"):
            raise CorruptArtifact(f"section {k} has another name than {name!r}", section="table")
        if offset != start or length > view.nbytes - start:
            raise CorruptArtifact(f"section {name!r} lies outside of its place", section="table")
        if view[position:start] != bytes(start - position):
            raise CorruptArtifact(f"bytes before section {name!r}", section="table")
        views[name] = view[offset : offset + length]
        position = start + length
    if position != view.nbytes:
        raise CorruptArtifact("bytes after the last section", section="table")
    return views


def _aligned_view(buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer).cast("B").toreadonly()
    except TypeError as error:
        raise CorruptArtifact(f"not a contiguous buffer: {error}", section="buffer") from error
    if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % 8:
        aligned = np.empty((view.nbytes + 7) // 8, np.uint64).view(np.uint8)[: view.nbytes]
        aligned[:] = np.frombuffer(view, np.uint8)
        return aligned.data.toreadonly()
    return view


def _checksum(view: memoryview) -> int:
    return zlib.crc32(view[_CHECKSUM_AT + 4 :], zlib.crc32(view[:_CHECKSUM_AT]))


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
