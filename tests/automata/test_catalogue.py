"""Parts of a catalogue: the same sets as compiled from their strings, under the catalogue's indices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskfeed
from candidate_sets import candidate_set
from maskfeed_automata import CandidateSet, Catalogue, Limits, Vocabulary, compile
from maskfeed_automata.errors import CandidateError, LimitExceeded, ParameterError
from maskfeed_automata.member_kernels import pick_ranks
from vocabularies import HAND_STOP, hand_vocabulary, random_candidates

MODES = ("never", "optional", "always")
EVERY_BYTE = Vocabulary.from_token_bytes([*(bytes([b]) for b in range(256)), b"an", b"the", None], stop_token_ids=[258])


def members(candidates: CandidateSet) -> list[bytes]:
    return [candidates.candidate_bytes(rank) for rank in range(candidates.n_candidates)]


def spelt_indices(automaton, texts):
    """The index that a cursor reports after each text, byte by byte."""
    found = []
    for text in texts:
        cursor = automaton.cursor()
        for byte in text:
            cursor.advance(byte)
        found.append(cursor.candidate_index)
    return found


@settings(deadline=None)
@given(random_candidates, st.lists(st.integers(min_value=0), min_size=1, max_size=20), st.sampled_from(MODES))
def test_a_part_equals_the_compiled_strings_and_reports_indices_of_the_catalogue(candidates, drawn, mode):
    catalogue = Catalogue(EVERY_BYTE, candidates, leading_space=mode)
    indices = [number % len(candidates) for number in drawn]
    strings = [candidates[index] for index in indices]
    part = catalogue.subset(indices)
    whole = compile(EVERY_BYTE, strings, leading_space=mode)
    assert (part.digest, part.to_bytes(), part.stop_token_ids) == (whole.digest, whole.to_bytes(), (258,))
    space = b"" if mode == "never" else b" "
    texts = [space + string for string in strings]
    assert spelt_indices(part, texts) == [indices[place] for place in spelt_indices(whole, texts)]


@settings(deadline=None)
@given(random_candidates, st.lists(st.integers(min_value=0), min_size=1, max_size=20))
def test_picking_ranks_equals_doing_it_by_hand(candidates, drawn):
    whole = CandidateSet.from_strings(candidates)
    ranks = [number % whole.n_candidates for number in drawn]
    keys = np.array(sorted(rank << 32 | place for place, rank in enumerate(ranks)))
    data, offsets, rank_of_input, first_input = pick_ranks(whole.data, whole.offsets, keys)
    unique = sorted(set(ranks))
    assert data.tobytes() == b"".join(whole.candidate_bytes(rank) for rank in unique)
    assert np.diff(offsets).tolist() == [len(whole.candidate_bytes(rank)) for rank in unique]
    assert rank_of_input.tolist() == [unique.index(rank) for rank in ranks]
    assert first_input.tolist() == [ranks.index(rank) for rank in unique]


def test_of_equal_strings_the_first_given_index_is_reported():
    catalogue = Catalogue(EVERY_BYTE, ["a", "b", "a", "a"])
    assert len(catalogue) == 4
    for indices, expected in (([3, 0, 2], 3), ([1, 2, 0, 2], 2), ([0], 0)):
        assert spelt_indices(catalogue.subset(indices), [b"a"]) == [expected]


@pytest.mark.parametrize(
    "make", [list, tuple, lambda chosen: chosen, np.array, lambda chosen: np.array(chosen[::-1], np.uint8)[::-1]]
)
def test_indices_may_be_any_sequence_or_integer_array(make):
    words = [f"{k:03d}" for k in range(20)]
    catalogue = Catalogue(EVERY_BYTE, words)
    assert catalogue.subset(make(range(3, 9))).to_bytes() == compile(EVERY_BYTE, words[3:9]).to_bytes()


@pytest.mark.parametrize(
    ("indices", "index"),
    [([0, 3], 1), ([-1], 0), (np.array([0, 1, 2**63], np.uint64), 2), (np.array([0, -(2**63)]), 1)],
)
def test_an_index_out_of_range_is_named_by_its_place(indices, index):
    with pytest.raises(CandidateError) as caught:
        Catalogue(EVERY_BYTE, ["a", "b", "c"]).subset(indices)
    assert caught.value.context == {"field": "indices", "index": index}


@pytest.mark.parametrize(
    "indices",
    [[], [True, False], [0.0], ["a"], "0", None, 3, {0, 1}, [[0], [1, 2]], [[0, 1]], [None], [1 << 70], b"\0"],
)
def test_what_is_no_list_of_integers_is_refused(indices):
    with pytest.raises(CandidateError) as caught:
        Catalogue(EVERY_BYTE, ["a", "b", "c"]).subset(indices)
    assert caught.value.context == {"field": "indices"}


def test_what_compile_refuses_the_catalogue_refuses_when_it_is_made():
    with pytest.raises(CandidateError) as caught:
        Catalogue(hand_vocabulary(), ["foo", "bad", "xyz", "xyz"])
    assert caught.value.context["index"] == 2
    with pytest.raises(CandidateError):
        Catalogue(Vocabulary.from_token_bytes([b"a"]), ["a"], leading_space="always")
    with pytest.raises(CandidateError):
        Catalogue(EVERY_BYTE, ["a", ""])
    with pytest.raises(LimitExceeded):
        Catalogue(EVERY_BYTE, ["a", "b"], limits=Limits(max_candidates=1))
    with pytest.raises(ParameterError):
        Catalogue(EVERY_BYTE, ["a"], leading_space="sometimes")


@pytest.mark.parametrize("mode", MODES)
def test_a_part_has_its_own_dead_ends(mode):
    vocabulary = Vocabulary.from_token_bytes([b"a", b"ab", b"bd", b"b", b" ", b"c"])
    words = ["abd", "ba", "abab", "bdbd", " ba", "c"]
    catalogue = Catalogue(vocabulary, words, leading_space=mode)
    for chosen in ([0], [0, 2], [1, 3, 4], [5, 4, 3, 2, 1, 0]):
        whole = compile(vocabulary, [words[index] for index in chosen], leading_space=mode)
        assert catalogue.subset(chosen).to_bytes() == whole.to_bytes()


def test_stop_ids_can_be_given_and_a_finished_set_can_be_the_catalogue():
    given_set = CandidateSet.from_strings(["foo", "bar", "foo"])
    catalogue = Catalogue(hand_vocabulary(), given_set)
    assert catalogue.subset([0]).stop_token_ids == (HAND_STOP,)
    assert catalogue.subset([0], stop_token_ids=[15]).stop_token_ids == (15,)
    assert (len(catalogue), members(given_set.subset(np.array([1, 2, 0])))) == (3, [b"bar", b"foo"])
    with pytest.raises(ParameterError):
        catalogue.subset([0], stop_token_ids=[26])


def test_parts_of_a_real_list_equal_the_compiled_strings():
    names = candidate_set("icd10cm_descriptions")
    catalogue = Catalogue(EVERY_BYTE, names)
    choose = np.random.default_rng(7)
    for size in (1, 2, 300, 5_000, len(names)):
        chosen = choose.choice(len(names), size)
        whole = compile(EVERY_BYTE, [names[index] for index in chosen])
        assert catalogue.subset(chosen).to_bytes() == whole.to_bytes()


def test_what_stays_in_memory_is_the_bytes_and_sixteen_more_for_each_candidate():
    names = [f"{number:08d}" for number in range(1_000)]
    catalogue = Catalogue(EVERY_BYTE, names)
    assert catalogue.nbytes == 1_000 * (8 + 16) + 8
    assert maskfeed.Catalogue is Catalogue
