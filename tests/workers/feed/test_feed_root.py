"""Rank 0's feed turned by hand: a clock that stands still, a broker in memory, loads whose ends the test decides.

Members are played by the test, frame by frame, on real sockets.
"""

import itertools
import queue
import select
import socket

import pytest

from manual_clock import ManualClock
from maskfeed_automata.errors import RankFailure, UnknownArtifact
from maskfeed_cache.feed_messages import Announcement, Clear, Dead, Ended, EngineRecord, Failed, Ready
from maskfeed_cache.memory_broker import MemoryBroker
from maskfeed_cache.memory_feed import MemoryEngineFeed
from maskfeed_workers.feed_root import RootFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.frames import Kind, Vote, encode_ack, encode_hello, encode_vote
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import Loads
from maskfeed_workers.star import Peer
from maskfeed_workers.wakeup import Wakeup

EPOCH = "e" * 16
RECORD = EngineRecord(
    epoch=EPOCH,
    group="default",
    fingerprint="f" * 64,
    logits_width=100,
    max_model_len=512,
    reserved_id=99,
    stop_token_ids=(0,),
    model="m",
    reasoning_parser=None,
    format_versions=(1,),
    n_ranks=1,
    engine_version="0",
)
CACHE_EPOCH = "9" * 32
A, B, C = "a" * 64, "b" * 64, "c" * 64


class Set:
    """Stands for an automaton."""

    nbytes = 10


class WatchedFeed(MemoryEngineFeed):
    """Notes when somebody tries to get the store back."""

    def __init__(self, broker, clock):
        super().__init__(broker)
        self.clock = clock
        self.reconnected_at = []

    def reconnect(self):
        self.reconnected_at.append(self.clock.time())
        super().reconnect()


class Engine:
    """Rank 0 with `n_members` members that the test plays through `members[rank - 1]`."""

    def __init__(self, n_members=0, *, max_sets=4):
        self.clock = ManualClock()
        self.broker = MemoryBroker(clock=self.clock.time)
        self.events = []
        self.broker.join_as_gateway(self.events.append)
        self.broker.write_lease("g", 1_000_000_000)
        self.held = HeldSets(limit_bytes=1_000, max_sets=max_sets, clock=self.clock.time)
        self.load_answers = {name: queue.SimpleQueue() for name in (A, B, C)}
        self.n_loads = 0
        self.discarded = []
        self.wakeup = Wakeup()
        self.loads = Loads(
            self._load,
            discard=self.discarded.append,
            is_held=self.held.__contains__,
            wakeup=self.wakeup,
            n_threads=3,
        )
        pairs = [socket.socketpair() for _ in range(n_members)]
        self.members = [Peer(0, theirs) for _, theirs in pairs]
        self.engine_feed = WatchedFeed(self.broker, self.clock)
        self.engine_feed.register(RECORD, b"vocabulary")
        self.feed = RootFeed(
            epoch=EPOCH,
            members=[Peer(rank, ours) for rank, (ours, _) in enumerate(pairs, start=1)],
            engine_feed=self.engine_feed,
            held=self.held,
            loads=self.loads,
            wakeup=self.wakeup,
            clock=self.clock.time,
            settings=FeedSettings(round_timeout_s=10.0, renew_interval_s=2.0, gateway_grace_s=4.0, longest_retry_s=1.0),
        )

    def _load(self, artifact_hash, available):
        self.n_loads += 1
        available()
        answer = self.load_answers[artifact_hash].get(timeout=10)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def say(self, *messages):
        self.broker.send_to_engines(messages)

    def announce(self, artifact_hash, nonce="n", *, size_bytes=10, lifetime_ms=60_000, gateway="g", generation=1):
        self.say(Announcement(artifact_hash, size_bytes, nonce, lifetime_ms, gateway, CACHE_EPOCH, generation))

    def clear(self, generation):
        self.say(Clear(CACHE_EPOCH, generation))
        self.turn()

    def reported(self):
        """The figures of the record: generation, then entries and bytes held and orphaned."""
        (record,) = self.broker.live_records()
        u = record.held
        return (u.generation, u.entries, u.bytes, u.orphaned_entries, u.orphaned_bytes)

    def turn(self):
        """One turn that does not wait for what will not come."""
        self.wakeup.wake()
        self.feed.turn()

    def until_said(self, n_events=1):
        """Turn until the gateways have heard so many events more, and return those."""
        before = len(self.events)
        for _ in range(200):
            if len(self.events) - before >= n_events:
                return self.events[before:]
            self.feed.turn()
        raise AssertionError(f"only {self.events[before:]} was said")

    def make_ready(self, artifact_hash, nonce="n", **options):
        self.announce(artifact_hash, nonce, **options)
        self.load_answers[artifact_hash].put(Set())
        assert self.until_said() == [Ready(artifact_hash, EPOCH, nonce)]

    def hear(self, member, kind):
        """The next frame that rank 0 has sent to a member."""
        for _ in range(200):
            if frames := self.members[member].receive():
                assert [frame.kind for frame in frames] == [kind]
                return frames[0]
            self.feed.turn()
        raise AssertionError(f"no {kind.name} frame came")

    def close(self):
        for answers in self.load_answers.values():
            for _ in range(3):
                answers.put(Set())
        self.loads.stop()
        self.feed.leave(None)
        self.wakeup.close()
        for member in self.members:
            member.close()


