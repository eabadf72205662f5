"""The adapter's own decisions: when it asks, what it gives back, and what it does when the arena is full."""

from types import SimpleNamespace

import pytest
from played_runner import PlayedRunner

from maskfeed_automata import compile
from maskfeed_workers.device_layout import MAX_IDS, SetLayout
from maskfeed_workers.slots import Constraint, Refusal
from reference import Oracle
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary

A, B = ["foo", "food", "for"], ["bar", "bad", "cab"]
ORACLES = {tuple(each): Oracle(HAND_TOKENS, [text.encode() for text in each], [HAND_STOP]) for each in (A, B)}
SIZE = max(SetLayout.of(compile(hand_vocabulary(), each)).size_bytes for each in (A, B))


@pytest.fixture
def runner() -> PlayedRunner:
    """With room for one set."""
    return PlayedRunner(hand_vocabulary(), stop=HAND_STOP, reserved=22, width=30, n_slots=4, arena_bytes=SIZE)


def added(runner: PlayedRunner, candidates: list[str] | None):
    request = runner.request(candidates, None if candidates is None else ORACLES[tuple(candidates)], [1, 2])
    runner.add(request)
    return request


def test_a_set_makes_room_for_another_while_its_requests_wait_and_comes_back_with_them(runner):
    first, stranger = added(runner, A), added(runner, None)
    runner.step([(first, [])])
    runner.commit(first, [ORACLES[tuple(A)].allowed([])[0]])
    runner.step([(stranger, [])])
    second = added(runner, B)
    runner.step([(second, [])])
    assert len(runner.sets.names()) == 1
    runner.step([(first, []), (stranger, [])])
    runner.step([(stranger, [])])
    runner.step([(second, [])])


def refused(runner: PlayedRunner, candidates: list[str]) -> None:
    """A request that finds no room: the sets that were there stay, and its rows are not left free."""
    there = runner.sets.names()
    slot = runner.free.pop()
    runner.prompt_len[slot] = runner.total_len[slot] = 1
    assert runner.processor.add_request(slot, runner.request(candidates, ORACLES[tuple(candidates)], [1]).params)
    runner.processor.apply_staged_writes()
    assert runner.sets.names() == there
    assert runner.processor._slots.any_ours([slot])


def test_a_request_is_refused_when_the_sets_of_the_running_ones_leave_no_room(runner):
    first = added(runner, A)
    runner.step([(first, [])])
    refused(runner, B)
    runner.step([(first, [])])


def test_a_batch_that_comes_in_parts_keeps_the_sets_of_all_its_parts(runner):
    first, stranger = added(runner, A), added(runner, None)
    runner.step([(first, []), (stranger, [])], n_chunks=2)
    refused(runner, B)
    runner.step([(stranger, []), (first, [])])


class Admission:
    """Gives the verdicts that it was told, and remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.log: list[str] = []

    def decide(self, entering):
        self.asked.append([params.name for params in entering])
        return [params.verdict(self) for params in entering]


def constrained(name: str, *, stop_ids=(HAND_STOP,)):
    def verdict(admission):
        admission.log.append(f"take {name}")
        automaton = compile(hand_vocabulary(), A)
        return Constraint(automaton, "a", stop_ids, Refusal((22,)), lambda: admission.log.append(f"release {name}"))

    return SimpleNamespace(extra_args={"maskfeed": name}, name=name, verdict=verdict)


def refused_request(name: str):
    return SimpleNamespace(extra_args={"maskfeed": name}, name=name, verdict=lambda admission: Refusal((22,)))


FREE = SimpleNamespace(extra_args={"other": 1})


@pytest.fixture
def admission(runner, monkeypatch) -> Admission:
    admission = Admission()
    monkeypatch.setattr(runner.processor, "_admission", admission)
    return admission


def test_all_requests_of_a_step_are_decided_on_together_in_their_order_and_steps_without_any_ask_nothing(
    runner, admission
):
    processor = runner.processor
    assert processor.add_request(2, constrained("x"))
    assert not processor.add_request(1, FREE)
    assert processor.add_request(0, refused_request("y"))
    assert admission.asked == []
    processor.apply_staged_writes()
    processor.apply_staged_writes()
    assert not processor.add_request(3, SimpleNamespace(extra_args=None))
    processor.apply_staged_writes()
    assert admission.asked == [["x", "y"]]


def test_a_slot_that_is_added_again_gives_its_reference_back_once_and_only_after_the_new_one_was_taken(
    runner, admission
):
    processor = runner.processor
    for params in (constrained("first"), constrained("second"), FREE, FREE):
        processor.add_request(0, params)
        processor.apply_staged_writes()
    assert admission.log == ["take first", "take second", "release first", "release second"]


def test_a_request_whose_slot_is_given_to_a_stranger_before_it_was_decided_on_is_forgotten(runner, admission):
    runner.processor.add_request(0, constrained("x"))
    runner.processor.add_request(0, FREE)
    runner.processor.apply_staged_writes()
    assert admission.asked == []
    assert not runner.processor._slots.any_ours([0])


def test_a_request_with_more_stop_ids_than_a_slot_has_place_for_is_refused(runner, admission):
    runner.processor.add_request(0, constrained("x", stop_ids=tuple(range(MAX_IDS + 1))))
    runner.processor.apply_staged_writes()
    assert runner.processor._slots.any_ours([0])
    assert runner.sets.names() == []
