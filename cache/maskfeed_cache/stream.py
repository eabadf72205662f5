"""Reading a group's streams: positions, and entries that may be damaged.

It knows the shape of stream entries as the driver hands them out; it opens no connection. Invariant: the position
moves behind every entry that was seen, readable or not, so a damaged entry is met once.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from maskfeed_automata.errors import CorruptArtifact

__all__ = ["BEGINNING", "StreamEntry", "decode_entries", "resume_position"]

_LOG: Final = logging.getLogger(__name__)

# Before the first entry of any stream.
BEGINNING: Final = b"0-0"

StreamEntry = tuple[bytes, Mapping[bytes, bytes]]

_M = TypeVar("_M")


def resume_position(position: bytes, newest: bytes | None) -> bytes:
    """Where to read on after a new connection.

    Args:
        position: id of the last entry seen.
        newest: id of the stream's newest entry, None if there is no stream.

    Returns:
        `position`; or, where Redis has lost the stream, the end of the one that is there now.
    """
    if newest is None:
        return BEGINNING
    return newest if _id_order(newest) < _id_order(position) else position


def decode_entries(
    entries: Iterable[StreamEntry], decode: Callable[[Mapping[bytes, bytes]], _M], stream: str
) -> tuple[list[_M], int]:
    """Decode what can be decoded, and log the id of what can't (never its content).

    Returns:
        The messages in order, and how many entries were skipped.
    """
    messages: list[_M] = []
    n_skipped = 0
    for entry_id, fields in entries:
        try:
            messages.append(decode(fields))
        except CorruptArtifact:
            n_skipped += 1
            _LOG.warning("event=feed-entry-skipped stream=%s id=%s", stream, entry_id.decode())
    return messages, n_skipped


def _id_order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, sequence = entry_id.split(b"-")
    return int(milliseconds), int(sequence)
