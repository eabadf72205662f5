"""Candidates that can't fit an engine's context are refused by the index that the caller gave them."""

import pytest

from maskfeed_automata import CandidateSet, Vocabulary, check_fits
from maskfeed_automata.errors import CandidateError

# "ab" is one token, so "ababab" takes three and "aaaa" four; there is no token for "c"
VOCABULARY = Vocabulary.from_token_bytes([b"a", b"b", b"ab", b" "])


def check(candidates, max_model_len, leading_space="never"):
    check_fits(
        VOCABULARY, CandidateSet.from_strings(candidates), leading_space=leading_space, max_model_len=max_model_len
    )


def test_the_fewest_tokens_count_and_one_place_is_the_stop_ids():
    check(["ababab", "b"], 4)
    with pytest.raises(CandidateError) as caught:
        check(["b", "ababab"], 3)
    assert caught.value.context == {"field": "candidates", "index": 1, "limit": 2, "value": 3, "unit": "tokens"}


def test_a_space_that_must_be_there_counts_and_one_that_may_be_does_not():
    check(["ababab"], 4, "optional")
    check(["ababab"], 5, "always")
    with pytest.raises(CandidateError) as caught:
        check(["ababab"], 4, "always")
    assert caught.value.context["value"] == 4


def test_a_long_candidate_that_no_tokens_spell_is_refused_as_such():
    with pytest.raises(CandidateError) as caught:
        check(["a", "ccc"], 3)
    assert caught.value.context == {"field": "candidates", "index": 1}
