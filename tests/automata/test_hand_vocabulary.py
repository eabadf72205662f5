"""Rows that can be checked by hand, over the 26 tokens of `vocabularies.HAND_TOKENS`."""

import numpy as np
import pytest

from maskfeed_automata import Automaton, Batch, compile
from maskfeed_automata.errors import (
    CandidateError,
    InternalInvariant,
    ParameterError,
    TokenNotAllowed,
    VocabularyMismatch,
)
from maskfeed_automata.vocabulary import Vocabulary
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary

A, B, C, D, E, OH, F, FO, OO, FOO, BAR, FOOD = range(12)
SPACE, SPACE_A, R, CONTROL, C3, A9, E_ACUTE, OH_TWIN, NUL, FF, EMPTY, SPACE_FOO, T, STOP = range(12, 26)

ROWS = [
    ("a terminal leaf permits only the stop id", ["foo"], [FOO], [STOP]),
    ("foo and food: at foo both the end and the rest", ["foo", "food"], [FOO], [D, STOP]),
    ("every tokenisation is permitted, twins included", ["foo", "food"], [], [F, FO, FOO, FOOD]),
    ("twin ids go together", ["foo"], [FO], [OH, OH_TWIN]),
    ("a tail inside a word", ["foobar"], [F], [OH, OO, OH_TWIN]),
    ("after the stop id only stop ids", ["foo"], [FOO, STOP], [STOP]),
    ("half of a character", ["é", "è"], [C3], [A9, None]),
    ("NUL and 0xFF are bytes like others", [b"\x00\xff", b"\xff"], [], [NUL, FF]),
    ("a space that belongs to the candidate", [" a", "a"], [], [A, SPACE, SPACE_A]),
    ("one byte", ["t"], [], [T]),
]