@pytest.fixture
def engine():
    made = Engine()
    yield made
    made.close()


@pytest.fixture
def pair():
    made = Engine(n_members=1)
    yield made
    made.close()


# -- one rank ----------------------------------------------------------------------------------------------------------


def test_a_set_is_held_and_promised_when_it_is_ready(engine):
    engine.announce(A)
    engine.turn()
    assert A not in engine.held
    engine.load_answers[A].put(Set())
    assert engine.until_said() == [Ready(A, EPOCH, "n")]
    assert A in engine.held
    assert engine.held.is_promised("n")
    assert engine.held.acquire(A, "n", 1) is not None


def test_a_set_that_is_held_already_is_ready_at_once(engine):
    engine.make_ready(A, "first")
    engine.announce(A, "second")
    assert engine.until_said() == [Ready(A, EPOCH, "second")]
    assert engine.n_loads == 1
    assert engine.held.is_promised("second")


def test_announcements_join_the_round_that_runs(engine):
    engine.announce(A, "first")
    engine.turn()
    engine.announce(A, "second")
    engine.turn()
    engine.load_answers[A].put(Set())
    assert engine.until_said(2) == [Ready(A, EPOCH, "first"), Ready(A, EPOCH, "second")]
    assert engine.n_loads == 1


def test_a_slow_set_holds_up_no_other(engine):
    engine.announce(A, "slow")
    engine.announce(B, "quick")
    engine.load_answers[B].put(Set())
    assert engine.until_said() == [Ready(B, EPOCH, "quick")]


def test_a_load_error_is_the_reason_of_the_failure(engine):
    engine.announce(A)
    engine.load_answers[A].put(UnknownArtifact("no blob", artifact_hash=A))
    assert engine.until_said() == [Failed(A, EPOCH, "n", "rank 0: unknown-artifact: no blob")]
    assert A not in engine.held
    engine.make_ready(A, "again")


def test_everybody_who_waits_hears_of_a_failure(engine):
    engine.announce(A, "first")
    engine.announce(A, "second")
    engine.load_answers[A].put(UnknownArtifact("no blob", artifact_hash=A))
    assert {event.nonce for event in engine.until_said(2)} == {"first", "second"}


def test_a_set_of_another_size_than_announced_is_refused(engine):
    engine.announce(A, size_bytes=9)
    engine.load_answers[A].put(Set())
    (failed,) = engine.until_said()
    assert failed.reason == "rank 0: corrupt-artifact: 9 bytes were announced, it has 10"
    assert engine.discarded == [A]


@pytest.mark.parametrize("name", ["", "probe", "../../etc/passwd", A.upper(), A + "a"])
def test_what_is_no_artifact_hash_is_refused(engine, name):
    engine.announce(name)
    (failed,) = engine.until_said()
    assert failed.reason.startswith("bad-request")
    assert engine.n_loads == 0


def test_a_round_is_over_at_its_deadline_and_the_late_load_leaves_nothing(engine):
    engine.announce(A)
    engine.turn()
    engine.clock.advance(8.1)
    (failed,) = engine.until_said()
    assert failed.reason.startswith("deadline-exceeded: no vote from rank 0")
    engine.load_answers[A].put(Set())
    while engine.loads.open_loads():
        engine.feed.turn()
    assert A not in engine.held
    assert engine.discarded == [A]
    engine.make_ready(A, "again")


