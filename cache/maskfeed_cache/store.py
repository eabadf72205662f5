"""What a store of compiled sets offers.

Two faces, because two kinds of code use it: compilers and rank feeds run in threads and move blobs (synchronous); the
gateway runs on an event loop and needs only the index (asynchronous). Neither knows what an artifact means.
Invariant: a blob lies under the SHA-256 of its own bytes, and whoever reads it checks that.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from maskfeed_automata.errors import CapacityError, LimitExceeded
from maskfeed_cache.fence import Acquired, Commit, Failure, Fence, IndexEntry, Layer, Lease, News, Pin, Usage

__all__ = ["BlobStore", "CacheIndex", "VocabularySource", "all_is_pinned", "hash_blob", "over_limit"]


def hash_blob(blob: bytes | memoryview) -> str:
    """Artifact hash: SHA-256 of the bytes as 64 lowercase hex digits."""
    return hashlib.sha256(blob).hexdigest()


def over_limit(entry: IndexEntry, layer: Layer, limit: int | None) -> LimitExceeded:
    """The error of a commit whose artifact alone is over the layer's limit."""
    return LimitExceeded(
        f"the artifact has {entry.size_bytes} bytes, and the cache of {layer} may hold {limit}",
        limit=limit,
        value=entry.size_bytes,
        unit="bytes",
    )


def all_is_pinned(
    entry: IndexEntry, layer: Layer, limit: int | None, *, immovable_bytes: int, wait_s: float
) -> CapacityError:
    """The error of a commit for which nothing can make room until a pin ends, in `wait_s`."""
    return CapacityError(
        f"{immovable_bytes} of {limit} bytes in the cache of {layer} are pinned, and {entry.size_bytes} more are "
        "needed",
        limit=limit,
        value=immovable_bytes + entry.size_bytes,
        stage="commit",
        retry_after_s=max(1, round(wait_s)),
    )


class BlobStore(Protocol):
    """Blobs under their own hash. Thread-safe, blocking."""

    def put(self, blob: bytes) -> str:
        """Store `blob` and return its hash. Storing the same bytes twice is harmless.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    def get(self, artifact_hash: str) -> bytes:
        """Return the blob, its hash checked.

        Raises:
            UnknownArtifact: nothing under this hash.
            CorruptArtifact: the bytes have another hash.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    def close(self) -> None:
        """Give connections back. Idempotent."""
        ...


class VocabularySource(Protocol):
    """Vocabularies as the engines published them. Thread-safe, blocking."""

    def get_vocabulary(self, fingerprint: str) -> bytes:
        """Return the vocabulary's bytes, unread: whoever decodes them compares the fingerprint.

        Raises:
            UnknownArtifact: no engine has published this vocabulary.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...


class CacheIndex(Protocol):
    """key -> artifact hash for every layer, under one fence, with leases, pins and exact counts. For one event loop.

    Each method is one atomic step of the store with respect to all others, `clear` included. Every method raises
    StoreUnavailable (no connection, or no answer in time; a write may or may not have happened, and the same call with
    the same token is harmless).
    """

    async def acquire(self, layer: Layer, key: str, *, token: str, lease_ms: int, pin: Pin | None = None) -> Acquired:
        """The entry of `key`, or the right to compute it. A hit renews the life of entry and blob.

        An entry whose blob is gone is dropped and is no hit. The present holder's own token is granted again, and the
        lease renewed. Hit counts a hit, a new lease counts a miss, Held and Remembered count nothing: whoever is held
        asks again, so each request counts once.

        Raises:
            CapacityError: the store is at its memory limit.
        """
        ...

    async def heartbeat(self, lease: Lease, *, lease_ms: int) -> bool:
        """Renew the lease. False: it is lost, or its generation is over."""
        ...

    async def commit(self, lease: Lease, entry: IndexEntry, *, pin: Pin | None = None) -> Commit:
        """End the lease with a result whose blob is in the store already. Committing twice says INDEXED twice.

        Raises:
            LimitExceeded: the artifact alone is over the layer's limit. Context: `limit`, `value`, `unit`. The lease
                has ended.
            CapacityError: all that could make room is pinned. Context: `limit`, `value`, `retry_after_s`. The lease
                has ended. Or: the store is at its own memory limit.
        """
        ...

    async def fail(self, lease: Lease, failure: Failure, *, remember_ms: int) -> bool:
        """End the lease with a failure that lies in the key. False: stale or lost, nothing is remembered."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease up without a result, so that a waiter may take over. Harmless if it is lost."""
        ...

    async def unpin(self, pins: Sequence[str]) -> None:
        """Give back pins by their tokens. Unknown ones are ignored."""
        ...

    async def clear(self) -> Fence:
        """Begin a new generation in every layer: no entry, 0 bytes. Waits for no computation.

        Cost: O(1) in the entries.
        """
        ...

    async def usage(self) -> Usage:
        """Figures of all layers, taken in one step; what has expired is gone from them."""
        ...

    async def sweep(self) -> int:
        """Delete blobs of entries that were evicted, expired, cleared or refused, a bounded number of them.

        Never one that an entry or a pin refers to, nor one that was stored a moment ago: its commit may be on its way.

        Returns:
            How many; 0: nothing is left for now.
        """
        ...

    def news(self) -> AsyncIterator[News]:
        """What happens from now on. The first is Resync: whatever is done after it, the iterator tells.

        A loss of the store is waited out, then Resync comes again.
        """
        ...

    async def ping(self) -> None:
        """Return if the index answers."""
        ...

    async def close(self) -> None:
        """Give connections back. Idempotent."""
        ...
