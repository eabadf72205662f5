"""What keeps a set on a rank, and what does not."""

import random

import pytest

from manual_clock import ManualClock
from maskfeed_automata.errors import CapacityError
from maskfeed_cache.fence import Fence
from maskfeed_workers.held_sets import Evicted, HeldSets, Promise

FOR_EVER = 1e9
ONE, TWO, THREE = (Fence("e" * 32, generation) for generation in (1, 2, 3))
OTHER = Fence("f" * 32, 1)


class Set:
    """Stands for an automaton: held sets count its bytes and hand it out."""

    def __init__(self, nbytes=10):
        self.nbytes = nbytes


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def held(clock):
    return HeldSets(limit_bytes=100, max_sets=3, clock=clock.time)


def enter(held, name, *, size_bytes=10, round_number=1, nonce=None, gateway="g", ends_at=FOR_EVER, fence=None):
    promises = [] if nonce is None else [Promise(nonce, gateway, ends_at)]
    automaton = Set(size_bytes)
    held.enter(name, automaton, round_number=round_number, promises=promises, fence=fence)
    return automaton


def make_room(held, size_bytes=95):
    """Room for a set that leaves none for another."""
    evicted = held.reserve("new", size_bytes)
    held.cancel("new")
    return [e.artifact_hash for e in evicted]


def test_only_a_set_that_is_held_is_handed_out(held):
    automaton = enter(held, "a")
    assert held.acquire("a", "n", 1) is automaton
    assert held.acquire("b", "n", 2) is None


def test_the_least_recently_used_set_goes_first_and_says_which_round_brought_it(held):
    for number, name in enumerate("abc"):
        enter(held, name, round_number=number)
    held.acquire("a", "n", 1)
    held.release(1)
    held.promise("b", Promise("m", "g", FOR_EVER))
    held.end("m")
    assert held.reserve("d", 10) == [Evicted("c", 2)]
    assert held.hashes() == ["a", "b"]


def test_bytes_are_bounded_by_evicting_as_few_as_needed(held):
    enter(held, "a", size_bytes=50)
    enter(held, "b", size_bytes=40)
    assert held.reserve("c", 30) == [Evicted("a", 1)]
    assert held.size_bytes() == 40


def test_what_is_reserved_counts_until_it_is_entered_or_cancelled(held):
    held.reserve("a", 60)
    with pytest.raises(CapacityError):
        held.reserve("b", 50)
    held.cancel("a")
    held.reserve("b", 50)
    enter(held, "b", size_bytes=50)
    assert held.reserve("c", 50) == []


def test_a_set_that_finds_no_room_is_refused_with_both_numbers_and_costs_nobody_his_place(held):
    enter(held, "free", size_bytes=10)
    enter(held, "used", size_bytes=60, nonce="n")
    with pytest.raises(CapacityError) as caught:
        held.reserve("big", 50)
    assert (caught.value.context["limit"], caught.value.context["value"]) == (100, 110)
    assert "110" in caught.value.message
    assert "100" in caught.value.message
    assert held.hashes() == ["free", "used"]


def test_the_number_of_sets_is_bounded_too(held):
    for name in "abc":
        enter(held, name, size_bytes=1, nonce=name)
    with pytest.raises(CapacityError) as caught:
        held.reserve("d", 1)
    assert (caught.value.context["limit"], caught.value.context["value"]) == (3, 4)


def test_a_promise_keeps_a_set_until_its_nonce_ends(held):
    enter(held, "a", nonce="n")
    with pytest.raises(CapacityError):
        make_room(held)
    assert held.pinned() == {"a"}
    held.end("n")
    assert make_room(held) == ["a"]


def test_a_promise_ends_with_its_life_span(held, clock):
    enter(held, "a", nonce="n", ends_at=clock.time() + 5)
    clock.advance(4.9)
    assert held.is_promised("n")
    clock.advance(0.1)
    assert not held.is_promised("n")
    assert make_room(held) == ["a"]


