"""What only the in-process feeds have: scripted failures and a clock that a test moves."""

import pytest

from feed_samples import RECORD, VOCABULARY, announcement
from manual_clock import ManualClock
from maskfeed_automata.errors import StoreUnavailable
from maskfeed_cache.feed_messages import Dead
from maskfeed_cache.memory_broker import MemoryBroker
from maskfeed_cache.memory_feed import MemoryEngineFeed, MemoryGatewayFeed


def test_an_engines_record_lives_exactly_one_lease() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock.time)
    engine = MemoryEngineFeed(broker, lease_ms=6_000)
    engine.register(RECORD, VOCABULARY)
    clock.advance(5.9)
    assert broker.live_records() == [RECORD]
    engine.renew()
    clock.advance(5.9)
    assert broker.live_records() == [RECORD]
    clock.advance(0.2)
    assert broker.live_records() == []
    engine.close()


@pytest.mark.parametrize("stage", ["arm", "receive"])
async def test_a_scripted_failure_of_the_reading_connection_lasts_until_reconnect(stage: str) -> None:
    broker = MemoryBroker()
    engine, gateway = MemoryEngineFeed(broker), MemoryGatewayFeed(broker)
    engine.register(RECORD, VOCABULARY)
    await gateway.start()
    await gateway.announce(announcement("1"))
    if stage == "receive":
        engine.arm()
    broker.faults.fail_next(stage)
    with pytest.raises(StoreUnavailable):
        getattr(engine, stage)()
    for broken in (engine.arm, engine.fileno):
        with pytest.raises(StoreUnavailable):
            broken()
    engine.reconnect()
    engine.arm()
    assert engine.receive() == [announcement("1")]
    engine.close()
    await gateway.close()


async def test_each_other_operation_fails_once_as_scripted() -> None:
    broker = MemoryBroker()
    engine, gateway = MemoryEngineFeed(broker), MemoryGatewayFeed(broker)
    for stage in ("register", "renew", "publish", "dead-gateways", "reconnect", "retire"):
        broker.faults.fail_next(stage)
    operations = [
        lambda: engine.register(RECORD, VOCABULARY),
        engine.renew,
        lambda: engine.publish([Dead("x", "")]),
        lambda: engine.dead_gateways(["g"]),
        engine.reconnect,
        engine.retire,
    ]
    for operation in operations:
        with pytest.raises(StoreUnavailable):
            operation()
        operation()
    for stage in ("start", "engines", "announce", "end"):
        broker.faults.fail_next(stage)
    for asynchronous in (
        gateway.start,
        gateway.engines,
        lambda: gateway.announce(announcement("1")),
        lambda: gateway.end(["1"]),
    ):
        with pytest.raises(StoreUnavailable):
            await asynchronous()
        await asynchronous()
    engine.close()
    await gateway.close()
