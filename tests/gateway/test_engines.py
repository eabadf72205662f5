"""The engine group: who counts as live, what is proven, and who is waited for."""

import asyncio
import dataclasses

import pytest
from yarl import URL

from connection_balancer import ConnectionBalancer
from fake_engine import EOS, VOCABULARY, FakeEngine, engine_record
from gateway_stack import gateway_stack
from manual_clock import settle
from maskfeed.service.promises import Promises
from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import EngineNotReady, InternalInvariant, RankFailure, StoreUnavailable
from maskfeed_cache.feed_messages import Dead, Failed, Ready
from maskfeed_cache.fence import Fence, IndexEntry
from maskfeed_cache.memory_feed import MemoryEngineFeed
from maskfeed_cache.shared_cache import Found, Source

ENTRY = IndexEntry("f" * 64, 10)
FOUND = Found(ENTRY, Fence("e" * 32, 7), Source.HIT)
A, B = "a" * 16, "b" * 16


async def again(stack):
    """Let the group be read once more, as after a second."""
    stack.clock.advance(1)
    await settle()


async def until_ready(stack, *, ready=True):
    """Poll records until the group is (not) ready; each turn waits for the HTTP of a probe, not for a time."""
    for _ in range(20):
        await stack.parts.engines.refresh()
        if (stack.parts.engines.live is not None) == ready:
            return
    raise AssertionError(stack.parts.engines.reasons())


async def test_a_group_is_live_when_its_engine_has_answered_the_probe_with_its_epoch():
    async with gateway_stack() as stack:
        live = stack.parts.engines.require()
        assert live.epochs == (stack.engine.record.epoch,)
        assert live.vocabulary == VOCABULARY
        assert stack.compiler.warmed == [VOCABULARY.fingerprint]
        probe = stack.engine.seen.requests[0]
        assert probe["max_tokens"] == 17
        assert probe["stop_token_ids"] == [stack.engine.record.reserved_id]
        assert stack.parts.engines.reasons() == ()


async def test_an_unchanged_group_is_not_probed_again():
    async with gateway_stack() as stack:
        await again(stack)
        await again(stack)
        assert len(stack.engine.seen.requests) == 1


async def test_every_replica_must_be_reached_through_the_url():
    async with gateway_stack(records=[engine_record(), engine_record()]) as stack:
        assert len(stack.parts.engines.require().epochs) == 2
        assert all(engine.seen.requests for engine in stack.engines)


async def test_replicas_behind_a_balancer_of_connections_are_all_reached():
    async with (
        ConnectionBalancer() as balancer,
        gateway_stack(records=[engine_record(), engine_record()], upstream_url=balancer.url) as stack,
    ):
        assert stack.parts.engines.live is None
        balancer.ports += [URL(engine.url).port for engine in stack.engines]
        await stack.parts.engines.refresh()
        assert len(stack.parts.engines.require().epochs) == 2


async def test_a_replica_that_the_url_never_reaches_keeps_the_group_from_being_ready():
    async with gateway_stack(records=[engine_record(), engine_record()]) as stack:
        del stack.parts.upstream.servers[1]
        stack.engines[1].die()
        await until_ready(stack)
        third = FakeEngine(MemoryEngineFeed(stack.broker), stack.broker.blobs)
        async with third:
            await stack.parts.engines.refresh()
            (reason,) = stack.parts.engines.reasons()
            assert "1 of 2 engines of the group were never reached" in reason


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"has_no_plugin": True}, "text that no engine of the group gives"),
        ({"answers_with": (404, "{}")}, "answered a probe with status 404"),
        ({"answers_with": (200, "<html>")}, "something that is no completion"),
        ({"answers_with": (200, '{"choices": []}')}, "something that is no completion"),
        ({"answers_with": (200, "[]")}, "something that is no completion"),
        ({"answers_with": (200, '{"choices": [{"token_ids": [99999]}]}')}, "text that no engine of the group gives"),
        ({"dies": True}, "can't be reached"),
    ],
)
async def test_an_engine_that_does_not_prove_itself_gets_no_requests_and_the_reason_is_kept(fault, reason):
    async with gateway_stack(records=[]) as stack:
        engine = FakeEngine(MemoryEngineFeed(stack.broker), stack.broker.blobs)
        for name, value in fault.items():
            setattr(engine.faults, name, value)
        async with engine:
            stack.parts.upstream.servers[0]._base_url = engine.url
            await stack.parts.engines.refresh()
            with pytest.raises(Exception, match=reason) as caught:
                stack.parts.engines.require()
            assert caught.value.retryable
            assert any(reason in told for told in stack.parts.engines.reasons())
            engine.faults.__init__()
            await stack.parts.engines.refresh()
            assert stack.parts.engines.require().epochs == (engine.record.epoch,)