def test_a_promise_ends_with_its_gateway_and_others_stay(held):
    enter(held, "a", nonce="n", gateway="gone")
    enter(held, "b", nonce="m", gateway="alive")
    assert held.gateways() == {"gone", "alive"}
    held.end_gateways({"gone"})
    assert held.pinned() == {"b"}


def test_a_set_stays_while_one_of_its_promises_lives(held):
    enter(held, "a", nonce="n")
    assert held.promise("a", Promise("m", "g", FOR_EVER))
    held.end("n")
    assert held.pinned() == {"a"}
    held.end("m")
    assert held.pinned() == frozenset()


def test_a_promise_for_a_set_that_is_not_held_is_none(held):
    assert not held.promise("a", Promise("n", "g", FOR_EVER))
    assert not held.is_promised("n")


def test_a_slot_keeps_a_set_after_the_promise_has_lapsed(held, clock):
    enter(held, "a", nonce="n", ends_at=clock.time() + 5)
    held.acquire("a", "n", 1)
    clock.advance(6)
    assert held.pinned() == {"a"}
    held.release(1)
    assert make_room(held) == ["a"]


def test_a_slot_refers_to_nothing_any_more_once_its_nonce_has_ended(held):
    enter(held, "a", nonce="n")
    for slot in (1, 2, 3):
        held.acquire("a", "n", slot)
    held.end("n")
    assert make_room(held) == ["a"]
    held.release(1)


def test_reuse_of_a_slot_ends_its_reference_even_when_the_new_set_is_refused(held):
    enter(held, "a")
    held.acquire("a", "n", 1)
    assert held.acquire("missing", "m", 1) is None
    assert held.pinned() == frozenset()


def test_a_set_stays_while_one_of_its_slots_refers_to_it(held):
    enter(held, "a")
    held.acquire("a", "n", 1)
    held.acquire("a", "m", 2)
    held.end("n")
    assert held.pinned() == {"a"}
    held.release(2)
    assert held.pinned() == frozenset()


def test_a_request_that_enters_the_batch_after_its_end_pins_nothing(held):
    automaton = enter(held, "a", nonce="n")
    held.end("n")
    assert held.acquire("a", "n", 1) is automaton
    assert make_room(held) == ["a"]


def test_a_set_is_forgotten_on_rank_0s_word_even_when_it_is_pinned(held):
    enter(held, "a", nonce="n")
    held.acquire("a", "n", 1)
    assert held.forget("a", 1)
    assert "a" not in held
    held.release(1)
    held.end("n")
    assert not held.forget("a", 1)


def test_a_set_that_came_again_is_not_forgotten_for_an_older_round(held):
    enter(held, "a", round_number=7)
    assert not held.forget("a", 6)
    enter(held, "a", round_number=3)
    assert not held.forget("a", 6)
    assert "a" in held


def test_entering_a_set_twice_counts_it_once_and_keeps_its_promises(held):
    first = enter(held, "a", nonce="n")
    enter(held, "a", round_number=2, nonce="m")
    assert held.size_bytes() == 10
    assert held.acquire("a", "x", 1) is first
    held.release(1)
    held.end("m")
    assert held.pinned() == {"a"}


def test_a_permanent_set_is_never_evicted_and_counts_for_nothing(held):
    probe = Set()
    held.hold_permanently("probe", probe)
    assert make_room(held, 100) == []
    assert held.acquire("probe", "n", 1) is probe
    assert held.size_bytes() == 0


def test_once_closed_every_set_is_refused(held):
    enter(held, "a", nonce="n")
    held.hold_permanently("probe", Set())
    held.close()
    assert held.acquire("a", "n", 1) is None
    assert held.acquire("probe", "n", 2) is None
    assert not held.promise("a", Promise("m", "g", FOR_EVER))


def test_the_ends_of_very_many_requests_are_not_remembered_for_ever(held):
    enter(held, "a")
    held.end("first")
    for i in range(5_000):
        held.end(f"n{i}")
    held.acquire("a", "n4999", 1)
    assert held.pinned() == frozenset()
    held.acquire("a", "first", 1)
    assert held.pinned() == {"a"}


