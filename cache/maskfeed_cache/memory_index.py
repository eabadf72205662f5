"""A `CacheIndex` in this process: for tests, and for tools that need no Redis.

It keeps the whole contract with dictionaries and a clock that it is given; `faults` scripts failures: stage "commit"
fails before anything is done, stage "commit-answer" after it was done. It never looks into a blob. Invariant: `bytes`
of a layer is the sum of its live entries after each step. All its methods run without a pause, so a step is atomic.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from maskfeed_automata.errors import StoreUnavailable
from maskfeed_cache.fence import (
    Acquired,
    Cleared,
    Commit,
    Failure,
    Fence,
    Granted,
    Held,
    Hit,
    IndexEntry,
    Layer,
    LayerUsage,
    Lease,
    News,
    Pin,
    Remembered,
    Resync,
    Settled,
    Usage,
)
from maskfeed_cache.keys import BLOB_GRACE_S, INDEX_TTL_S
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.store import all_is_pinned, over_limit

__all__ = ["MemoryIndex"]

_UNLIMITED: Final[Mapping[Layer, int | None]] = MappingProxyType({})
_BLOBS_PER_SWEEP: Final = 256


@dataclass(slots=True)
class _Entry:
    entry: IndexEntry
    # of the holder that committed it: who commits twice is known again
    token: str
    used_s: float


@dataclass(slots=True)
class _LayerState:
    limit_bytes: int | None
    # those last used at the same moment: in that order
    entries: dict[str, _Entry] = field(default_factory=dict)
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    expirations: int = 0


@dataclass(frozen=True, slots=True)
class _Item:
    """What a pin holds: one artifact of one key."""

    layer: Layer
    key: str
    entry: IndexEntry


class MemoryIndex:
    """See `CacheIndex`.

    Args:
        blobs: where the artifacts lie; its fault script is the index's.
        limit_bytes: per layer, for live and orphaned bytes together; missing or None: unlimited.
        entry_ttl_s: life of an entry that nobody asks for and nobody has pinned.
        blob_grace_s: a blob that was stored within that time is not swept.
        clock: seconds, monotonic; that of `blobs`.
    """

    def __init__(
        self,
        blobs: MemoryBlobStore,
        *,
        limit_bytes: Mapping[Layer, int | None] = _UNLIMITED,
        entry_ttl_s: float = INDEX_TTL_S,
        blob_grace_s: float = BLOB_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = blobs.faults
        self._blobs = blobs
        self._limit_bytes = dict(limit_bytes)
        self._entry_ttl_s = entry_ttl_s
        self._blob_grace_s = blob_grace_s
        self._clock = clock
        self._listeners: set[asyncio.Queue[News]] = set()
        self._leases: dict[tuple[Layer, str], tuple[Lease, float]] = {}
        self._failures: dict[tuple[Layer, str], tuple[Failure, float]] = {}
        # by token; the end of its life on the clock
        self._pins: dict[str, tuple[_Item, float]] = {}
        # artifacts that were in the index once or were refused; whether they are in use now is looked up by `sweep`
        self._garbage: dict[str, None] = {}
        # entries of earlier generations, whose artifacts are garbage as well
        self._dropped: list[dict[str, _Entry]] = []
        self._fence: Fence
        self._layers: dict[Layer, _LayerState]
        self._begin()

    async def acquire(self, layer: Layer, key: str, *, token: str, lease_ms: int, pin: Pin | None = None) -> Acquired:
        """See `CacheIndex`."""
        with self._step("acquire"):
            state = self._layers[layer]
            found = state.entries.get(key)
            if found is not None:
                self._touch(layer, key, self._clock())
                self._pin(pin, _Item(layer, key, found.entry))
                if found.entry.artifact_hash in self._blobs.blobs:
                    state.hits += 1
                    return Hit(found.entry, self._fence)
                if pin is not None:
                    self._unpin(pin.token, self._clock())
                self._remove(layer, key)
            failure = self._failures.get((layer, key))
            if failure is not None and failure[1] > self._clock():
                return Remembered(failure[0])
            holder = self._holder(layer, key)
            if holder is not None and holder.token != token:
                return Held(max(1, round((self._leases[layer, key][1] - self._clock()) * 1000)), self._fence)
            if holder is None:
                state.misses += 1
            lease = Lease(layer, key, token, self._fence)
            self._leases[layer, key] = (lease, self._clock() + lease_ms / 1000)
            return Granted(lease)

    async def heartbeat(self, lease: Lease, *, lease_ms: int) -> bool:
        """See `CacheIndex`."""
        with self._step("heartbeat"):
            if self._holder(lease.layer, lease.key) != lease:
                return False
            self._leases[lease.layer, lease.key] = (lease, self._clock() + lease_ms / 1000)
            return True

    async def commit(self, lease: Lease, entry: IndexEntry, *, pin: Pin | None = None) -> Commit:
        """See `CacheIndex`."""
        with self._step("commit"):
            item = _Item(lease.layer, lease.key, entry)
            if lease.fence != self._fence:
                return self._refuse(item, pin, Commit.STALE)
            if self._holder(lease.layer, lease.key) != lease:
                if self._is_live(item) and self._layers[lease.layer].entries[lease.key].token == lease.token:
                    self._pin(pin, item)
                    return Commit.INDEXED
                return self._refuse(item, pin, Commit.LOST)
            self._end_lease(lease)
            self._garbage[entry.artifact_hash] = None
            self._make_room(item)
            state = self._layers[lease.layer]
            state.entries[lease.key] = _Entry(entry, lease.token, self._clock())
            state.bytes += entry.size_bytes
            self._pin(pin, item)
            return Commit.INDEXED

    async def fail(self, lease: Lease, failure: Failure, *, remember_ms: int) -> bool:
        """See `CacheIndex`."""
        with self._step("fail"):
            if self._holder(lease.layer, lease.key) != lease:
                return False
            self._failures[lease.layer, lease.key] = (failure, self._clock() + remember_ms / 1000)
            self._end_lease(lease)
            return True

    async def release(self, lease: Lease) -> None:
        """See `CacheIndex`."""
        with self._step("release"):
            if self._holder(lease.layer, lease.key) == lease:
                self._end_lease(lease)

    async def unpin(self, pins: Sequence[str]) -> None:
        """See `CacheIndex`."""
        with self._step("unpin"):
            for token in pins:
                self._unpin(token, self._clock())

    async def clear(self) -> Fence:
        """See `CacheIndex`."""
        with self._step("clear"):
            self._fence = Fence(self._fence.epoch, self._fence.generation + 1)
            for state in self._layers.values():
                self._dropped.append(state.entries)
                state.entries, state.bytes = {}, 0
            self._leases.clear()
            self._failures.clear()
            self._tell(Cleared(self._fence))
            return self._fence

    async def usage(self) -> Usage:
        """See `CacheIndex`."""
        with self._step("usage"):
            return Usage(self._fence, {layer: self._layer_usage(layer) for layer in Layer})

    async def sweep(self) -> int:
        """See `CacheIndex`."""
        with self._step("sweep"):
            for entries in self._dropped:
                self._garbage |= dict.fromkeys(dropped.entry.artifact_hash for dropped in entries.values())
            self._dropped.clear()
            in_use = {item.entry.artifact_hash for item, _ in self._pins.values()}
            for state in self._layers.values():
                in_use |= {found.entry.artifact_hash for found in state.entries.values()}
            # what is in use now becomes garbage again when it is not
            self._garbage = {name: None for name in self._garbage if name in self._blobs.blobs and name not in in_use}
            n_deleted = 0
            for artifact_hash in list(self._garbage):
                if n_deleted < _BLOBS_PER_SWEEP and self._blobs.delete_unless_young(artifact_hash, self._blob_grace_s):
                    n_deleted += 1
            return n_deleted

    async def news(self) -> AsyncIterator[News]:
        """See `CacheIndex`. A scripted failure of stage "news" loses the next one for all: they get Resync instead."""
        queue: asyncio.Queue[News] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            yield Resync()
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def ping(self) -> None:
        """See `CacheIndex`."""
        self.faults.check("ping")

    async def close(self) -> None:
        """Nothing to give back."""

    def lose_state(self) -> None:
        """What a restart of Redis does: everything is gone, the blobs too, and a new epoch begins."""
        self._blobs.blobs.clear()
        self._begin()
        self._tell(Resync())

    def _begin(self) -> None:
        self._fence = Fence(uuid.uuid4().hex, 1)
        self._layers = {layer: _LayerState(self._limit_bytes.get(layer)) for layer in Layer}
        for forgotten in (self._leases, self._failures, self._pins, self._garbage, self._dropped):
            forgotten.clear()

    @contextmanager
    def _step(self, stage: str) -> Iterator[None]:
        self.faults.check(stage)
        self._end_of_life()
        yield
        self.faults.check(f"{stage}-answer")

    def _end_of_life(self) -> None:
        """Pins first: an entry's idle time begins when its last pin ends."""
        now_s = self._clock()
        for token, (_, ends_s) in sorted(self._pins.items(), key=lambda pin: pin[1][1]):
            if ends_s <= now_s:
                self._unpin(token, ends_s)
        pinned = self._pinned_items()
        for layer, state in self._layers.items():
            idle = [key for key, found in state.entries.items() if found.used_s <= now_s - self._entry_ttl_s]
            for key in idle:
                if _Item(layer, key, state.entries[key].entry) not in pinned:
                    self._remove(layer, key)
                    state.expirations += 1

    def _holder(self, layer: Layer, key: str) -> Lease | None:
        found = self._leases.get((layer, key))
        return found[0] if found is not None and found[1] > self._clock() else None

    def _end_lease(self, lease: Lease) -> None:
        del self._leases[lease.layer, lease.key]
        self._tell(Settled(lease.layer, lease.key))

    def _refuse(self, item: _Item, pin: Pin | None, reason: Commit) -> Commit:
        self._garbage[item.entry.artifact_hash] = None
        self._pin(pin, item)
        return reason

    def _make_room(self, item: _Item) -> None:
        """Evict until `item` can be indexed."""
        state = self._layers[item.layer]
        limit, size = state.limit_bytes, item.entry.size_bytes
        if limit is None:
            return
        if size > limit:
            raise over_limit(item.entry, item.layer, limit)
        pinned = self._pinned_items()
        orphaned = self._orphaned_bytes(item.layer) - (size if item in pinned else 0)
        evictable = [
            (found.used_s, key, found.entry.size_bytes)
            for key, found in state.entries.items()
            if _Item(item.layer, key, found.entry) not in pinned
        ]
        immovable = orphaned + state.bytes - sum(size_bytes for _, _, size_bytes in evictable)
        if immovable + size > limit:
            first_end_s = min(ends_s for _, ends_s in self._pins.values())
            wait_s = first_end_s - self._clock()
            raise all_is_pinned(item.entry, item.layer, limit, immovable_bytes=immovable, wait_s=wait_s)
        for _, key, _ in sorted(evictable, key=lambda candidate: candidate[0]):
            if orphaned + state.bytes + size <= limit:
                break
            self._remove(item.layer, key)
            state.evictions += 1

    def _remove(self, layer: Layer, key: str) -> None:
        removed = self._layers[layer].entries.pop(key)
        self._layers[layer].bytes -= removed.entry.size_bytes
        self._garbage[removed.entry.artifact_hash] = None

    def _touch(self, layer: Layer, key: str, used_s: float) -> None:
        entries = self._layers[layer].entries
        found = entries.pop(key)
        found.used_s = used_s
        entries[key] = found

    def _pin(self, pin: Pin | None, item: _Item) -> None:
        if pin is None:
            return
        if pin.token in self._pins and self._pins[pin.token][0] != item:
            self._unpin(pin.token, self._clock())
        # a renewed one goes behind those that end at the same moment
        self._pins.pop(pin.token, None)
        self._pins[pin.token] = (item, self._clock() + pin.lifetime_ms / 1000)

    def _unpin(self, token: str, ended_s: float) -> None:
        if token not in self._pins:
            return
        item, _ = self._pins.pop(token)
        self._garbage[item.entry.artifact_hash] = None
        if self._is_live(item) and item not in self._pinned_items():
            self._touch(item.layer, item.key, ended_s)

    def _is_live(self, item: _Item) -> bool:
        found = self._layers[item.layer].entries.get(item.key)
        return found is not None and found.entry == item.entry

    def _pinned_items(self) -> set[_Item]:
        return {item for item, _ in self._pins.values()}

    def _orphaned_bytes(self, layer: Layer) -> int:
        return sum(
            item.entry.size_bytes for item in self._pinned_items() if item.layer is layer and not self._is_live(item)
        )

    def _layer_usage(self, layer: Layer) -> LayerUsage:
        state = self._layers[layer]
        return LayerUsage(
            entries=len(state.entries),
            bytes=state.bytes,
            orphaned_pinned_bytes=self._orphaned_bytes(layer),
            limit_bytes=state.limit_bytes,
            hits=state.hits,
            misses=state.misses,
            evictions=state.evictions,
            expirations=state.expirations,
        )

    def _tell(self, news: News) -> None:
        try:
            self.faults.check("news")
        except StoreUnavailable:
            news = Resync()
        for listener in self._listeners:
            listener.put_nowait(news)
