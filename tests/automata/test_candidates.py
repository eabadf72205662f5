"""Canonical form, digest, and what bad lists get."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import CandidateSet, Limits, Vocabulary, compile, shortest_tokenisation
from maskfeed_automata.errors import CandidateError, LimitExceeded, ParameterError
from vocabularies import hand_vocabulary

# Long shared beginnings, NULs and strings that end inside one another: the hard cases of an eight-byte sort.
_parts = st.sampled_from([b"\0", b"a", b"ab", b"aaaaaaaa", b"\0" * 8, b"b", b"\xff", b"aaaaaaaab"])
_strings = st.lists(_parts, min_size=1, max_size=5).map(b"".join)
_lists = st.lists(_strings, min_size=1, max_size=120)


@settings(max_examples=300, deadline=None)
@given(_lists)
def test_members_are_sorted_unique_and_know_where_they_came_from(candidates):
    found = CandidateSet.from_strings(candidates)
    expected = sorted(set(candidates))
    assert [found.candidate_bytes(rank) for rank in range(found.n_candidates)] == expected
    assert found.rank_of_input.tolist() == [expected.index(candidate) for candidate in candidates]
    assert found.first_input_of_rank.tolist() == [candidates.index(candidate) for candidate in expected]
    assert (found.n_inputs, found.n_duplicates) == (len(candidates), len(candidates) - len(expected))
    assert found.longest_bytes == max(map(len, candidates))
    for rank, candidate in enumerate(expected):
        assert found.rank_of(candidate) == rank
    assert found.rank_of(b"nowhere") is None
    assert found.rank_of(b"\xff" * 20) is None


@settings(max_examples=300, deadline=None)
@given(_lists, _lists)
def test_the_members_of_another_set_are_found_by_their_rank(candidates, sought):
    found, other = CandidateSet.from_strings(candidates), CandidateSet.from_strings(sought)
    members = sorted(set(candidates))
    expected = [members.index(each) if each in members else -1 for each in sorted(set(sought))]
    assert found.ranks_of(other).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_order_duplicates_or_type(texts, random):
    digest = CandidateSet.from_strings(texts).digest("0" * 64, "never")
    shuffled = texts + texts[:3]
    random.shuffle(shuffled)
    encoded = [text.encode() if random.random() < 0.5 else text for text in shuffled]
    assert CandidateSet.from_strings(encoded).digest("0" * 64, "never") == digest
    assert CandidateSet.from_strings([*texts, "another one"]).digest("0" * 64, "never") != digest


def test_the_digest_covers_vocabulary_options_and_boundaries():
    sets = [CandidateSet.from_strings(texts) for texts in (["ab", "c"], ["a", "bc"], ["abc"])]
    digests = {
        candidate_set.digest(fingerprint, option)
        for candidate_set in sets
        for fingerprint in ("0" * 64, "1" * 64)
        for option in ("never", "optional", "always")
    }
    assert len(digests) == 18
    assert all(len(digest) == 64 and int(digest, 16) >= 0 for digest in digests)


@pytest.mark.parametrize("n_equal", [0, 1, 30, 300])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 100])
def test_sorting_long_equal_beginnings(length, n_equal):
    random = np.random.default_rng(length * 1000 + n_equal)
    tails = [bytes(random.integers(0, 3, random.integers(0, 12), np.uint8)) for _ in range(200)]
    candidates = [b"\0" * length + tail for tail in tails] + [b"\0" * length] * n_equal
    found = CandidateSet.from_strings(candidates)
    assert [found.candidate_bytes(rank) for rank in range(found.n_candidates)] == sorted(set(candidates))


def test_a_sorted_list_is_taken_as_it_is():
    texts = [f"{number:06d}" for number in range(1000)]
    found = CandidateSet.from_strings(texts)
    assert found.rank_of_input.tolist() == list(range(1000))


BAD_LISTS = [
    ("empty", [], None),
    ("one string", "foo", None),
    ("bytes", b"foo", None),
    ("a set", {"a"}, None),
    ("None", None, None),
    ("an empty string", ["a", "", ""], 1),
    ("only an empty string", [""], 0),
    ("empty bytes", ["a", b""], 1),
    ("a boolean", ["a", True], 1),
    ("None inside", [None, "a"], 0),
    ("a number", ["a", "b", 3], 2),
    ("a list inside", [["a"]], 0),
    ("a lone surrogate", ["ä", "x\ud800", "\udfff"], 1),
    ("the first of several faults", ["a", "\ud800", None], 1),
]


@pytest.mark.parametrize(("candidates", "index"), [row[1:] for row in BAD_LISTS], ids=[row[0] for row in BAD_LISTS])
def test_a_bad_list_is_refused_with_its_index(candidates, index):
    with pytest.raises(CandidateError) as caught:
        CandidateSet.from_strings(candidates)
    assert type(caught.value) is CandidateError
    assert caught.value.context["field"] == "candidates"
    assert caught.value.context.get("index") == index
    if index is not None:
        assert f"candidates[{index}]" in str(caught.value)


LIMITS = Limits(max_candidates=3, max_candidate_bytes=4, max_total_bytes=9)
OVER = [
    ("count", ["a", "a", "a", "a"], {"limit": 3, "value": 4, "unit": "candidates"}),
    ("one candidate, counted in bytes", ["a", "äää"], {"limit": 4, "value": 6, "unit": "bytes", "index": 1}),
    ("all", ["abcd", "abc", "abc"], {"limit": 9, "value": 10, "unit": "bytes"}),
    ("all, with a NUL among them", ["abc\0", "abc", "abc"], {"limit": 9, "value": 10, "unit": "bytes"}),
]


@pytest.mark.parametrize(("candidates", "context"), [row[1:] for row in OVER], ids=[row[0] for row in OVER])
def test_more_than_a_limit_is_refused_with_both_numbers(candidates, context):
    with pytest.raises(LimitExceeded) as caught:
        CandidateSet.from_strings(candidates, limits=LIMITS)
    assert caught.value.context == {"field": "candidates", **context}


def test_exactly_the_limits_are_accepted():
    assert CandidateSet.from_strings(["abcd", "abc", "\0b"], limits=LIMITS).n_candidates == 3
    with pytest.raises(LimitExceeded):
        compile(hand_vocabulary(), ["a", "b", "c", "d"], limits=LIMITS)


def test_an_unknown_leading_space_option_is_refused():
    candidates = CandidateSet.from_strings(["a"])
    for call in (
        lambda: compile(hand_vocabulary(), ["a"], leading_space="sometimes"),
        lambda: candidates.digest("0" * 64, "sometimes"),
        lambda: candidates.rank_of_answer(b"a", "sometimes"),
    ):
        with pytest.raises(ParameterError, match="sometimes"):
            call()


@pytest.mark.parametrize(
    ("leading_space", "answer", "member"),
    [
        ("never", b"Paris", b"Paris"),
        ("never", b" Rome", None),
        ("optional", b" Rome", b"Rome"),
        ("optional", b" Paris", b" Paris"),
        ("optional", b"  Paris", b" Paris"),
        ("optional", b"  Rome", None),
        ("always", b" Paris", b"Paris"),
        ("always", b"  Paris", b" Paris"),
        ("always", b"Paris", None),
        ("always", b"", None),
    ],
)
def test_an_answer_is_mapped_back_to_its_member(leading_space, answer, member):
    candidates = CandidateSet.from_strings(["Paris", " Paris", "Rome"])
    rank = candidates.rank_of_answer(answer, leading_space)
    assert (None if rank is None else candidates.candidate_bytes(rank)) == member


def test_duplicates_are_one_member_and_report_the_first_index():
    automaton = compile(hand_vocabulary(), ["foo", "bar", "foo", "bar", "foo"])
    assert automaton.n_candidates == 2
    cursor = automaton.cursor()
    cursor.advance(9)
    assert cursor.candidate_index == 0


def test_a_chain_of_a_thousand_prefixes():
    vocabulary = Vocabulary.from_token_bytes([b"a", b"aa", b"a" * 16, b"b"], stop_token_ids=[3])
    candidates = ["a" * n for n in range(1000, 0, -1)]
    cursor = compile(vocabulary, candidates).cursor()
    for n in range(1, 1001):
        cursor.advance(0)
        assert cursor.candidate_index == 1000 - n
    assert cursor.allowed_token_ids().tolist() == [3]
    cursor.rollback(15)
    assert cursor.allowed_token_ids().tolist() == [0, 1, 3]
    cursor.rollback(1)
    assert cursor.allowed_token_ids().tolist() == [0, 1, 2, 3]


def test_a_candidate_of_64_kilobytes():
    vocabulary = Vocabulary.from_token_bytes([b"a", b"a" * 64, b"b"])
    text = "a" * 65_535 + "b"
    cursor = compile(vocabulary, [text, "b"]).cursor()
    cursor.advance(1)
    assert cursor.forced_text == text[64:].encode()
    for _ in range(1022):
        cursor.advance(1)
    assert cursor.allowed_token_ids().tolist() == [0]
    assert shortest_tokenisation(vocabulary, text.encode()) == 1023 + 63 + 1
    with pytest.raises(LimitExceeded) as caught:
        compile(vocabulary, ["b", text + "b"])
    assert caught.value.context["index"] == 1


@pytest.mark.parametrize(
    ("text", "fewest"),
    [(b"", 0), (b"foo", 1), (b"foobar", 2), (b"foodoo", 2), (b"x", None), (b"foox", None), (b"fooo", 2)],
)
def test_the_shortest_tokenisation(text, fewest):
    assert shortest_tokenisation(hand_vocabulary(), text) == fewest


def test_candidates_that_no_tokens_spell_are_refused_with_the_callers_index():
    vocabulary = Vocabulary.from_token_bytes([b"ab", b"c", b"bc"])
    for candidates, index in ((["c", "abx", "a"], 1), (["abc", "a"], 1), (["c", "b", "ab"], 1)):
        with pytest.raises(CandidateError) as caught:
            compile(vocabulary, candidates)
        assert caught.value.context["index"] == index


def test_masks_of_adversarial_sets_are_bounded(monkeypatch):
    # Runs of one byte, every run a token, that branch at every length: each node permits all of them.
    monkeypatch.setattr("maskfeed_automata.builder._MAX_MASK_IDS", 20_000)
    vocabulary = Vocabulary.from_token_bytes([*(b"a" * n for n in range(1, 101)), b"b"])
    candidates = ["a" * n + "b" for n in range(1000)]
    with pytest.raises(LimitExceeded) as caught:
        compile(vocabulary, candidates)
    assert (caught.value.context["limit"], caught.value.context["unit"]) == (20_000, "mask ids")
    assert caught.value.context["value"] > 20_000
    assert compile(vocabulary, candidates[:150]).n_candidates == 150


def test_tokens_that_lead_into_a_dead_end_are_pruned():
    # "abd" is spelt only by "a" "bd": after "ab" nothing spells "d".
    vocabulary = Vocabulary.from_token_bytes([b"a", b"ab", b"bd", b"b"])
    cursor = compile(vocabulary, ["abd", "ba"]).cursor()
    assert cursor.allowed_token_ids().tolist() == [0, 3]
    cursor.advance(0)
    assert cursor.allowed_token_ids().tolist() == [2]