# -- generations of the cache ------------------------------------------------------------------------------------------


def figures(held):
    usage = held.usage()
    return (usage.entries, usage.bytes, usage.orphaned_entries, usage.orphaned_bytes)


def test_a_new_generation_evicts_what_nobody_is_promised_and_orphans_the_rest(held):
    held.begin(ONE)
    enter(held, "free", round_number=3, fence=ONE)
    enter(held, "promised", nonce="n", fence=ONE)
    enter(held, "in use", fence=ONE)
    held.acquire("in use", "m", 1)
    assert held.begin(TWO)
    assert held.evict_orphans() == [Evicted("free", 3)]
    assert figures(held) == (0, 0, 2, 20)
    assert held.acquire("promised", "n", 2) is not None


def test_an_orphan_goes_with_its_last_promise_or_slot(held, clock):
    held.begin(ONE)
    enter(held, "a", nonce="n", ends_at=clock.time() + 5, fence=ONE)
    held.acquire("a", "m", 1)
    held.begin(TWO)
    assert held.evict_orphans() == []
    clock.advance(6)
    assert held.evict_orphans() == []
    held.release(1)
    assert held.evict_orphans() == [Evicted("a", 1)]
    assert figures(held) == (0, 0, 0, 0)


def test_an_orphan_that_is_announced_again_belongs_to_the_new_generation(held):
    held.begin(ONE)
    enter(held, "a", nonce="n", fence=ONE)
    held.begin(TWO)
    assert held.promise("a", Promise("late", "g", FOR_EVER), ONE)
    assert figures(held) == (0, 0, 1, 10)
    assert held.promise("a", Promise("m", "g", FOR_EVER), TWO)
    assert figures(held) == (1, 10, 0, 0)
    for nonce in ("n", "late", "m"):
        held.end(nonce)
    assert held.evict_orphans() == []


def test_a_set_of_an_older_generation_that_comes_late_is_an_orphan_from_the_start(held):
    held.begin(TWO)
    enter(held, "waited for", nonce="n", fence=ONE)
    enter(held, "given up", fence=ONE)
    assert figures(held) == (0, 0, 2, 20)
    assert held.evict_orphans() == [Evicted("given up", 1)]
    assert held.is_promised("n")


def test_a_set_that_is_held_anew_does_not_fall_back_into_an_older_generation(held):
    held.begin(TWO)
    enter(held, "a", nonce="n", fence=TWO)
    enter(held, "a", nonce="m", fence=ONE)
    assert figures(held) == (1, 10, 0, 0)


def test_older_news_of_the_same_epoch_is_none_and_another_epoch_always_is(held):
    assert [held.begin(fence) for fence in (TWO, ONE, TWO, THREE, OTHER, OTHER, ONE)] == [
        *(True, False, False, True, True, False, True)
    ]
    assert held.is_current(ONE)


def test_a_clear_of_a_set_that_is_only_reserved_takes_nothing_away(held):
    held.begin(ONE)
    held.reserve("a", 60)
    held.begin(TWO)
    assert held.evict_orphans() == []
    with pytest.raises(CapacityError):
        held.reserve("b", 50)


class Model:
    """The same rules, written for reading: promises and references in two lists that are searched."""

    def __init__(self):
        self.held = []
        self.promises = []
        self.references = []
        self.ended = set()
        self.orphans = set()
        self.generation = 0

    def pinned(self, now):
        self.promises = [p for p in self.promises if p[3] > now]
        return {p[0] for p in self.promises} | {r[0] for r in self.references}

    def drop(self, name):
        self.held.remove(name)
        self.promises = [p for p in self.promises if p[0] != name]
        self.references = [r for r in self.references if r[0] != name]
        self.orphans.discard(name)

    def touch(self, name):
        self.held.remove(name)
        self.held.append(name)

    def promise(self, name, nonce, gateway, ends_at):
        self.promises = [p for p in self.promises if p[1] != nonce]
        if name in self.held:
            self.touch(name)
        if name in self.held and nonce not in self.ended:
            self.promises.append((name, nonce, gateway, ends_at))

    def adopt(self, name, fence):
        if fence is None or fence.generation == self.generation:
            self.orphans.discard(name)

    def acquire(self, name, nonce, slot):
        self.references = [r for r in self.references if r[2] != slot]
        if name in self.held:
            self.touch(name)
            if nonce not in self.ended:
                self.references.append((name, nonce, slot))
        return name in self.held