@pytest.mark.parametrize(("candidates", "history", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rows_by_hand(candidates, history, expected):
    if None in expected:
        # "è" ends in 0xA8, which is no token: the whole list is refused, and "é" alone works.
        with pytest.raises(CandidateError, match=r"candidates\[1\]"):
            compile(hand_vocabulary(), candidates)
        candidates, expected = candidates[:1], [A9]
    cursor = compile(hand_vocabulary(), candidates).cursor()
    for token_id in history:
        cursor.advance(token_id)
    assert cursor.allowed_token_ids().tolist() == sorted(expected)


def test_a_cursor_tells_where_it_is():
    cursor = compile(hand_vocabulary(), ["food", "foo", "bar"]).cursor()
    assert (cursor.forced_text, cursor.is_terminal, cursor.candidate_index) == (b"", False, None)
    cursor.advance(F)
    assert (cursor.forced_text, cursor.is_terminal, cursor.n_tokens) == (b"oo", False, 1)
    cursor.advance(OO)
    assert (cursor.forced_text, cursor.is_terminal, cursor.candidate_index) == (b"", True, 1)
    assert cursor.automaton.n_candidates == 3
    cursor.advance(STOP)
    assert (cursor.is_finished, cursor.is_terminal, cursor.candidate_index, cursor.forced_text) == (True, True, 1, b"")
    cursor.advance(STOP)  # a stop id again changes nothing
    assert (cursor.is_finished, cursor.n_tokens) == (True, 4)
    cursor.rollback(2)
    cursor.advance(D)
    assert cursor.candidate_index == 0


def test_a_refused_token_changes_nothing():
    cursor = compile(hand_vocabulary(), ["foo"]).cursor()
    cursor.advance(F)
    for token_id in (F, STOP, CONTROL, EMPTY, -1, 26, 2**40, -(2**40)):
        with pytest.raises(TokenNotAllowed) as caught:
            cursor.advance(token_id)
        assert caught.value.context["token_id"] == token_id
        assert (cursor.n_tokens, cursor.allowed_token_ids().tolist()) == (1, [OH, OO, OH_TWIN])
    with pytest.raises(TokenNotAllowed):
        cursor.advance(STOP)


@pytest.mark.parametrize("n", [-1, 2])
def test_rollback_beyond_the_start_is_refused(n):
    cursor = compile(hand_vocabulary(), ["foo"]).cursor()
    cursor.advance(F)
    with pytest.raises(ValueError, match="of 1 tokens"):
        cursor.rollback(n)
    assert cursor.n_tokens == 1


def test_stop_ids_belong_to_the_object_and_not_to_its_bytes():
    vocabulary = hand_vocabulary()
    assert vocabulary.stop_token_ids == (HAND_STOP,)
    default = compile(vocabulary, ["foo"])
    other = compile(vocabulary, ["foo"], stop_token_ids=[CONTROL, STOP, CONTROL])
    assert (default.stop_token_ids, other.stop_token_ids) == ((STOP,), (CONTROL, STOP))
    assert default.to_bytes() == other.to_bytes()
    assert Automaton.from_bytes(default.to_bytes(), vocabulary).stop_token_ids == ()
    assert Automaton.from_bytes(default.to_bytes(), vocabulary, stop_token_ids=[15]).stop_token_ids == (15,)


@pytest.mark.parametrize("token_id", [-1, 26])
def test_a_stop_id_outside_of_the_vocabulary_is_refused(token_id):
    with pytest.raises(ParameterError) as caught:
        compile(hand_vocabulary(), ["foo"], stop_token_ids=[token_id])
    assert caught.value.context == {"field": "stop_token_ids", "token_id": token_id}


def test_a_stop_id_with_text_is_permitted_only_where_a_candidate_ends():
    cursor = compile(hand_vocabulary(), ["foo", "food"], stop_token_ids=[D]).cursor()
    assert cursor.allowed_token_ids().tolist() == [F, FO, FOO, FOOD]
    cursor.advance(FOO)
    assert cursor.allowed_token_ids().tolist() == [D]
    cursor.advance(D)
    assert (cursor.is_finished, cursor.candidate_index) == (True, 0)


def test_without_stop_ids_the_end_of_a_candidate_permits_nothing():
    cursor = compile(hand_vocabulary(), ["foo"], stop_token_ids=[]).cursor()
    cursor.advance(FOO)
    assert cursor.allowed_token_ids().tolist() == []


@pytest.mark.parametrize(
    ("leading_space", "first", "answers"),
    [
        ("never", [A, SPACE, SPACE_A], {(A,): 0, (SPACE, A): 1}),
        ("optional", [A, SPACE, SPACE_A], {(A,): 0, (SPACE, A): 1, (SPACE_A,): 1, (SPACE, SPACE_A): 1}),
        ("always", [SPACE, SPACE_A], {(SPACE_A,): 0, (SPACE, SPACE, A): 1}),
    ],
)
def test_leading_space_maps_back_to_the_candidate(leading_space, first, answers):
    cursor = compile(hand_vocabulary(), ["a", " a"], leading_space=leading_space).cursor()
    assert cursor.allowed_token_ids().tolist() == first
    for token_ids, index in answers.items():
        twin = cursor.copy()
        for token_id in token_ids:
            twin.advance(token_id)
        assert twin.candidate_index == index


def test_a_batch_grows_its_rows_and_keeps_failures():
    vocabulary = hand_vocabulary()
    batch = Batch(vocabulary, 3)
    batch._out = np.empty(1, np.int32)
    automaton = compile(vocabulary, ["foo", "food"])
    batch.start(0, automaton, [STOP])
    batch.start(2, automaton, [STOP])
    nothing, pointers = np.empty(0, np.int32), np.zeros(3, np.int64)
    rows = batch.step(np.array([2, 0], np.int32), pointers, nothing)
    assert rows.token_ids.tolist() == [F, FO, FOO, FOOD] * 2 or sorted(rows.token_ids[:4]) == [F, FO, FOO, FOOD]
    assert rows.row_ptr.tolist() == [0, 4, 8]
    rows = batch.step(np.array([2, 0], np.int32), np.array([0, 1, 3]), np.array([-1, FOO, STOP], np.int32))
    assert (rows.failed.tolist(), rows.row_ptr.tolist(), rows.token_ids.tolist()) == ([True, False], [0, 0, 1], [STOP])
    rows = batch.step(np.array([2], np.int32), np.array([0, 1]), np.array([FOO], np.int32))
    assert rows.failed.tolist() == [True]
    batch.start(2, automaton, [STOP])
    rows = batch.step(np.array([2], np.int32), np.array([0, 1]), np.array([FOO], np.int32))
    assert sorted(rows.token_ids.tolist()) == [D, STOP]


def test_a_leaf_without_stop_ids_fails_its_slot():
    vocabulary = hand_vocabulary()
    batch = Batch(vocabulary, 1)
    batch.start(0, compile(vocabulary, ["foo"]), [])
    rows = batch.step(np.zeros(1, np.int32), np.array([0, 1]), np.array([FOO], np.int32))
    assert (rows.failed.tolist(), rows.row_ptr.tolist()) == ([True], [0, 0])


@pytest.mark.parametrize(
    ("slots", "pointers", "tokens"),
    [
        ([1], [0, 0], []),
        ([-1], [0, 0], []),
        ([2], [0, 0], []),
        ([0], [0], []),
        ([0], [0, 1], []),
        ([0], [1, 1], [5]),
        ([0, 0], [0, 2, 1], [5]),
    ],
)
def test_a_batch_refuses_arguments_that_do_not_fit_and_stays_as_it_was(slots, pointers, tokens):
    vocabulary = hand_vocabulary()
    batch = Batch(vocabulary, 2)
    batch.start(0, compile(vocabulary, ["foo"]), [STOP])
    with pytest.raises(InternalInvariant):
        batch.step(np.array(slots, np.int32), np.array(pointers, np.int64), np.array(tokens, np.int32))
    rows = batch.step(np.zeros(1, np.int32), np.zeros(2, np.int64), np.empty(0, np.int32))
    assert sorted(rows.token_ids.tolist()) == [F, FO, FOO]


def test_an_empty_step_gives_no_rows():
    batch = Batch(hand_vocabulary(), 2)
    rows = batch.step(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int32))
    assert (rows.row_ptr.tolist(), rows.token_ids.size, rows.failed.size) == ([0], 0, 0)


def test_a_batch_keeps_an_artifact_alive_that_nobody_else_holds():
    vocabulary = hand_vocabulary()
    batch = Batch(vocabulary, 1)
    blob = bytearray(compile(vocabulary, ["foo", "food"]).to_bytes())
    batch.start(0, Automaton.from_bytes(blob, vocabulary), [STOP])
    with pytest.raises(BufferError):
        blob.extend(b"x")  # still exported
    del blob
    rows = batch.step(np.zeros(1, np.int32), np.array([0, 1]), np.array([FOO], np.int32))
    assert sorted(rows.token_ids.tolist()) == [D, STOP]


def test_an_automaton_of_another_vocabulary_is_refused():
    vocabulary = hand_vocabulary()
    other = Vocabulary.from_token_bytes([*HAND_TOKENS, b"x"])
    automaton = compile(other, ["foo"])
    with pytest.raises(VocabularyMismatch) as caught:
        Batch(vocabulary, 1).start(0, automaton, [])
    assert caught.value.context == {"expected": vocabulary.fingerprint, "found": other.fingerprint}
    with pytest.raises(VocabularyMismatch):
        Automaton.from_bytes(automaton.to_bytes(), vocabulary)