def test_a_request_that_ends_while_it_waits_gets_no_promise(engine):
    engine.announce(A, "gone")
    engine.announce(A, "stays")
    engine.turn()
    engine.say(Ended("gone"))
    engine.turn()
    engine.load_answers[A].put(Set())
    assert engine.until_said() == [Ready(A, EPOCH, "stays")]
    assert not engine.held.is_promised("gone")


def test_a_request_whose_time_is_over_when_the_set_is_ready_is_told_so(engine):
    engine.announce(A, "short", lifetime_ms=1_000)
    engine.announce(A, "long")
    engine.turn()
    engine.clock.advance(2)
    engine.load_answers[A].put(Set())
    ready, failed = engine.until_said(2)
    assert ready == Ready(A, EPOCH, "long")
    assert (failed.nonce, failed.reason[:17]) == ("short", "deadline-exceeded")


def test_a_promise_lives_until_its_request_has_ended(engine):
    engine.make_ready(A)
    assert engine.held.pinned() == {A}
    engine.say(Ended("n"))
    engine.turn()
    assert engine.held.pinned() == frozenset()


def test_a_promise_ends_when_its_gateways_lease_has_been_missing_for_a_while(engine):
    engine.broker.write_lease("gone", 1_000)
    engine.make_ready(A, "n", gateway="gone")
    engine.make_ready(B, "m")
    for _ in range(3):
        assert engine.held.pinned() == {A, B}
        engine.clock.advance(2.0)
        engine.turn()
    assert engine.held.pinned() == {B}


def test_a_lease_that_a_store_has_lost_and_that_comes_back_ends_no_promise(engine):
    engine.make_ready(A)
    for _ in range(5):
        engine.broker.delete_lease("g")
        engine.clock.advance(2.0)
        engine.turn()
        engine.broker.write_lease("g", 1_000_000)
        engine.clock.advance(2.0)
        engine.turn()
    assert engine.held.pinned() == {A}


def test_what_is_not_needed_makes_room_and_what_is_promised_does_not():
    engine = Engine(max_sets=2)
    engine.make_ready(A, "ended")
    engine.make_ready(B, "lives")
    engine.say(Ended("ended"))
    engine.make_ready(C, "new")
    assert engine.held.hashes() == [B, C]
    assert engine.discarded == [A]
    engine.announce(A, "too much")
    (failed,) = engine.until_said()
    assert failed.reason == "over-capacity: the engine would hold 3 sets in use, its limit is 2"
    engine.close()


def test_a_failed_round_gives_its_room_back():
    engine = Engine(max_sets=1)
    engine.announce(A)
    engine.load_answers[A].put(UnknownArtifact("no blob", artifact_hash=A))
    engine.until_said()
    engine.make_ready(B)
    engine.close()


# -- generations of the cache ------------------------------------------------------------------------------------------


def test_a_clear_evicts_what_nobody_is_promised_and_the_record_says_so_at_once(engine):
    engine.make_ready(A, "ended")
    engine.make_ready(B, "lives")
    engine.say(Ended("ended"))
    engine.clear(2)
    assert engine.held.hashes() == [B]
    assert engine.discarded == [A]
    assert engine.reported() == (2, 0, 0, 1, 10)


def test_an_orphan_goes_when_its_last_promise_ends(engine):
    engine.make_ready(A, "first")
    engine.make_ready(B, "other")
    engine.announce(A, "second")
    engine.until_said()
    engine.clear(2)
    engine.say(Ended("first"))
    engine.turn()
    assert A in engine.held
    engine.say(Ended("second"))
    engine.turn()
    assert engine.held.hashes() == [B]
    engine.clock.advance(60)
    engine.turn()
    assert engine.held.hashes() == []
    assert engine.discarded == [A, B]


def test_a_slot_that_still_decodes_keeps_an_orphan(engine):
    engine.make_ready(A)
    engine.held.acquire(A, "m", 1)
    engine.clear(2)
    engine.say(Ended("n"))
    engine.turn()
    assert A in engine.held
    engine.held.release(1)
    engine.turn()
    assert A not in engine.held


def test_a_fresh_announcement_of_the_same_artifact_makes_it_current_again(engine):
    engine.make_ready(A, "old")
    engine.clear(2)
    engine.announce(A, "new", generation=2)
    assert engine.until_said() == [Ready(A, EPOCH, "new")]
    for nonce in ("old", "new"):
        engine.say(Ended(nonce))
    engine.turn()
    assert engine.held.hashes() == [A]
    assert engine.n_loads == 1


