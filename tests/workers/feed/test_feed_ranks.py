"""Two ranks in two processes, a real Redis, real artifacts: what a gateway hears and what each rank then holds."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from feed_ranks import EPOCH, KEYS, VOCABULARY, WAIT_S, MemberProcess, Rank, warm_up
from feed_samples import RECORD
from maskfeed_automata import CandidateSet, Vocabulary, build
from maskfeed_automata.errors import InternalInvariant, StoreUnavailable
from maskfeed_cache.connection import Timeouts
from maskfeed_cache.feed_messages import Announcement, Dead, Failed, Ready
from maskfeed_cache.fence import Fence
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.store import hash_blob
from maskfeed_workers.feed import RankFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.star import Exchange
from waiting import eventually


def artifact(*candidates, vocabulary=VOCABULARY):
    return build(vocabulary, CandidateSet.from_strings(candidates)).to_bytes()


A, B = artifact("Paris", "Rome"), artifact("alpha", "beta", "gamma")
A_HASH, B_HASH = hash_blob(A), hash_blob(B)
CACHE_EPOCH = "9" * 32


@pytest.fixture(scope="module")
def processes():
    """The living member process, as the only element of a list, so that a test can replace one that it has killed."""
    living = [MemberProcess()]
    warm_up()
    yield living
    living[0].end()


class Pair:
    """An engine of two ranks and a gateway that listens."""

    def __init__(self, processes, url, tmp_path):
        self.processes = processes
        self.url = url
        self.tmp_path = tmp_path
        self.blobs = RedisBlobStore(url, KEYS)
        self.blobs.put(A)
        self.blobs.put(B)
        self.gateway = RedisGatewayFeed(url, KEYS)
        self.root = None

    @property
    def member(self):
        return self.processes[0]

    async def start(self, *, member_dir="shm", tcp_host=None, **options):
        def send_invitation(invitation):
            self.member.control.send(invitation)

        self.member.wait_until_warm()
        await self.gateway.start()
        self.events = self.gateway.events()
        member_options = {"url": self.url, "shm_dir": self.tmp_path / member_dir, **options}
        self.member.control.send(("start", member_options))
        exchange = Exchange(send_invitation, tcp_host)
        self.root = Rank(0, url=self.url, shm_dir=self.tmp_path / "shm", exchange=exchange, **options)
        await asyncio.to_thread(self.root.feed.start)
        assert self.member.answer() == "done"

    async def announce(self, blob, nonce="n", generation=1):
        await self.gateway.announce(
            Announcement(hash_blob(blob), len(blob), nonce, 60_000, self.gateway.gateway, CACHE_EPOCH, generation)
        )

    async def event(self):
        return await asyncio.wait_for(anext(self.events), WAIT_S)

    async def make_ready(self, blob, nonce="n"):
        await self.announce(blob, nonce)
        assert await self.event() == Ready(hash_blob(blob), EPOCH, nonce)

    def held_by_member(self):
        return self.member.tell("state")["held"]

    async def close(self):
        await self.gateway.close()
        self.blobs.close()
        if self.root is not None:
            await asyncio.to_thread(self.root.feed.stop)
        if self.member.process.is_alive():
            if self.root is not None:
                self.member.tell("stop")
        else:
            self.member.end()
            self.processes[0] = MemberProcess()


@pytest.fixture
async def pair(processes, redis_url, tmp_path):
    made = Pair(processes, redis_url, tmp_path)
    yield made
    await made.close()


async def test_a_set_is_ready_only_when_both_ranks_hold_it(pair):
    await pair.start()
    pair.member.tell("hold_back", A_HASH)
    await pair.announce(A)
    assert pair.member.next_report() == A_HASH
    # Another set goes through the same threads meanwhile: so rank 0 has had its time to be too early with the first.
    await pair.make_ready(B, "other")
    assert A_HASH not in pair.root.held
    assert pair.held_by_member() == [B_HASH]
    pair.member.tell("let_go", A_HASH)
    assert await pair.event() == Ready(A_HASH, EPOCH, "n")
    assert pair.held_by_member() == [B_HASH, A_HASH]
    automaton = pair.root.held.acquire(A_HASH, "n", 1)
    assert automaton.n_candidates == 2
    assert sorted(automaton.cursor().allowed_token_ids()) == [ord("P"), ord("R")]


async def test_ranks_on_one_host_share_one_file_and_one_fetch(pair):
    await pair.start()
    await pair.make_ready(A)
    inodes = [path.stat().st_ino for path in (pair.tmp_path / "shm").glob(f"owner-*/{A_HASH}")]
    assert len(inodes) == 2
    assert len(set(inodes)) == 1


async def test_ranks_on_two_hosts_fetch_each_for_itself(pair):
    await pair.start(member_dir="another_host", tcp_host="127.0.0.1")
    await pair.make_ready(A)
    assert pair.held_by_member() == [A_HASH]
    assert len(list((pair.tmp_path / "another_host").glob(f"owner-*/{A_HASH}"))) == 1


async def test_a_member_that_is_too_slow_fails_its_round_only_and_leaves_nothing_when_it_ends(pair):
    await pair.start(round_timeout_s=1.0)
    pair.member.tell("hold_back", A_HASH)
    await pair.announce(A)
    failed = await pair.event()
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("deadline-exceeded: no vote from rank 1")
    await pair.make_ready(B, "next")
    pair.member.next_report()
    pair.member.tell("let_go", A_HASH)

    async def member_has_only_b():
        return pair.member.tell("state") == {"held": [B_HASH], "names": [B_HASH], "dead": None}

    await eventually(member_has_only_b)
    await pair.make_ready(A, "again")


async def test_a_members_error_is_the_reason_of_the_failure(pair):
    await pair.start()
    pair.member.tell("fail", A_HASH, "this rank has no room")
    await pair.announce(A)
    assert await pair.event() == Failed(A_HASH, EPOCH, "n", "rank 1: rank-failure: this rank has no room")
    assert A_HASH not in pair.root.held
    assert pair.held_by_member() == []


async def test_a_blob_that_is_missing_damaged_senseless_or_foreign_fails_with_its_reason(pair, shared_redis):
    foreign = artifact("x", vocabulary=Vocabulary.from_token_bytes([b"x", b"y"]))
    await pair.start()
    shared_redis.client.delete(KEYS.blob(A_HASH))
    shared_redis.client.set(KEYS.blob(B_HASH), B[:-1] + b"?")
    pair.blobs.put(b"this is no artifact")
    pair.blobs.put(foreign)
    for blob, code in (
        (A, "unknown-artifact"),
        (B, "corrupt-artifact"),
        (b"this is no artifact", "corrupt-artifact"),
        (foreign, "vocabulary-mismatch"),
    ):
        await pair.announce(blob)
        failed = await pair.event()
        assert (failed.artifact_hash, failed.reason.split(": ")[:2]) == (hash_blob(blob), ["rank 0", code])
    assert pair.root.state() == {"held": [], "names": [], "dead": None}
    pair.blobs.put(A)
    await pair.make_ready(A, "again")


async def test_what_rank_0_evicts_the_member_forgets(pair):
    await pair.start(max_sets=1)
    await pair.make_ready(A, "first")
    await pair.gateway.end(["first"])
    await pair.make_ready(B, "second")
    assert pair.root.held.hashes() == [B_HASH]
    assert pair.held_by_member() == [B_HASH]
    assert pair.member.tell("state")["names"] == [B_HASH]


async def test_what_a_clear_takes_from_rank_0_the_member_forgets_and_what_is_promised_stays_on_both(pair):
    await pair.start()
    await pair.make_ready(A, "first")
    await pair.make_ready(B, "second")
    await pair.gateway.end(["first"])
    await pair.gateway.clear(Fence(CACHE_EPOCH, 2))

    async def both_hold(hashes):
        return pair.root.held.hashes() == hashes and pair.held_by_member() == hashes

    await eventually(lambda: both_hold([B_HASH]))
    await pair.gateway.end(["second"])
    await eventually(lambda: both_hold([]))
    assert pair.member.tell("state")["names"] == pair.root.files.names() == []
    await pair.announce(A, "third", generation=2)
    assert await pair.event() == Ready(A_HASH, EPOCH, "third")

    async def record_says_so():
        (record,) = await pair.gateway.engines()
        return (record.held.generation, record.held.entries, record.held.bytes) == (2, 1, len(A))

    await eventually(record_says_so)


async def test_a_slot_keeps_its_set_and_the_newcomer_is_refused(pair):
    await pair.start(max_sets=1)
    await pair.make_ready(A, "first")
    automaton = pair.root.held.acquire(A_HASH, "other", 7)
    await pair.gateway.end(["first"])
    await pair.announce(B, "second")
    failed = await pair.event()
    assert failed.reason.startswith("over-capacity: ")
    assert pair.held_by_member() == [A_HASH]
    pair.root.held.release(7)
    await pair.make_ready(B, "third")
    # The decode loop still reads the masks of an evicted set: its memory is there as long as somebody refers to it.
    assert automaton.to_bytes() == A


async def test_the_death_of_a_member_is_told_at_once_and_every_set_is_refused_from_then_on(pair):
    await pair.start()
    await pair.make_ready(A)
    pair.member.process.kill()
    pair.member.process.join(WAIT_S)
    dead = await pair.event()
    assert isinstance(dead, Dead)
    assert (dead.epoch, "rank 1" in dead.reason) == (EPOCH, True)

    async def record_is_gone():
        return await pair.gateway.engines() == []

    await eventually(record_is_gone)
    assert "rank 1" in pair.root.feed.dead
    assert pair.root.held.acquire(A_HASH, "n", 1) is None


async def test_a_member_whose_rank_0_is_gone_refuses_every_set(pair):
    await pair.start()
    await pair.make_ready(A)
    await asyncio.to_thread(pair.root.feed.stop)

    async def member_is_dead():
        return "rank 0 is gone" in (pair.member.tell("state")["dead"] or "")

    await eventually(member_is_dead)


async def test_a_redis_that_is_killed_and_comes_back_empty_costs_nothing_that_is_held(
    processes, fragile_redis, tmp_path
):
    pair = Pair(processes, fragile_redis.url, tmp_path)
    await pair.start()
    await pair.make_ready(A)
    fragile_redis.kill()
    assert pair.root.held.acquire(A_HASH, "n", 1) is not None
    fragile_redis.restart()

    async def registered_again():
        with suppress(StoreUnavailable):
            return [record.epoch for record in await pair.gateway.engines()] == [EPOCH]
        return False

    await eventually(registered_again)
    assert pair.root.feed.dead is None
    assert Vocabulary.from_bytes(await pair.gateway.vocabulary(RECORD.fingerprint)).size == VOCABULARY.size
    assert pair.root.held.is_promised("n")
    pair.blobs.put(B)

    async def ready_again():
        # The gateway's own line to the events may come back after the first answer.
        await pair.announce(B, "m")
        with suppress(TimeoutError):
            return await asyncio.wait_for(anext(pair.events), 0.5) == Ready(B_HASH, EPOCH, "m")
        return False

    await eventually(ready_again)
    assert pair.held_by_member() == [A_HASH, B_HASH]
    await pair.close()


# -- one rank, no sockets ----------------------------------------------------------------------------------------------


@pytest.fixture
def alone(redis_url, tmp_path):
    reports = []
    rank = Rank(0, size=1, url=redis_url, shm_dir=tmp_path / "shm", report=reports.append)
    yield rank
    rank.feed.stop()


async def test_an_engine_of_one_rank_takes_the_same_way(alone, redis_url):
    gateway = RedisGatewayFeed(redis_url, KEYS)
    await gateway.start()
    alone.feed.start()
    blobs = RedisBlobStore(redis_url, KEYS)
    blobs.put(A)
    await gateway.announce(Announcement(A_HASH, len(A), "n", 60_000, gateway.gateway))
    event = await asyncio.wait_for(anext(gateway.events()), WAIT_S)
    assert event == Ready(A_HASH, EPOCH, "n")
    assert alone.held.acquire(A_HASH, "n", 1).n_candidates == 2
    blobs.close()
    await gateway.close()


async def test_a_feed_stops_while_a_load_hangs_and_takes_its_record_back(alone, redis_url, tmp_path):
    gateway = RedisGatewayFeed(redis_url, KEYS)
    await gateway.start()
    started = threading.Event()
    alone.load.report = lambda artifact_hash: started.set()
    alone.load.hold_back(A_HASH)
    alone.feed.start()
    blobs = RedisBlobStore(redis_url, KEYS)
    blobs.put(A)
    await gateway.announce(Announcement(A_HASH, len(A), "n", 60_000, gateway.gateway))
    assert await asyncio.to_thread(started.wait, WAIT_S)
    assert [record.epoch for record in await gateway.engines()] == [EPOCH]
    # returns although the load is held back for as long as the test lasts
    alone.feed.stop()
    assert await gateway.engines() == []
    assert alone.feed.dead is None
    assert alone.held.acquire(A_HASH, "n", 1) is None
    assert list((tmp_path / "shm").glob("owner-*")) == []
    alone.load.let_go(A_HASH)
    blobs.close()
    await gateway.close()


async def test_a_redis_that_freezes_is_waited_out(fragile_redis, tmp_path):
    quick = Timeouts(connect_s=0.1, answer_s=0.1)
    rank = Rank(0, size=1, url=fragile_redis.url, shm_dir=tmp_path / "shm", timeouts=quick)
    rank.feed.start()
    gateway = RedisGatewayFeed(fragile_redis.url, KEYS)
    await gateway.start()
    blobs = RedisBlobStore(fragile_redis.url, KEYS)
    blobs.put(A)
    fragile_redis.freeze()
    lost = await asyncio.to_thread(rank.engine_feed.was_lost.wait, WAIT_S)
    fragile_redis.thaw()
    assert lost
    events = gateway.events()

    async def ready():
        await gateway.announce(Announcement(A_HASH, len(A), "n", 60_000, gateway.gateway))
        with suppress(TimeoutError):
            return await asyncio.wait_for(anext(events), 0.5) == Ready(A_HASH, EPOCH, "n")
        return False

    await eventually(ready)
    assert rank.feed.dead is None
    blobs.close()
    await gateway.close()
    rank.feed.stop()


async def test_an_engine_that_starts_while_redis_is_restarted_is_registered_when_it_is_back(fragile_redis, tmp_path):
    fragile_redis.kill()
    rank = Rank(0, size=1, url=fragile_redis.url, shm_dir=tmp_path / "shm")
    starting = asyncio.create_task(asyncio.to_thread(rank.feed.start))
    assert await asyncio.to_thread(rank.engine_feed.was_not_there.wait, WAIT_S)
    fragile_redis.restart()
    await starting
    gateway = RedisGatewayFeed(fragile_redis.url, KEYS)
    assert [record.epoch for record in await gateway.engines()] == [EPOCH]
    await gateway.close()
    rank.feed.stop()


def test_an_engine_that_can_not_be_registered_in_time_does_not_start(fragile_redis, tmp_path):
    fragile_redis.kill()
    rank = Rank(0, size=1, url=fragile_redis.url, shm_dir=tmp_path / "shm", register_timeout_s=0.1)
    with pytest.raises(StoreUnavailable):
        rank.feed.start()
    rank.feed.stop()
    fragile_redis.restart()


@pytest.mark.parametrize(
    "wrong", [{"record": None}, {"engine_feed": None}, {"rank": 1}, {"size": 2}], ids=lambda wrong: str(wrong)
)
def test_a_feed_that_could_not_work_is_not_made(tmp_path, wrong):
    arguments = {
        "rank": 0,
        "size": 1,
        "exchange": None,
        "vocabulary": VOCABULARY,
        "blobs": None,
        "shared_files": None,
        "held": HeldSets(limit_bytes=1, max_sets=1),
        "engine_feed": object(),
        "epoch": EPOCH,
        "record": RECORD,
        "clock": time.monotonic,
        "settings": FeedSettings(),
        "load": lambda artifact_hash, available: None,
    }
    with pytest.raises(InternalInvariant):
        RankFeed(**{**arguments, **wrong})
