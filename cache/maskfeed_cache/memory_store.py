"""Blobs and vocabularies in this process: for tests and for tools that need no Redis.

It keeps the contract of the store protocols, faults included: `fail_next` scripts them. Nothing expires here.
Invariant: what is stored is never handed out for another hash.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

from maskfeed_automata.errors import CorruptArtifact, StoreUnavailable, UnknownArtifact
from maskfeed_cache.store import hash_blob

__all__ = ["FaultScript", "MemoryBlobStore"]


class FaultScript:
    """Which operations shall fail as if the store were away. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()

    def fail_next(self, stage: str, times: int = 1) -> None:
        """Let the next `times` operations of `stage` ("put", "commit", ...) raise StoreUnavailable."""
        with self._lock:
            self._failures[stage] += times

    def check(self, stage: str) -> None:
        """Called by an operation first.

        Raises:
            StoreUnavailable: the script says so.
        """
        with self._lock:
            if self._failures[stage] == 0:
                return
            self._failures[stage] -= 1
        raise StoreUnavailable(f"scripted failure during {stage}", stage=stage)


class MemoryBlobStore:
    """A `BlobStore` and `VocabularySource` over two dictionaries.

    Args:
        faults: script of failures; stages as in the Redis store.
        clock: seconds, monotonic.
    """

    def __init__(self, faults: FaultScript | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = faults or FaultScript()
        self._clock = clock
        self._stored_s: dict[str, float] = {}
        # what lies where, open to tests that want to tamper with it
        self.blobs: dict[str, bytes] = {}
        self.vocabularies: dict[str, bytes] = {}

    def put(self, blob: bytes) -> str:
        """See `BlobStore`."""
        self.faults.check("put")
        artifact_hash = hash_blob(blob)
        self._stored_s[artifact_hash] = self._clock()
        self.blobs[artifact_hash] = bytes(blob)
        return artifact_hash

    def get(self, artifact_hash: str) -> bytes:
        """See `BlobStore`."""
        self.faults.check("get")
        blob = self.blobs.get(artifact_hash)
        if blob is None:
            raise UnknownArtifact(f"no blob under {artifact_hash}", artifact_hash=artifact_hash)
        found = hash_blob(blob)
        if found != artifact_hash:
            raise CorruptArtifact(f"the blob under {artifact_hash} has the hash {found}", section="blob")
        return blob

    def delete_unless_young(self, artifact_hash: str, grace_s: float) -> bool:
        """Delete a blob that nobody has stored within `grace_s`. Return whether it was deleted."""
        if artifact_hash not in self.blobs or self._stored_s.get(artifact_hash, 0.0) + grace_s > self._clock():
            return False
        del self.blobs[artifact_hash]
        self._stored_s.pop(artifact_hash, None)
        return True

    def put_vocabulary(self, fingerprint: str, blob: bytes) -> None:
        """Store a vocabulary."""
        self.faults.check("put-vocabulary")
        self.vocabularies[fingerprint] = bytes(blob)

    def get_vocabulary(self, fingerprint: str) -> bytes:
        """See `VocabularySource`."""
        self.faults.check("get-vocabulary")
        blob = self.vocabularies.get(fingerprint)
        if blob is None:
            raise UnknownArtifact(f"no engine has published the vocabulary {fingerprint}", artifact_hash=fingerprint)
        return blob

    def close(self) -> None:
        """Nothing to give back."""
