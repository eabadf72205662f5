"""The kernels, in Triton's interpreter, against the reference in torch and against brute force."""

import pytest
import torch
from device_batch import DeviceBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.errors import CandidateError
from maskfeed_workers.device_layout import SET_MASK_PTR
from reference import Oracle
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary, random_candidates, random_tokens, tokens_of

HAND_CANDIDATES = [b"foo", b"food", b"for", b"a", "\xe9t\xe9".encode(), b"\x00\xff"]
RESERVED = 22


def hand_batch(**options) -> tuple[DeviceBatch, Oracle]:
    batch = DeviceBatch(hand_vocabulary(), **options)
    batch.bind(1, compile(hand_vocabulary(), HAND_CANDIDATES), stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    return batch, Oracle(HAND_TOKENS, HAND_CANDIDATES, [HAND_STOP])


def walks(oracle: Oracle, most: int) -> list[list[int]]:
    """Sequences of permitted tokens, shortest first."""
    found: list[list[int]] = [[]]
    for walk in found:
        if len(found) < most and not (walk and walk[-1] in oracle.stop_token_ids):
            found += [[*walk, token] for token in oracle.allowed(walk)]
    return found[:most]


def test_every_walk_through_a_small_set_permits_what_brute_force_permits():
    batch, oracle = hand_batch()
    for walk in walks(oracle, 60):
        batch.bind(1, compile(hand_vocabulary(), HAND_CANDIDATES), stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
        batch.set_history(1, walk)
        assert batch.permitted([(1, [])]) == [oracle.allowed(walk)]


@settings(max_examples=60, deadline=None)
@given(drawn=random_tokens, candidates=random_candidates, data=st.data())
def test_random_sets_over_random_vocabularies_are_walked_as_by_brute_force(drawn, candidates, data):
    tokens = [*tokens_of(drawn), None, None]
    stop, reserved = len(tokens) - 1, len(tokens) - 2
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[stop])
    try:
        automaton = compile(vocabulary, candidates)
    except CandidateError:
        return
    oracle = Oracle(tokens, candidates, [stop])
    batch = DeviceBatch(vocabulary, width=vocabulary.size + data.draw(st.integers(0, 32)))
    batch.bind(2, automaton, stop_ids=[stop], refusal_ids=[reserved], start=1)
    walk: list[int] = []
    for _ in range(6):
        batch.set_history(2, walk, prompt=[3])
        allowed = oracle.allowed(walk)
        assert batch.permitted([(2, [])]) == [allowed]
        walk.append(data.draw(st.sampled_from(allowed)))


def test_a_row_is_the_same_whether_its_history_came_token_by_token_or_at_once():
    one_by_one, oracle = hand_batch()
    for walk in walks(oracle, 25):
        at_once, _ = hand_batch()
        at_once.set_history(1, walk)
        one_by_one.bind(1, compile(hand_vocabulary(), HAND_CANDIDATES), stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
        for n in range(len(walk) + 1):
            one_by_one.set_history(1, walk[:n])
            last = one_by_one.permitted([(1, [])])
        assert at_once.permitted([(1, [])]) == last


def test_a_history_that_became_shorter_is_walked_again_from_its_beginning():
    batch, oracle = hand_batch()
    walk = walks(oracle, 40)[-1]
    batch.set_history(1, walk)
    batch.masked([(1, [])])
    batch.set_history(1, walk[:1])
    assert batch.permitted([(1, [])]) == [oracle.allowed(walk[:1])]


def test_each_draft_has_a_row_that_follows_it_and_leaves_no_trace():
    batch, oracle = hand_batch()
    for walk in [walk for walk in walks(oracle, 40) if len(walk) >= 3]:
        committed, drafts = walk[:1], walk[1:]
        batch.bind(1, compile(hand_vocabulary(), HAND_CANDIDATES), stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
        batch.set_history(1, committed)
        expected = [oracle.allowed(walk[: 1 + k]) for k in range(len(drafts) + 1)]
        assert batch.permitted([(1, drafts)]) == expected
        assert batch.permitted([(1, [])]) == [oracle.allowed(committed)]


@pytest.mark.parametrize("draft", [-1, 15, HAND_STOP, 26, 1 << 30])
def test_rows_after_a_draft_that_is_not_permitted_are_refused_and_the_slot_is_not(draft):
    batch, oracle = hand_batch()
    first = oracle.allowed([])
    assert draft not in first
    assert batch.permitted([(1, [draft, first[0]])]) == [first, [RESERVED], [RESERVED]]
    assert batch.permitted([(1, [])]) == [first]


def test_a_slot_whose_history_left_the_set_is_refused_from_then_on():
    batch, oracle = hand_batch()
    batch.set_history(1, [15])
    before, after = batch.masked([(1, [])])
    assert after[0, RESERVED] == 0.0
    assert before[0, RESERVED] != 0.0, "a refused row is written whole"
    batch.set_history(1, [15, oracle.allowed([])[0]])
    assert batch.permitted([(1, [])]) == [[RESERVED]]


def test_an_entry_that_was_forbidden_stays_forbidden_except_in_a_refused_row():
    batch, oracle = hand_batch()
    batch.slots.refuse(3, [RESERVED, HAND_STOP])
    batch.slots.flush()
    logits = torch.full((2, batch.width), float("-inf"))
    kept = oracle.allowed([])[0]
    logits[0, kept] = 1.5
    batch.slots.mask_rows(logits, batch.histories, batch.rows([(1, []), (3, [])]))
    assert torch.nonzero(torch.isfinite(logits[0])).flatten().tolist() == [kept]
    assert torch.nonzero(logits[1] == 0.0).flatten().tolist() == [RESERVED, HAND_STOP]


def test_rows_of_free_slots_keep_their_bits_among_constrained_and_refused_ones():
    batch, _ = hand_batch(width=4096 + 33)
    batch.slots.refuse(3, [RESERVED])
    batch.slots.flush()
    logits = batch.logits(5)
    logits[0, :4] = torch.tensor([float("nan"), -0.0, float("-inf"), float("inf")])
    before = logits.clone()
    batch.slots.mask_rows(logits, batch.histories, batch.rows([(0, []), (1, []), (2, []), (3, []), (4, [])]))
    for row in (0, 2, 4):
        assert torch.equal(before[row].view(torch.int32), logits[row].view(torch.int32))


@pytest.mark.parametrize("width", [26, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097, 8192 + 5])
def test_any_width_of_logits_is_masked_to_its_last_entry_and_not_beyond(width):
    batch, oracle = hand_batch(width=width)
    rows = batch.rows([(1, []), (0, [])])
    memory = batch.logits(3)
    before = memory.clone()
    batch.slots.flush()
    batch.slots.mask_rows(memory[:2], batch.histories, rows)
    assert torch.nonzero(torch.isfinite(memory[0])).flatten().tolist() == oracle.allowed([])
    assert torch.equal(memory[1:], before[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_of_any_type_are_masked_where_their_rows_lie(dtype):
    batch, oracle = hand_batch(width=4096 + 33)
    batch.slots.refuse(3, [RESERVED])
    batch.slots.flush()
    # rows of a wider memory, every second one, not at its left end
    memory = torch.randn((6, 4096 + 60), generator=batch.generator).to(dtype)
    before = memory.clone()
    logits = memory[::2, 7 : 7 + batch.width]
    batch.slots.mask_rows(logits, batch.histories, batch.rows([(0, []), (1, []), (3, [])]))
    expected = before.clone()
    for row, kept in ((2, oracle.allowed([])), (4, [RESERVED])):
        expected[row, 7 : 7 + batch.width] = float("-inf")
        where = [7 + token for token in kept]
        expected[row, where] = before[row, where] if row == 2 else 0.0
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(memory.view(kind), expected.view(kind))


def test_a_row_of_a_hundred_thousand_permitted_ids_keeps_exactly_these():
    tokens: list[bytes | None] = [n.to_bytes(3, "big") for n in range(100_000)]
    tokens += [None] * 77
    stop, reserved = len(tokens) - 1, len(tokens) - 2
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[stop])
    candidates = [token for token in tokens if token]
    batch = DeviceBatch(vocabulary, width=len(tokens) + 19, arena_bytes=1 << 23)
    batch.bind(4, compile(vocabulary, candidates), stop_ids=[stop], refusal_ids=[reserved])
    batch.set_history(5, [99_999])
    batch.bind(5, compile(vocabulary, candidates), stop_ids=[stop], refusal_ids=[reserved])
    batch.slots.flush()
    logits = batch.logits(2)
    before = logits.clone()
    batch.slots.mask_rows(logits, batch.histories, batch.rows([(4, []), (5, [])]))
    assert torch.equal(logits[0, :100_000], before[0, :100_000])
    assert not torch.isfinite(logits[0, 100_000:]).any()
    assert torch.nonzero(torch.isfinite(logits[1])).flatten().tolist() == [stop]


def test_a_row_that_permits_nothing_is_refused_instead_of_being_empty():
    vocabulary = hand_vocabulary()
    batch = DeviceBatch(vocabulary)
    automaton = compile(vocabulary, HAND_CANDIDATES)
    batch.bind(1, automaton, stop_ids=[HAND_STOP], refusal_ids=[RESERVED])
    # No builder makes such a set, and no validation of an artifact proves that its masks are not empty.
    place = batch.sets.find(automaton.digest)
    assert place is not None
    start = int(batch.sets.directory[place.row, SET_MASK_PTR])
    batch.sets.arena_int32[start : start + automaton.arrays.mask_ptr.size] = 0
    assert batch.permitted([(1, [])]) == [[RESERVED]]


def test_more_rows_than_the_workspace_has_are_masked_in_several_rounds(monkeypatch):
    monkeypatch.setattr("maskfeed_workers.device_slots._MAX_ROWS", 3)
    batch, oracle = hand_batch()
    walk = next(walk for walk in walks(oracle, 60) if len(walk) >= 3)
    layout = [(0, []), (1, walk), (2, [0, 1])]
    expected = [oracle.allowed(walk[:k]) for k in range(len(walk) + 1)]
    everything = list(range(batch.width))
    assert batch.permitted(layout) == [everything, *expected, *[everything] * 3]


def test_many_stop_ids_and_refusal_ids_all_count():
    tokens: list[bytes | None] = [b"a", *[None] * 300]
    vocabulary = Vocabulary.from_token_bytes(tokens)
    batch = DeviceBatch(vocabulary)
    stop_ids, refusal_ids = list(range(1, 129)), list(range(150, 278))
    batch.bind(0, compile(vocabulary, [b"a", b"aa"]), stop_ids=stop_ids, refusal_ids=refusal_ids)
    batch.set_history(0, [0])
    assert batch.permitted([(0, [])]) == [[0, *stop_ids]]
    batch.set_history(0, [0, 128])
    assert batch.permitted([(0, [])]) == [stop_ids]
    batch.set_history(0, [150])
    assert batch.permitted([(0, [])]) == [refusal_ids]


@pytest.mark.parametrize("n_nodes", [63, 64, 65, 127, 128, 129])
def test_bitmaps_are_read_right_across_the_ends_of_their_words(n_nodes):
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)] + [b"xx", b"xxx", None]
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[258])
    candidates = [b"x" * n for n in range(1, n_nodes, 7)] + [b"x" * (n_nodes - 1)]
    oracle = Oracle(tokens, candidates, [258])
    batch = DeviceBatch(vocabulary, max_len=n_nodes + 8)
    batch.bind(0, compile(vocabulary, candidates), stop_ids=[258], refusal_ids=[258])
    for n in (0, 1, 31, 32, 33, n_nodes - 3, n_nodes - 2, n_nodes - 1):
        batch.set_history(0, [ord("x")] * n)
        assert batch.permitted([(0, [])]) == [oracle.allowed([ord("x")] * n)]
