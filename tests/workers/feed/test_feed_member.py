"""A member's feed turned by hand; the test plays rank 0, frame by frame, on a real socket."""

import queue
import socket

import pytest

from maskfeed_automata.errors import RankFailure
from maskfeed_workers.feed_member import MemberFeed
from maskfeed_workers.frames import Kind, Vote, encode_evict, encode_round, encode_table, encode_vote
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import Loads
from maskfeed_workers.star import Peer
from maskfeed_workers.wakeup import Wakeup

A, B = "a" * 64, "b" * 64
BOTH_READY = (Vote.READY, Vote.READY)


class Set:
    """Stands for an automaton."""

    nbytes = 10


class Member:
    """Rank 1 of two, and rank 0's end of its connection."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.root = Peer(1, theirs)
        # so small that only what rank 0 says can be the reason for forgetting or keeping
        self.held = HeldSets(limit_bytes=1, max_sets=1)
        self.load_answers = queue.SimpleQueue()
        self.discarded = []
        self.wakeup = Wakeup()
        self.loads = Loads(
            lambda artifact_hash, available: self.load_answers.get(timeout=10),
            discard=self.discarded.append,
            is_held=self.held.__contains__,
            wakeup=self.wakeup,
            n_threads=1,
        )
        self.feed = MemberFeed(size=2, root=Peer(0, ours), held=self.held, loads=self.loads, wakeup=self.wakeup)

    def hear(self, *frames):
        for frame in frames:
            self.root.send(frame)
        self.feed.turn()

    def answer(self, kind):
        for _ in range(100):
            if frames := self.root.receive():
                assert [frame.kind for frame in frames] == [kind]
                return frames[0]
            self.feed.turn()
        raise AssertionError(f"no {kind.name} frame came")

    def take(self, number, artifact_hash):
        self.load_answers.put(Set())
        self.hear(encode_round(number, artifact_hash))
        assert self.answer(Kind.VOTE).vote() == (Vote.READY, "")
        self.hear(encode_table(number, BOTH_READY))
        assert self.answer(Kind.ACK).round_number == number

    def close(self):
        self.load_answers.put(Set())
        self.loads.stop()
        self.feed.leave(None)
        self.wakeup.close()
        self.root.close()


@pytest.fixture
def member():
    made = Member()
    yield made
    made.close()


def test_a_set_is_held_when_the_table_says_ready_and_forgotten_when_rank_0_says_so(member):
    member.take(1, A)
    assert member.held.hashes() == [A]
    member.take(2, B)
    assert member.held.hashes() == [A, B]
    member.hear(encode_evict(1, A))
    assert member.held.hashes() == [B]
    assert member.discarded == [A]


def test_an_eviction_that_overtakes_rank_0s_word_waits_until_the_word_was_followed(member):
    member.take(1, A)
    member.hear(encode_evict(1, A, 2))
    assert (member.held.hashes(), member.discarded) == ([A], [])
    member.held.words.count()
    member.wakeup.wake()
    member.feed.turn()
    assert (member.held.hashes(), member.discarded) == ([A], [])
    # the last word makes the feed turn by itself
    member.held.words.count()
    member.feed.turn()
    assert (member.held.hashes(), member.discarded) == ([], [A])


def test_a_set_that_comes_again_before_its_eviction_was_carried_out_stays(member):
    member.take(1, A)
    member.hear(encode_evict(1, A, 1))
    member.take(2, A)
    member.held.words.count()
    member.feed.turn()
    assert (member.held.hashes(), member.discarded) == ([A], [])


def test_a_table_that_says_failed_leaves_nothing(member):
    member.load_answers.put(Set())
    member.hear(encode_round(1, A))
    member.answer(Kind.VOTE)
    member.hear(encode_table(1, (Vote.FAILED, Vote.READY)))
    assert member.held.hashes() == []
    assert member.discarded == [A]


def test_a_table_that_comes_before_the_load_has_ended_leaves_nothing_when_it_does(member):
    member.hear(encode_round(1, A), encode_table(1, (Vote.READY, Vote.ABSENT)))
    member.load_answers.put(Set())
    while member.loads.open_loads():
        member.feed.turn()
    assert member.root.receive() == []
    assert member.discarded == [A]
    member.take(2, A)


def test_a_verdict_on_a_round_that_it_never_saw_changes_nothing(member):
    member.hear(encode_table(7, BOTH_READY), encode_evict(7, A))
    assert member.root.receive() == []
    member.take(8, A)


@pytest.mark.parametrize(
    "nonsense", [b"\xff" * 20, encode_vote(1, Vote.READY), encode_evict(1, A)[:-40]], ids=["bytes", "kind", "cut"]
)
def test_a_rank_0_that_talks_nonsense_ends_the_epoch(member, nonsense):
    member.root.send(nonsense)
    if len(nonsense) < 20:
        member.root.send(encode_evict(1, A))
    with pytest.raises(RankFailure):
        member.feed.turn()


def test_the_end_of_rank_0_ends_the_epoch(member):
    member.root.close()
    with pytest.raises(RankFailure):
        member.feed.turn()
