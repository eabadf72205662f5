"""The bytes that the ranks' feeds exchange: one length-prefixed frame per message.

    u32 length of the rest | u8 kind | i64 round | body          little-endian

It knows how a frame looks and nothing of sockets, rounds or sets. Invariant: what a reader returns is exactly what
was encoded; anything else (an unknown kind, a length out of bounds, a body of the wrong shape) raises RankFailure,
and the peer that sent it counts as dead, because after one misread frame nothing on that connection can be trusted.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from maskfeed_automata.errors import RankFailure

__all__ = [
    "MAX_REASON_BYTES",
    "TOKEN_BYTES",
    "Frame",
    "FrameReader",
    "Kind",
    "Vote",
    "encode_ack",
    "encode_evict",
    "encode_hello",
    "encode_round",
    "encode_table",
    "encode_vote",
]

_HEADER: Final = struct.Struct("<IBq")
_LENGTH: Final = struct.Struct("<I")
_WORDS: Final = struct.Struct("<q")
# Kind and round are always there; a table of 65,000 ranks is far beyond any engine.
_MIN_LENGTH: Final = _HEADER.size - _LENGTH.size
_MAX_LENGTH: Final = _MIN_LENGTH + 0xFFFF

MAX_REASON_BYTES: Final = 1_000
# Secret that a peer shows in its greeting.
TOKEN_BYTES: Final = 16
_HASH_BYTES: Final = 32


class Kind(IntEnum):
    """What a frame says. The round field of a greeting is the sender's rank."""

    HELLO = 1
    ROUND = 2
    VOTE = 3
    TABLE = 4
    ACK = 5
    EVICT = 6


class Vote(IntEnum):
    """One rank's word on one set. No answer by the deadline counts as failed."""

    ABSENT = 0
    READY = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. The accessors read the body as the frame's kind has it and raise RankFailure if it is not so."""

    kind: Kind
    round_number: int
    body: bytes = b""

    def artifact_hash(self) -> str:
        """Body of ROUND and EVICT: 64 hex digits."""
        if len(self.body) != _HASH_BYTES + (_WORDS.size if self.kind is Kind.EVICT else 0):
            raise _malformed(f"{self.kind.name} frame of {len(self.body)} bytes")
        return self.body[:_HASH_BYTES].hex()

    def words(self) -> int:
        """Body of EVICT: how many words rank 0 had given when it forgot the set."""
        words: int
        (words,) = _WORDS.unpack(self.body[_HASH_BYTES:])
        return words

    def vote(self) -> tuple[Vote, str]:
        """Body of VOTE: the vote and the reason of a failure."""
        votes = _read_votes(self.body[:1])
        if len(votes) != 1 or len(self.body) > 1 + MAX_REASON_BYTES:
            raise _malformed(f"VOTE frame of {len(self.body)} bytes")
        return votes[0], self.body[1:].decode(errors="replace")

    def votes(self) -> tuple[Vote, ...]:
        """Body of TABLE: the votes of all ranks, rank 0 first."""
        return _read_votes(self.body)

    def token(self) -> bytes:
        """Body of HELLO."""
        if len(self.body) != TOKEN_BYTES:
            raise _malformed(f"HELLO frame with a token of {len(self.body)} bytes")
        return self.body


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one incomplete frame between calls."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes from the stream and return the frames that are complete now.

        Raises:
            RankFailure: the bytes are no frames; the reader must not be used again.
        """
        rest = self._rest
        rest += data
        frames = []
        while len(rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest)
            if not _MIN_LENGTH <= length <= _MAX_LENGTH:
                raise _malformed(f"frame of {length} bytes")
            end = _LENGTH.size + length
            if len(rest) < end:
                break
            _, kind, round_number = _HEADER.unpack_from(rest)
            frames.append(Frame(_read_kind(kind), round_number, bytes(rest[_HEADER.size : end])))
            del rest[:end]
        return frames


def encode_hello(rank: int, token: bytes) -> bytes:
    """First frame of a member on its connection."""
    return _encode(Kind.HELLO, rank, token)


def encode_round(round_number: int, artifact_hash: str) -> bytes:
    """Rank 0 to all: load this set and vote."""
    return _encode(Kind.ROUND, round_number, bytes.fromhex(artifact_hash))


def encode_vote(round_number: int, vote: Vote, reason: str = "") -> bytes:
    """Member to rank 0; a reason longer than MAX_REASON_BYTES is cut."""
    return _encode(Kind.VOTE, round_number, bytes([vote]) + reason.encode(errors="replace")[:MAX_REASON_BYTES])


def encode_table(round_number: int, votes: tuple[Vote, ...]) -> bytes:
    """Rank 0 to all: everybody's vote."""
    return _encode(Kind.TABLE, round_number, bytes(votes))


def encode_ack(round_number: int) -> bytes:
    """Member to rank 0: the set of this round is in use here."""
    return _encode(Kind.ACK, round_number, b"")


def encode_evict(round_number: int, artifact_hash: str, words: int = 0) -> bytes:
    """Rank 0 to all: after `words` of its words forget this set, if it came with this round or an earlier one."""
    return _encode(Kind.EVICT, round_number, bytes.fromhex(artifact_hash) + _WORDS.pack(words))


def _encode(kind: Kind, round_number: int, body: bytes) -> bytes:
    return _HEADER.pack(_MIN_LENGTH + len(body), kind, round_number) + body


def _read_kind(value: int) -> Kind:
    try:
        return Kind(value)
    except ValueError as error:
        raise _malformed(f"frame of unknown kind {value}") from error


def _read_votes(body: bytes) -> tuple[Vote, ...]:
    try:
        return tuple(Vote(value) for value in body)
    except ValueError as error:
        raise _malformed(f"unknown vote: {error}") from error


def _malformed(what: str) -> RankFailure:
    return RankFailure(f"a peer sent a malformed frame: {what}", reason="malformed-frame")
