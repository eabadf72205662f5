"""Cursors and batches against the brute-force oracle, on random vocabularies and candidates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import Automaton, Batch, Vocabulary, bitmask_width, build, compile
from maskfeed_automata.errors import CandidateError, TokenNotAllowed
from reference import Oracle
from vocabularies import random_candidates, random_tokens, tokens_of

leading_spaces = st.sampled_from(["never", "optional", "always"])
# Indices that pick from whatever is permitted; a stop id among the choices ends the text.
walks = st.lists(st.integers(0, 2**16), max_size=12)


def bits_of(row, size):
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert not bits[size:].any()
    return np.flatnonzero(bits).tolist()


def assert_position_is(cursor, oracle, history, text_candidates):
    expected = oracle.allowed(history)
    size = cursor.automaton.vocabulary.size
    assert cursor.allowed_token_ids().tolist() == expected
    row = np.full(bitmask_width(size), -1, np.int32)
    cursor.fill_bitmask(row)
    assert bits_of(row, size) == expected
    text = oracle.text(history)
    assert cursor.is_terminal == (text in oracle.index_of)
    assert cursor.is_finished == (bool(history) and history[-1] in oracle.stop_token_ids)
    index = oracle.index_of.get(text)
    assert cursor.candidate_index == index
    for token_id in set(range(-1, size + 1)) - set(expected):
        with pytest.raises(TokenNotAllowed):
            cursor.advance(token_id)
    assert cursor.n_tokens == len(history)
    forced = cursor.forced_text
    going_on = {variant[len(text) :] for variant in text_candidates if variant.startswith(text)}
    if cursor.is_finished or b"" in going_on:
        assert forced == b""
    else:
        assert all(rest.startswith(forced) for rest in going_on)
        # Forced as far as can be: then either something ends, or there are two ways.
        rests = {rest[len(forced) :] for rest in going_on}
        assert b"" in rests or len({rest[0] for rest in rests}) > 1


@settings(max_examples=250, deadline=None)
@given(random_tokens, random_candidates, leading_spaces, walks, st.data())
def test_a_cursor_permits_exactly_what_the_oracle_permits(drawn, candidates, leading_space, walk, data):
    tokens = tokens_of(drawn)
    stop_ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=3))
    oracle = Oracle(tokens, candidates, stop_ids, leading_space)
    vocabulary = Vocabulary.from_token_bytes(tokens)
    lost = [
        index
        for index, candidate in enumerate(candidates)
        if not any(oracle.producible(variant) for variant, k in oracle.index_of.items() if candidates[k] == candidate)
    ]
    if lost:
        with pytest.raises(CandidateError) as caught:
            compile(vocabulary, candidates, stop_token_ids=stop_ids, leading_space=leading_space)
        assert caught.value.context["index"] == lost[0]
        return
    automaton = compile(vocabulary, candidates, stop_token_ids=stop_ids, leading_space=leading_space)
    variants = list(oracle.index_of)
    cursor = automaton.cursor()
    history: list[int] = []
    assert_position_is(cursor, oracle, history, variants)
    for choice in walk:
        allowed = oracle.allowed(history)
        if not allowed:
            break
        fork = cursor.copy()
        history.append(allowed[choice % len(allowed)])
        cursor.advance(history[-1])
        assert_position_is(cursor, oracle, history, variants)
        assert fork.n_tokens == len(history) - 1
    n = data.draw(st.integers(0, len(history)))
    cursor.rollback(n)
    assert_position_is(cursor, oracle, history[: len(history) - n], variants)


@settings(max_examples=150, deadline=None)
@given(random_tokens, st.lists(random_candidates, min_size=1, max_size=3), leading_spaces, st.data())
def test_a_batch_permits_what_cursors_permit_under_moves_swaps_and_bad_tokens(drawn, sets, leading_space, data):
    tokens = tokens_of((set(), *drawn[1:]))
    vocabulary = Vocabulary.from_token_bytes(tokens)
    stop_ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=2))
    automata = [compile(vocabulary, c, leading_space=leading_space, stop_token_ids=stop_ids) for c in sets]
    batch = Batch(vocabulary, 5)
    model: list = [None] * 5  # per slot: a cursor, or "failed"
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["start", "clear", "move", "swap", "step", "step", "step"]))
        a, b = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
        if action == "start":
            automaton = data.draw(st.sampled_from(automata))
            batch.start(a, automaton, stop_ids)
            model[a] = automaton.cursor()
        elif action == "clear":
            batch.clear(a)
            model[a] = None
        elif action == "move":
            batch.move(a, b)
            if a != b:
                model[a], model[b] = None, model[a]
        elif action == "swap":
            batch.swap(a, b)
            model[a], model[b] = model[b], model[a]
        else:
            step_and_compare(batch, model, tokens, data)
    for slot in range(5):
        assert (batch.automaton(slot) is None) == (model[slot] is None)


def step_and_compare(batch, model, tokens, data):
    slots = [slot for slot in range(5) if model[slot] is not None]
    slots = data.draw(st.permutations(slots))
    new: list[list[int]] = []
    for slot in slots:
        mine = []
        for _ in range(data.draw(st.integers(0, 2))):
            cursor = model[slot]
            good = [] if cursor == "failed" else cursor.allowed_token_ids().tolist()
            token = data.draw(st.one_of(st.sampled_from(good or [-1]), st.integers(-1, len(tokens) + 1)))
            mine.append(token)
            if token in good:
                cursor.advance(token)
            else:
                model[slot] = "failed"
        new.append(mine)
    pointers = np.cumsum([0, *map(len, new)]).astype(np.int64)
    flat = np.array([token for mine in new for token in mine], np.int32)
    rows = batch.step(np.array(slots, np.int32), pointers, flat)
    assert rows.row_ptr[-1] == rows.token_ids.size
    for i, slot in enumerate(slots):
        ids = rows.token_ids[rows.row_ptr[i] : rows.row_ptr[i + 1]].tolist()
        expected = [] if model[slot] == "failed" else model[slot].allowed_token_ids().tolist()
        if not expected:
            model[slot] = "failed"
        assert sorted(ids) == expected
        assert rows.failed[i] == (not expected)


@settings(max_examples=150, deadline=None)
@given(random_tokens, random_candidates, leading_spaces)
def test_an_artifact_read_back_permits_the_same_and_reports_ranks(drawn, candidates, leading_space):
    tokens = tokens_of((set(), *drawn[1:]))
    vocabulary = Vocabulary.from_token_bytes(tokens)
    automaton = compile(vocabulary, candidates, leading_space=leading_space, stop_token_ids=[])
    blob = automaton.to_bytes()
    assert len(blob) == automaton.nbytes
    again = Automaton.from_bytes(blob, vocabulary)
    assert (again.digest, again.n_candidates, again.n_nodes, again.nbytes, again.leading_space) == (
        automaton.digest,
        automaton.n_candidates,
        automaton.n_nodes,
        len(blob),
        leading_space,
    )
    assert again.to_bytes() == blob
    ranks = sorted(set(candidates))
    oracle = Oracle(tokens, ranks, (), leading_space)
    for candidate in candidates:
        cursor = again.cursor()
        text = b" " + candidate if leading_space == "always" else candidate
        for byte in text:
            cursor.advance(tokens.index(bytes([byte])))
        assert cursor.candidate_index == oracle.index_of[text]


@settings(max_examples=60, deadline=None)
@given(random_tokens, random_candidates)
def test_what_build_makes_is_what_compile_makes(drawn, candidates):
    from maskfeed_automata import CandidateSet

    vocabulary = Vocabulary.from_token_bytes(tokens_of((set(), *drawn[1:])))
    candidate_set = CandidateSet.from_strings(candidates)
    assert build(vocabulary, candidate_set).to_bytes() == compile(vocabulary, candidates).to_bytes()