def test_a_round_in_flight_during_a_clear_serves_those_who_wait_and_is_not_kept(engine):
    engine.announce(A, "n")
    engine.turn()
    engine.clear(2)
    engine.load_answers[A].put(Set())
    assert engine.until_said() == [Ready(A, EPOCH, "n")]
    assert engine.held.acquire(A, "n", 1) is not None
    engine.clock.advance(2)
    engine.turn()
    assert engine.reported() == (2, 0, 0, 1, 10)
    engine.say(Ended("n"))
    engine.turn()
    assert engine.held.hashes() == []


def test_a_round_that_the_new_generation_joins_belongs_to_it(engine):
    engine.announce(A, "old")
    engine.turn()
    engine.clear(2)
    engine.announce(A, "new", generation=2)
    engine.announce(A, "late", generation=1)
    engine.turn()
    engine.load_answers[A].put(Set())
    assert len(engine.until_said(3)) == 3
    for nonce in ("old", "new", "late"):
        engine.say(Ended(nonce))
    engine.turn()
    assert engine.held.hashes() == [A]


def test_an_announcement_of_a_newer_generation_is_a_clear_that_was_missed(engine):
    engine.make_ready(A, "old")
    engine.say(Ended("old"))
    engine.make_ready(B, "new", generation=5)
    assert engine.held.hashes() == [B]
    engine.clock.advance(2)
    engine.turn()
    assert engine.reported() == (5, 1, 10, 0, 0)


def test_an_older_clear_that_comes_late_changes_nothing(engine):
    engine.make_ready(A, "n", generation=5)
    engine.say(Ended("n"))
    engine.clear(4)
    assert engine.held.hashes() == [A]


# -- a store that goes and comes back ----------------------------------------------------------------------------------


def test_a_lost_store_is_tried_again_less_and_less_often_and_what_is_held_still_serves(engine):
    engine.make_ready(A)
    engine.broker.faults.fail_next("arm")
    engine.broker.faults.fail_next("reconnect", 8)
    for _ in range(600):
        engine.turn()
        engine.clock.advance(0.01)
    attempts = engine.engine_feed.reconnected_at
    waits = [after - before for before, after in itertools.pairwise(attempts)]
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], abs=0.02)
    assert engine.held.acquire(A, "n", 1) is not None
    engine.make_ready(B, "m")


def test_what_could_not_be_said_is_said_when_the_store_is_back(engine):
    engine.announce(A)
    engine.turn()
    engine.broker.faults.fail_next("publish")
    engine.load_answers[A].put(Set())
    assert engine.until_said() == [Ready(A, EPOCH, "n")]


def test_a_ready_that_is_no_longer_true_is_not_said(engine):
    engine.announce(A, "short", lifetime_ms=1_000)
    engine.announce(A, "long")
    engine.turn()
    engine.broker.faults.fail_next("publish")
    engine.broker.faults.fail_next("reconnect")
    engine.load_answers[A].put(Set())
    while A not in engine.held:
        engine.feed.turn()
    engine.turn()
    engine.clock.advance(2)
    assert engine.until_said() == [Ready(A, EPOCH, "long")]


def test_the_record_is_renewed_and_written_again_after_a_loss(engine):
    engine.turn()
    for _ in range(5):
        engine.clock.advance(2)
        engine.turn()
        assert engine.broker.live_records() == [RECORD]
    engine.broker.delete_record(EPOCH)
    engine.broker.faults.fail_next("arm")
    engine.turn()
    assert engine.broker.live_records() == [RECORD]


def test_leaving_takes_the_record_back_even_when_the_store_is_away(engine):
    engine.turn()
    engine.feed.leave("a reason")
    assert engine.events == [Dead(EPOCH, "a reason")]
    assert engine.broker.live_records() == []
    other = Engine()
    other.broker.faults.fail_next("publish")
    other.close()


# -- with members ------------------------------------------------------------------------------------------------------


def start_round(pair, artifact_hash=A, nonce="n"):
    pair.announce(artifact_hash, nonce)
    number = pair.hear(0, Kind.ROUND).round_number
    pair.load_answers[artifact_hash].put(Set())
    return number


def make_ready_on_both(pair, artifact_hash=A, nonce="n"):
    number = start_round(pair, artifact_hash, nonce)
    pair.members[0].send(encode_vote(number, Vote.READY))
    assert pair.hear(0, Kind.TABLE).votes() == (Vote.READY, Vote.READY)
    pair.members[0].send(encode_ack(number))
    assert pair.until_said() == [Ready(artifact_hash, EPOCH, nonce)]
    return number


