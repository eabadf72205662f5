"""Why a text can, or can't, be an answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed import Vocabulary
from maskfeed.explanation import explain
from reference import Oracle
from vocabularies import HAND_TOKENS, hand_vocabulary

LIST = ["foo", "food", "bar", "barfoo", "é"]


def walked(explanation):
    return [step.taken.token_id for step in explanation.steps if step.taken is not None]


def test_a_candidate_is_walked_with_the_fewest_tokens_to_its_index():
    found = explain(hand_vocabulary(), LIST, "food")
    assert (found.outcome, found.candidate_index, found.reachable) == ("candidate", 1, "food")
    assert walked(found) == [11]
    assert [step.n_permitted for step in found.steps] == [8, 0]
    assert [step.may_end for step in found.steps] == [False, True]
    assert [token.text for token in found.steps[0].permitted][:3] == ["food", "foo", "bar"]


def test_a_text_outside_of_the_list_is_followed_as_far_as_it_goes():
    found = explain(hand_vocabulary(), LIST, "barfly")
    assert (found.outcome, found.candidate_index, found.reachable) == ("outside", None, "barf")
    assert walked(found) == [10, 6]
    assert [token.text for token in found.steps[-1].permitted] == ["oo", "o", "o"]
    assert (found.n_continuations, found.continuations) == (1, ("barfoo",))
    assert "'barfl'" in found.why


def test_a_mere_beginning_is_called_one():
    found = explain(hand_vocabulary(), LIST, "fo")
    assert (found.outcome, found.reachable, found.n_continuations) == ("beginning", "fo", 2)
    nothing = explain(hand_vocabulary(), LIST, "")
    assert (nothing.outcome, nothing.n_continuations, walked(nothing)) == ("beginning", 5, [])


def test_a_text_that_no_token_ends_in_is_told_apart():
    vocabulary = Vocabulary.from_token_bytes([b"abc", b"x"])
    found = explain(vocabulary, ["abc"], "ab")
    assert (found.outcome, found.reachable) == ("no-tokens", "")
    assert "tokens of the vocabulary reach" in found.why


def test_half_a_character_is_shown_by_its_byte():
    found = explain(hand_vocabulary(), ["é"], "è")
    assert (found.outcome, found.reachable) == ("outside", "\\xc3")
    assert "'è'" in found.why


@pytest.mark.parametrize(
    ("mode", "text", "index"),
    [
        ("never", " foo", None),
        ("always", " foo", 0),
        ("always", "foo", None),
        ("optional", " foo", 0),
        ("optional", "foo", 0),
    ],
)
def test_a_leading_space_counts_as_it_does_when_compiling(mode, text, index):
    assert explain(hand_vocabulary(), ["foo", "bar"], text, leading_space=mode).candidate_index == index


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.text("abofdr", min_size=1, max_size=5), min_size=1, max_size=6),
    st.text("abofdr", max_size=6),
)
def test_every_step_is_permitted_by_brute_force_and_none_goes_further(candidates, text):
    found = explain(hand_vocabulary(), candidates, text)
    oracle = Oracle(HAND_TOKENS, [candidate.encode() for candidate in candidates])
    taken: list[int] = []
    for step in found.steps:
        allowed = oracle.allowed(taken)
        assert step.n_permitted == len(allowed)
        assert {token.token_id for token in step.permitted} <= set(allowed)
        if step.taken is not None:
            assert step.taken.token_id in allowed
            taken.append(step.taken.token_id)
    assert oracle.text(taken).decode() == found.reachable
    assert text.startswith(found.reachable)
    assert (found.candidate_index is not None) == (text in candidates)
    counts = [sum(each.startswith(text[:n]) for each in set(candidates)) for n in range(len(text) + 1)]
    assert found.n_continuations == [count for count in counts if count][-1]
