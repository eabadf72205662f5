"""Checking an answer that was not streamed."""

import json

import msgspec
import pytest

from maskfeed.service.answers import finish
from maskfeed_automata.errors import InternalInvariant, SetRefused, UpstreamError
from tiny_engine import (
    CHAT,
    COMPLETIONS,
    EOS,
    FIGURES,
    OTHER_STOP,
    PADDING,
    RECORD,
    RESERVED,
    VOCABULARY,
    WORDS,
    ask,
    response,
    said,
    tokens,
)

CITIES = ["Rome", "Paris", "Pa", "Paris", "São Paulo"]


def answer(asked, *choices, **members):
    request, candidate_set = asked
    return finish(request, candidate_set, VOCABULARY, RECORD, response(request, *choices, **members), FIGURES)


def text_of(result, index=0):
    choice = result["choices"][index]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
class TestOnEitherRoute:
    def test_an_answer_is_the_callers_string_at_the_callers_index(self, route):
        result = answer(ask(CITIES, route=route), said([*tokens("São Paulo"), EOS]))
        assert text_of(result) == "São Paulo"
        expected = {"complete": True, "candidate": "São Paulo", "index": 4, "id": None, "reason": None}
        assert result["choices"][0]["maskfeed"] == expected
        assert result["maskfeed"].items() >= expected.items()

    def test_the_ids_are_stripped_unless_they_were_asked_for(self, route):
        ids = [*tokens("Rome"), EOS]
        result = answer(ask(CITIES, route=route), said(ids), prompt_token_ids=[9, 9])
        assert "token_ids" not in json.dumps(result)
        result = answer(ask(CITIES, route=route, return_token_ids=True), said(ids), prompt_token_ids=[9, 9])
        assert (result["choices"][0]["token_ids"], result["prompt_token_ids"]) == (ids, [9, 9])

    def test_the_rest_of_the_response_is_the_engines(self, route):
        result = answer(ask(CITIES, route=route), said([*tokens("Rome"), EOS], logprobs={"x": 1}))
        assert (result["id"], result["usage"], result["choices"][0]["logprobs"]) == (
            "x-1",
            {"total_tokens": 5},
            {"x": 1},
        )
        assert result["choices"][0]["finish_reason"] == "stop"
        msgspec.json.encode(result)

    def test_reasoning_is_emptied_because_the_answer_is_all_of_it(self, route):
        result = answer(ask(CITIES, route=route), said([*tokens("Rome"), EOS]))
        assert "the engine's text" not in json.dumps(result)


class TestTheObjectMaskfeed:
    def test_it_tells_of_the_set_and_of_the_way(self):
        asked = ask(CITIES)
        result = answer(asked, said([*tokens("Rome"), EOS]))
        assert result["maskfeed"] == {
            "enforced": True,
            "digest": asked[1].digest(VOCABULARY.fingerprint, "never"),
            "candidates": 5,
            "duplicates": 1,
            **FIGURES,
            "complete": True,
            "candidate": "Rome",
            "index": 0,
            "id": None,
            "reason": None,
        }

    def test_of_duplicates_the_first_one_is_named_with_its_id(self):
        asked = ask([{"value": "a", "id": "first"}, {"value": "b", "id": 2}, {"value": "a", "id": "second"}])
        result = answer(asked, said([*tokens("a"), EOS]))
        assert (result["maskfeed"]["index"], result["maskfeed"]["id"]) == (0, "first")

    def test_each_of_several_choices_has_its_own(self):
        result = answer(ask(CITIES, n=3), *(said([*tokens(text), EOS]) for text in ("Rome", "Pa", "Paris")))
        assert [choice["maskfeed"]["index"] for choice in result["choices"]] == [0, 2, 1]
        assert "candidate" not in result["maskfeed"]


class TestEnds:
    def test_a_stop_id_of_the_client_ends_a_candidate_too(self):
        asked = ask(CITIES, stop_token_ids=[OTHER_STOP])
        result = answer(asked, said([*tokens("Pa"), OTHER_STOP], stop_reason=OTHER_STOP))
        assert result["maskfeed"]["candidate"] == "Pa"
        assert result["choices"][0]["stop_reason"] == OTHER_STOP

    def test_a_stop_id_that_only_the_engines_server_knows_ends_a_candidate_too(self):
        result = answer(ask(CITIES), said([*tokens("Pa"), PADDING], stop_reason=PADDING))
        assert result["maskfeed"]["candidate"] == "Pa"

    def test_tokens_of_several_bytes_are_read_by_their_bytes(self):
        result = answer(ask(CITIES), said([WORDS[b"Pa"], WORDS[b"ris"], EOS]))
        assert result["maskfeed"]["candidate"] == "Paris"

    def test_max_tokens_in_the_middle_is_reported_and_is_no_candidate(self):
        result = answer(ask(CITIES), said(tokens("Par"), finish_reason="length"))
        assert text_of(result) == "Par"
        assert result["choices"][0]["finish_reason"] == "length"
        expected = {"complete": False, "candidate": None, "index": None, "id": None, "reason": "length"}
        assert result["choices"][0]["maskfeed"] == expected

    def test_max_tokens_at_the_end_of_a_candidate_is_reported_just_so(self):
        result = answer(ask(CITIES), said(tokens("Pa"), finish_reason="length"))
        assert (result["maskfeed"]["complete"], result["maskfeed"]["candidate"]) == (False, None)

    def test_max_tokens_inside_a_character_shows_a_replacement(self):
        result = answer(ask(CITIES), said(tokens("Sã")[:2], finish_reason="length"))
        assert text_of(result) == "S\ufffd"

    @pytest.mark.parametrize(("include", "text"), [(False, "P"), (True, "Par")])
    def test_a_stop_string_cuts_and_is_reported(self, include, text):
        asked = ask(CITIES, stop=["x", "ar"], include_stop_str_in_output=include)
        result = answer(asked, said(tokens("Paris"), stop_reason="ar"))
        assert text_of(result) == text
        assert result["maskfeed"] | {"complete": False, "reason": "stop-string"} == result["maskfeed"]

    def test_a_candidate_that_a_stop_string_ended_is_not_one(self):
        result = answer(ask(CITIES, stop="Pa"), said(tokens("Pa"), stop_reason="Pa"))
        assert (text_of(result), result["maskfeed"]["complete"]) == ("", False)

    def test_a_stop_string_that_is_nowhere_in_the_text_leaves_it_whole(self):
        result = answer(ask(CITIES, stop="zz"), said(tokens("Par"), stop_reason="zz"))
        assert text_of(result) == "Par"

    @pytest.mark.parametrize("reason", ["abort", "repetition"])
    def test_other_ends_are_reported_by_their_name(self, reason):
        result = answer(ask(CITIES), said(tokens("Pa"), finish_reason=reason, stop_reason="repetition_detected"))
        assert (text_of(result), result["maskfeed"]["reason"]) == ("Pa", reason)