def one_step(rng, held, model, clock):
    name, nonce, gateway, slot = (rng.choice(names) for names in ("abcdef", "uvwxyz", "gh", range(4)))
    # nonces are not used for ever, and a few of them once more after their end
    nonce += str(len(model.ended) // 4)
    fence = Fence("e", rng.choice((model.generation, model.generation - 1))) if model.generation else None
    match rng.randrange(11):
        case 0 | 1:
            try:
                evicted = [e.artifact_hash for e in held.reserve(name, 10)]
            except CapacityError:
                assert len(model.pinned(clock.time())) == 3
                return
            free = [n for n in model.held if n not in model.pinned(clock.time())]
            assert evicted == free[: max(0, len(model.held) - 2)]
            for victim in evicted:
                model.drop(victim)
            ends_at = clock.time() + rng.choice((1, 5, 50))
            enter(held, name, nonce=nonce, gateway=gateway, ends_at=ends_at, fence=fence)
            if name not in model.held:
                model.held.append(name)
                model.orphans.add(name)
            model.adopt(name, fence)
            model.promise(name, nonce, gateway, ends_at)
        case 2:
            if name in model.held:
                held.promise(name, Promise(nonce, gateway, clock.time() + 5), fence)
                model.adopt(name, fence)
                model.promise(name, nonce, gateway, clock.time() + 5)
        case 3 | 4:
            assert (held.acquire(name, nonce, slot) is not None) == model.acquire(name, nonce, slot)
        case 5:
            held.release(slot)
            model.references = [r for r in model.references if r[2] != slot]
        case 6:
            held.end(nonce)
            model.ended.add(nonce)
            model.promises = [p for p in model.promises if p[1] != nonce]
            model.references = [r for r in model.references if r[1] != nonce]
        case 7:
            clock.advance(rng.choice((0.5, 3)))
        case 8:
            if rng.random() < 0.5:
                held.end_gateways({gateway})
                model.promises = [p for p in model.promises if p[2] != gateway]
            elif held.forget(name, 1):
                model.drop(name)
        case 9:
            model.generation = max(1, model.generation + rng.choice((0, 1)))
            if held.begin(Fence("e", model.generation)):
                model.orphans |= set(model.held)
        case 10:
            gone = {e.artifact_hash for e in held.evict_orphans()}
            assert gone == model.orphans - model.pinned(clock.time())
            for victim in gone:
                model.drop(victim)


def test_any_history_leaves_what_a_simple_model_says():
    for seed in range(300):
        rng, clock = random.Random(seed), ManualClock()
        held, model = HeldSets(limit_bytes=100, max_sets=3, clock=clock.time), Model()
        for _ in range(80):
            one_step(rng, held, model, clock)
            assert held.hashes() == model.held
            assert held.pinned() == model.pinned(clock.time())
            assert held.gateways() == {p[2] for p in model.promises}
            assert held.usage().orphaned_entries == len(model.orphans)


def test_an_announcement_that_arrives_after_its_requests_end_pins_nothing():
    held = HeldSets(limit_bytes=100, max_sets=2)
    held.enter("a", Set(), round_number=1)
    held.end("n")
    assert held.promise("a", Promise("n", "g", 1e12))
    assert held.pinned() == frozenset()
    held.enter("b", Set(), round_number=2, promises=[Promise("n", "g", 1e12)])
    assert held.pinned() == frozenset()
