"""Sets come to the device, leave it, and a slot that still names one that left is refused."""

import threading

import pytest
import torch
from device_batch import CPU, DeviceBatch

from maskfeed_automata import compile
from maskfeed_automata.errors import CapacityError
from maskfeed_workers.device_layout import ALIGNMENT, SetLayout
from maskfeed_workers.device_sets import DeviceSets
from vocabularies import HAND_STOP, hand_vocabulary

VOCABULARY = hand_vocabulary()
SETS = [compile(VOCABULARY, [word, b"or"]) for word in (b"foo", b"for", b"a", b"t")]
SIZE = SetLayout.of(SETS[0]).size_bytes
RESERVED = 22


def arena(*, n_bytes: int = 2 * SIZE, max_sets: int = 8) -> DeviceSets:
    return DeviceSets(device=CPU, arena_bytes=n_bytes, max_sets=max_sets)


def test_the_arena_holds_the_bytes_of_the_arrays_and_nothing_that_was_computed_from_them():
    automaton = compile(VOCABULARY, [b"foo", b"food", b"or"])
    layout = SetLayout.of(automaton)
    sets = arena(n_bytes=layout.size_bytes)
    place = sets.place("a", automaton)
    for first, data in layout.pieces():
        assert sets.arena[place.start + first : place.start + first + data.size].numpy().tobytes() == data.tobytes()
    assert layout.size_bytes < automaton.nbytes + 12 * ALIGNMENT


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
    assert (second.row, second.start) == (first.row, first.start)
    assert second.generation > first.generation


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
