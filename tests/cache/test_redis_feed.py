"""What only the Redis feeds have: life spans, damaged entries, bounded streams, and a server that goes away."""

import asyncio
import inspect
import logging
import select
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from feed_samples import RECORD, VOCABULARY, announcement
from maskfeed_automata.errors import CapacityError, StoreUnavailable
from maskfeed_cache.connection import DEFAULT_TIMEOUTS, Timeouts
from maskfeed_cache.feed_messages import Dead, EngineEvent, Gap
from maskfeed_cache.keys import LEASE_MS, STREAM_MAX_ENTRIES, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.stream import BEGINNING, resume_position
from redis_server import RedisServer
from waiting import eventually

KEYS = Keyspace()
# short for a test that waits for its end, long for a busy machine
IMPATIENT = Timeouts(connect_s=1.0, answer_s=1.0)
DAMAGED_ENTRIES: list[dict[str | bytes, str | bytes]] = [
    {"kind": "unheard-of"},
    {"no": "kind"},
    {"kind": "announce", "artifact_hash": "a"},
    {"kind": "announce", "artifact_hash": "a", "size_bytes": "many", "nonce": "n", "lifetime_ms": "1", "gateway": "g"},
    {"kind": "ready", "artifact_hash": "a"},
    {b"\xff": b"\xff"},
]


@dataclass
class Pair:
    """An engine and a gateway on one server."""

    engine: RedisEngineFeed
    gateway: RedisGatewayFeed

    def operations(self) -> dict[str, Callable[[], Any]]:
        """Everything that talks to the server, by stage."""
        return {
            "register": lambda: self.engine.register(RECORD, VOCABULARY),
            "renew": self.engine.renew,
            "publish": lambda: self.engine.publish([Dead("x", "")]),
            "dead-gateways": lambda: self.engine.dead_gateways(["g"]),
            "retire": self.engine.retire,
            "reconnect": self.engine.reconnect,
            "engines": self.gateway.engines,
            "vocabulary": lambda: self.gateway.vocabulary(RECORD.fingerprint),
            "announce": lambda: self.gateway.announce(announcement("1")),
            "end": lambda: self.gateway.end(["1"]),
        }

    async def perform(self, stage: str) -> None:
        # in a thread, so that operations that wait can wait side by side
        outcome = await asyncio.to_thread(self.operations()[stage])
        if inspect.isawaitable(outcome):
            await outcome

    async def expect_unavailable(self, stage: str) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await asyncio.wait_for(self.perform(stage), timeout=10)
        assert caught.value.context["stage"] == stage


