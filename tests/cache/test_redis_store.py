"""What only the Redis store has: life spans, damaged entries, a memory limit, and a server that goes away."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis

from maskfeed_automata.errors import CapacityError, CorruptArtifact, StoreUnavailable
from maskfeed_cache.connection import Timeouts
from maskfeed_cache.fence import IndexEntry
from maskfeed_cache.keys import BLOB_TTL_S, INDEX_TTL_S, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.memory_store import MemoryBlobStore, MemorySetIndex
from maskfeed_cache.redis_store import RedisBlobStore, RedisSetIndex
from maskfeed_cache.store import hash_blob
from redis_server import RedisServer

KEYS = Keyspace()
DIGEST = "d" * 64
ENTRY = IndexEntry(hash_blob(b"artifact"), 8)
# short for a test that waits for its end, long for a busy machine
IMPATIENT = Timeouts(connect_s=1.0, answer_s=1.0)

Operation = Callable[[RedisBlobStore, RedisSetIndex], Any]
OPERATIONS: dict[str, Operation] = {
    "put": lambda blobs, index: blobs.put(b"artifact"),
    "get": lambda blobs, index: blobs.get(ENTRY.artifact_hash),
    "put-vocabulary": lambda blobs, index: blobs.put_vocabulary("f", b"v"),
    "get-vocabulary": lambda blobs, index: blobs.get_vocabulary("f"),
    "commit": lambda blobs, index: index.commit(DIGEST, ENTRY),
    "lookup": lambda blobs, index: index.lookup(DIGEST),
    "ping": lambda blobs, index: index.ping(),
}


async def perform(stage: str, blobs: RedisBlobStore, index: RedisSetIndex) -> None:
    # in a thread, so that operations that wait can wait side by side
    outcome = await asyncio.to_thread(OPERATIONS[stage], blobs, index)
    if inspect.isawaitable(outcome):
        await outcome


async def expect_unavailable(stage: str, blobs: RedisBlobStore, index: RedisSetIndex) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await asyncio.wait_for(perform(stage, blobs, index), timeout=10)
    assert caught.value.context["stage"] == stage
    assert caught.value.retryable


@pytest.fixture
async def fragile_stores(fragile_redis: RedisServer) -> AsyncIterator[tuple[RedisBlobStore, RedisSetIndex]]:
    blobs = RedisBlobStore(fragile_redis.url, timeouts=IMPATIENT)
    index = RedisSetIndex(fragile_redis.url, timeouts=IMPATIENT)
    for stage in OPERATIONS:
        await perform(stage, blobs, index)
    yield blobs, index
    blobs.close()
    await index.close()


async def test_each_operation_fails_typed_while_the_server_is_dead_and_works_after_its_restart(
    fragile_redis: RedisServer, fragile_stores: tuple[RedisBlobStore, RedisSetIndex]
) -> None:
    fragile_redis.kill()
    for stage in OPERATIONS:
        await expect_unavailable(stage, *fragile_stores)
    fragile_redis.restart()
    for stage in OPERATIONS:
        await perform(stage, *fragile_stores)


async def test_each_operation_times_out_while_the_server_is_frozen_and_works_when_it_thaws(
    fragile_redis: RedisServer, fragile_stores: tuple[RedisBlobStore, RedisSetIndex]
) -> None:
    fragile_redis.freeze()
    await asyncio.gather(*(expect_unavailable(stage, *fragile_stores) for stage in OPERATIONS))
    fragile_redis.thaw()
    for stage in OPERATIONS:
        await perform(stage, *fragile_stores)


async def test_a_write_beyond_the_memory_limit_is_over_capacity_and_reading_goes_on(
    fragile_redis: RedisServer, fragile_stores: tuple[RedisBlobStore, RedisSetIndex]
) -> None:
    fragile_redis.client.config_set("maxmemory-policy", "noeviction")
    fragile_redis.client.config_set("maxmemory", 1)
    for stage in OPERATIONS:
        if stage in ("put", "put-vocabulary", "commit"):
            with pytest.raises(CapacityError) as caught:
                await perform(stage, *fragile_stores)
            assert caught.value.context["stage"] == stage
        else:
            await perform(stage, *fragile_stores)


async def test_life_spans_are_as_documented_and_a_hit_renews_both(redis_url: str, shared_redis: RedisServer) -> None:
    blobs, index = RedisBlobStore(redis_url), RedisSetIndex(redis_url)
    blobs.put(b"artifact")
    blobs.put_vocabulary("f", b"v")
    await index.commit(DIGEST, ENTRY)
    ttl = shared_redis.client.ttl
    assert ttl(KEYS.blob(ENTRY.artifact_hash)) in range(BLOB_TTL_S - 60, BLOB_TTL_S + 1)
    assert ttl(KEYS.index(DIGEST)) in range(INDEX_TTL_S - 60, INDEX_TTL_S + 1)
    assert ttl(KEYS.vocabulary("f")) in range(VOCABULARY_TTL_S - 60, VOCABULARY_TTL_S + 1)
    assert BLOB_TTL_S > INDEX_TTL_S
    for key in (KEYS.blob(ENTRY.artifact_hash), KEYS.index(DIGEST)):
        shared_redis.client.expire(key, 100)
    assert await index.lookup(DIGEST) == ENTRY
    assert ttl(KEYS.blob(ENTRY.artifact_hash)) > BLOB_TTL_S - 60
    assert ttl(KEYS.index(DIGEST)) > INDEX_TTL_S - 60
    blobs.close()
    await index.close()


async def test_life_spans_are_settable(redis_url: str, shared_redis: RedisServer) -> None:
    blobs = RedisBlobStore(redis_url, blob_ttl_s=20, vocabulary_ttl_s=30)
    index = RedisSetIndex(redis_url, index_ttl_s=10, blob_ttl_s=25)
    blobs.put(b"artifact")
    blobs.put_vocabulary("f", b"v")
    await index.commit(DIGEST, ENTRY)
    ttl = shared_redis.client.ttl
    assert [ttl(KEYS.blob(ENTRY.artifact_hash)), ttl(KEYS.vocabulary("f")), ttl(KEYS.index(DIGEST))] == [20, 30, 10]
    await index.lookup(DIGEST)
    assert ttl(KEYS.blob(ENTRY.artifact_hash)) == 25
    blobs.close()
    await index.close()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"artifact_hash": 1, "size_bytes": 1}', b"\xff", b'{"size_bytes": 1}']
)
async def test_a_damaged_entry_is_told_and_replaced_by_the_next_commit(
    redis_url: str, shared_redis: RedisServer, text: bytes
) -> None:
    blobs, index = RedisBlobStore(redis_url), RedisSetIndex(redis_url)
    blobs.put(b"artifact")
    shared_redis.client.set(KEYS.index(DIGEST), text)
    with pytest.raises(CorruptArtifact):
        await index.lookup(DIGEST)
    await index.commit(DIGEST, ENTRY)
    assert await index.lookup(DIGEST) == ENTRY
    blobs.close()
    await index.close()


async def test_a_key_of_another_type_is_a_typed_error(redis_url: str, shared_redis: RedisServer) -> None:
    index = RedisSetIndex(redis_url)
    shared_redis.client.sadd(KEYS.index(DIGEST), "member")
    with pytest.raises(StoreUnavailable) as caught:
        await index.lookup(DIGEST)
    assert isinstance(caught.value.__cause__, redis.ResponseError)
    await index.close()


async def test_of_many_commits_at_once_exactly_one_is_new(redis_url: str) -> None:
    index = RedisSetIndex(redis_url)
    assert sum(await asyncio.gather(*(index.commit(DIGEST, ENTRY) for _ in range(50)))) == 1
    await index.close()


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


async def test_the_memory_store_fails_as_scripted_and_then_works() -> None:
    blobs = MemoryBlobStore()
    index = MemorySetIndex(blobs)
    operations: dict[str, Callable[[], Any]] = {
        "put": lambda: blobs.put(b"artifact"),
        "get": lambda: blobs.get(ENTRY.artifact_hash),
        "put-vocabulary": lambda: blobs.put_vocabulary("f", b"v"),
        "get-vocabulary": lambda: blobs.get_vocabulary("f"),
        "commit": lambda: index.commit(DIGEST, ENTRY),
        "lookup": lambda: index.lookup(DIGEST),
        "ping": lambda: index.ping(),
    }

    async def attempt(stage: str) -> None:
        outcome: Awaitable[Any] | Any = operations[stage]()
        if inspect.isawaitable(outcome):
            await outcome

    for stage in operations:
        blobs.faults.fail_next(stage, times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as caught:
                await attempt(stage)
            assert caught.value.context["stage"] == stage
        await attempt(stage)
