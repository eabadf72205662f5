"""One answer on all ranks, or one rank less."""

import logging
import queue
import random
import threading
from contextlib import suppress

import pytest

from maskfeed_automata.errors import CapacityError
from maskfeed_workers import agreement
from maskfeed_workers.agreement import Alone, Follower, GiveUpOnError, Leader, Wish, end_this_process
from maskfeed_workers.held_sets import HeldSets, Promise


class Set:
    """Stands for an automaton."""

    nbytes = 10


class GaveUp(BaseException):
    """What stands for the end of the process here; nothing catches it by accident."""


def give_up(reason):
    raise GaveUp(reason)


def held_sets(*names):
    held = HeldSets(limit_bytes=1_000, max_sets=100)
    for name in names:
        held.enter(name, Set(), round_number=1)
    return held


def wishes(*names):
    return [Wish(name, f"nonce of {name}", number) for number, name in enumerate(names)]


def pair(root, member):
    """Rank 0's and rank 1's side, connected by a queue as between two decode loops."""
    line = queue.SimpleQueue()
    return Leader(root, line.put), Follower(member, lambda: line.get(timeout=10), give_up)


class Evicting:
    """Rank 0's word on its way to a member, and what its feed says meanwhile."""

    def __init__(self, root, member):
        self.root, self.member, self.leaving = root, member, []

    def evict_all(self):
        self.evict(1_000)
        self.carry_out()

    def evict(self, size_bytes):
        victims = self.root.reserve("room", size_bytes)
        self.root.cancel("room")
        self.leaving += [(victim, self.root.words.given) for victim in victims]

    def carry_out(self):
        while self.leaving and self.member.words.has_come_to(self.leaving[0][1], then=lambda: None):
            victim, _ = self.leaving.pop(0)
            self.member.forget(victim.artifact_hash, victim.round_number)


def test_a_single_rank_says_what_it_holds_and_refers_to_it():
    held = held_sets("a")
    alone = Alone(held)
    first, second = alone.settle(wishes("a", "b"))
    assert (isinstance(first, Set), second) == (True, None)
    assert held.pinned() == {"a"}
    alone.release(0)
    assert held.pinned() == frozenset()


def test_all_ranks_take_what_rank_0_holds_and_refuse_what_it_does_not():
    root, member = held_sets("a", "b"), held_sets("a", "b", "only here")
    leader, follower = pair(root, member)
    asked = wishes("a", "only here", "b", "nowhere")
    answers = [[found is not None for found in side.settle(asked)] for side in (leader, follower)]
    assert answers == [[True, False, True, False]] * 2
    assert root.pinned() == member.pinned() == {"a", "b"}


def test_rank_0_refers_to_its_sets_before_it_speaks():
    root = held_sets("a")
    pinned_when_told = []
    Leader(root, lambda said: pinned_when_told.append(root.pinned())).settle(wishes("a"))
    assert pinned_when_told == [{"a"}]


def test_a_rank_that_has_lost_its_feed_still_follows_rank_0():
    root, member = held_sets("a"), held_sets("a")
    leader, follower = pair(root, member)
    leader.settle(wishes("a"))
    root.close()
    assert isinstance(follower.settle(wishes("a"))[0], Set)
    assert leader.settle(wishes("a")) == [None]
    assert follower.settle(wishes("a")) == [None]


@pytest.mark.parametrize("ended", ["before the request enters", "after rank 0 spoke", "by leaving the batch"])
def test_a_member_can_follow_when_the_client_left_and_rank_0_has_evicted_the_set_meanwhile(ended):
    root, member = held_sets("a"), held_sets("a")
    leader, follower = pair(root, member)
    feed = Evicting(root, member)
    (wish,) = wishes("a")
    if ended == "before the request enters":
        root.end(wish.nonce)
    assert isinstance(leader.settle([wish])[0], Set)
    if ended == "after rank 0 spoke":
        root.end(wish.nonce)
    elif ended == "by leaving the batch":
        leader.release(wish.reference)
    feed.evict_all()
    assert "a" not in root
    assert isinstance(follower.settle([wish])[0], Set)
    feed.carry_out()
    assert "a" not in member
    assert (leader.settle([wish]), follower.settle([wish])) == ([None], [None])


def test_a_rank_that_lacks_what_rank_0_holds_gives_up():
    leader, follower = pair(held_sets("a"), held_sets())
    leader.settle(wishes("a"))
    with pytest.raises(GaveUp, match="this rank does not"):
        follower.settle(wishes("a"))


@pytest.mark.parametrize("there", [("a", "b"), ("b",), ()])
def test_a_rank_that_sees_other_requests_than_rank_0_gives_up(there):
    leader, follower = pair(held_sets("a", "b"), held_sets("a", "b"))
    leader.settle(wishes("a"))
    with pytest.raises(GaveUp, match="rank 0 spoke of"):
        follower.settle(wishes(*there))


def test_what_rank_0_did_not_say_is_no_answer():
    follower = Follower(held_sets("a"), lambda: None, give_up)
    with pytest.raises(GaveUp):
        follower.settle(wishes("a"))


def test_ranks_agree_while_the_feed_installs_and_evicts_beside_them():
    """As in an engine: a member holds before rank 0 does and forgets after it; both are asked in between."""
    root, member = held_sets(), held_sets()
    leader, follower = pair(root, member)
    names = [f"set {i}" for i in range(12)]
    stop = threading.Event()

    def feed():
        rng, number = random.Random(1), 1
        evicting = Evicting(root, member)
        while not stop.is_set():
            name, number = rng.choice(names), number + 1
            if name not in root:
                member.enter(name, Set(), round_number=number)
                root.enter(name, Set(), round_number=number, promises=[Promise("n", "g", 1e9)])
                root.end("n")
            else:
                with suppress(CapacityError):
                    evicting.evict(1_000 - 10 * rng.randrange(6))
            evicting.carry_out()

    feeding = threading.Thread(target=feed)
    feeding.start()
    seen = {True: 0, False: 0}
    rng = random.Random(2)
    for _ in range(5_000):
        asked = [Wish(rng.choice(names), f"{i}", i) for i in range(rng.randrange(1, 4))]
        # clients that have left: nothing pins what their requests are told to use
        if rng.randrange(2):
            root.end(asked[0].nonce)
        ours, theirs = leader.settle(asked), follower.settle(asked)
        assert [found is None for found in ours] == [found is None for found in theirs]
        for found in ours:
            seen[found is not None] += 1
        for side in (leader, follower):
            for wish in asked:
                side.release(wish.reference)
    stop.set()
    feeding.join()
    assert min(seen.values()) > 100, seen


def test_an_exception_on_a_member_ends_its_process_and_nothing_else_does():
    with GiveUpOnError(give_up):
        pass
    with pytest.raises(GaveUp, match="the processor failed: ValueError"), GiveUpOnError(give_up):
        raise ValueError("what")
    with pytest.raises(KeyboardInterrupt), GiveUpOnError(give_up):
        raise KeyboardInterrupt


def test_the_end_of_a_process_is_immediate_and_says_why(monkeypatch, caplog):
    codes = []

    def leave(code):
        codes.append(code)
        raise GaveUp

    monkeypatch.setattr(agreement.os, "_exit", leave)
    with caplog.at_level(logging.CRITICAL), pytest.raises(GaveUp):
        end_this_process("rank 0 holds more")
    assert codes == [70]
    assert "rank 0 holds more" in caplog.text
