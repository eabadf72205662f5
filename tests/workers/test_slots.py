"""Rows of a batch against a plain model: one cursor a row, rebuilt from its history at every step."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import Automaton, Vocabulary, compile
from maskfeed_workers.slots import Constraint, Refusal, SlotTable

STOP = 27
RESERVED = 28
VOCABULARY = Vocabulary.from_token_bytes(
    [bytes([c]) for c in range(ord("a"), ord("z") + 1)] + [b"ab", None, None, b"bc"], stop_token_ids=(STOP,)
)
SETS = [
    compile(VOCABULARY, candidates, stop_token_ids=(STOP,))
    for candidates in (["abc", "abd", "b"], ["zz"], ["a", "ab", "abc"], ["q", "ba", "bab", "bc"])
]
MAX_ROWS = 6
REFUSAL = Refusal((RESERVED,))


@dataclass
class ModelRow:
    automaton: Automaton | None
    output_ids: list[int]
    released: list[int] = field(default_factory=list)
    refused: bool = False

    def allowed(self) -> list[int]:
        cursor = self.automaton.cursor()
        for token in self.output_ids:
            cursor.advance(token)
        return cursor.allowed_token_ids().tolist()


def constraint(automaton: Automaton, released: list[int]) -> Constraint:
    return Constraint(automaton, automaton.digest, (STOP,), REFUSAL, lambda: released.append(1))


def permitted(step) -> dict[int, list[int]]:
    return {
        int(row): sorted(step.token_ids[step.row_ptr[i] : step.row_ptr[i + 1]].tolist())
        for i, row in enumerate(step.rows)
    }


OPERATION = st.one_of(
    st.tuples(st.just("add"), st.integers(0, MAX_ROWS - 1), st.integers(0, len(SETS) - 1)),
    st.tuples(st.just("refuse"), st.integers(0, MAX_ROWS - 1), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, MAX_ROWS - 1), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, MAX_ROWS - 1), st.integers(0, MAX_ROWS - 1)),
    st.tuples(st.just("swap"), st.integers(0, MAX_ROWS - 1), st.integers(0, MAX_ROWS - 1)),
    st.tuples(st.just("preempt"), st.integers(0, MAX_ROWS - 1), st.integers(0, MAX_ROWS - 1)),
    st.tuples(st.just("take back"), st.integers(0, MAX_ROWS - 1), st.integers(0, 3)),
    st.tuples(st.just("foreign token"), st.integers(0, MAX_ROWS - 1), st.just(0)),
    st.tuples(st.just("step"), st.integers(0, 2**16), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=60))
def test_every_row_permits_what_its_own_history_permits_whatever_the_batch_did(operations):
    table, model = SlotTable(VOCABULARY, MAX_ROWS), {}
    everyone: list[ModelRow] = []
    for kind, a, b in operations:
        if kind == "add":
            model[a] = ModelRow(SETS[b], [])
            everyone.append(model[a])
            table.add(a, constraint(SETS[b], model[a].released), model[a].output_ids)
        elif kind == "refuse":
            model[a] = ModelRow(None, [], refused=True)
            table.add(a, REFUSAL, [])
        elif kind == "remove":
            model.pop(a, None)
            table.remove(a)
        elif kind in ("move", "swap") and a != b:
            table.move(a, b, swap=kind == "swap")
            moving, displaced = model.pop(a, None), model.pop(b, None)
            if moving:
                model[b] = moving
            if displaced and kind == "swap":
                model[a] = displaced
        elif kind == "preempt" and a in model and not model[a].refused:
            old = model.pop(a)
            table.remove(a)
            model.pop(b, None)
            table.remove(b)
            model[b] = ModelRow(old.automaton, list(old.output_ids))
            everyone.append(model[b])
            table.add(b, constraint(old.automaton, model[b].released), model[b].output_ids)
        elif kind == "take back" and a in model and not model[a].refused:
            row = model[a]
            del row.output_ids[max(0, len(row.output_ids) - b) :]
        elif kind == "foreign token" and a in model and not model[a].refused:
            model[a].output_ids.append(-1)
            model[a].refused = True
            table.step()
            model[a].output_ids.clear()  # too late: what was seen stays seen
        elif kind == "step":
            seen = permitted(table.step())
            live = {row: entry for row, entry in model.items() if not entry.refused}
            assert seen == {row: entry.allowed() for row, entry in live.items()}
            for row, entry in live.items():
                entry.output_ids.append(seen[row][a % len(seen[row])])
        assert {row for row, _ in table.step().refused} == {row for row, entry in model.items() if entry.refused}
    table.clear()
    assert len(table) == 0
    assert all(len(row.released) == 1 for row in everyone), "each reference ends exactly once"


def test_a_placeholder_in_the_history_refuses_the_row_and_only_that_row():
    table = SlotTable(VOCABULARY, 2)
    table.add(0, constraint(SETS[0], []), [-1])
    table.add(1, constraint(SETS[1], []), [])
    step = table.step()
    assert permitted(step) == {1: [ord("z") - ord("a")]}
    assert list(step.refused) == [(0, REFUSAL)]


def test_a_table_takes_as_many_rows_as_the_batch_again_and_again():
    table = SlotTable(VOCABULARY, 3)
    for _ in range(4):
        for row in range(3):
            table.add(row, constraint(SETS[row], []), [])
    assert sorted(permitted(table.step())) == [0, 1, 2]


@pytest.mark.parametrize("swap", [False, True])
def test_moving_an_empty_row_onto_a_held_one_frees_it_unless_swapped(swap):
    table, released = SlotTable(VOCABULARY, 3), []
    table.add(2, constraint(SETS[1], released), [])
    table.move(0, 2, swap=swap)
    assert len(table) == int(swap)
    assert released == ([] if swap else [1])


def test_a_step_without_rows_is_empty():
    step = SlotTable(VOCABULARY, 1).step()
    assert len(step.rows) == 0
    assert np.array_equal(step.row_ptr, [0])
