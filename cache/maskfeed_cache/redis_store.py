"""Blobs and vocabularies in Redis.

It knows commands and life spans; it does not know what a blob means. Invariant: a blob that `get` returns has the
hash it was asked under.
"""

from typing import Final

from maskfeed_automata.errors import CorruptArtifact, UnknownArtifact
from maskfeed_cache.connection import (
    DEFAULT_TIMEOUTS,
    Timeouts,
    as_bytes,
    open_client,
    store_errors,
)
from maskfeed_cache.keys import BLOB_TTL_S, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.store import hash_blob

__all__ = ["RedisBlobStore"]

_DEFAULT_KEYS: Final = Keyspace()


class RedisBlobStore:
    """A `BlobStore` and `VocabularySource` in Redis. Connects at the first call.

    Args:
        url: see `maskfeed_cache.connection`.
        keys: namespace of the keys; its group is not used.
        blob_ttl_s: life of a blob that nobody asks for; the index's `blob_ttl_s`.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace = _DEFAULT_KEYS,
        *,
        blob_ttl_s: int = BLOB_TTL_S,
        vocabulary_ttl_s: int = VOCABULARY_TTL_S,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._client = open_client(url, timeouts)
        self._keys = keys
        self._blob_ttl_s = blob_ttl_s
        self._vocabulary_ttl_s = vocabulary_ttl_s

    def put(self, blob: bytes) -> str:
        """Store `blob`; writing it again renews its life and mends what else lay under its hash. See `BlobStore`."""
        artifact_hash = hash_blob(blob)
        with store_errors("put"):
            self._client.set(self._keys.blob(artifact_hash), blob, ex=self._blob_ttl_s)
        return artifact_hash

    def get(self, artifact_hash: str) -> bytes:
        """Fetch and verify. See `BlobStore`."""
        with store_errors("get"):
            blob = as_bytes(self._client.get(self._keys.blob(artifact_hash)))
        if blob is None:
            raise UnknownArtifact(f"no blob under {artifact_hash}", artifact_hash=artifact_hash)
        found = hash_blob(blob)
        if found != artifact_hash:
            raise CorruptArtifact(f"the blob under {artifact_hash} has the hash {found}", section="blob")
        return blob

    def put_vocabulary(self, fingerprint: str, blob: bytes) -> None:
        """Store a vocabulary.

        Raises:
            CapacityError: Redis is at its memory limit.
            StoreUnavailable: no connection, or no answer in time.
        """
        with store_errors("put-vocabulary"):
            self._client.set(self._keys.vocabulary(fingerprint), blob, ex=self._vocabulary_ttl_s)

    def get_vocabulary(self, fingerprint: str) -> bytes:
        """Fetch a vocabulary. See `VocabularySource`."""
        with store_errors("get-vocabulary"):
            blob = as_bytes(self._client.get(self._keys.vocabulary(fingerprint)))
        if blob is None:
            raise UnknownArtifact(f"no engine has published the vocabulary {fingerprint}", artifact_hash=fingerprint)
        return blob

    def close(self) -> None:
        """Give connections back. Idempotent."""
        self._client.close()
