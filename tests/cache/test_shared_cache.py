"""One computation per key, whoever asks: in one event loop, over each index."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest

from manual_clock import ManualClock, settle
from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    InternalInvariant,
    LimitExceeded,
    RequestError,
    StoreUnavailable,
)
from maskfeed_cache.fence import Failure, Granted, IndexEntry, Layer
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.memory_index import MemoryIndex
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.shared_cache import Outcome, SharedCache, Source

KEY = "d" * 64
LEASE_MS = 3_000


class Computation:
    """Makes artifacts while `gate` is open, and counts."""

    def __init__(self, blobs):
        self.blobs = blobs
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.error = None
        self.begun = 0
        self.dropped = 0

    async def __call__(self, report):
        self.begun += 1
        number = self.begun
        report("compile")
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        if self.error is not None:
            raise self.error
        blob = b"x" * (17 * number)
        return IndexEntry(self.blobs.put(blob), len(blob))


class Cluster:
    """Several caches over one memory index, as several gateways over one Redis."""

    def __init__(self, **index_options):
        self.clock = ManualClock()
        self.blobs = MemoryBlobStore()
        self.index = MemoryIndex(self.blobs, clock=self.clock.time, blob_grace_s=0, **index_options)
        self.compute = Computation(self.blobs)
        self.outcomes = []
        self.tokens = itertools.count(1)
        self.caches = []
        self.followers = []

    def open(self, index=None):
        follower = IndexFollower(index or self.index, clock=self.clock)
        cache = SharedCache(
            follower,
            Layer.SETS,
            clock=self.clock,
            lease_ms=LEASE_MS,
            remember_ms=2_000,
            observe=self.outcomes.append,
            new_token=lambda: f"{next(self.tokens):032x}",
        )
        follower.start()
        self.caches.append(cache)
        self.followers.append(follower)
        return cache

    async def usage(self):
        return (await self.index.usage()).layers[Layer.SETS]

    async def another_holder(self, key=KEY):
        """The lease of a process that is not here."""
        granted = await self.index.acquire(Layer.SETS, key, token="f" * 32, lease_ms=LEASE_MS)
        assert isinstance(granted, Granted)
        return granted.lease


@asynccontextmanager
async def a_cluster(**index_options):
    cluster = Cluster(**index_options)
    try:
        yield cluster
    finally:
        cluster.compute.gate.set()
        async with asyncio.timeout(5):
            for opened in (*cluster.caches, *cluster.followers):
                await opened.close()
    assert cluster.clock.n_planned == 0


@pytest.fixture
async def cluster():
    async with a_cluster() as opened:
        yield opened


@pytest.fixture
async def cache(cluster):
    opened = cluster.open()
    await settle()
    return opened


def begin(cache, compute, key=KEY):
    return asyncio.create_task(cache.get(key, compute))


async def test_many_callers_of_one_process_share_one_computation(cluster, cache):
    cluster.compute.gate.clear()
    tasks = [begin(cache, cluster.compute) for _ in range(1_000)]
    await settle()
    cluster.compute.gate.set()
    found = await asyncio.gather(*tasks)
    assert cluster.compute.begun == 1
    assert [each.source for each in found] == [Source.COMPILED] + [Source.WAITED] * 999
    assert len({each.entry for each in found}) == 1
    again = await cache.get(KEY, cluster.compute)
    assert (again.source, again.entry) == (Source.HIT, found[0].entry)
    assert cluster.outcomes == [Outcome.INDEXED]


async def test_callers_of_several_processes_share_one_computation(cluster):
    caches = [cluster.open() for _ in range(4)]
    await settle()
    cluster.compute.gate.clear()
    tasks = [begin(cache, cluster.compute) for _ in range(250) for cache in caches]
    await settle()
    cluster.compute.gate.set()
    sources = [(await task).source for task in tasks]
    assert cluster.compute.begun == 1
    assert sources.count(Source.COMPILED) == 1
    assert sources.count(Source.WAITED) == 999


async def test_a_caller_that_leaves_hurts_nobody_even_if_it_was_first(cluster, cache):
    cluster.compute.gate.clear()
    first, second = begin(cache, cluster.compute), begin(cache, cluster.compute)
    await settle()
    first.cancel()
    await settle()
    cluster.compute.gate.set()
    assert (await second).source is Source.WAITED
    assert first.cancelled()
    assert (cluster.compute.begun, cluster.compute.dropped) == (1, 0)


async def test_a_computation_that_nobody_waits_for_is_dropped_and_its_lease_given_back(cluster, cache):
    cluster.compute.gate.clear()
    tasks = [begin(cache, cluster.compute) for _ in range(3)]
    await settle()
    for task in tasks:
        task.cancel()
    await settle()
    assert cluster.compute.dropped == 1
    assert cluster.outcomes == [Outcome.DROPPED]
    cluster.compute.gate.set()
    # no clock was moved: the lease did not lapse, it was given back
    assert (await cache.get(KEY, cluster.compute)).source is Source.COMPILED


async def test_who_comes_after_the_last_caller_has_left_does_not_join_what_is_being_dropped(cluster, cache):
    cluster.compute.gate.clear()
    leaving = begin(cache, cluster.compute)
    await settle()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    cluster.compute.gate.set()
    assert (await cache.get(KEY, cluster.compute)).source in (Source.COMPILED, Source.WAITED)


async def test_everybody_hears_of_every_step_and_who_comes_late_of_the_present_one(cluster, cache):
    cluster.compute.gate.clear()
    heard = {"first": [], "late": []}

    def listening(name):
        return lambda step, since_s=0.0: heard[name].append(str(step))

    async def hold(name):
        async with cache.hold(KEY, cluster.compute, pin_ms=0, report=listening(name)):
            pass

    first = asyncio.create_task(hold("first"))
    await settle()
    late = asyncio.create_task(hold("late"))
    await settle()
    cluster.compute.gate.set()
    await asyncio.gather(first, late)
    assert heard == {"first": ["lookup", "compile", "commit"], "late": ["compile", "commit"]}


# -- waiting for another process -----------------------------------------------------------------------------------


async def test_a_waiter_is_woken_by_the_news_of_the_commit(cluster, cache):
    lease = await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    assert not waiting.done()
    entry = IndexEntry(cluster.blobs.put(b"theirs"), 6)
    await cluster.index.commit(lease, entry)
    found = await asyncio.wait_for(waiting, 5)
    assert (found.entry, found.source) == (entry, Source.WAITED)
    assert cluster.compute.begun == 0


async def test_a_waiter_takes_over_when_the_holder_gives_up(cluster, cache):
    lease = await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    await cluster.index.release(lease)
    assert (await asyncio.wait_for(waiting, 5)).source is Source.COMPILED


async def test_a_waiter_takes_over_when_the_lease_of_a_dead_holder_ends_and_not_before(cluster, cache):
    await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    cluster.clock.advance(LEASE_MS / 1000 - 0.01)
    await settle()
    assert not waiting.done()
    cluster.clock.advance(0.02)
    assert (await asyncio.wait_for(waiting, 5)).source is Source.COMPILED


async def test_of_two_waiting_processes_one_takes_over_and_the_other_waits_for_it(cluster):
    one, other = cluster.open(), cluster.open()
    await settle()
    await cluster.another_holder()
    tasks = [begin(cache, cluster.compute) for cache in (one, other)]
    await settle()
    cluster.clock.advance(LEASE_MS / 1000 + 0.01)
    sources = sorted([(await asyncio.wait_for(task, 5)).source for task in tasks])
    assert sources == [Source.COMPILED, Source.WAITED]
    assert cluster.compute.begun == 1


async def test_news_that_is_lost_costs_a_waiter_no_more_than_a_lease(cluster, cache):
    lease = await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    await cluster.followers[-1].close()
    await settle()
    await cluster.index.commit(lease, IndexEntry(cluster.blobs.put(b"theirs"), 6))
    await settle()
    assert not waiting.done()
    cluster.clock.advance(LEASE_MS / 1000)
    assert (await asyncio.wait_for(waiting, 5)).source is Source.WAITED


async def test_a_waiter_asks_again_when_news_may_have_been_lost(cluster, cache):
    lease = await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    cluster.blobs.faults.fail_next("news")
    await cluster.index.commit(lease, IndexEntry(cluster.blobs.put(b"theirs"), 6))
    assert (await asyncio.wait_for(waiting, 5)).source is Source.WAITED


class CommitsBeforeItsAnswer:
    """An index that settles a key after it has said "held", and before the caller hears of it."""

    def __init__(self, index, lease, entry):
        self._index, self._lease, self._entry = index, lease, entry

    def __getattr__(self, name):
        return getattr(self._index, name)

    async def acquire(self, *args, **kwargs):
        acquired = await self._index.acquire(*args, **kwargs)
        if self._lease is not None:
            lease, self._lease = self._lease, None
            await self._index.commit(lease, self._entry)
            await settle()
        return acquired


async def test_a_commit_between_the_answer_and_the_wait_is_not_missed(cluster):
    lease = await cluster.another_holder()
    entry = IndexEntry(cluster.blobs.put(b"theirs"), 6)
    cache = cluster.open(CommitsBeforeItsAnswer(cluster.index, lease, entry))
    await settle()
    found = await asyncio.wait_for(cache.get(KEY, cluster.compute), 5)
    assert (found.entry, found.source) == (entry, Source.WAITED)


# -- leases --------------------------------------------------------------------------------------------------------


async def test_a_lease_is_renewed_for_as_long_as_its_computation_runs(cluster, cache):
    cluster.compute.gate.clear()
    running = begin(cache, cluster.compute)
    await settle()
    for _ in range(30):
        cluster.clock.advance(LEASE_MS / 3000)
        await settle()
    cluster.compute.gate.set()
    assert (await running).source is Source.COMPILED
    assert cluster.outcomes == [Outcome.INDEXED]


async def test_a_renewal_that_fails_once_is_tried_again(cluster, cache):
    cluster.compute.gate.clear()
    running = begin(cache, cluster.compute)
    await settle()
    cluster.blobs.faults.fail_next("heartbeat")
    for _ in range(6):
        cluster.clock.advance(LEASE_MS / 3000)
        await settle()
    cluster.compute.gate.set()
    await running
    assert cluster.outcomes == [Outcome.INDEXED]


async def test_a_holder_whose_lease_lapsed_answers_its_own_callers_and_counts_nothing(cluster):
    slow, quick = cluster.open(), cluster.open()
    await settle()
    cluster.compute.gate.clear()
    cluster.blobs.faults.fail_next("heartbeat", 1_000)
    late = begin(slow, cluster.compute)
    await settle()
    cluster.clock.advance(LEASE_MS / 1000 + 0.01)
    await settle()
    successor = Computation(cluster.blobs)
    successor.begun = 5
    theirs = await asyncio.wait_for(quick.get(KEY, successor), 5)
    cluster.compute.gate.set()
    ours = await asyncio.wait_for(late, 5)
    assert ours.entry.size_bytes == 17
    assert theirs.entry.size_bytes == 17 * 6
    assert cluster.outcomes == [Outcome.INDEXED, Outcome.LOST]
    assert (await cluster.usage()).bytes == 17 * 6


async def test_who_comes_after_a_lost_lease_asks_for_himself(cluster, cache):
    cluster.compute.gate.clear()
    first = begin(cache, cluster.compute)
    await settle()
    fence = await cluster.index.clear()
    # the news of it is on its way; the heartbeat is quicker here
    await cluster.followers[-1].close()
    cluster.clock.advance(LEASE_MS / 3000)
    await settle()
    second = begin(cache, cluster.compute)
    await settle()
    assert cluster.compute.begun == 2
    cluster.compute.gate.set()
    assert (await first).fence.generation == fence.generation - 1
    assert (await second).fence == fence


# -- failures ------------------------------------------------------------------------------------------------------


async def test_a_failure_that_lies_in_the_key_is_told_to_all_who_wait_and_remembered_for_seconds(cluster):
    here, there = cluster.open(), cluster.open()
    await settle()
    cluster.compute.gate.clear()
    cluster.compute.error = CandidateError("no tokens spell it", rank=3)
    tasks = [begin(cache, cluster.compute) for cache in (here, here, there)]
    await settle()
    cluster.compute.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} == {CandidateError}
    assert {error.context["rank"] for error in errors} == {3}
    assert len(set(map(id, errors))) == 3
    with pytest.raises(CandidateError):
        await there.get(KEY, cluster.compute)
    assert cluster.compute.begun == 1
    cluster.clock.advance(2.1)
    cluster.compute.error = None
    assert (await there.get(KEY, cluster.compute)).source is Source.COMPILED


async def test_a_failure_with_the_code_of_another_release_is_still_the_callers(cluster, cache):
    lease = await cluster.another_holder()
    await cluster.index.fail(lease, Failure("bad-moon", "new", {"rank": 1}), remember_ms=1_000)
    with pytest.raises(RequestError, match="new") as caught:
        await cache.get(KEY, cluster.compute)
    assert type(caught.value) is RequestError


@pytest.mark.parametrize("error", [CompileFailed("broken", stage="compile"), StoreUnavailable("away"), ValueError("x")])
async def test_a_failure_that_does_not_lie_in_the_key_is_nobody_elses(cluster, error):
    here, there = cluster.open(), cluster.open()
    await settle()
    cluster.compute.gate.clear()
    cluster.compute.error = error
    failing = [begin(here, cluster.compute) for _ in range(2)]
    await settle()
    healthy = Computation(cluster.blobs)
    waiting = begin(there, healthy)
    await settle()
    cluster.compute.gate.set()
    results = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(result) for result in results] == [type(error)] * 2
    assert (await asyncio.wait_for(waiting, 5)).source is Source.COMPILED
    assert cluster.outcomes == [Outcome.FAILED, Outcome.INDEXED]


async def test_a_set_over_the_limit_is_refused_to_all_its_callers_and_not_remembered():
    async with a_cluster(limit_bytes={Layer.SETS: 20}) as cluster:
        cache = cluster.open()
        await settle()
        cluster.compute.begun = 1
        tasks = [begin(cache, cluster.compute) for _ in range(2)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(error), error.context["limit"], error.context["value"]) for error in errors] == [
            (LimitExceeded, 20, 34)
        ] * 2
        with pytest.raises(LimitExceeded):
            await cache.get(KEY, cluster.compute)
        assert cluster.outcomes == [Outcome.REFUSED] * 2


async def test_no_room_because_all_is_pinned_is_an_error_that_passes():
    async with a_cluster(limit_bytes={Layer.SETS: 40}) as cluster:
        cache = cluster.open()
        await settle()
        async with cache.hold("first", cluster.compute, pin_ms=60_000):
            with pytest.raises(CapacityError) as caught:
                await cache.get("second", cluster.compute)
            assert caught.value.retryable
        await settle()
        cluster.compute.begun = 0
        assert (await cache.get("second", cluster.compute)).source is Source.COMPILED


@pytest.mark.parametrize("stage", ["acquire", "commit", "commit-answer"])
async def test_an_index_that_is_away_is_an_error_and_the_next_call_passes(cluster, cache, stage):
    cluster.blobs.faults.fail_next(stage)
    with pytest.raises(StoreUnavailable):
        await cache.get(KEY, cluster.compute)
    waiting = begin(cache, cluster.compute)
    await settle()
    cluster.clock.advance(LEASE_MS / 1000 + 0.01)
    assert (await asyncio.wait_for(waiting, 5)).entry.size_bytes in (17, 34)


@pytest.mark.parametrize("stage", ["fail", "release", "unpin", "sweep"])
async def test_what_can_not_be_told_to_the_index_hurts_no_caller(cluster, cache, stage):
    cluster.blobs.faults.fail_next(stage)
    cluster.compute.error = CandidateError("x", rank=0) if stage == "fail" else CompileFailed("x")
    with pytest.raises(type(cluster.compute.error), match="x"):
        await cache.get(KEY, cluster.compute)
    cluster.compute.error = None
    cluster.clock.advance(LEASE_MS / 1000 + 0.01)
    async with cache.hold(KEY, cluster.compute, pin_ms=1_000):
        pass
    await settle()
    await cache.clear()
    await settle()
    assert (await cluster.usage()).orphaned_pinned_bytes == 0


# -- generations ---------------------------------------------------------------------------------------------------


async def test_after_a_clear_nobody_joins_a_flight_of_the_generation_before(cluster, cache):
    cluster.compute.gate.clear()
    old = begin(cache, cluster.compute)
    await settle()
    fence = await cache.clear()
    new = begin(cache, cluster.compute)
    await settle()
    assert cluster.compute.begun == 2
    cluster.compute.gate.set()
    assert (await new).fence == fence
    assert (await old).fence.generation == fence.generation - 1
    assert sorted(cluster.outcomes) == [Outcome.INDEXED, Outcome.STALE]


async def test_a_clear_in_another_process_ends_joining_as_soon_as_its_news_comes(cluster):
    here, there = cluster.open(), cluster.open()
    await settle()
    cluster.compute.gate.clear()
    old = begin(here, cluster.compute)
    await settle()
    fence = await there.clear()
    await settle()
    new = begin(here, cluster.compute)
    await settle()
    assert cluster.compute.begun == 2
    cluster.compute.gate.set()
    assert (await new).fence == fence
    await old


async def test_the_news_of_ones_own_clear_does_not_part_the_flights_of_the_new_generation(cluster, cache):
    await cache.clear()
    cluster.compute.gate.clear()
    first = begin(cache, cluster.compute)
    await asyncio.sleep(0)
    await settle()
    second = begin(cache, cluster.compute)
    await settle()
    cluster.compute.gate.set()
    assert [(await first).source, (await second).source] == [Source.COMPILED, Source.WAITED]
    assert cluster.compute.begun == 1


async def test_a_waiter_of_a_cleared_generation_computes_at_once(cluster, cache):
    await cluster.another_holder()
    waiting = begin(cache, cluster.compute)
    await settle()
    await cluster.index.clear()
    assert (await asyncio.wait_for(waiting, 5)).source is Source.COMPILED


async def test_a_stale_commit_is_pinned_as_orphaned_for_its_callers(cluster, cache):
    cluster.compute.gate.clear()
    release = asyncio.Event()
    holding = asyncio.Event()

    async def hold():
        async with cache.hold(KEY, cluster.compute, pin_ms=60_000) as found:
            holding.set()
            await release.wait()
            return found

    task = asyncio.create_task(hold())
    await settle()
    await cache.clear()
    cluster.compute.gate.set()
    await asyncio.wait_for(holding.wait(), 5)
    usage = await cluster.usage()
    assert (usage.entries, usage.bytes, usage.orphaned_pinned_bytes) == (0, 0, 17)
    release.set()
    await task
    await settle()
    assert (await cluster.usage()).orphaned_pinned_bytes == 0
    await cache.clear()
    await settle()
    cluster.clock.advance(1.0)
    await settle()
    assert not cluster.blobs.blobs


# -- pins ----------------------------------------------------------------------------------------------------------


async def test_an_artifact_is_pinned_from_the_answer_to_the_end_of_the_last_callers_block():
    async with a_cluster(limit_bytes={Layer.SETS: 20}) as cluster:
        cache = cluster.open()
        await settle()
        releases = [asyncio.Event() for _ in range(2)]

        async def hold(release):
            async with cache.hold(KEY, cluster.compute, pin_ms=60_000) as found:
                await release.wait()
                return found.source

        tasks = [asyncio.create_task(hold(release)) for release in releases]
        await settle()
        releases[0].set()
        await settle()
        other = Computation(cluster.blobs)
        with pytest.raises(CapacityError):
            await cache.get("other", other)
        releases[1].set()
        assert [await task for task in tasks] == [Source.COMPILED, Source.WAITED]
        await settle()
        other.begun = 0
        assert (await cache.get("other", other)).source is Source.COMPILED


async def test_the_shared_pin_lives_as_long_as_the_longest_of_its_callers_wants(cluster, cache):
    pins = []
    commit = cluster.index.commit

    async def watched(lease, entry, *, pin=None):
        pins.append(pin)
        return await commit(lease, entry, pin=pin)

    cluster.index.commit = watched
    cluster.compute.gate.clear()

    async def hold(pin_ms):
        async with cache.hold(KEY, cluster.compute, pin_ms=pin_ms):
            pass

    tasks = [asyncio.create_task(hold(pin_ms)) for pin_ms in (1_000, 9_000, 2_000)]
    await settle()
    cluster.compute.gate.set()
    await asyncio.gather(*tasks)
    assert [pin.lifetime_ms for pin in pins] == [9_000]


async def test_pins_that_end_together_go_back_together(cluster, cache):
    calls = []
    unpin = cluster.index.unpin

    async def watched(tokens):
        calls.append(len(tokens))
        await unpin(tokens)

    cluster.index.unpin = watched

    async def hold(key):
        async with cache.hold(key, cluster.compute, pin_ms=1_000):
            pass

    await asyncio.gather(*(hold(f"{number:064x}") for number in range(20)))
    await settle()
    assert sum(calls) == 20
    assert len(calls) <= 3


async def test_a_caller_that_leaves_while_the_index_commits_leaves_no_pin_behind(cluster, cache):
    entered, go_on = asyncio.Event(), asyncio.Event()
    commit = cluster.index.commit

    async def slow(lease, entry, *, pin=None):
        entered.set()
        await go_on.wait()
        return await commit(lease, entry, pin=pin)

    cluster.index.commit = slow

    async def hold():
        async with cache.hold(KEY, cluster.compute, pin_ms=60_000):
            pass

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    await settle()
    assert task.cancelled()
    go_on.set()
    await settle()
    assert cluster.outcomes == [Outcome.INDEXED]
    assert not cluster.index._pins


# -- lost blobs ----------------------------------------------------------------------------------------------------


async def test_a_lost_artifact_is_found_lost_by_the_index_and_computed_again(cluster, cache):
    lost = (await cache.get(KEY, cluster.compute)).entry
    del cluster.blobs.blobs[lost.artifact_hash]
    cluster.compute.begun = 0
    async with cache.hold(KEY, cluster.compute, pin_ms=1_000, replaces=lost.artifact_hash) as found:
        assert (found.source, found.entry) == (Source.COMPILED, lost)
    assert cluster.outcomes == [Outcome.INDEXED, Outcome.INDEXED]


async def test_an_artifact_that_is_broken_where_it_lies_is_written_again(cluster, cache):
    broken = (await cache.get(KEY, cluster.compute)).entry
    cluster.blobs.blobs[broken.artifact_hash] = b"broken"
    cluster.compute.begun = 0

    async def hold():
        async with cache.hold(KEY, cluster.compute, pin_ms=1_000, replaces=broken.artifact_hash) as found:
            return found.source

    sources = await asyncio.gather(hold(), hold())
    assert sources == [Source.COMPILED, Source.WAITED]
    assert cluster.blobs.get(broken.artifact_hash) == b"x" * 17
    assert cluster.compute.begun == 1
    assert cluster.outcomes == [Outcome.INDEXED, Outcome.REPAIRED]
    assert (await cluster.usage()).entries == 1


# -- the end -------------------------------------------------------------------------------------------------------


async def test_closing_gives_up_what_runs_and_gives_back_its_lease(cluster, cache):
    cluster.compute.gate.clear()
    running = begin(cache, cluster.compute)
    await settle()
    await asyncio.wait_for(cache.close(), 5)
    with pytest.raises(InternalInvariant):
        await running
    assert isinstance(await cluster.index.acquire(Layer.SETS, KEY, token="e" * 32, lease_ms=1), Granted)


async def test_a_cache_that_lost_track_of_its_index_says_so(cluster, cache, caplog):
    async def broken():
        raise ZeroDivisionError
        yield

    cluster.index.news = broken
    deaf = cluster.open()
    await settle()
    with pytest.raises(InternalInvariant):
        await deaf.get(KEY, cluster.compute)
    assert "event=cache-follower-stopped" in caplog.text


async def test_garbage_is_swept_after_a_clear_without_being_asked(cluster, cache):
    await cache.get(KEY, cluster.compute)
    assert len(cluster.blobs.blobs) == 1
    await cache.clear()
    await settle()
    cluster.clock.advance(1.0)
    await settle()
    assert not cluster.blobs.blobs
