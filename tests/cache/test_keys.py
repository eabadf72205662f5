"""The table of keys is the truth: for the code, for the documents and for what lies in Redis."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from feed_samples import RECORD, VOCABULARY, announcement
from maskfeed_cache import keys
from maskfeed_cache.feed_messages import Dead
from maskfeed_cache.fence import Failure, Granted, IndexEntry, Layer, Pin
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.named_sets import PackedList
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_named_sets import RedisNamedSets
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.scripts import Script
from redis_server import RedisServer

SECONDS_OF = {"none": -1, "as asked": 60, "6 s": 6, "1 h": 3_600, "2 h": 7_200}


@dataclass(frozen=True)
class Row:
    pattern: re.Pattern[str]
    redis_type: str
    ttl_s: int


def table_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("| `<namespace>")]


def table() -> Iterator[Row]:
    for line in table_lines(keys.__doc__ or ""):
        key, redis_type, ttl, _ = (cell.strip() for cell in line.strip("|").split("|"))
        pattern = re.sub(r"<[^>]+>", "[^:{}]+", re.escape(key.strip("`")).replace(r"\ ", " "))
        yield Row(re.compile(pattern), redis_type, SECONDS_OF[ttl.split(",")[0]])


async def test_every_key_in_redis_is_in_the_table_with_its_type_and_life_span(
    redis_url: str, shared_redis: RedisServer
) -> None:
    client = shared_redis.client
    seen: dict[str, tuple[str, int]] = {}

    def look() -> None:
        for key in client.scan_iter():
            seen[key.decode()] = (client.type(key).decode(), client.pttl(key))

    engine, gateway = RedisEngineFeed(redis_url, Keyspace()), RedisGatewayFeed(redis_url, Keyspace())
    await use_cache(redis_url, look)
    await use_named_sets(redis_url, client, look)
    engine.register(RECORD, VOCABULARY)
    await gateway.start()
    await gateway.announce(announcement("1"))
    await gateway.end(["1"])
    engine.publish([Dead("x", "")])
    engine.renew()
    look()
    await gateway.close()
    engine.retire()
    look()
    rows = list(table())
    met = set()
    for key, (redis_type, pttl_ms) in seen.items():
        matching = [row for row in rows if row.pattern.fullmatch(key)]
        assert len(matching) == 1, key
        met.add(matching[0])
        assert redis_type == matching[0].redis_type, key
        if matching[0].ttl_s == -1:
            assert pttl_ms == -1, key
        else:
            assert 0 < pttl_ms <= matching[0].ttl_s * 1_000, key
    assert met == set(rows)
    engine.close()


async def use_cache(url: str, look: Callable[[], None]) -> None:
    blobs, index = RedisBlobStore(url), RedisIndex(url)
    leases = {}
    for layer, key in ((layer, key * 64) for layer in Layer for key in "abcd"):
        answer = await index.acquire(layer, key, token="t", lease_ms=60_000)
        assert isinstance(answer, Granted)
        leases[layer, key[0]] = answer.lease
    for layer in Layer:
        await index.commit(leases[layer, "a"], IndexEntry(blobs.put(b"artifact"), 8), pin=Pin(f"p-{layer}", 60_000))
        await index.commit(leases[layer, "b"], IndexEntry(blobs.put(b"other"), 5))
        await index.fail(leases[layer, "c"], Failure("bad-candidate", "empty", {}), remember_ms=60_000)
    look()
    await index.clear()
    await index.sweep()
    look()
    blobs.close()
    await index.close()


async def use_named_sets(url: str, client: redis.Redis, look: Callable[[], None]) -> None:
    names, keyspace = RedisNamedSets(url), Keyspace()
    # a writer that is between its reservation and its list
    reserve = Script.load("names_reserve")
    client.eval(reserve.source, 2, keyspace.reserved_lists, keyspace.garbage_lists, "e" * 32, 60_000)
    for name in ("stays", "goes"):
        await names.put("t" * 64, name, PackedList("d" * 64, 1, b"packed"))
    look()
    await names.delete("t" * 64, "goes")
    client.sadd(keyspace.garbage_lists, "f" * 32)
    look()
    await names.close()


def test_the_documents_repeat_the_table_word_for_word() -> None:
    document = Path(__file__).parents[2] / "docs" / "redis.md"
    assert table_lines(document.read_text()) == table_lines(keys.__doc__ or "")


def test_keys_of_one_group_share_a_hash_tag_and_blobs_have_their_own() -> None:
    def tag(key: str) -> str:
        found = re.search(r"{([^}]+)}", key)
        assert found is not None
        return found[1]

    keyspace = Keyspace(group="g")
    group_keys = [keyspace.feed, keyspace.events, keyspace.engines, keyspace.engine("e"), keyspace.gateway("g")]
    assert {tag(key) for key in group_keys} == {"group:g"}
    cache_keys = [*keyspace.cache, keyspace.lease(Layer.SETS, "k"), keyspace.failure(Layer.SETS, "}{k")]
    assert {tag(key) for key in cache_keys} == {"cache"}
    assert len(set(cache_keys)) == len(cache_keys)
    assert tag(keyspace.blob("h1")) == "h1"
    assert tag(keyspace.vocabulary("f")) == "f"


def test_namespaces_and_groups_have_no_stream_in_common() -> None:
    spaces = [Keyspace(group, namespace) for group in ("a", "b") for namespace in ("x", "y")]
    assert len({space.feed for space in spaces}) == 4


@pytest.mark.parametrize("name", ["", "a b", "a:b", "{a}", "a" * 65, "ä", "a\n"])
def test_a_name_that_could_forge_another_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="group"):
        Keyspace(group=name)
    with pytest.raises(ValueError, match="namespace"):
        Keyspace(namespace=name)