def test_members_load_while_rank_0_verifies_and_rank_0_holds_last(pair):
    pair.announce(A)
    frame = pair.hear(0, Kind.ROUND)
    assert frame.artifact_hash() == A
    pair.members[0].send(encode_vote(frame.round_number, Vote.READY))
    pair.turn()
    assert pair.members[0].receive() == []
    pair.load_answers[A].put(Set())
    assert pair.hear(0, Kind.TABLE).votes() == (Vote.READY, Vote.READY)
    pair.turn()
    assert A not in pair.held
    assert pair.events == []
    pair.members[0].send(encode_ack(frame.round_number))
    assert pair.until_said() == [Ready(A, EPOCH, "n")]
    assert A in pair.held


def test_a_members_failure_fails_the_round_with_its_reason(pair):
    number = start_round(pair)
    pair.members[0].send(encode_vote(number, Vote.FAILED, "no room"))
    assert pair.until_said() == [Failed(A, EPOCH, "n", "rank 1: no room")]
    assert Vote.READY not in pair.hear(0, Kind.TABLE).votes()[1:]
    assert A not in pair.held


def test_a_member_that_does_not_vote_in_time_fails_the_round_and_the_next_one_is_not_held_up(pair):
    late = start_round(pair)
    pair.clock.advance(8.1)
    (failed,) = pair.until_said()
    assert failed.reason.startswith("deadline-exceeded: no vote from rank ")
    assert pair.hear(0, Kind.TABLE).votes()[1] is Vote.ABSENT
    pair.members[0].send(encode_vote(late, Vote.READY))
    make_ready_on_both(pair, B, "m")
    assert pair.held.hashes() == [B]


def test_a_missed_acknowledgement_fails_the_round_and_evicts_on_all(pair):
    number = start_round(pair)
    pair.members[0].send(encode_vote(number, Vote.READY))
    pair.hear(0, Kind.TABLE)
    pair.clock.advance(10.1)
    (failed,) = pair.until_said()
    assert failed.reason.startswith("deadline-exceeded: no acknowledgement from rank 1")
    evict = pair.hear(0, Kind.EVICT)
    assert (evict.round_number, evict.artifact_hash()) == (number, A)
    assert A not in pair.held
    assert pair.discarded == [A]
    pair.members[0].send(encode_ack(number))
    make_ready_on_both(pair, A, "again")


def test_rank_0_forgets_before_the_members_hear_of_it():
    pair = Engine(n_members=1, max_sets=1)
    first = make_ready_on_both(pair, A, "n")
    pair.say(Ended("n"))
    pair.announce(B, "m")
    evict = pair.hear(0, Kind.EVICT)
    assert (evict.round_number, evict.artifact_hash()) == (first, A)
    assert A not in pair.held
    pair.close()


def test_the_end_of_a_member_ends_the_epoch(pair):
    pair.turn()
    pair.members[0].close()
    with pytest.raises(RankFailure):
        pair.turn()


def test_members_are_told_of_every_set_that_a_clear_evicts_and_only_after_rank_0_has_forgotten_it(pair):
    first = make_ready_on_both(pair, A, "n")
    second = make_ready_on_both(pair, B, "m")
    pair.say(Ended("n"))
    pair.clear(2)
    evict = pair.hear(0, Kind.EVICT)
    assert (evict.round_number, evict.artifact_hash()) == (first, A)
    assert pair.held.hashes() == [B]
    pair.say(Ended("m"))
    evict = pair.hear(0, Kind.EVICT)
    assert (evict.round_number, evict.artifact_hash()) == (second, B)
    assert pair.held.hashes() == []


@pytest.mark.parametrize(
    "nonsense", [b"\xff" * 32, encode_hello(1, b"t" * 16), encode_vote(1, Vote.READY)[:13] + b"\x09"]
)
def test_a_member_that_talks_nonsense_ends_the_epoch(pair, nonsense):
    pair.turn()
    pair.members[0].send(nonsense)
    with pytest.raises(RankFailure):
        pair.turn()


def test_members_see_rank_0_leave_at_once(pair):
    pair.turn()
    pair.feed.leave("over")
    assert select.select([pair.members[0]], [], [], 5)[0]
    with pytest.raises(RankFailure):
        pair.members[0].receive()
