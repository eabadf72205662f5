"""The values of the cache's fence: which generation a piece of work belongs to, and what the index says to it.

It knows no store. The rule that all of them serve: work may be indexed and counted only in the generation in which it
began, by the holder of the lease under which it began, and the comparison is made where the write is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Acquired",
    "Cleared",
    "Commit",
    "Failure",
    "Fence",
    "Granted",
    "Held",
    "Hit",
    "IndexEntry",
    "Layer",
    "LayerUsage",
    "Lease",
    "News",
    "Pin",
    "Remembered",
    "Resync",
    "Settled",
    "Usage",
]


class Layer(StrEnum):
    """What can be compiled and is cached. All layers have one generation."""

    # compiled sets, by digest
    SETS = "sets"
    # tokenizer automata, by fingerprint
    AUTOMATA = "automata"


@dataclass(frozen=True, slots=True)
class Fence:
    """A generation of one cache. Two are equal if nothing was cleared, flushed or lost between them."""

    # 32 hex digits, fresh whenever the cache begins from nothing: a lost counter can't make an old generation valid
    epoch: str
    # from 1; each clear adds 1
    generation: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of a key: where its artifact lies."""

    artifact_hash: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to compute `key` and to commit it, in the generation in which it was granted."""

    layer: Layer
    key: str
    # of the holder, 32 hex digits
    token: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps one artifact from eviction until it is given back or `lifetime_ms` have passed."""

    # fresh for each pin, 32 hex digits
    token: str
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A deterministic failure, remembered for seconds. `context` names a candidate by rank, never by index."""

    code: str
    message: str
    context: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Hit:
    """The key is there. If a pin was asked for, the artifact is pinned."""

    entry: IndexEntry
    fence: Fence


@dataclass(frozen=True, slots=True)
class Granted:
    """The key is not there, and it is the caller's to compute."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Held:
    """The key is not there, and another holder computes it."""

    # until the lease ends unless its holder renews it
    remaining_ms: int
    # of the present holder: a caller that asks with it again gets the same answer as before, Granted
    fence: Fence


@dataclass(frozen=True, slots=True)
class Remembered:
    """The key was computed a moment ago and failed for a reason that lies in it."""

    failure: Failure


Acquired = Hit | Granted | Held | Remembered


class Commit(StrEnum):
    """What became of a commit."""

    # indexed and counted
    INDEXED = "indexed"
    # the generation has moved on: neither indexed nor counted; pinned as orphaned if a pin was given
    STALE = "stale"
    # the lease ended or is another's: likewise
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Settled:
    """The lease of a key has ended: committed, failed or given up. Whoever waits asks again."""

    layer: Layer
    key: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """A new generation has begun."""

    fence: Fence


@dataclass(frozen=True, slots=True)
class Resync:
    """News may have been lost; whoever waits asks again."""


News = Settled | Cleared | Resync


@dataclass(frozen=True, slots=True)
class LayerUsage:
    """Figures of one layer. Counters run since the epoch began, across generations."""

    entries: int
    # of the live entries, exactly
    bytes: int
    # artifacts that are pinned and not indexed: of an earlier generation, or of a refused commit
    orphaned_pinned_bytes: int
    # for `bytes` and `orphaned_pinned_bytes` together; None: unlimited
    limit_bytes: int | None
    hits: int
    misses: int
    evictions: int
    expirations: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Figures of a cache, taken in one step."""

    fence: Fence
    layers: Mapping[Layer, LayerUsage]
