"""What only the blob store in Redis has: life spans, a memory limit, and a server that goes away."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from maskfeed_automata.errors import CapacityError, StoreUnavailable
from maskfeed_cache.connection import Timeouts
from maskfeed_cache.keys import BLOB_TTL_S, INDEX_TTL_S, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.store import hash_blob
from redis_server import RedisServer

KEYS = Keyspace()
# short for a test that waits for its end, long for a busy machine
IMPATIENT = Timeouts(connect_s=1.0, answer_s=1.0)

Operation = Callable[[RedisBlobStore], Any]
OPERATIONS: dict[str, Operation] = {
    "put": lambda blobs: blobs.put(b"artifact"),
    "get": lambda blobs: blobs.get(hash_blob(b"artifact")),
    "put-vocabulary": lambda blobs: blobs.put_vocabulary("f", b"v"),
    "get-vocabulary": lambda blobs: blobs.get_vocabulary("f"),
}


def expect_unavailable(stage: str, blobs: RedisBlobStore) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        OPERATIONS[stage](blobs)
    assert caught.value.context["stage"] == stage
    assert caught.value.retryable


@pytest.fixture
def fragile_blobs(fragile_redis: RedisServer) -> Iterator[RedisBlobStore]:
    blobs = RedisBlobStore(fragile_redis.url, timeouts=IMPATIENT)
    for operation in OPERATIONS.values():
        operation(blobs)
    yield blobs
    blobs.close()


def test_each_operation_fails_typed_while_the_server_is_dead_and_works_after_its_restart(
    fragile_redis: RedisServer, fragile_blobs: RedisBlobStore
) -> None:
    fragile_redis.kill()
    for stage in OPERATIONS:
        expect_unavailable(stage, fragile_blobs)
    fragile_redis.restart()
    for operation in OPERATIONS.values():
        operation(fragile_blobs)


async def test_each_operation_times_out_while_the_server_is_frozen_and_works_when_it_thaws(
    fragile_redis: RedisServer, fragile_blobs: RedisBlobStore
) -> None:
    fragile_redis.freeze()
    # in threads, so that operations that wait can wait side by side
    waiting = (asyncio.to_thread(expect_unavailable, stage, fragile_blobs) for stage in OPERATIONS)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    fragile_redis.thaw()
    for operation in OPERATIONS.values():
        operation(fragile_blobs)


def test_at_its_memory_limit_writes_are_over_capacity_and_reads_work(
    fragile_redis: RedisServer, fragile_blobs: RedisBlobStore
) -> None:
    fragile_redis.client.config_set("maxmemory-policy", "noeviction")
    fragile_redis.client.config_set("maxmemory", 1)
    for stage, operation in OPERATIONS.items():
        if stage.startswith("put"):
            with pytest.raises(CapacityError) as caught:
                operation(fragile_blobs)
            assert caught.value.context["stage"] == stage
        else:
            operation(fragile_blobs)


def test_life_spans_are_as_documented(redis_url: str, shared_redis: RedisServer) -> None:
    blobs = RedisBlobStore(redis_url)
    artifact_hash = blobs.put(b"artifact")
    blobs.put_vocabulary("f", b"v")
    ttl = shared_redis.client.ttl
    assert ttl(KEYS.blob(artifact_hash)) in range(BLOB_TTL_S - 60, BLOB_TTL_S + 1)
    assert ttl(KEYS.vocabulary("f")) in range(VOCABULARY_TTL_S - 60, VOCABULARY_TTL_S + 1)
    assert BLOB_TTL_S > INDEX_TTL_S
    blobs.close()


def test_life_spans_are_settable(redis_url: str, shared_redis: RedisServer) -> None:
    blobs = RedisBlobStore(redis_url, blob_ttl_s=20, vocabulary_ttl_s=30)
    artifact_hash = blobs.put(b"artifact")
    blobs.put_vocabulary("f", b"v")
    ttl = shared_redis.client.ttl
    assert [ttl(KEYS.blob(artifact_hash)), ttl(KEYS.vocabulary("f"))] == [20, 30]
    blobs.close()


def test_a_key_of_another_type_is_a_typed_error(redis_url: str, shared_redis: RedisServer) -> None:
    blobs = RedisBlobStore(redis_url)
    shared_redis.client.sadd(KEYS.blob("0" * 64), "member")
    with pytest.raises(StoreUnavailable) as caught:
        blobs.get("0" * 64)
    assert isinstance(caught.value.__cause__, redis.ResponseError)
    blobs.close()


def test_one_blob_store_serves_many_threads(redis_url: str) -> None:
    blobs = RedisBlobStore(redis_url)
    barrier = threading.Barrier(8)
    found: dict[int, bytes] = {}

    def work(number: int) -> None:
        barrier.wait()
        blob = bytes([number]) * 100_000
        found[number] = blobs.get(blobs.put(blob))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: bytes([number]) * 100_000 for number in range(8)}
    blobs.close()