async def open_pair(url: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Pair:
    # a short lease, so that the background tasks meet every failure, too
    pair = Pair(
        RedisEngineFeed(url, KEYS, block_ms=200, timeouts=timeouts),
        RedisGatewayFeed(url, KEYS, lease_ms=300, timeouts=timeouts),
    )
    pair.engine.register(RECORD, VOCABULARY)
    await pair.gateway.start()
    return pair


@pytest.fixture
async def fragile_pair(fragile_redis: RedisServer) -> AsyncIterator[Pair]:
    pair = await open_pair(fragile_redis.url, IMPATIENT)
    yield pair
    pair.engine.close()
    await pair.gateway.close()


@pytest.fixture
async def pair(redis_url: str) -> AsyncIterator[Pair]:
    pair = await open_pair(redis_url)
    yield pair
    pair.engine.close()
    await pair.gateway.close()


async def next_event(gateway: RedisGatewayFeed) -> EngineEvent | Gap:
    async with asyncio.timeout(10):
        return await anext(gateway.events())


async def test_each_operation_fails_typed_while_the_server_is_dead_and_works_after_its_restart(
    fragile_redis: RedisServer, fragile_pair: Pair
) -> None:
    fragile_redis.kill()
    for stage in fragile_pair.operations():
        await fragile_pair.expect_unavailable(stage)
    fragile_redis.restart()
    for stage in fragile_pair.operations():
        await fragile_pair.perform(stage)


async def test_each_operation_times_out_while_the_server_is_frozen_and_works_when_it_thaws(
    fragile_redis: RedisServer, fragile_pair: Pair
) -> None:
    fragile_redis.freeze()
    await asyncio.gather(*(fragile_pair.expect_unavailable(stage) for stage in fragile_pair.operations()))
    fragile_redis.thaw()
    for stage in fragile_pair.operations():
        await fragile_pair.perform(stage)


async def test_each_write_beyond_the_memory_limit_is_over_capacity(
    fragile_redis: RedisServer, fragile_pair: Pair
) -> None:
    fragile_redis.client.config_set("maxmemory-policy", "noeviction")
    fragile_redis.client.config_set("maxmemory", 1)
    # "engines" writes nothing, but what it reads can't be current
    for stage in ("register", "renew", "publish", "announce", "end", "engines"):
        with pytest.raises(CapacityError) as caught:
            await fragile_pair.perform(stage)
        assert caught.value.context["stage"] == stage
    fragile_redis.client.config_set("maxmemory", 0)
    for stage in fragile_pair.operations():
        await fragile_pair.perform(stage)


async def test_an_engine_that_waits_wakes_when_the_server_dies_and_goes_on_after_its_restart(
    fragile_redis: RedisServer, fragile_pair: Pair
) -> None:
    engine, gateway = fragile_pair.engine, fragile_pair.gateway
    engine.arm()
    poll = select.poll()
    poll.register(engine.fileno(), select.POLLIN)
    fragile_redis.kill()
    assert poll.poll(5_000)
    with pytest.raises(StoreUnavailable):
        engine.receive()
    for broken in (engine.arm, engine.fileno, engine.reconnect):
        with pytest.raises(StoreUnavailable):
            broken()
    fragile_redis.restart()
    engine.reconnect()
    engine.renew()
    # said while the engine was not listening yet, after the restart
    await gateway.announce(announcement("1"))
    engine.arm()
    assert engine.receive() == [announcement("1")]
    assert await gateway.engines() == [RECORD]
    assert await gateway.vocabulary(RECORD.fingerprint) == VOCABULARY


def test_a_silent_server_makes_receive_give_up_in_time(fragile_redis: RedisServer) -> None:
    engine = RedisEngineFeed(fragile_redis.url, KEYS, block_ms=50, timeouts=IMPATIENT)
    engine.register(RECORD, VOCABULARY)
    engine.arm()
    fragile_redis.freeze()
    with pytest.raises(StoreUnavailable):
        engine.receive()
    fragile_redis.thaw()
    engine.reconnect()
    engine.arm()
    assert engine.receive() == []
    engine.close()


async def test_events_and_lease_of_a_gateway_survive_a_restart(
    fragile_redis: RedisServer, fragile_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    engine, gateway = fragile_pair.engine, fragile_pair.gateway
    engine.publish([Dead("before", "")])
    assert await next_event(gateway) == Dead("before", "")
    fragile_redis.kill()

    async def reader_has_noticed() -> bool:
        return any("step=_read_events" in record.message for record in caplog.records)

    await eventually(reader_has_noticed)
    fragile_redis.restart()

    async def leased_again() -> bool:
        return engine.dead_gateways([gateway.gateway]) == set()

    await eventually(leased_again)
    engine.publish([Dead("after", "")])
    assert await next_event(gateway) == Gap()
    assert await next_event(gateway) == Dead("after", "")


async def test_events_go_on_where_they_stopped_when_the_server_thaws(
    fragile_redis: RedisServer, fragile_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    engine, gateway = fragile_pair.engine, fragile_pair.gateway
    fragile_redis.freeze()

    async def lease_has_failed() -> bool:
        return any("step=_keep_lease" in record.message for record in caplog.records)

    await eventually(lease_has_failed)
    fragile_redis.thaw()
    engine.publish([Dead("1", ""), Dead("2", "")])
    assert [await next_event(gateway), await next_event(gateway)] == [Dead("1", ""), Dead("2", "")]


async def test_a_gateway_closes_while_the_server_is_dead(fragile_redis: RedisServer, fragile_pair: Pair) -> None:
    fragile_redis.kill()
    async with asyncio.timeout(5):
        await fragile_pair.gateway.close()


async def test_a_gateway_that_could_not_start_starts_later(fragile_redis: RedisServer) -> None:
    fragile_redis.kill()
    gateway = RedisGatewayFeed(fragile_redis.url, KEYS, timeouts=IMPATIENT)
    with pytest.raises(StoreUnavailable):
        await gateway.start()
    fragile_redis.restart()
    await gateway.start()
    await gateway.close()


async def test_entries_that_cannot_be_read_are_counted_and_skipped(
    pair: Pair, shared_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for fields in DAMAGED_ENTRIES:
        shared_redis.client.xadd(KEYS.feed, fields)
        shared_redis.client.xadd(KEYS.events, fields)
    await pair.gateway.announce(announcement("1"))
    pair.engine.publish([Dead("x", "")])
    pair.engine.arm()
    assert pair.engine.receive() == [announcement("1")]
    assert await next_event(pair.gateway) == Dead("x", "")
    assert pair.engine.n_skipped == pair.gateway.n_skipped == len(DAMAGED_ENTRIES)
    skipped = [record.message for record in caplog.records if "feed-entry-skipped" in record.message]
    assert len(skipped) == 2 * len(DAMAGED_ENTRIES)
    assert not any("unheard-of" in message for message in skipped)


async def test_a_read_of_nothing_but_damage_receives_nothing_and_moves_on(
    pair: Pair, shared_redis: RedisServer
) -> None:
    shared_redis.client.xadd(KEYS.feed, {"no": "kind"})
    pair.engine.arm()
    assert pair.engine.receive() == []
    pair.engine.arm()
    assert pair.engine.receive() == []
    assert pair.engine.n_skipped == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"epoch": 1}'])
async def test_a_record_that_cannot_be_read_hides_no_other(pair: Pair, shared_redis: RedisServer, text: bytes) -> None:
    shared_redis.client.set(KEYS.engine("broken"), text)
    shared_redis.client.sadd(KEYS.engines, "broken")
    assert await pair.gateway.engines() == [RECORD]
    assert pair.gateway.n_skipped == 1


async def test_an_expired_epoch_leaves_the_set(pair: Pair, shared_redis: RedisServer) -> None:
    other = RedisEngineFeed(shared_redis.url, KEYS)
    other.register(replace(RECORD, epoch="b" * 16), VOCABULARY)
    other.close()
    assert len(await pair.gateway.engines()) == 2
    shared_redis.client.delete(KEYS.engine("b" * 16))
    assert await pair.gateway.engines() == [RECORD]
    assert shared_redis.client.smembers(KEYS.engines) == {RECORD.epoch.encode()}


async def test_leases_are_as_documented_and_renewed(redis_url: str, shared_redis: RedisServer) -> None:
    engine, gateway = RedisEngineFeed(redis_url, KEYS), RedisGatewayFeed(redis_url, KEYS)
    engine.register(RECORD, VOCABULARY)
    await gateway.start()
    pttl = shared_redis.client.pttl
    record_key, vocabulary_key = KEYS.engine(RECORD.epoch), KEYS.vocabulary(RECORD.fingerprint)
    gateway_key = KEYS.gateway(gateway.gateway)
    for key in (record_key, gateway_key):
        assert LEASE_MS - 2_000 < pttl(key) <= LEASE_MS
        shared_redis.client.pexpire(key, 1_000)
    shared_redis.client.expire(vocabulary_key, 10)
    engine.renew()
    await gateway.announce(announcement("1"))
    assert pttl(record_key) > LEASE_MS - 2_000
    assert pttl(gateway_key) > LEASE_MS - 2_000
    assert pttl(vocabulary_key) > (VOCABULARY_TTL_S - 60) * 1_000
    engine.close()
    await gateway.close()


async def test_streams_stay_bounded(pair: Pair, shared_redis: RedisServer) -> None:
    for _ in range(12):
        await pair.gateway.end([str(number) for number in range(1_000)])
        pair.engine.publish([Dead("x", "")] * 1_000)
    for stream in (KEYS.feed, KEYS.events):
        assert STREAM_MAX_ENTRIES <= shared_redis.client.xlen(stream) < STREAM_MAX_ENTRIES + 500


async def test_an_engine_far_behind_catches_up_in_several_reads(pair: Pair) -> None:
    nonces = [str(number) for number in range(300)]
    await pair.gateway.end(nonces)
    received: list[Any] = []
    while len(received) < len(nonces):
        pair.engine.arm()
        messages = pair.engine.receive()
        assert messages
        received += messages
    assert [message.nonce for message in received] == nonces


async def test_any_thread_may_publish_while_the_feed_thread_waits(pair: Pair) -> None:
    pair.engine.arm()
    threads = [threading.Thread(target=pair.engine.publish, args=([Dead(str(n), "")],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(await next_event(pair.gateway)).epoch for _ in range(8)} == {str(n) for n in range(8)}
    assert pair.engine.receive() == []


async def test_groups_do_not_hear_each_other(pair: Pair, redis_url: str) -> None:
    other = RedisEngineFeed(redis_url, Keyspace(group="other"), block_ms=20)
    other.register(replace(RECORD, epoch="b" * 16, group="other"), VOCABULARY)
    await pair.gateway.announce(announcement("1"))
    other.arm()
    assert other.receive() == []
    assert await pair.gateway.engines() == [RECORD]
    other.close()


@pytest.mark.parametrize(
    ("position", "newest", "resumed"),
    [
        (b"5-0", b"5-0", b"5-0"),
        (b"5-0", b"7-1", b"5-0"),
        (b"5-0", None, BEGINNING),
        (b"5-10", b"5-9", b"5-9"),
        (b"10-0", b"9-0", b"9-0"),
        (BEGINNING, b"9-0", BEGINNING),
        (BEGINNING, None, BEGINNING),
    ],
    ids=["same", "more came", "stream lost", "lost within a millisecond", "clock went back", "all new", "still none"],
)
def test_a_reader_resumes_behind_what_it_saw_or_at_the_end_of_a_new_stream(
    position: bytes, newest: bytes | None, resumed: bytes
) -> None:
    assert resume_position(position, newest) == resumed
