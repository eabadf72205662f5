"""What both ends of every feed must do."""

import asyncio
import select
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest
import redis

from feed_samples import RECORD, VOCABULARY, announcement
from maskfeed_automata.errors import InternalInvariant, StoreUnavailable, UnknownArtifact
from maskfeed_cache.feed import EngineFeed, GatewayFeed
from maskfeed_cache.feed_messages import Clear, Dead, Ended, EngineRecord, Failed, HeldUsage, Ready
from maskfeed_cache.fence import Fence
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.memory_broker import MemoryBroker
from maskfeed_cache.memory_feed import MemoryEngineFeed, MemoryGatewayFeed
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from waiting import eventually

KEYS = Keyspace(group="contract")
LONG_MS = 60_000
SHORT_MS = 60


@dataclass(frozen=True)
class Feeds:
    """Makes feeds that hear each other; closes them at the end."""

    new_engine: Callable[[int, int], EngineFeed]
    new_gateway: Callable[[int], GatewayFeed]
    # as if the record of that epoch, or the lease of that gateway, had lapsed
    expire_record: Callable[[str], None]
    expire_lease: Callable[[str], None]
    opened_engines: list[EngineFeed]
    opened_gateways: list[GatewayFeed]

    def engine(self, record: EngineRecord = RECORD, *, lease_ms: int = LONG_MS, block_ms: int = 5_000) -> EngineFeed:
        """A registered engine."""
        feed = self.new_engine(lease_ms, block_ms)
        self.opened_engines.append(feed)
        feed.register(record, VOCABULARY)
        return feed

    async def gateway(self, *, lease_ms: int = LONG_MS) -> GatewayFeed:
        """A started gateway."""
        feed = self.new_gateway(lease_ms)
        self.opened_gateways.append(feed)
        await feed.start()
        return feed


def memory_feeds() -> Feeds:
    broker = MemoryBroker()
    return Feeds(
        lambda lease_ms, block_ms: MemoryEngineFeed(broker, lease_ms=lease_ms, block_ms=block_ms),
        lambda lease_ms: MemoryGatewayFeed(broker, lease_ms=lease_ms),
        broker.delete_record,
        broker.delete_lease,
        [],
        [],
    )


def redis_feeds(url: str, client: redis.Redis) -> Feeds:
    return Feeds(
        lambda lease_ms, block_ms: RedisEngineFeed(url, KEYS, lease_ms=lease_ms, block_ms=block_ms),
        lambda lease_ms: RedisGatewayFeed(url, KEYS, lease_ms=lease_ms),
        lambda epoch: client.delete(KEYS.engine(epoch)),
        lambda gateway: client.delete(KEYS.gateway(gateway)),
        [],
        [],
    )


@pytest.fixture(params=["memory", "redis", "cluster"])
async def feeds(request: pytest.FixtureRequest) -> AsyncIterator[Feeds]:
    if request.param == "memory":
        made = memory_feeds()
    elif request.param == "cluster":
        cluster = request.getfixturevalue("index_servers").get("cluster-7")
        cluster.flush()
        made = redis_feeds(cluster.url, cluster.node_of(KEYS.feed).client)
    else:
        made = redis_feeds(request.getfixturevalue("redis_url"), request.getfixturevalue("shared_redis").client)
    yield made
    for engine in made.opened_engines:
        engine.close()
        engine.close()
    for gateway in made.opened_gateways:
        await gateway.close()
        await gateway.close()


async def next_events(gateway: GatewayFeed, n_events: int) -> list[object]:
    events = gateway.events()
    async with asyncio.timeout(5):
        return [await anext(events) for _ in range(n_events)]


