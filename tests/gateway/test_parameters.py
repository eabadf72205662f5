"""The parameter table: one test a row, on each side that reads it, and its completeness against vLLM's sources."""

import json
from types import SimpleNamespace

import pytest

from maskfeed.service.parameters import check_stop_token_ids
from maskfeed.service.problems import status_of
from maskfeed.service.requests import NativeRequest, parse_request
from maskfeed_automata.errors import ParameterError
from maskfeed_workers.parameters import RULES, Place, check_sampling_parameters
from tiny_engine import CHAT, RECORD
from vllm_source import chat_fields, completion_fields, sampling_fields

# A value that breaks masks, for each rejected row that can be judged without a vocabulary.
BREAKING = {
    "min_tokens": 1,
    "ignore_eos": True,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "logit_bias": {"1": -100},
    "structured_outputs": {"regex": "a"},
    "thinking_token_budget": 0,
    "trace_decode_token_ids": [1],
    "use_beam_search": True,
    "best_of": 2,
    "echo": True,
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "functions": [{"name": "f"}],
    "function_call": "auto",
}
# Values of the same parameters that leave masks alone, None apart.
HARMLESS = {
    "min_tokens": 0,
    "ignore_eos": False,
    "allowed_token_ids": [],
    "bad_words": [],
    "logit_bias": {},
    "thinking_token_budget": -1,
    "trace_decode_token_ids": [],
    "use_beam_search": False,
    "best_of": 1,
    "echo": False,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
}
# Values of types that vLLM would convert to a breaking value.
CONVERTIBLE = {
    "min_tokens": "1",
    "ignore_eos": "true",
    "use_beam_search": 1,
    "echo": "yes",
    "thinking_token_budget": "5",
}
# A value for each parameter that goes with candidates and that the gateway reads itself.
TYPED = {
    "n": 2,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "include_stop_str_in_output": True,
    "vllm_xargs": {"other": 1},
}

rejected = [rule.name for rule in RULES.values() if rule.verdict == "reject"]
allowed = [rule.name for rule in RULES.values() if rule.verdict == "allow"]
at_gateway = [name for name in rejected if name in BREAKING and Place.GATEWAY in RULES[name].seen_at]
at_validate_params = [name for name in rejected if Place.VALIDATE_PARAMS in RULES[name].seen_at]


def parse(body):
    return parse_request(CHAT, json.dumps(body).encode(), reasoning_parser=None)


def attributes(**given):
    return lambda name: getattr(SimpleNamespace(**given), name, None)


@pytest.mark.parametrize("name", at_gateway)
def test_the_gateway_refuses_it_beside_candidates(name):
    with pytest.raises(ParameterError) as caught:
        parse({"candidates": ["a"], name: BREAKING[name]})
    assert caught.value.context["field"] == name
    assert RULES[name].reason in caught.value.message
    assert status_of(caught.value) == 400


@pytest.mark.parametrize("name", [name for name in at_gateway if name != "structured_outputs"])
def test_a_choice_beside_it_stays_with_the_engine(name):
    body = {"structured_outputs": {"choice": ["a"]}, name: BREAKING[name]}
    request = parse(body)
    assert isinstance(request, NativeRequest)
    assert request.reason == name


@pytest.mark.parametrize("name", at_gateway)
def test_without_a_constraint_the_gateway_lets_it_pass(name):
    assert isinstance(parse({name: BREAKING[name]}), NativeRequest)


@pytest.mark.parametrize("name", at_gateway)
def test_the_gateway_takes_its_harmless_values(name):
    for value in (None, HARMLESS.get(name)):
        assert parse({"candidates": ["a"], name: value}).body == {name: value}


@pytest.mark.parametrize("name", sorted(CONVERTIBLE))
def test_the_gateway_refuses_what_vllm_would_convert(name):
    with pytest.raises(ParameterError):
        parse({"candidates": ["a"], name: CONVERTIBLE[name]})


@pytest.mark.parametrize("name", at_validate_params)
def test_validate_params_refuses_it(name):
    with pytest.raises(ParameterError) as caught:
        check_sampling_parameters(attributes(**{name: BREAKING[name]}))
    assert caught.value.context["field"] == name


@pytest.mark.parametrize("name", at_validate_params)
def test_validate_params_takes_its_harmless_values(name):
    check_sampling_parameters(attributes(**{name: HARMLESS.get(name)}))
    check_sampling_parameters(attributes())


@pytest.mark.parametrize("name", allowed)
def test_it_goes_with_candidates_and_reaches_the_engine(name):
    value = TYPED.get(name, 1)
    assert parse({"candidates": ["a"], name: value}).body == {name: value}
    check_sampling_parameters(attributes(**{name: value}))


def test_every_rejected_row_has_a_place_and_a_value_here():
    needs_vocabulary = {name for name in rejected if RULES[name].needs_vocabulary}
    assert needs_vocabulary == {"stop_token_ids"}
    assert set(rejected) == set(BREAKING) | needs_vocabulary
    for rule in RULES.values():
        assert bool(rule.seen_at) == (rule.verdict == "reject")
        assert rule.reason


def test_every_parameter_of_vllm_has_a_row():
    known = chat_fields() | completion_fields() | sampling_fields()
    assert len(known) > 70
    assert known - set(RULES) == set()


def test_every_row_is_a_parameter_of_vllm_or_of_openai():
    known = chat_fields() | completion_fields() | sampling_fields()
    assert set(RULES) - known == {"best_of", "functions", "function_call"}


def test_what_validate_params_looks_at_exists_in_vllm():
    assert set(at_validate_params) <= sampling_fields()


class TestStopTokenIds:
    @staticmethod
    def is_text_token(token_id):
        return token_id < 256

    def test_control_tokens_may_stop_an_answer(self):
        check_stop_token_ids([300, 302, 399], RECORD, self.is_text_token)
        check_stop_token_ids([], RECORD, self.is_text_token)

    @pytest.mark.parametrize(
        ("ids", "field", "value"),
        [
            pytest.param([300, 65], "stop_token_ids[1]", 65, id="text"),
            pytest.param([301], "stop_token_ids[0]", 301, id="the reserved id"),
            pytest.param([302, 300, 400], "stop_token_ids[2]", 400, id="beyond the logits"),
        ],
    )
    def test_others_are_refused_by_position(self, ids, field, value):
        with pytest.raises(ParameterError) as caught:
            check_stop_token_ids(ids, RECORD, self.is_text_token)
        assert (caught.value.context["field"], caught.value.context["value"]) == (field, value)
