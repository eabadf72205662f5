"""Named candidate sets in a real Redis: what is left over, what a full server does, what is lost with it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from maskfeed_automata.errors import CapacityError, CorruptArtifact, StoreUnavailable, UnknownSet
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.named_sets import NamedSetLimits, PackedList, pack
from maskfeed_cache.redis_named_sets import RedisNamedSets
from redis_server import RedisServer

KEYS = Keyspace(namespace="names")
TENANT = "default"
LISTED = pack(b'["a"]', count=1)


def of_size(n_bytes: int) -> PackedList:
    return PackedList("d" * 64, 1, b"x" * n_bytes)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisNamedSets]:
    opened = RedisNamedSets(redis_url, KEYS)
    yield opened
    await opened.close()


def lists_in(client: redis.Redis) -> set[str]:
    return {key.decode() for key in client.scan_iter(match=KEYS.named_list("*").replace("{*}", "*"))}


async def test_only_the_lists_that_names_stand_for_are_left(store: RedisNamedSets, shared_redis: RedisServer) -> None:
    for _ in range(3):
        kept, _ = await store.put(TENANT, "kept", LISTED)
    await store.put(TENANT, "gone", LISTED)
    await store.delete(TENANT, "gone")
    assert lists_in(shared_redis.client) == {KEYS.named_list(kept.list_id)}
    assert shared_redis.client.zcard(KEYS.reserved_lists) == 0
    assert shared_redis.client.scard(KEYS.garbage_lists) == 0


async def test_a_refused_list_is_deleted(redis_url: str, shared_redis: RedisServer) -> None:
    store = RedisNamedSets(redis_url, KEYS, limits=NamedSetLimits(total_bytes=10))
    kept, _ = await store.put(TENANT, "a", of_size(6))
    with pytest.raises(CapacityError):
        await store.put(TENANT, "b", of_size(6))
    assert lists_in(shared_redis.client) == {KEYS.named_list(kept.list_id)}
    await store.close()


async def test_a_smaller_replacement_is_taken_although_the_limit_was_lowered(redis_url: str) -> None:
    before = RedisNamedSets(redis_url, KEYS, limits=NamedSetLimits(total_bytes=100))
    after = RedisNamedSets(redis_url, KEYS, limits=NamedSetLimits(total_bytes=50))
    await before.put(TENANT, "a", of_size(60))
    await before.put(TENANT, "b", of_size(40))
    await after.put(TENANT, "b", of_size(30))
    with pytest.raises(CapacityError):
        await after.put(TENANT, "b", of_size(31))
    assert (await after.usage()).bytes == 90
    await before.close()
    await after.close()


async def test_what_a_dead_writer_left_is_deleted_by_the_next_one(redis_url: str, shared_redis: RedisServer) -> None:
    client = shared_redis.client
    left = KEYS.named_list("0" * 32)
    client.zadd(KEYS.reserved_lists, {"0" * 32: 1})
    client.set(left, b"half")
    store = RedisNamedSets(redis_url, KEYS)
    named, _ = await store.put(TENANT, "a", LISTED)
    assert lists_in(client) == {KEYS.named_list(named.list_id)}
    await store.close()


async def test_a_writer_that_was_taken_for_dead_stores_nothing(redis_url: str, shared_redis: RedisServer) -> None:
    # each reservation is older than this at once, so that the next one makes garbage of it
    slow = RedisNamedSets(redis_url, KEYS, reservation_ms=-1)
    with pytest.raises(StoreUnavailable):
        await slow.put(TENANT, "a", LISTED)
    with pytest.raises(UnknownSet):
        await slow.get(TENANT, "a")
    assert lists_in(shared_redis.client) == set()
    await slow.close()


async def test_of_many_writers_at_once_each_gets_a_generation_and_the_last_list_stays(
    store: RedisNamedSets, shared_redis: RedisServer
) -> None:
    done = await asyncio.gather(*(store.put(TENANT, "a", of_size(n)) for n in range(1, 33)))
    assert sorted(named.generation for named, _ in done) == list(range(1, 33))
    assert sum(is_new for _, is_new in done) == 1
    last = await store.get(TENANT, "a")
    assert last == max((named for named, _ in done), key=lambda named: named.generation)
    assert lists_in(shared_redis.client) == {KEYS.named_list(last.list_id)}
    assert (await store.usage()).bytes == last.size_bytes


async def test_nothing_of_a_named_set_has_a_ttl(store: RedisNamedSets, shared_redis: RedisServer) -> None:
    await store.put(TENANT, "a", LISTED)
    await store.put(TENANT, "b", LISTED)
    await store.delete(TENANT, "b")
    assert {shared_redis.client.ttl(key) for key in shared_redis.client.scan_iter()} == {-1}


async def test_a_full_redis_refuses_lists_and_still_takes_deletions(fragile_redis: RedisServer) -> None:
    store = RedisNamedSets(fragile_redis.url, KEYS)
    kept, _ = await store.put(TENANT, "kept", LISTED)
    await store.put(TENANT, "gone", LISTED)
    fragile_redis.client.config_set("maxmemory-policy", "volatile-lru")
    fragile_redis.client.config_set("maxmemory", 1)
    with pytest.raises(CapacityError):
        await store.put(TENANT, "more", LISTED)
    await store.delete(TENANT, "gone")
    assert await store.names(TENANT) == [kept]
    assert await store.read(kept) == LISTED.packed
    assert (await store.usage()).entries == 1
    fragile_redis.client.config_set("maxmemory", 0)
    await store.close()


async def test_a_redis_that_is_away_is_said_so_and_what_it_forgot_is_unknown(fragile_redis: RedisServer) -> None:
    store = RedisNamedSets(fragile_redis.url, KEYS)
    await store.put(TENANT, "a", LISTED)
    fragile_redis.kill()
    with pytest.raises(StoreUnavailable):
        await store.get(TENANT, "a")
    with pytest.raises(StoreUnavailable):
        await store.put(TENANT, "a", LISTED)
    fragile_redis.restart()
    with pytest.raises(UnknownSet):
        await store.get(TENANT, "a")
    assert (await store.usage()).entries == 0
    assert (await store.put(TENANT, "a", LISTED))[0].generation == 1
    await store.close()


async def test_a_record_that_cannot_be_read_is_told(store: RedisNamedSets, shared_redis: RedisServer) -> None:
    shared_redis.client.hset(KEYS.tenant_names(TENANT), "a", "nonsense")
    with pytest.raises(CorruptArtifact):
        await store.get(TENANT, "a")