async def test_messages_of_a_gateway_reach_the_engine_in_their_order(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    first, second = announcement("1", gateway.gateway), announcement("2", gateway.gateway)
    await gateway.announce(first)
    await gateway.end(["8", "9"])
    await gateway.announce(second)
    engine.arm()
    assert engine.receive() == [first, Ended("8"), Ended("9"), second]


async def test_a_clear_reaches_the_engine_in_its_place_with_its_generation(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    before = replace(announcement("1", gateway.gateway), cache_epoch="e" * 32, generation=1)
    after = replace(announcement("2", gateway.gateway), cache_epoch="e" * 32, generation=2)
    await gateway.announce(before)
    await gateway.clear(Fence("e" * 32, 2))
    await gateway.announce(after)
    engine.arm()
    assert engine.receive() == [before, Clear("e" * 32, 2), after]


async def test_a_gateway_sees_what_an_engine_held_at_its_last_renewal(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    assert (await gateway.engines())[0].held is None
    for usage in (HeldUsage("e" * 32, 1, 2, 30, 0, 0, 100), HeldUsage("e" * 32, 2, 0, 0, 1, 20, 100)):
        engine.renew(usage)
        (record,) = await gateway.engines()
        assert record.held == usage
        assert record == RECORD, "a gateway must not take new figures for another engine"


async def test_an_engine_asks_again_from_where_it_stopped(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    for nonce in ("1", "2", "3"):
        await gateway.announce(announcement(nonce, gateway.gateway))
        engine.arm()
        assert engine.receive() == [announcement(nonce, gateway.gateway)]


async def test_each_engine_of_the_group_hears_each_message(feeds: Feeds) -> None:
    engines = [feeds.engine(), feeds.engine(replace(RECORD, epoch="f" * 16))]
    gateway = await feeds.gateway()
    await gateway.announce(announcement("1", gateway.gateway))
    for engine in engines:
        engine.arm()
        assert engine.receive() == [announcement("1", gateway.gateway)]


async def test_an_engine_does_not_hear_what_was_said_before_it_registered(feeds: Feeds) -> None:
    gateway = await feeds.gateway()
    await gateway.announce(announcement("early", gateway.gateway))
    engine = feeds.engine()
    await gateway.announce(announcement("late", gateway.gateway))
    engine.arm()
    assert engine.receive() == [announcement("late", gateway.gateway)]


def test_without_news_an_engine_receives_nothing_after_the_time_for_that(feeds: Feeds) -> None:
    engine = feeds.engine(block_ms=20)
    for _ in range(2):
        engine.arm()
        assert engine.receive() == []


async def test_the_descriptor_becomes_readable_with_the_first_message(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    engine.arm()
    poll = select.poll()
    poll.register(engine.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    await gateway.announce(announcement("1", gateway.gateway))
    assert poll.poll(5_000) == [(engine.fileno(), select.POLLIN)]
    assert engine.receive() == [announcement("1", gateway.gateway)]


def test_arming_twice_asks_once(feeds: Feeds) -> None:
    engine = feeds.engine(block_ms=20)
    engine.arm()
    engine.arm()
    assert engine.receive() == []
    with pytest.raises(InternalInvariant):
        engine.receive()


async def test_a_new_connection_keeps_the_position(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    await gateway.announce(announcement("1", gateway.gateway))
    engine.arm()
    assert len(engine.receive()) == 1
    engine.arm()
    await gateway.announce(announcement("2", gateway.gateway))
    engine.reconnect()
    engine.arm()
    assert engine.receive() == [announcement("2", gateway.gateway)]


def test_before_registration_there_is_no_connection_and_nothing_to_renew(feeds: Feeds) -> None:
    engine = feeds.new_engine(LONG_MS, 20)
    with pytest.raises(StoreUnavailable):
        engine.arm()
    with pytest.raises(StoreUnavailable):
        engine.fileno()
    with pytest.raises(InternalInvariant):
        engine.renew()
    engine.retire()
    engine.close()


async def test_events_reach_each_gateway_in_their_order(feeds: Feeds) -> None:
    engine = feeds.engine()
    gateways = [await feeds.gateway(), await feeds.gateway()]
    events = [Ready("a" * 64, RECORD.epoch, "1"), Failed("b" * 64, RECORD.epoch, "2", "checksum"), Dead("x", "rank 1")]
    engine.publish(events[:2])
    engine.publish(events[2:])
    for gateway in gateways:
        assert await next_events(gateway, 3) == events


async def test_publishing_no_event_is_allowed(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    engine.publish([])
    await gateway.end([])
    assert engine.dead_gateways([]) == set()


async def test_a_gateway_does_not_hear_what_was_said_before_it_started(feeds: Feeds) -> None:
    engine = feeds.engine()
    engine.publish([Dead("early", "")])
    gateway = await feeds.gateway()
    engine.publish([Dead("late", "")])
    assert await next_events(gateway, 1) == [Dead("late", "")]


async def test_more_events_than_one_read_or_the_queue_holds_arrive_complete(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    events = [Dead(str(number), "") for number in range(3_000)]
    engine.publish(events)
    assert await next_events(gateway, len(events)) == events


async def test_closing_a_gateway_ends_its_events_and_gives_up_its_lease(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    consumer = asyncio.create_task(anext(gateway.events(), None))
    assert engine.dead_gateways([gateway.gateway]) == set()
    await gateway.close()
    async with asyncio.timeout(5):
        assert await consumer is None
        assert [event async for event in gateway.events()] == []
    assert engine.dead_gateways([gateway.gateway]) == {gateway.gateway}


async def test_a_gateway_sees_the_records_of_live_engines_ordered_by_epoch(feeds: Feeds) -> None:
    gateway = await feeds.gateway()
    assert await gateway.engines() == []
    records = [replace(RECORD, epoch=epoch * 16) for epoch in "cab"]
    for record in records:
        feeds.engine(record)
    assert [record.epoch[0] for record in await gateway.engines()] == ["a", "b", "c"]
    assert (await gateway.engines())[2] == records[0]


async def test_a_gateway_gets_the_vocabulary_that_the_engine_published(feeds: Feeds) -> None:
    gateway = await feeds.gateway()
    with pytest.raises(UnknownArtifact):
        await gateway.vocabulary(RECORD.fingerprint)
    feeds.engine()
    assert await gateway.vocabulary(RECORD.fingerprint) == VOCABULARY


async def test_an_engine_that_stops_renewing_disappears(feeds: Feeds) -> None:
    gateway = await feeds.gateway()
    feeds.engine(lease_ms=SHORT_MS)

    async def gone() -> bool:
        return await gateway.engines() == []

    await eventually(gone)


async def test_an_engine_whose_record_was_lost_is_back_with_its_next_renewal(feeds: Feeds) -> None:
    gateway, engine = await feeds.gateway(), feeds.engine()
    feeds.expire_record(RECORD.epoch)
    assert await gateway.engines() == []
    engine.renew()
    assert await gateway.engines() == [RECORD]


async def test_an_engine_that_retires_disappears_at_once(feeds: Feeds) -> None:
    gateway, engine = await feeds.gateway(), feeds.engine()
    feeds.engine(replace(RECORD, epoch="b" * 16))
    engine.retire()
    engine.retire()
    assert [record.epoch for record in await gateway.engines()] == ["b" * 16]


async def test_a_gateway_that_never_lived_counts_as_dead(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    assert engine.dead_gateways([gateway.gateway, "never"]) == {"never"}


async def test_a_gateway_whose_lease_was_lost_takes_it_again_in_the_background(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway(lease_ms=SHORT_MS)
    feeds.expire_lease(gateway.gateway)

    async def alive() -> bool:
        return engine.dead_gateways([gateway.gateway]) == set()

    await eventually(alive)


async def test_an_announcement_carries_the_lease_with_it(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    feeds.expire_lease(gateway.gateway)
    assert engine.dead_gateways([gateway.gateway]) == {gateway.gateway}
    await gateway.announce(announcement("1", gateway.gateway))
    assert engine.dead_gateways([gateway.gateway]) == set()


async def test_two_gateways_have_two_names(feeds: Feeds) -> None:
    assert (await feeds.gateway()).gateway != (await feeds.gateway()).gateway


async def test_nothing_readable_is_skipped(feeds: Feeds) -> None:
    engine, gateway = feeds.engine(), await feeds.gateway()
    await gateway.announce(announcement("1", gateway.gateway))
    engine.publish([Dead("x", "")])
    engine.arm()
    engine.receive()
    await next_events(gateway, 1)
    assert (engine.n_skipped, gateway.n_skipped) == (0, 0)
