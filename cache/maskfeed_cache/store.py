"""What a store of compiled sets offers.

Two faces, because two kinds of code use it: compilers and rank feeds run in threads and move blobs (synchronous); the
gateway runs on an event loop and needs only the index (asynchronous). Neither knows what an artifact means.
Invariant: a blob lies under the SHA-256 of its own bytes, and whoever reads it checks that.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BlobStore", "IndexEntry", "SetIndex", "VocabularySource", "hash_blob"]


def hash_blob(blob: bytes | memoryview) -> str:
    """Artifact hash: SHA-256 of the bytes as 64 lowercase hex digits."""
    return hashlib.sha256(blob).hexdigest()


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of a digest."""

    artifact_hash: str
    size_bytes: int


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


class SetIndex(Protocol):
    """digest -> artifact hash. For one event loop."""

    async def lookup(self, digest: str) -> IndexEntry | None:
        """The entry of `digest`, or None. An entry whose blob is gone is dropped and counts as None.

        Raises:
            StoreUnavailable: no connection, or no answer in time.
            CorruptArtifact: the entry can't be read.
        """
        ...

    async def commit(self, digest: str, entry: IndexEntry) -> bool:
        """Record that `digest` compiles to `entry`; the blob is there already.

        Returns:
            True if the digest is new; False if it was there already (a duplicate compile). A deterministic compiler
            gives the same hash again; a different hash replaces the entry.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    async def ping(self) -> None:
        """Return if the index answers.

        Raises:
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    async def close(self) -> None:
        """Give connections back. Idempotent."""
        ...
