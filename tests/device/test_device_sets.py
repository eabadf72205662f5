"""Sets come to the device, leave it, and a slot that still names one that left is refused."""

import contextlib
import threading
from functools import partial

import pytest
import torch
from device_batch import CPU, DeviceBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import Automaton, compile
from maskfeed_automata.errors import CapacityError
from maskfeed_workers.device_layout import SET_BYTE, SET_GENERATION, SetLayout
from maskfeed_workers.device_sets import DeviceSets, Place
from reference import Oracle
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary

VOCABULARY = hand_vocabulary()
SETS = [compile(VOCABULARY, [word, b"or"]) for word in (b"foo", b"for", b"a", b"t")]
SIZE = SetLayout.of(SETS[0]).size_bytes
RESERVED = 22


def nbytes(automaton: Automaton) -> int:
    return SetLayout.of(automaton).size_bytes


# Sets of rising sizes, which leave gaps of all sizes.
MANY_TEXTS = [[b"foo" + b"bar" * k for k in range(n)] for n in range(1, 40, 3)]
MANY = [compile(VOCABULARY, texts) for texts in MANY_TEXTS]
MANY_SIZES = [nbytes(each) for each in MANY]
ROOM = 2 * MANY_SIZES[-1]


def arena(*, n_bytes: int = 2 * SIZE, max_sets: int = 8) -> DeviceSets:
    return DeviceSets(device=CPU, arena_bytes=n_bytes, max_sets=max_sets)


def lies_at(sets: DeviceSets, start: int, automaton: Automaton) -> bool:
    return all(
        sets.arena[start + first :][: data.size].numpy().tobytes() == data.tobytes()
        for first, data in SetLayout.of(automaton).pieces(automaton)
    )


def test_the_arena_holds_the_bytes_of_the_arrays_and_nothing_that_was_computed_from_them():
    automaton = compile(VOCABULARY, [b"foo", b"food", b"or"])
    layout = SetLayout.of(automaton)
    sets = arena(n_bytes=layout.size_bytes)
    sets.place("a", automaton)
    assert lies_at(sets, 0, automaton)
    assert layout.size_bytes < automaton.nbytes


def test_placing_a_set_that_is_there_changes_nothing():
    sets = arena()
    assert sets.place("a", SETS[0]) == sets.place("a", SETS[0])
    assert sets.names() == ["a"]
    assert sets.size_bytes() == SIZE


def test_a_set_that_finds_no_room_is_refused_with_the_numbers_and_nothing_is_evicted():
    sets = arena(n_bytes=2 * SIZE + 17)
    sets.place("a", SETS[0])
    sets.place("b", SETS[1])
    with pytest.raises(CapacityError, match=f"2 sets take {2 * SIZE} of {2 * SIZE} bytes") as caught:
        sets.place("c", SETS[2])
    assert caught.value.context["limit"] == 2 * SIZE
    assert caught.value.context["value"] == SIZE
    assert sets.names() == ["a", "b"]


def test_no_more_sets_are_held_than_the_directory_has_rows():
    sets = arena(n_bytes=8 * SIZE, max_sets=1)
    sets.place("a", SETS[0])
    with pytest.raises(CapacityError):
        sets.place("b", SETS[1])
    sets.evict("a")
    sets.place("b", SETS[1])


def test_memory_and_row_of_an_evicted_set_are_used_again_under_a_new_generation():
    sets = arena(n_bytes=SIZE, max_sets=1)
    first = sets.place("a", SETS[0])
    sets.evict("a")
    sets.evict("a")
    assert sets.find("a") is None
    second = sets.place("b", SETS[1])
    assert second.row == first.row
    assert second.generation > first.generation
    assert lies_at(sets, 0, SETS[1])


def test_a_set_larger_than_any_gap_finds_room_and_the_others_move_under_their_slots():
    larger = MANY[-1]
    n_pairs = nbytes(larger) // SIZE + 1
    batch = DeviceBatch(VOCABULARY, arena_bytes=2 * n_pairs * SIZE, max_sets=2 * n_pairs)
    for n in range(n_pairs):
        batch.sets.place(f"goes {n}", SETS[0])
        place = batch.sets.place(f"stays {n}", SETS[n % 4])
        batch.slots.bind(n % 6, place, start=0, stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    rows = [(slot, []) for slot in range(6)]
    before = batch.permitted(rows)
    for n in range(n_pairs):
        batch.sets.evict(f"goes {n}")
    batch.sets.place("larger", larger)
    assert batch.permitted(rows) == before
    batch.slots.bind(0, batch.sets.find("larger"), start=0, stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    assert batch.permitted(rows[:1]) == [Oracle(HAND_TOKENS, MANY_TEXTS[-1], [HAND_STOP]).allowed([])]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(MANY) - 1), max_size=60))
def test_sets_that_come_and_go_lie_whole_wherever_they_are_and_find_room_while_the_bytes_suffice(steps):
    sets = DeviceSets(device=CPU, arena_bytes=ROOM, max_sets=len(MANY))
    there: list[int] = []
    for k in steps:
        if k in there:
            sets.evict(str(k))
            there.remove(k)
        elif sum(MANY_SIZES[other] for other in [*there, k]) > ROOM:
            with pytest.raises(CapacityError):
                sets.place(str(k), MANY[k])
        else:
            sets.place(str(k), MANY[k])
            there.append(k)
        assert sets.names() == [str(other) for other in there]
        assert sets.size_bytes() == sum(MANY_SIZES[other] for other in there)
        for other in there:
            place = sets.find(str(other))
            row = sets.directory[place.row]
            assert (
                row.tolist() == SetLayout.of(MANY[other]).directory_row(int(row[SET_BYTE]), place.generation).tolist()
            )
            assert lies_at(sets, int(row[SET_BYTE]), MANY[other])


