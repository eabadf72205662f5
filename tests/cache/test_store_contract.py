"""What every store of blobs, vocabularies and index entries must do."""

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import redis

from maskfeed_automata.errors import CorruptArtifact, UnknownArtifact
from maskfeed_cache.fence import IndexEntry
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.memory_store import MemoryBlobStore, MemorySetIndex
from maskfeed_cache.redis_store import RedisBlobStore, RedisSetIndex
from maskfeed_cache.store import SetIndex, hash_blob

KEYS = Keyspace(namespace="contract")
DIGEST = "d" * 64


@dataclass(frozen=True)
class Stores:
    blobs: MemoryBlobStore | RedisBlobStore
    index: SetIndex
    # put these bytes under that hash, behind the store's back; None removes
    tamper: Callable[[str, bytes | None], None]


@pytest.fixture(params=["memory", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    made = memory_stores() if request.param == "memory" else redis_stores(request.getfixturevalue("redis_url"))
    yield made
    made.blobs.close()
    await made.index.close()


def memory_stores() -> Stores:
    blobs = MemoryBlobStore()

    def tamper(artifact_hash: str, blob: bytes | None) -> None:
        if blob is None:
            del blobs.blobs[artifact_hash]
        else:
            blobs.blobs[artifact_hash] = blob

    return Stores(blobs, MemorySetIndex(blobs), tamper)


def redis_stores(url: str) -> Stores:
    def tamper(artifact_hash: str, blob: bytes | None) -> None:
        with redis.Redis.from_url(url, protocol=2) as client:
            if blob is None:
                client.delete(KEYS.blob(artifact_hash))
            else:
                client.set(KEYS.blob(artifact_hash), blob)

    return Stores(RedisBlobStore(url, KEYS), RedisSetIndex(url, KEYS), tamper)


@pytest.mark.parametrize("blob", [b"", b"\x00\xff\r\n$-1\r\n", b"x" * 3_000_000], ids=["empty", "protocol", "3MB"])
def test_a_blob_comes_back_byte_for_byte_under_its_sha256(stores: Stores, blob: bytes) -> None:
    artifact_hash = stores.blobs.put(blob)
    assert artifact_hash == hashlib.sha256(blob).hexdigest() == hash_blob(blob)
    assert stores.blobs.get(artifact_hash) == blob


def test_storing_the_same_blob_twice_is_harmless(stores: Stores) -> None:
    assert stores.blobs.put(b"blob") == stores.blobs.put(b"blob")
    assert stores.blobs.get(hash_blob(b"blob")) == b"blob"


def test_an_unknown_hash_is_told_with_the_hash(stores: Stores) -> None:
    with pytest.raises(UnknownArtifact) as caught:
        stores.blobs.get("0" * 64)
    assert caught.value.context["artifact_hash"] == "0" * 64
    assert caught.value.retryable


def test_another_blob_under_a_hash_is_detected_and_mended_by_the_next_put(stores: Stores) -> None:
    artifact_hash = stores.blobs.put(b"the real one")
    stores.tamper(artifact_hash, b"another one")
    with pytest.raises(CorruptArtifact):
        stores.blobs.get(artifact_hash)
    stores.blobs.put(b"the real one")
    assert stores.blobs.get(artifact_hash) == b"the real one"


def test_a_vocabulary_comes_back_and_an_unknown_one_is_told(stores: Stores) -> None:
    with pytest.raises(UnknownArtifact):
        stores.blobs.get_vocabulary("f" * 64)
    stores.blobs.put_vocabulary("f" * 64, b"\x00vocabulary")
    assert stores.blobs.get_vocabulary("f" * 64) == b"\x00vocabulary"


async def test_a_digest_is_new_once_and_a_duplicate_afterwards(stores: Stores) -> None:
    entry = IndexEntry(stores.blobs.put(b"artifact"), 8)
    assert await stores.index.lookup(DIGEST) is None
    assert await stores.index.commit(DIGEST, entry) is True
    assert await stores.index.commit(DIGEST, entry) is False
    assert await stores.index.lookup(DIGEST) == entry


async def test_a_commit_with_another_hash_replaces_the_entry(stores: Stores) -> None:
    first, second = (IndexEntry(stores.blobs.put(blob), len(blob)) for blob in (b"first", b"second"))
    await stores.index.commit(DIGEST, first)
    assert await stores.index.commit(DIGEST, second) is False
    assert await stores.index.lookup(DIGEST) == second


async def test_an_entry_whose_blob_is_gone_is_dropped(stores: Stores) -> None:
    entry = IndexEntry(stores.blobs.put(b"artifact"), 8)
    await stores.index.commit(DIGEST, entry)
    stores.tamper(entry.artifact_hash, None)
    assert await stores.index.lookup(DIGEST) is None
    stores.blobs.put(b"artifact")
    assert await stores.index.lookup(DIGEST) is None
    assert await stores.index.commit(DIGEST, entry) is True


async def test_ping_returns_when_the_store_answers(stores: Stores) -> None:
    await stores.index.ping()


async def test_closing_twice_is_harmless(stores: Stores) -> None:
    stores.blobs.close()
    stores.blobs.close()
    await stores.index.close()
    await stores.index.close()