async def test_an_engine_that_refuses_the_probe_belongs_to_another_group():
    async with gateway_stack(records=[]) as stack:
        stranger = FakeEngine(MemoryEngineFeed(stack.broker), stack.broker.blobs)
        async with stranger:
            stranger.record = dataclasses.replace(stranger.record, epoch=A)
            stack.parts.upstream.servers[0]._base_url = stranger.url
            await stack.parts.engines.refresh()
            assert "refused the probe" in stack.parts.engines.reasons()[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reserved_id", EOS),
        ("model", "other"),
        ("stop_token_ids", (EOS, 300)),
        ("reasoning_parser", "qwen3"),
        ("logits_width", 1_000),
    ],
)
async def test_replicas_that_differ_where_a_mask_depends_on_it_are_not_ready(field, value):
    async with gateway_stack(records=[engine_record(), engine_record(**{field: value})]) as stack:
        assert stack.parts.engines.reasons() == (f"the engines of the group differ in {field}",)


async def test_the_shortest_context_of_the_replicas_counts():
    async with gateway_stack(records=[engine_record(max_model_len=80), engine_record(max_model_len=40)]) as stack:
        assert stack.parts.engines.require().record.max_model_len == 40


async def test_an_engine_that_reads_other_artifacts_is_not_ready():
    async with gateway_stack(records=[engine_record(A, format_versions=(999,))]) as stack:
        assert "does not read artifacts of format" in stack.parts.engines.reasons()[0]


async def test_a_published_vocabulary_that_is_another_one_is_not_used():
    async with gateway_stack(records=[]) as stack:
        other = Vocabulary.from_token_bytes([b"a", b"b"])
        record = engine_record()
        stack.broker.blobs.put_vocabulary(record.fingerprint, other.to_bytes())
        stack.broker.write_record(record, 60_000)
        await stack.parts.engines.refresh()
        assert "not the one that the engine names" in stack.parts.engines.reasons()[0]


async def test_a_death_is_believed_at_once_although_the_record_lives_on():
    async with gateway_stack() as stack:
        stack.parts.engines.receive(Dead(stack.engine.record.epoch, "killed"))
        with pytest.raises(EngineNotReady, match="died: killed"):
            stack.parts.engines.require()
        await stack.parts.engines.refresh()
        assert stack.parts.engines.reasons() == ("no engine of the group is registered",)


async def test_a_new_life_of_the_engine_is_proven_again():
    async with gateway_stack() as stack:
        old = stack.engine
        old.die()
        new = FakeEngine(MemoryEngineFeed(stack.broker), stack.broker.blobs)
        async with new:
            stack.parts.upstream.servers[0]._base_url = new.url
            await until_ready(stack)
            assert stack.parts.engines.require().epochs == (new.record.epoch,)
            assert len(new.seen.requests) == 1


async def test_a_record_that_lapses_makes_the_group_unready():
    async with gateway_stack() as stack:
        stack.broker.delete_record(stack.engine.record.epoch)
        await again(stack)
        assert stack.parts.engines.live is None


async def test_a_store_that_is_away_is_a_reason_but_what_is_proven_stays():
    async with gateway_stack() as stack:
        stack.broker.faults.fail_next("engines")
        await again(stack)
        assert stack.parts.engines.reasons() == ("scripted failure during engines",)
        assert stack.parts.engines.require()
        await again(stack)
        assert stack.parts.engines.reasons() == ()


async def test_a_gateway_that_starts_without_its_store_becomes_ready_when_it_comes():
    async with gateway_stack(records=[]) as stack:
        engine = FakeEngine(MemoryEngineFeed(stack.broker), stack.broker.blobs)
        async with engine:
            stack.parts.upstream.servers[0]._base_url = engine.url
            stack.broker.faults.fail_next("engines")
            await stack.parts.engines.refresh()
            with pytest.raises(StoreUnavailable):
                stack.parts.engines.require()
            await stack.parts.engines.refresh()
            assert stack.parts.engines.require()


async def test_a_follower_that_breaks_is_never_silent(caplog):
    async with gateway_stack() as stack:

        def broken(event):
            raise ZeroDivisionError

        stack.parts.promises.receive = broken
        stack.broker.send_to_gateways([Ready("f" * 64, A, "0" * 32)])
        await settle()
        with pytest.raises(InternalInvariant):
            stack.parts.engines.require()
        assert "no longer follows" in stack.parts.engines.reasons()[0]
    assert "group-follower-stopped" in caplog.text


# -- promises ------------------------------------------------------------------------------------------------------


