"""What gateways and engines tell each other, as values and as the flat fields of a Redis stream entry.

Gateway -> engines of a group: `Announcement` (hold this set for this nonce), `Ended` (the nonce's request is over),
`Clear` (the cache has begun a new generation). Engine -> gateways: `Ready`, `Failed`, `Dead`. And `EngineRecord`: what
an engine publishes of itself while it lives. `Gap` is said by a gateway's own feed and never travels.
This module knows no Redis. Invariant: `decode(encode(m)) == m`, and fields that can't be read raise CorruptArtifact.

Times are durations ("from receipt"), never instants: clocks of two hosts are not compared.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TypeVar

import msgspec

from maskfeed_automata.errors import CorruptArtifact
from maskfeed_cache.fence import Fence

__all__ = [
    "Announcement",
    "Clear",
    "Dead",
    "Ended",
    "EngineEvent",
    "EngineRecord",
    "Failed",
    "Gap",
    "GatewayMessage",
    "HeldUsage",
    "Ready",
    "decode_engine_event",
    "decode_gateway_message",
    "encode_message",
]


@dataclass(frozen=True, slots=True)
class Announcement:
    """Take the set and promise it to `nonce` for at most `lifetime_ms` after receipt."""

    artifact_hash: str
    size_bytes: int
    nonce: str
    lifetime_ms: int
    gateway: str
    # the fence of the cache under which the gateway got the set; the cache's epoch is not the engine's
    cache_epoch: str = ""
    generation: int = 0

    @property
    def fence(self) -> Fence:
        """`cache_epoch` and `generation`, which are two fields because a stream entry is flat."""
        return Fence(self.cache_epoch, self.generation)


@dataclass(frozen=True, slots=True)
class Clear:
    """The cache has begun this generation: sets of earlier ones are kept for those to whom they are promised only."""

    cache_epoch: str
    generation: int

    @property
    def fence(self) -> Fence:
        """`cache_epoch` and `generation`."""
        return Fence(self.cache_epoch, self.generation)


@dataclass(frozen=True, slots=True)
class Ended:
    """The request of `nonce` is over; its promise and its slots' references end."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Every rank of `epoch` holds the set, and it is promised to `nonce`."""

    artifact_hash: str
    epoch: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Failed:
    """At least one rank of `epoch` could not take the set."""

    artifact_hash: str
    epoch: str
    nonce: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The life of an engine is over; nothing that it held counts any more."""

    epoch: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """The store was away: what was said shortly before, in either direction, may be lost."""


_M = TypeVar("_M")

GatewayMessage = Announcement | Ended | Clear
EngineEvent = Ready | Failed | Dead

_GATEWAY_KINDS: Final[Mapping[str, type[GatewayMessage]]] = {"announce": Announcement, "ended": Ended, "clear": Clear}
_ENGINE_KINDS: Final[Mapping[str, type[EngineEvent]]] = {"ready": Ready, "failed": Failed, "dead": Dead}
_KIND_OF: Final[Mapping[type[Any], str]] = {cls: kind for kind, cls in {**_GATEWAY_KINDS, **_ENGINE_KINDS}.items()}


@dataclass(frozen=True, slots=True)
class HeldUsage:
    """What rank 0 of an engine holds; every rank holds the same."""

    # the newest generation of the cache that the engine has heard of; "" and 0: of none yet
    cache_epoch: str
    generation: int
    # sets of that generation
    entries: int
    bytes: int
    # sets of earlier generations, kept because they are promised or in use
    orphaned_entries: int
    orphaned_bytes: int
    # for `bytes` and `orphaned_bytes` together
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One live engine, as rank 0 publishes it. Everything a gateway must know to be started without a tokenizer."""

    epoch: str
    group: str
    fingerprint: str
    # width of the logits: ids at or above it do not exist for sampling
    logits_width: int
    max_model_len: int
    # the id that only a refused slot permits; never a stop id of the model
    reserved_id: int
    # stop ids of tokenizer and generation_config, sorted
    stop_token_ids: tuple[int, ...]
    model: str
    reasoning_parser: str | None
    # artifact format versions that the engine reads
    format_versions: tuple[int, ...]
    n_ranks: int
    engine_version: str
    # as of the last renewal; no part of what the engine is, so records that differ in it only are equal
    held: HeldUsage | None = field(default=None, compare=False)

    def to_json(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read a record.

        Raises:
            CorruptArtifact: not JSON, or a field is missing or of another type.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise CorruptArtifact(f"engine record can't be read: {error}", section="engine-record") from error


def encode_message(message: GatewayMessage | EngineEvent) -> dict[str, str | int]:
    """Flat fields for XADD, `kind` first."""
    return {"kind": _KIND_OF[type(message)], **asdict(message)}


def decode_gateway_message(fields: Mapping[bytes, bytes]) -> GatewayMessage:
    """Read an entry of a group's feed stream.

    Raises:
        CorruptArtifact: unknown kind, missing field, or a number that is none.
    """
    return _decode(fields, _GATEWAY_KINDS)


def decode_engine_event(fields: Mapping[bytes, bytes]) -> EngineEvent:
    """Read an entry of a group's event stream.

    Raises:
        CorruptArtifact: unknown kind, missing field, or a number that is none.
    """
    return _decode(fields, _ENGINE_KINDS)


def _decode(fields: Mapping[bytes, bytes], kinds: Mapping[str, type[_M]]) -> _M:
    try:
        text = {key.decode(): value.decode() for key, value in fields.items()}
        return msgspec.convert(text, kinds[text.pop("kind")], strict=False)
    except (KeyError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise CorruptArtifact(f"feed entry can't be read: {error!r}", section="feed") from error
