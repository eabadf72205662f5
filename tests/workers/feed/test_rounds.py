"""Rounds: single steps by hand, then every interleaving that hypothesis can find, against a model of the wires."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maskfeed_automata.errors import InternalInvariant
from maskfeed_workers.frames import Vote
from maskfeed_workers.rounds import (
    Drop,
    Forget,
    Hold,
    Load,
    MemberRounds,
    RootRounds,
    SendAck,
    SendEvict,
    SendRound,
    SendTable,
    SendVote,
)

READY, FAILED, ABSENT = Vote.READY, Vote.FAILED, Vote.ABSENT


def opened(size=2, timeout_s=10.0):
    root = RootRounds(size, timeout_s)
    load = root.open("h", 0.0)
    root.available(load.number)
    return root, load.number


def test_one_rank_holds_on_its_own_vote():
    root = RootRounds(1, 10.0)
    assert root.open("h", 0.0) == Load(1, "h")
    assert root.available(1) == [SendRound(1, "h")]
    assert root.vote(1, 0, READY) == [Hold(1, "h")]
    assert root.number_of("h") is None


def test_rank_0_holds_after_the_last_acknowledgement_and_not_before():
    root, n = opened(size=3)
    assert root.vote(n, 2, READY) == []
    assert root.vote(n, 0, READY) == []
    assert root.vote(n, 1, READY) == [SendTable(n, (READY, READY, READY))]
    assert root.ack(n, 1) == []
    assert root.ack(n, 1) == []
    assert root.ack(n, 2) == [Hold(n, "h")]


def test_a_failed_vote_fails_the_round_at_once_and_says_who_and_why():
    root, n = opened(size=3)
    assert root.vote(n, 1, FAILED, "no room") == [
        SendTable(n, (ABSENT, FAILED, ABSENT)),
        Drop(n, "h", "rank 1: no room"),
    ]


def test_a_round_that_no_member_knows_of_fails_without_a_word_to_them():
    root = RootRounds(2, 10.0)
    n = root.open("h", 0.0).number
    assert root.vote(n, 0, FAILED, "no blob") == [Drop(n, "h", "rank 0: no blob")]


def test_no_vote_by_the_deadline_is_a_failed_one():
    root, n = opened()
    root.vote(n, 0, READY)
    assert root.next_deadline() == 8.0
    assert root.expire(7.9) == []
    table, drop = root.expire(8.0)
    assert table == SendTable(n, (READY, ABSENT))
    assert drop.reason == "deadline-exceeded: no vote from rank 1 after 8000 ms"
    assert root.vote(n, 1, READY) == []
    assert root.next_deadline() is None


def test_a_missing_acknowledgement_evicts_and_fails_the_round():
    root, n = opened(size=3)
    for rank in range(3):
        root.vote(n, rank, READY)
    root.ack(n, 2)
    assert root.next_deadline() == 10.0
    evict, drop = root.expire(10.0)
    assert evict == SendEvict(n, "h")
    assert drop.reason == "deadline-exceeded: no acknowledgement from rank 1 after 10000 ms"
    assert root.ack(n, 1) == []


def test_an_acknowledgement_before_the_table_counts_for_nothing():
    root, n = opened()
    assert root.ack(n, 1) == []
    root.vote(n, 0, READY)
    assert root.vote(n, 1, READY) == [SendTable(n, (READY, READY))]


def test_rounds_do_not_wait_for_each_other():
    root = RootRounds(2, 10.0)
    slow, quick = root.open("slow", 0.0).number, root.open("quick", 0.0).number
    root.available(quick)
    root.vote(quick, 0, READY)
    root.vote(quick, 1, READY)
    assert root.ack(quick, 1) == [Hold(quick, "quick")]
    assert root.number_of("slow") == slow


def test_two_rounds_for_one_set_can_not_be_open():
    root, _ = opened()
    with pytest.raises(InternalInvariant):
        root.open("h", 1.0)


def test_a_member_loads_votes_holds_and_acknowledges():
    member = MemberRounds(2)
    assert member.announced(1, "h") == [Load(1, "h")]
    assert member.announced(1, "h") == []
    assert member.loaded(1, READY) == [SendVote(1, READY, "")]
    assert member.decided(1, (READY, READY)) == [Hold(1, "h"), SendAck(1)]
    assert member.evicted(1, "h") == [Forget(1, "h")]


@pytest.mark.parametrize(
    "table",
    [(READY, FAILED), (ABSENT, READY), (READY,), (), (READY, READY, READY)],
    ids=["one failed", "one absent", "too short", "empty", "too long"],
)
def test_a_member_holds_nothing_that_is_not_ready_on_every_rank(table):
    member = MemberRounds(2)
    member.announced(1, "h")
    member.loaded(1, READY)
    (drop,) = member.decided(1, table)
    assert isinstance(drop, Drop)


def test_a_member_that_is_misquoted_holds_nothing():
    member = MemberRounds(2)
    member.announced(1, "h")
    (drop,) = member.decided(1, (READY, READY))
    assert isinstance(drop, Drop)


def test_a_load_that_ends_after_its_round_has_nobody_to_tell():
    member = MemberRounds(2)
    member.announced(1, "h")
    member.decided(1, (READY, ABSENT))
    assert member.loaded(1, READY) == []


def test_a_table_for_an_unknown_round_changes_nothing():
    assert MemberRounds(2).decided(7, (READY, READY)) == []


# -- the model ---------------------------------------------------------------------------------------------------------

SETS = ("a", "b")


class Rank:
    """What a rank has: held sets with the round that brought them, loads that run, and sets that are not decided."""

    def __init__(self):
        self.held = {}
        self.running = {}
        self.loaded = {}

    def end_load(self, which):
        number = sorted(self.running)[which % len(self.running)]
        self.loaded[number] = self.running.pop(number)
        return number

    def apply(self, action, answer):
        match action:
            case Load(number, name):
                self.running[number] = name
            case Hold(number, name):
                assert self.loaded.pop(number) == name
                self.held[name] = max(number, self.held.get(name, 0))
            case Drop(number, _, _):
                self.running.pop(number, None)
                self.loaded.pop(number, None)
            case Forget(number, name):
                if self.held.get(name, number + 1) <= number:
                    del self.held[name]
            case _:
                answer(action)


class Ranks(RuleBasedStateMachine):
    """Rank 0 and a member or two, on wires that keep order and lose nothing."""

    def __init__(self, size=3):
        super().__init__()
        self.now = 0.0
        self.root, self.root_rank = RootRounds(size, 10.0), Rank()
        self.members = {r: MemberRounds(size) for r in range(1, size)}
        self.ranks = {0: self.root_rank, **{r: Rank() for r in self.members}}
        self.down = {r: [] for r in self.members}
        self.up = {r: [] for r in self.members}

    @rule(name=st.sampled_from(SETS))
    def announce(self, name):
        if self.root.number_of(name) is None and name not in self.root_rank.held:
            self.at_root([self.root.open(name, self.now)])

    @rule(rank=st.integers(0, 2), which=st.integers(0, 3), vote=st.sampled_from((READY, READY, FAILED)))
    def load_ends(self, rank, which, vote):
        if rank not in self.ranks or not self.ranks[rank].running:
            return
        number = self.ranks[rank].end_load(which)
        if rank == 0:
            self.at_root(self.root.available(number))
            self.at_root(self.root.vote(number, 0, vote))
        else:
            self.at_member(rank, self.members[rank].loaded(number, vote))

    @rule(which=st.integers(0, 3))
    def root_has_the_bytes(self, which):
        if running := sorted(self.root_rank.running):
            self.at_root(self.root.available(running[which % len(running)]))

    @rule(rank=st.integers(1, 2), upwards=st.booleans())
    def deliver(self, rank, upwards):
        self.hear(min(rank, len(self.members)), upwards, 0)

    @rule(n=st.integers(1, 12))
    def progress(self, n, *, newest_first=False):
        """What would happen on a good day, n steps of it: loads end well, frames arrive."""
        at = -1 if newest_first else 0
        for _ in range(n):
            self.load_ends(0, 0, READY)
            for rank in self.members:
                if self.down[rank]:
                    self.hear(rank, False, at)
                elif self.ranks[rank].running:
                    self.load_ends(rank, 0, READY)
                elif self.up[rank]:
                    self.hear(rank, True, at)

    @rule(name=st.sampled_from(SETS))
    def evict(self, name):
        if name in self.root_rank.held:
            self.at_root([SendEvict(self.root_rank.held.pop(name), name)])

    @rule(seconds=st.sampled_from((1.0, 8.5, 11.0)))
    def time_passes(self, seconds):
        self.now += seconds
        self.at_root(self.root.expire(self.now))

    @invariant()
    def what_rank_0_holds_every_rank_holds(self):
        for rank in self.ranks.values():
            assert self.root_rank.held.keys() <= rank.held.keys()

    def at_root(self, actions):
        for action in actions:
            self.root_rank.apply(action, lambda frame: [wire.append(frame) for wire in self.down.values()])

    def at_member(self, rank, actions):
        for action in actions:
            self.ranks[rank].apply(action, self.up[rank].append)

    def hear(self, rank, upwards, at, *, again=False):
        wire = (self.up if upwards else self.down)[rank]
        if not wire:
            return
        at %= len(wire)
        frame = wire[at] if again else wire.pop(at)
        match frame:
            case SendRound(number, name):
                self.at_member(rank, self.members[rank].announced(number, name))
            case SendTable(number, votes):
                self.at_member(rank, self.members[rank].decided(number, votes))
            case SendEvict(number, name):
                self.at_member(rank, self.members[rank].evicted(number, name))
            case SendVote(number, vote, reason):
                self.at_root(self.root.vote(number, rank, vote, reason))
            case SendAck(number):
                self.at_root(self.root.ack(number, rank))


class Orderly(Ranks):
    """Once all is delivered and every round is over, all ranks hold the same and nothing is pending."""

    def teardown(self):
        while self.root.next_deadline() is not None or any(self.down.values()) or any(self.up.values()):
            self.progress(20)
            self.time_passes(11.0)
        self.what_rank_0_holds_every_rank_holds()
        for rank in self.ranks.values():
            assert rank.held == self.root_rank.held
            assert not rank.running
            assert not rank.loaded


class Chaos(Ranks):
    """Wires that lose, double, and deliver in any order."""

    def __init__(self):
        super().__init__(size=2)

    @rule(upwards=st.booleans(), at=st.integers(0, 5), again=st.booleans())
    def deliver_out_of_order(self, upwards, at, again):
        self.hear(1, upwards, at, again=again)

    @rule(n=st.integers(1, 8))
    def overtake(self, n):
        """A good day on which what was sent last comes first."""
        self.progress(n, newest_first=True)

    @rule(upwards=st.booleans(), at=st.integers(0, 5))
    def lose(self, upwards, at):
        wire = (self.up if upwards else self.down)[1]
        if wire:
            del wire[at % len(wire)]


TestOrderly = Orderly.TestCase
TestOrderly.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestChaos = Chaos.TestCase
TestChaos.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def walk(machine, random, *, n_steps, disturbances):
    """The machine's own rules with arguments from `random`: a thousand times the steps that hypothesis takes."""
    rules = [
        lambda: machine.announce(random.choice(SETS)),
        lambda: machine.load_ends(random.randrange(3), random.randrange(4), random.choice((READY, READY, FAILED))),
        lambda: machine.root_has_the_bytes(random.randrange(4)),
        lambda: machine.deliver(random.randrange(1, 3), random.random() < 0.5),
        lambda: machine.progress(random.randrange(1, 6)),
        lambda: machine.evict(random.choice(SETS)),
        lambda: machine.time_passes(random.choice((1.0, 1.0, 8.5, 11.0))),
    ]
    if disturbances:
        rules += [
            lambda: machine.deliver_out_of_order(random.random() < 0.5, random.randrange(6), random.random() < 0.5),
            lambda: machine.overtake(random.randrange(1, 6)),
            lambda: machine.lose(random.random() < 0.5, random.randrange(6)),
        ]
    for _ in range(n_steps):
        random.choice(rules)()
        machine.what_rank_0_holds_every_rank_holds()


def test_tens_of_thousands_of_orderly_steps_keep_the_ranks_equal():
    for seed in range(500):
        machine = Orderly()
        walk(machine, random.Random(seed), n_steps=100, disturbances=False)
        machine.teardown()


def test_hundreds_of_thousands_of_disturbed_steps_keep_the_invariant():
    for seed in range(3_000):
        walk(Chaos(), random.Random(seed), n_steps=100, disturbances=True)
