"""Blobs, vocabularies and the index in Redis.

It knows commands and life spans; it does not know what a blob means. Invariants: a blob that `get` returns has the
hash it was asked under; a hit of `lookup` leaves its blob at least one blob TTL to live.
"""

from typing import Final

import msgspec

from maskfeed_automata.errors import CorruptArtifact, UnknownArtifact
from maskfeed_cache.connection import (
    DEFAULT_TIMEOUTS,
    Timeouts,
    as_bytes,
    async_store_errors,
    open_async_client,
    open_client,
    store_errors,
)
from maskfeed_cache.fence import IndexEntry
from maskfeed_cache.keys import BLOB_TTL_S, INDEX_TTL_S, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.store import hash_blob

__all__ = ["RedisBlobStore", "RedisSetIndex"]

_DEFAULT_KEYS: Final = Keyspace()


class RedisBlobStore:
    """A `BlobStore` and `VocabularySource` in Redis. Connects at the first call.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        keys: namespace of the keys; its group is not used.
        blob_ttl_s: life of a blob that nobody looks up; longer than the index's.

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


class RedisSetIndex:
    """A `SetIndex` in Redis, for one event loop. Connects at the first call.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        keys: namespace of the keys; its group is not used.
        index_ttl_s: life of an entry that nobody looks up.
        blob_ttl_s: what a hit leaves its blob to live; longer than `index_ttl_s`.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace = _DEFAULT_KEYS,
        *,
        index_ttl_s: int = INDEX_TTL_S,
        blob_ttl_s: int = BLOB_TTL_S,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._client = open_async_client(url, timeouts)
        self._answer_s = timeouts.answer_s
        self._keys = keys
        self._index_ttl_s = index_ttl_s
        self._blob_ttl_s = blob_ttl_s

    async def lookup(self, digest: str) -> IndexEntry | None:
        """See `SetIndex`.

        One round trip for a miss, two for a hit: the blob has its own hash tag, so no single command or script may
        touch both in a Redis Cluster. EXPIRE is check and renewal in one. A commit between that and the drop loses
        its entry, which costs one more compile and nothing else.
        """
        key = self._keys.index(digest)
        async with async_store_errors("lookup", within_s=self._answer_s):
            text = as_bytes(await self._client.getex(key, ex=self._index_ttl_s))
        if text is None:
            return None
        entry = _decode_entry(text)
        async with async_store_errors("lookup", within_s=self._answer_s):
            if await self._client.expire(self._keys.blob(entry.artifact_hash), self._blob_ttl_s):
                return entry
            await self._client.delete(key)
        return None

    async def commit(self, digest: str, entry: IndexEntry) -> bool:
        """See `SetIndex`. One command, so of several commits of a new digest exactly one returns True."""
        async with async_store_errors("commit", within_s=self._answer_s):
            previous = await self._client.set(
                self._keys.index(digest), msgspec.json.encode(entry), ex=self._index_ttl_s, get=True
            )
        return previous is None

    async def ping(self) -> None:
        """See `SetIndex`."""
        async with async_store_errors("ping", within_s=self._answer_s):
            await self._client.ping()

    async def close(self) -> None:
        """Give connections back. Idempotent."""
        await self._client.aclose()


def _decode_entry(text: bytes) -> IndexEntry:
    try:
        return msgspec.json.decode(text, type=IndexEntry)
    except msgspec.MsgspecError as error:
        raise CorruptArtifact(f"index entry can't be read: {error}", section="index") from error
