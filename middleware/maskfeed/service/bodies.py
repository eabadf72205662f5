"""Request bodies as the client compressed them, unpacked within a bound.

Pure: bytes in, bytes out. Invariant: at no moment is more than the limit and one byte of unpacked data held.
"""

import io
import zlib
from typing import Final

import zstandard

from maskfeed_automata.errors import LimitExceeded, ParameterError

__all__ = ["body_too_large", "unpack"]

_WINDOW_BITS: Final = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def unpack(packed: bytes, encoding: str, *, limit_bytes: int) -> bytes:
    """Undo a Content-Encoding.

    Args:
        packed: the body as sent.
        encoding: one coding: gzip, deflate or zstd, in any case.
        limit_bytes: most bytes of the result.

    Raises:
        LimitExceeded: the result would be larger. Context: `limit`, `value` (more than this was found), `unit`.
        ParameterError: another coding, or bytes that are not of this coding, or cut off; but zstd that is cut off gives
            the part of the body that is there.

    Cost: linear in the result. Releases the GIL.
    """
    coding = encoding.strip().lower()
    if coding in _WINDOW_BITS:
        body = _inflate(packed, coding, limit_bytes)
    elif coding == "zstd":
        body = _unpack_zstd(packed, limit_bytes)
    else:
        raise ParameterError(
            f"Content-Encoding {coding[:32]!r} is not supported; gzip, deflate and zstd are", field="Content-Encoding"
        )
    if len(body) > limit_bytes:
        raise body_too_large(limit_bytes, len(body))
    return body


def body_too_large(limit_bytes: int, found_bytes: int) -> LimitExceeded:
    """The error for a body over the limit, of which at least `found_bytes` were seen."""
    return LimitExceeded(
        f"the body has {found_bytes} bytes or more; the limit is {limit_bytes}",
        field="body",
        limit=limit_bytes,
        value=found_bytes,
        unit="bytes",
    )


def _inflate(packed: bytes, coding: str, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes + 1
    # a gzip body may be several members, one after the other
    while packed and room > 0:
        member = zlib.decompressobj(_WINDOW_BITS[coding])
        try:
            parts.append(member.decompress(packed, room))
        except zlib.error as error:
            raise _unreadable(coding) from error
        room -= len(parts[-1])
        if not member.eof and room > 0:
            raise ParameterError("the compressed body is cut off", field="Content-Encoding")
        packed = member.unused_data
    return b"".join(parts)


def _unpack_zstd(packed: bytes, limit_bytes: int) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed), read_across_frames=True)
    try:
        return reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise _unreadable("zstd") from error


def _unreadable(coding: str) -> ParameterError:
    return ParameterError(f"the body is no valid {coding} data", field="Content-Encoding")