class SpokenTo:
    """A feed that remembers what was said."""

    gateway = "gateway"

    def __init__(self):
        self.announced = []
        self.ended = []
        self.failing = 0

    async def announce(self, announcement):
        self._fail_if_told("announce")
        self.announced.append(announcement)

    async def end(self, nonces):
        self._fail_if_told("end")
        self.ended.extend(nonces)

    def _fail_if_told(self, stage):
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("away", stage=stage)


class Waiter:
    """A request that holds a promise of engines A and B until it is let go."""

    def __init__(self):
        self.feed = SpokenTo()
        self.promises = Promises(self.feed, lifetime_ms=9, new_nonce=lambda: "0" * 32)
        self.promise = None
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._hold())

    async def _hold(self):
        async with self.promises.hold(FOUND, (A, B)) as self.promise:
            await self.done.wait()

    async def hear(self, *events):
        await settle()
        for event in events:
            self.promises.receive(event)
        await settle()

    async def end(self):
        self.done.set()
        await self.task
        await settle()


def ready(epoch, nonce="0" * 32):
    return Ready(ENTRY.artifact_hash, epoch, nonce)


async def test_a_promise_needs_every_engine_and_is_ended_once_it_is_over():
    waiter = Waiter()
    await waiter.hear(ready(B))
    assert waiter.promise is None
    (announcement,) = waiter.feed.announced
    assert (announcement.lifetime_ms, announcement.size_bytes, announcement.gateway) == (9, 10, "gateway")
    await waiter.hear(ready(A))
    assert waiter.promise.epochs == (A, B)
    assert waiter.feed.ended == []
    assert waiter.promises.held == 1
    await waiter.end()
    assert waiter.feed.ended == ["0" * 32]
    assert waiter.promises.held == 0


async def test_what_is_said_to_others_or_twice_changes_nothing():
    waiter = Waiter()
    await waiter.hear(ready(A), ready(A), ready(B, "1" * 32), ready("c" * 16), Failed("x", A, "1" * 32, "no"))
    assert waiter.promise is None
    await waiter.hear(ready(B))
    await waiter.end()


@pytest.mark.parametrize("before", [[], [ready(A)], [ready(B)]])
async def test_one_engine_that_fails_fails_the_request(before):
    waiter = Waiter()
    await waiter.hear(*before, Failed(ENTRY.artifact_hash, A, "0" * 32, "no room"))
    with pytest.raises(RankFailure):
        await waiter.task
    await settle()
    assert waiter.feed.ended == ["0" * 32]


@pytest.mark.parametrize("lose", ["dead", "record"])
@pytest.mark.parametrize("answered", [False, True])
async def test_an_engine_that_goes_is_waited_for_no_longer_and_not_counted(lose, answered):
    waiter = Waiter()
    await waiter.hear(*([ready(A)] if answered else []))
    if lose == "dead":
        await waiter.hear(Dead(A, "killed"))
    else:
        waiter.promises.retain([B])
    await waiter.hear(ready(B))
    assert waiter.promise.epochs == (B,)
    await waiter.end()


async def test_a_request_whose_last_engine_goes_fails():
    waiter = Waiter()
    await waiter.hear(Dead(A, "killed"), Dead(B, "killed"))
    with pytest.raises(EngineNotReady):
        await waiter.task


async def test_a_request_that_is_given_up_while_it_fails_leaves_no_unseen_error():
    waiter = Waiter()
    await settle()
    waiter.promises.receive(Failed(ENTRY.artifact_hash, A, "0" * 32, "no room"))
    waiter.task.cancel()
    with pytest.raises((asyncio.CancelledError, RankFailure)):
        await waiter.task


async def test_an_end_that_could_not_be_sent_is_kept():
    waiter = Waiter()
    await waiter.hear(ready(A), ready(B))
    waiter.feed.failing = 1
    await waiter.end()
    assert waiter.feed.ended == []
    await waiter.promises.close()
    assert waiter.feed.ended == ["0" * 32]


async def test_what_a_store_that_was_away_may_have_lost_is_said_again():
    waiter = Waiter()
    await waiter.hear(ready(A))
    waiter.promises.say_again()
    await waiter.hear(ready(A), ready(B))
    first, again = waiter.feed.announced
    assert first == again
    waiter.promises.say_again()
    await waiter.end()
    waiter.promises.say_again()
    await settle()
    assert waiter.feed.announced == [first, again]
    assert waiter.feed.ended == ["0" * 32] * 2


async def test_what_could_not_be_said_again_is_kept():
    waiter = Waiter()
    await settle()
    waiter.feed.failing = 1
    waiter.promises.say_again()
    await settle()
    assert len(waiter.feed.announced) == 1
    waiter.promises.tell_ended()
    await waiter.hear(ready(A), ready(B))
    assert len(waiter.feed.announced) == 2
    await waiter.end()