class SlowDecode:
    """A device whose decode stream does nothing until somebody must wait for it, and whose side stream is quick."""

    def __init__(self) -> None:
        self.queue: list = []

    def pinned(self, tensor):
        return tensor

    def follow_caller(self) -> None:
        pass

    def decode(self, work) -> None:
        self.queue.append(work)

    def hold_side(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def side(self, work) -> None:
        work()

    def beside_captures(self):
        return contextlib.nullcontext()


def read_as_a_kernel(sets: DeviceSets, place: Place, automaton: Automaton) -> None:
    """For a slot that is bound to this place: the set that was there, or the word that it is gone."""
    row = sets.directory[place.row]
    if int(row[SET_GENERATION]) == place.generation:
        assert lies_at(sets, int(row[SET_BYTE]), automaton)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["come or go", "read", "read", "drain"]), st.integers(0, 30)), max_size=50))
def test_kernels_see_whole_sets_however_long_the_device_takes_to_run_them(steps):
    streams = SlowDecode()
    sets = DeviceSets(device=CPU, arena_bytes=ROOM, max_sets=3, streams=streams)
    seen = {k: sets.place(str(k), MANY[k]) for k in (2, 5)}
    for what, n in steps:
        k = n % len(MANY)
        if what == "read":
            chosen = sorted(seen)[n % len(seen)]
            streams.decode(partial(read_as_a_kernel, sets, seen[chosen], MANY[chosen]))
        elif what == "drain":
            streams.hold_side()
        elif sets.find(str(k)) is not None:
            sets.evict(str(k))
        else:
            with contextlib.suppress(CapacityError):
                seen[k] = sets.place(str(k), MANY[k])
    streams.hold_side()


def test_moving_sets_by_pieces_that_overlap_keeps_their_bytes_for_kernels_before_and_after(monkeypatch):
    monkeypatch.setattr("maskfeed_workers.device_sets._PIECE_BYTES", 64)
    streams = SlowDecode()
    sets = DeviceSets(device=CPU, arena_bytes=ROOM, max_sets=len(MANY), streams=streams)
    sets.place("small", MANY[0])
    large = sets.place("large", MANY[-1])
    streams.hold_side()
    streams.decode(partial(read_as_a_kernel, sets, large, MANY[-1]))
    sets.evict("small")
    streams.decode(partial(read_as_a_kernel, sets, large, MANY[-1]))
    left = ROOM - nbytes(MANY[-1])
    sets.place("all the rest", fitting := max((each for each in MANY if nbytes(each) <= left), key=nbytes))
    assert left - nbytes(MANY[0]) < nbytes(fitting), "no gap took it"
    streams.hold_side()
    assert lies_at(sets, 0, MANY[-1])
    assert lies_at(sets, nbytes(MANY[-1]), fitting)


def test_a_copy_that_breaks_leaves_nothing_behind(monkeypatch):
    sets = arena(n_bytes=SIZE, max_sets=1)
    with monkeypatch.context() as broken:
        broken.setattr(SetLayout, "pieces", lambda self, automaton: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sets.place("a", SETS[0])
    assert (sets.names(), sets.size_bytes()) == ([], 0)
    sets.place("a", SETS[0])


def test_rows_bound_to_an_evicted_set_are_refused_even_when_another_set_lies_in_its_place():
    batch = DeviceBatch(VOCABULARY, arena_bytes=SIZE)
    batch.bind(0, SETS[0], stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    assert batch.permitted([(0, [])]) != [[RESERVED]]
    batch.sets.evict(SETS[0].digest)
    assert batch.permitted([(0, [])]) == [[RESERVED]]
    batch.bind(1, SETS[1], stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    assert batch.permitted([(0, [])]) == [[RESERVED]]
    assert batch.permitted([(1, [])]) != [[RESERVED]]


def test_a_set_that_comes_back_does_not_revive_slots_that_were_bound_before():
    batch = DeviceBatch(VOCABULARY, arena_bytes=SIZE)
    batch.bind(0, SETS[0], stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    batch.sets.evict(SETS[0].digest)
    batch.sets.place(SETS[0].digest, SETS[0])
    assert batch.permitted([(0, [])]) == [[RESERVED]]


def test_the_three_views_of_the_arena_are_one_memory():
    sets = arena()
    pointers = {view.data_ptr() for view in (sets.arena, sets.arena_int32, sets.arena_int64)}
    assert len(pointers) == 1
    assert sets.arena.dtype == torch.uint8


def test_sets_come_and_go_beside_the_decode_thread_without_touching_the_rows_of_one_that_stays():
    batch = DeviceBatch(VOCABULARY, arena_bytes=3 * SIZE)
    batch.bind(0, SETS[0], stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    expected = batch.permitted([(0, [])])
    done = threading.Event()

    def come_and_go() -> None:
        for n in range(60):
            batch.sets.place(f"{n}", SETS[1 + n % 3])
            if n:
                batch.sets.evict(f"{n - 1}")
        done.set()

    feed = threading.Thread(target=come_and_go)
    feed.start()
    n_steps = 0
    while not done.is_set() or n_steps < 3:
        assert batch.permitted([(0, [])]) == expected
        n_steps += 1
    feed.join()
    assert batch.sets.names() == [SETS[0].digest, "59"]
