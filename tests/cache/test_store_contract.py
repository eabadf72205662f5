"""What every store of blobs and vocabularies must do."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from index_stores import INDEX_KINDS, IndexServers
from maskfeed_automata.errors import CorruptArtifact, UnknownArtifact
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.store import hash_blob

KEYS = Keyspace(namespace="contract")


@dataclass(frozen=True)
class Stores:
    blobs: MemoryBlobStore | RedisBlobStore
    # put these bytes under that hash, behind the store's back
    tamper: Callable[[str, bytes], None]


@pytest.fixture(params=INDEX_KINDS)
def stores(request: pytest.FixtureRequest, index_servers: IndexServers) -> Iterator[Stores]:
    made = memory_stores() if request.param == "memory" else redis_stores(index_servers.get(request.param))
    yield made
    made.blobs.close()
    made.blobs.close()


def memory_stores() -> Stores:
    blobs = MemoryBlobStore()

    def tamper(artifact_hash: str, blob: bytes) -> None:
        blobs.blobs[artifact_hash] = blob

    return Stores(blobs, tamper)


def redis_stores(server: Any) -> Stores:
    for node in getattr(server, "nodes", [server]):
        node.client.flushall()

    def tamper(artifact_hash: str, blob: bytes) -> None:
        node = server.node_of(KEYS.blob(artifact_hash)) if hasattr(server, "node_of") else server
        node.client.set(KEYS.blob(artifact_hash), blob)

    return Stores(RedisBlobStore(server.url, KEYS), tamper)


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