class TestLeadingSpace:
    @pytest.mark.parametrize(
        ("leading_space", "candidates", "generated", "candidate"),
        [
            ("never", ["Paris", " Paris"], " Paris", " Paris"),
            ("always", ["Paris", "Rome"], " Paris", "Paris"),
            ("always", ["Paris", " Paris"], " Paris", "Paris"),
            ("always", ["Paris", " Paris"], "  Paris", " Paris"),
            ("optional", ["Paris", "Rome"], " Paris", "Paris"),
            ("optional", ["Paris", "Rome"], "Paris", "Paris"),
            ("optional", ["Paris", " Paris"], " Paris", " Paris"),
            ("optional", ["Paris", " Rome"], " Paris", "Paris"),
            ("optional", ["Paris", " Rome"], "  Rome", " Rome"),
        ],
    )
    def test_the_answer_is_mapped_back_to_the_candidate(self, leading_space, candidates, generated, candidate):
        asked = ask(candidates, candidate_options={"leading_space": leading_space})
        result = answer(asked, said([*tokens(generated), EOS]))
        assert (text_of(result), result["maskfeed"]["index"]) == (candidate, candidates.index(candidate))

    @pytest.mark.parametrize(
        ("leading_space", "candidates", "generated", "text"),
        [
            ("never", [" Paris"], " Pa", " Pa"),
            ("always", ["Paris"], " Pa", "Pa"),
            ("always", ["Paris"], "", ""),
            ("optional", ["Paris"], " Pa", "Pa"),
            ("optional", ["Paris", " Prague"], " P", " P"),
        ],
    )
    def test_a_cut_answer_loses_only_a_space_that_is_certainly_ours(self, leading_space, candidates, generated, text):
        asked = ask(candidates, candidate_options={"leading_space": leading_space})
        assert text_of(answer(asked, said(tokens(generated), finish_reason="length"))) == text


class TestWhatIsNoAnswer:
    def test_a_refusal_of_the_engine_is_an_error_with_its_stage(self):
        with pytest.raises(SetRefused) as caught:
            answer(ask(CITIES), said([RESERVED], stop_reason=RESERVED))
        assert caught.value.context["stage"] == "admission"

    def test_one_refused_choice_refuses_them_all(self):
        with pytest.raises(SetRefused):
            answer(ask(CITIES, n=2), said([*tokens("Rome"), EOS]), said([RESERVED], stop_reason=RESERVED))

    @pytest.mark.parametrize("generated", ["", "Rom", "Romes", "rome", " Rome", "SECRET"])
    def test_a_finished_answer_that_is_no_candidate_is_a_defect_and_never_shown(self, generated):
        with pytest.raises(InternalInvariant) as caught:
            answer(ask(CITIES), said([*tokens(generated), EOS]))
        assert "SECRET" not in str(caught.value)

    @pytest.mark.parametrize("token_id", [EOS, PADDING, RESERVED, 5_000])
    def test_a_token_without_bytes_inside_an_answer_is_a_defect(self, token_id):
        with pytest.raises(InternalInvariant):
            answer(ask(CITIES), said([*tokens("Pa"), token_id, *tokens("ris"), EOS]))

    @pytest.mark.parametrize(
        "choices",
        [
            pytest.param([], id="no choice"),
            pytest.param([said(None)], id="no token ids"),
            pytest.param([said("abc")], id="token ids that are text"),
            pytest.param([said(["a"])], id="a token id that is text"),
            pytest.param([said(tokens("Rome"), finish_reason=None)], id="no finish reason"),
            pytest.param([said([*tokens("Rome"), EOS], message=None)], id="no message"),
            pytest.param([said([*tokens("Rome"), EOS])] * 2, id="a choice too many"),
        ],
    )
    def test_a_response_of_another_shape_is_the_engines_failure(self, choices):
        with pytest.raises(UpstreamError):
            answer(ask(CITIES), *choices)

    @pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": [None]}, {"object": "error"}])
    def test_a_body_without_choices_is_the_engines_failure(self, body):
        request, candidate_set = ask(CITIES)
        with pytest.raises(UpstreamError):
            finish(request, candidate_set, VOCABULARY, RECORD, body, FIGURES)
