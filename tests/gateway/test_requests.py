"""Reading request bodies: what is taken, what is left to the engine, what is refused, and with which name."""

import json

import msgspec
import pytest

from maskfeed.service.named_references import SetReference
from maskfeed.service.problems import error_object, status_of
from maskfeed.service.requests import (
    ConstrainedRequest,
    NativeRequest,
    check_pass_through,
    engine_body,
    parse_request,
)
from maskfeed_automata.errors import CandidateError, ParameterError, RequestError
from tiny_engine import CHAT, COMPLETIONS, HANDLE, RECORD
from vllm_source import all_request_fields, chat_fields, completion_fields, messages_fields, responses_fields


def parse(body, *, route=CHAT, reasoning_parser=None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_request(route, raw, reasoning_parser=reasoning_parser)


def refusal(body, *, route=CHAT):
    with pytest.raises(RequestError) as caught:
        parse(body, route=route)
    return caught.value


def param_of(error):
    return error_object(error, None)["error"]["param"]


def choice(values, **members):
    return {"structured_outputs": {"choice": values, **members}}


class TestCandidates:
    def test_strings_are_taken_as_they_are(self):
        request = parse({"model": "m", "messages": [], "candidates": ["b", "a", "b", 'é\n\0"']})
        assert request == ConstrainedRequest(
            route=CHAT,
            source="candidates",
            values=["b", "a", "b", 'é\n\0"'],
            ids=None,
            leading_space="never",
            deadline_ms=None,
            body={"model": "m", "messages": []},
            stream=False,
            n=1,
            wants_token_ids=False,
            include_usage=False,
        )

    def test_objects_carry_the_callers_ids(self):
        request = parse({"candidates": [{"value": "a", "id": 7}, {"value": "b", "id": "x"}, {"value": "c"}]})
        assert (request.values, request.ids) == (["a", "b", "c"], [7, "x", None])

    def test_strings_and_objects_may_be_mixed(self):
        request = parse({"candidates": ["a", {"value": "b", "id": 2**70}, "c"]})
        assert (request.values, request.ids) == (["a", "b", "c"], [None, 2**70, None])

    def test_a_surrogate_pair_is_one_character(self):
        assert parse(rb'{"candidates": ["\ud83d\ude00"]}').values == ["😀"]

    def test_an_empty_list_is_left_for_the_candidate_set_to_refuse(self):
        assert parse({"candidates": []}).values == []

    def test_of_a_member_that_occurs_twice_the_last_one_counts_and_only_that_goes_on(self):
        request = parse(b'{"candidates": ["a"], "seed": 1, "candidates": ["b"], "seed": 2}')
        assert (request.values, request.body) == (["b"], {"seed": 2})

    def test_options_are_read(self):
        request = parse(
            {"candidates": ["a"], "candidate_options": {"leading_space": "optional", "deadline_ms": 600_000}}
        )
        assert (request.leading_space, request.deadline_ms) == ("optional", 600_000)

    @pytest.mark.parametrize(
        ("text", "name", "generation"),
        [("tools", "tools", None), ("A.b-c_9@12", "A.b-c_9", 12), ("x" * 128, "x" * 128, None)],
    )
    def test_a_set_may_be_named_instead_with_or_without_a_generation(self, text, name, generation):
        request = parse({"candidate_set": text, "candidate_options": {"leading_space": "always"}, "seed": 1})
        assert (request.source, request.values, request.ids) == ("named", [], None)
        assert request.reference == SetReference(name, generation, None)
        assert (request.leading_space, request.body) == ("always", {"seed": 1})

    def test_ids_name_a_part_of_a_set(self):
        request = parse({"candidate_set": "tools", "ids": ["a", 7, "a"]})
        assert (request.source, request.reference) == ("ids", SetReference("tools", None, ["a", 7, "a"]))
        assert request.body == {}

    @pytest.mark.parametrize("options", [None, {}, {"leading_space": None, "deadline_ms": None}])
    def test_null_options_count_as_left_out(self, options):
        request = parse({"candidates": ["a"], "candidate_options": options})
        assert (request.leading_space, request.deadline_ms, request.body) == ("never", None, {})

    def test_null_options_beside_no_candidates_change_nothing(self):
        assert isinstance(parse({"candidate_options": None}), NativeRequest)
        assert parse({**choice(["a"]), "candidate_options": None}).body == {}

    @pytest.mark.parametrize(
        ("body", "field", "index"),
        [
            pytest.param({"candidates": None}, "candidates", None, id="null"),
            pytest.param({"candidates": "abc"}, "candidates", None, id="a string"),
            pytest.param({"candidates": {"a": 1}}, "candidates", None, id="an object"),
            pytest.param({"candidates": ["a", 1]}, "candidates", 1, id="a number inside"),
            pytest.param({"candidates": [True]}, "candidates", 0, id="a boolean inside"),
            pytest.param({"candidates": ["a", "b", None]}, "candidates", 2, id="null inside"),
            pytest.param({"candidates": ["a", ["b"]]}, "candidates", 1, id="a list inside"),
            pytest.param({"candidates": ["a", {"value": 1}]}, "candidates", 1, id="a value that is a number"),
            pytest.param({"candidates": [{"value": False}]}, "candidates", 0, id="a value that is a boolean"),
            pytest.param(rb'{"candidates": ["a", "\ud800"], "n": 1}', "candidates", 1, id="a lone high surrogate"),
            pytest.param(rb'{"candidates": ["a", "b", "x\udc00y"]}', "candidates", 2, id="a lone low surrogate"),
            pytest.param(rb'{"candidates": ["\ud800"]}', "candidates", 0, id="a surrogate at the end of the body"),
            pytest.param(
                rb'{"candidates": ["a", {"value": "\ud800 text"}]}', "candidates", 1, id="a surrogate in an object"
            ),
            pytest.param(b'{"candidates": ["a", "\xed\xa0\x80"]}', "candidates", 1, id="a surrogate as three bytes"),
            pytest.param(b'{"candidates": ["a", "b", "\xff"]}', "candidates", 2, id="bytes that are no UTF-8"),
            pytest.param(choice(["a", 1]), "structured_outputs.choice", 1, id="a number among choices"),
            pytest.param(choice("abc"), "structured_outputs.choice", None, id="a choice that is no list"),
            pytest.param(
                rb'{"structured_outputs": {"choice": ["a", "\udfff!"]}}',
                "structured_outputs.choice",
                1,
                id="a surrogate among choices",
            ),
        ],
    )
    def test_what_is_no_string_is_refused_by_its_index(self, body, field, index):
        error = refusal(body)
        assert isinstance(error, CandidateError)
        assert (error.context["field"], error.context.get("index")) == (field, index)
        assert status_of(error) == 400

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"candidates": ["a", {"value": "b", "text": "c"}]}, "candidates[1].text"),
            ({"candidates": [{"value": "b", "weight": 1}]}, "candidates[0].weight"),
            ({"candidates": [{"id": 1}]}, "candidates[0].value"),
            ({"candidates": [{"value": "b", "id": True}]}, "candidates[0].id"),
            ({"candidates": [{"value": "b", "id": 1.5}]}, "candidates[0].id"),
            ({"candidates": ["a"], "candidate_options": {"leading_space": "maybe"}}, "candidate_options.leading_space"),
            ({"candidates": ["a"], "candidate_options": {"deadline_ms": 0}}, "candidate_options.deadline_ms"),
            ({"candidates": ["a"], "candidate_options": {"deadline_ms": 600_001}}, "candidate_options.deadline_ms"),
            ({"candidates": ["a"], "candidate_options": {"deadline_ms": True}}, "candidate_options.deadline_ms"),
            ({"candidates": ["a"], "candidate_options": {"deadline_ms": "9"}}, "candidate_options.deadline_ms"),
            ({"candidates": ["a"], "candidate_options": {"deadline": 5}}, "candidate_options.deadline"),
            ({"candidates": ["a"], "candidate_options": []}, "candidate_options"),
            (rb'{"candidates": ["a", {"value": "b", "id": "\ud800"}]}', "candidates[1].id"),
            (b'{"candidates": [{"value": "b", "id": "\xff"}]}', "candidates[0].id"),
            ({"candidates": ["a"], "max_completion_tokens": "many"}, "max_completion_tokens"),
            ({"candidate_options": {"leading_space": "never"}}, "candidate_options"),
            ({"candidate_set": None}, "candidate_set"),
            ({"candidate_set": ["a"]}, "candidate_set"),
            ({"candidate_set": ""}, "candidate_set"),
            ({"candidate_set": "a/b"}, "candidate_set"),
            ({"candidate_set": "ä"}, "candidate_set"),
            ({"candidate_set": "x" * 129}, "candidate_set"),
            ({"candidate_set": "a@"}, "candidate_set"),
            ({"candidate_set": "a@0"}, "candidate_set"),
            ({"candidate_set": "a@-1"}, "candidate_set"),
            ({"candidate_set": "a@1@2"}, "candidate_set"),
            ({"candidate_set": "a@" + "1" * 17}, "candidate_set"),
            ({"candidate_set": "a", "candidates": ["a"]}, "candidate_set"),
            ({"candidate_set": "a", **choice(["a"])}, "structured_outputs"),
            ({"candidate_set": "a", "ids": None}, "ids"),
            ({"candidate_set": "a", "ids": "x"}, "ids"),
            ({"candidate_set": "a", "ids": ["x", 1.5]}, "ids[1]"),
            ({"candidate_set": "a", "ids": ["x", True]}, "ids[1]"),
            ({"ids": [1]}, "ids"),
            ({"candidates": ["a"], "ids": [1]}, "ids"),
            ({"candidates": ["a"], "stream": "true"}, "stream"),
            ({"candidates": ["a"], "stream": 1}, "stream"),
            ({"candidates": ["a"], "n": 0}, "n"),
            ({"candidates": ["a"], "n": True}, "n"),
            ({"candidates": ["a"], "return_token_ids": "yes"}, "return_token_ids"),
            ({"candidates": ["a"], "stop": 3}, "stop"),
            ({"candidates": ["a"], "stop": ["x", 3]}, "stop[1]"),
            ({"candidates": ["a"], "stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
            ({"candidates": ["a"], "stop_token_ids": [-1]}, "stop_token_ids[0]"),
            ({"candidates": ["a"], "vllm_xargs": []}, "vllm_xargs"),
            ({"candidates": ["a"], "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ],
    )
    def test_a_wrong_member_is_named_by_its_path(self, body, param):
        error = refusal(body)
        assert isinstance(error, ParameterError)
        assert param_of(error) == param
        assert status_of(error) == 400

    def test_no_error_repeats_the_text_of_a_candidate(self):
        for body in ({"candidates": ["SECRET", 1]}, rb'{"candidates": ["SECRET", "SECRET\ud800"]}'):
            error = refusal(body)
            assert "SECRET" not in json.dumps(error_object(error, None))
            assert "SECRET" not in str(error)


class TestJson:
    @pytest.mark.parametrize("raw", [b"", b" \n"])
    def test_an_empty_body_is_called_empty(self, raw):
        error = refusal(raw)
        assert (error.message, status_of(error)) == ("the body is empty", 400)

    @pytest.mark.parametrize(
        ("raw", "position"),
        [
            pytest.param(b'{"temperature": NaN}', 16, id="NaN"),
            pytest.param(b'{"temperature": -Infinity}', 17, id="Infinity"),
            pytest.param(b'\xef\xbb\xbf{"candidates": ["a"]}', 0, id="a byte order mark"),
            pytest.param(b'{"candidates": ["a",]}', 20, id="a trailing comma"),
            pytest.param(b'{"candidates": ["a"]} {}', 23, id="two values"),
            pytest.param(b'{/* */"candidates": ["a"]}', 1, id="a comment"),
            pytest.param(b'{"candidates": ["a\nb"]}', 18, id="a line break in a string"),
            pytest.param(b'{"candidates": ["a", ', None, id="truncation"),
            pytest.param(b"", None, id="an empty body"),
            pytest.param(b'["a"]', None, id="a list"),
            pytest.param(b'"candidates"', None, id="a string"),
            pytest.param(b"null", None, id="null"),
            pytest.param(b'{"\xff": 1}', None, id="a key that is no UTF-8"),
            pytest.param(b'{"messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", None, id="5,000 nested lists"),
            pytest.param(b'{"a": ' * 200_000 + b"1" + b"}" * 200_000, None, id="200,000 nested objects"),
        ],
    )
    def test_what_is_no_strict_json_object_is_refused(self, raw, position):
        error = refusal(raw)
        assert isinstance(error, ParameterError)
        assert error.context.get("position") == position
        assert status_of(error) == 400

    @pytest.mark.parametrize(
        ("more", "param"),
        [
            (rb'"messages": "\ud800 text"', "messages"),
            (rb'"messages": [{"content": "x"}, {"content": [{"text": "\udc00"}]}]', "messages[1].content[0].text"),
            (rb'"a\udc00": {"b": "\udc00"}', "a?.b"),
            (rb'"ids": [1, "\ud800"]', "ids[1]"),
        ],
    )
    def test_a_surrogate_outside_the_candidates_names_its_place(self, more, param):
        error = refusal(rb'{"candidates": ["a"], ' + more + b"}")
        assert isinstance(error, ParameterError)
        assert "lone surrogate" in error.message
        assert param_of(error) == param

    def test_invalid_utf8_in_another_field_names_that_field(self):
        assert param_of(refusal(b'{"candidates": ["a"], "prompt": "\xff"}')) == "prompt"


class TestChoice:
    def test_a_choice_is_taken_over(self):
        request = parse({"model": "m", **choice(["a", "b"])})
        assert (request.source, request.values, request.ids) == ("choice", ["a", "b"], None)
        assert request.body == {"model": "m"}

    @pytest.mark.parametrize(
        ("body", "reasoning_parser", "reason"),
        [
            (choice(["a"]), "deepseek_r1", "reasoning_parser"),
            (choice(["a", ""]), None, "structured_outputs.choice"),
            (choice(["a"], whitespace_pattern="x"), None, "structured_outputs"),
            (choice(["a"], json={}), None, "structured_outputs"),
            (choice(["a"], invented=1), None, "structured_outputs"),
            ({**choice(["a"]), "min_tokens": 2}, None, "min_tokens"),
            ({**choice(["a"]), "ignore_eos": True}, None, "ignore_eos"),
            ({**choice(["a"]), "use_beam_search": True}, None, "use_beam_search"),
            ({**choice(["a"]), "tools": [{"type": "function"}]}, None, "tools"),
            ({**choice(["a"]), "response_format": {"type": "json_object"}}, None, "response_format"),
            ({**choice(["a"]), "stop_token_ids": [5]}, None, "stop_token_ids"),
        ],
    )
    def test_it_goes_on_untouched_where_taking_over_would_change_its_meaning(self, body, reasoning_parser, reason):
        raw = json.dumps(body, indent=3).encode()
        assert parse(raw, reasoning_parser=reasoning_parser) == NativeRequest(CHAT, raw, reason)

    @pytest.mark.parametrize("members", [{"whitespace_pattern": None}, {"json": None, "regex": None}])
    def test_null_members_beside_it_change_nothing(self, members):
        assert parse(choice(["a"], **members)).values == ["a"]

    @pytest.mark.parametrize("value", [None, {}, {"choice": None}, {"regex": "a|b"}, {"regex": 5}])
    def test_structured_outputs_without_a_choice_are_the_engines(self, value):
        raw = json.dumps({"structured_outputs": value}).encode()
        assert parse(raw) == NativeRequest(CHAT, raw, None)

    @pytest.mark.parametrize("value", [["red", "green"], [], "choice", 5, 0, True, False])
    def test_structured_outputs_that_are_no_object_are_refused_by_name(self, value):
        for route in (CHAT, COMPLETIONS):
            for more in ({}, {"candidates": ["a"]}):
                error = refusal({"structured_outputs": value, **more}, route=route)
                assert (param_of(error), status_of(error)) == ("structured_outputs", 400)
        with pytest.raises(ParameterError, match="structured_outputs"):
            check_pass_through("/v1/responses", json.dumps({"structured_outputs": value}).encode())

    def test_a_reasoning_parser_does_not_hinder_candidates(self):
        assert parse({"candidates": ["a"]}, reasoning_parser="qwen3").source == "candidates"


class TestNames:
    @pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
    @pytest.mark.parametrize(
        "name",
        [
            *("guided_choice", "guided_json", "guided_regex", "guided_grammar", "guided_decoding_backend"),
            *("guided_whitespace_pattern", "guidedChoice", "guided_decoding", "Guided-Choice"),
            *("candidate", "Candidates", "CANDIDATES", "candidate_list", "candidates_ref", "candidateset"),
            *("canditates", "cadidates", "candidats", "candidtaes", "candidates ", "_candidates", "cnadidates"),
            *("candidate_option", "candidates_options", "candidateOptions", "candidat_set", "maskfeed", "maskfeed_id"),
            *("choices", "choice", "allowed_answers", "allowedChoices", "grammar", "regex", "ebnf", "json_schema"),
            *("structural_tag", "constraints", "enum", "options", "labels", "answers", "valid_choices"),
            *("named_set", "set", "classes"),
            *("allowed", "allowed_responses", "allowed_values", "allowed_choices", "allowedOutputs"),
            *("permitted", "permitted_answers", "answer_options", "possible_answers", "output_format", "one_of"),
            *("logits_processors", "allowed_token_id"),
            *("structured_output", "structuredOutputs", "structred_outputs", "responseFormat", "response_fromat"),
        ],
    )
    def test_a_field_that_would_be_ignored_is_refused_by_name(self, route, name):
        for body in ({name: ["a"]}, {name: ["a"], "candidates": ["a"]}, {name: ["a"], **choice(["a"])}):
            error = refusal(body, route=route)
            assert isinstance(error, ParameterError)
            assert param_of(error) == name

    @pytest.mark.parametrize("name", ["guided_choice", "guided_json", "choices", "json_schema", "structuredOutputs"])
    def test_null_in_a_field_of_others_asks_for_nothing(self, name):
        assert isinstance(parse({name: None}), NativeRequest)

    @pytest.mark.parametrize("name", ["candidates", "candidate", "candidate_set", "maskfeed"])
    def test_null_in_a_field_of_ours_is_refused(self, name):
        assert param_of(refusal({name: None})) == name

    @pytest.mark.parametrize(
        "parent", ["extra_body", "extra_args", "nvext", "vllm_xargs", "sampling_params", "options", "output_config"]
    )
    @pytest.mark.parametrize(
        "name",
        ["candidates", "guided_choice", "candidate", "structured_outputs", "response_format", "choice", "maskfeed_x"],
    )
    def test_a_constraint_in_the_wrong_object_is_refused_by_path(self, parent, name):
        assert param_of(refusal({"candidates": ["a"], parent: {name: ["a"]}})) == f"{parent}.{name}"
        assert param_of(refusal({parent: {name: ["a"]}})) == f"{parent}.{name}"
        with pytest.raises(ParameterError, match=name):
            check_pass_through("/v1/responses", json.dumps({parent: {name: ["a"]}}).encode())

    def test_the_offline_spelling_is_refused_with_the_field_to_use(self):
        for route in (CHAT, COMPLETIONS):
            error = refusal({"extra_args": {"maskfeed": {"candidates": ["a"]}}}, route=route)
            assert param_of(error) == "extra_args.maskfeed"
            assert "use `candidates`" in error.message

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"extra_body": {"extra_body": {"candidates": ["a"]}}}, "extra_body.extra_body.candidates"),
            ({"sampling_params": {"extra_args": {"maskfeed": {}}}}, "sampling_params.extra_args.maskfeed"),
            ({"extra_body": {"nvext": {"guided_choice": ["a"]}}}, "extra_body.nvext.guided_choice"),
            ({"sampling_params": {"structured_outputs": {"choice": ["a"]}}}, "sampling_params.structured_outputs"),
            ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
            ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ],
    )
    def test_objects_inside_objects_are_looked_into(self, body, param):
        assert param_of(refusal(body)) == param
        assert param_of(refusal({**body, "candidates": ["a"]})) == param
        with pytest.raises(ParameterError):
            check_pass_through("/v1/embeddings", json.dumps(body).encode())

    def test_objects_inside_objects_are_not_followed_without_end(self):
        body = {"seed": 1}
        for _ in range(4):
            body = {"extra_body": body}
        assert isinstance(parse(body), NativeRequest)
        assert "4 levels" in refusal({"extra_body": body}).message

    @pytest.mark.parametrize("name", ["maskfeed", "Maskfeed", "maskfeed_anything"])
    def test_a_client_can_not_bring_its_own_handle(self, name):
        assert param_of(refusal({"candidates": ["a"], "vllm_xargs": {name: HANDLE.to_text()}})) == f"vllm_xargs.{name}"

    def test_innocent_names_pass(self):
        body = {"metadata": {"candidates": 1}, "options": {"temperature": 0}, "user": "candidates", "labels": "x"}
        assert isinstance(parse(body), NativeRequest)
        assert isinstance(parse({"allowed_openai_params": ["x"], "allowed_tools": []}), NativeRequest)
        assert isinstance(parse({"text": "format", "options": {"seed": 1}, "allowed": None}), NativeRequest)
        assert isinstance(parse({"messages": [{"role": "user", "content": "x", "candidates": []}]}), NativeRequest)
        assert isinstance(parse({"extra_body": "candidates", "vllm_xargs": {"other": 1}}), NativeRequest)

    def test_no_field_of_vllm_is_refused_on_the_routes_for_candidates(self):
        for route, names in ((CHAT, chat_fields()), (COMPLETIONS, completion_fields())):
            assert len(names) > 40
            for name in names - {"structured_outputs"}:  # the one that must be an object
                assert isinstance(parse({name: ["x"]}, route=route), NativeRequest), name

    def test_no_field_of_vllm_is_refused_on_other_routes(self):
        # the last one is a leftover that vLLM itself ignores
        constraints = {"structured_outputs", "response_format", "allowed_token_ids", "guided_decoding_backend"}
        of_every_route = all_request_fields() - constraints
        assert len(of_every_route) > 100
        for route, names in {
            "/v1/embeddings": of_every_route,
            "/v1/responses": of_every_route | responses_fields(),
            "/v1/messages": of_every_route | messages_fields(),
        }.items():
            for name in names:
                check_pass_through(route, json.dumps({name: {"x": 1}}).encode())

    def test_the_fields_by_which_another_route_constrains_are_its_own(self):
        answer_format = {"format": {"type": "json_schema", "schema": {}}}
        check_pass_through("/v1/responses", json.dumps({"text": answer_format}).encode())
        check_pass_through("/v1/responses", json.dumps({"structured_outputs": {"choice": ["a"]}}).encode())
        check_pass_through("/v1/messages", json.dumps({"output_config": answer_format}).encode())

    @pytest.mark.parametrize(
        "name",
        [
            *("structured_outputs", "response_format", "choice", "grammar", "regex", "enum", "allowed_token_ids"),
            *("json_schema", "guided_json", "structuredOutputs", "allowed_responses", "format"),
        ],
    )
    @pytest.mark.parametrize(
        ("route", "names"),
        [
            pytest.param("/v1/responses", responses_fields(), id="responses"),
            pytest.param("/v1/messages", messages_fields(), id="messages"),
            pytest.param("/v1/messages/count_tokens", set(), id="count_tokens"),
            pytest.param("/v1/embeddings", set(), id="embeddings"),
            pytest.param("/generative_scoring", set(), id="generative_scoring"),
            pytest.param("/v1/systemone", set(), id="systemone"),
            pytest.param("/tokenize", set(), id="tokenize"),
        ],
    )
    def test_a_constraint_that_the_routes_own_model_does_not_have_is_refused(self, route, names, name):
        raw = json.dumps({name: {"choice": ["a"]}}).encode()
        if name in names:
            check_pass_through(route, raw)
            return
        with pytest.raises(ParameterError) as caught:
            check_pass_through(route, raw)
        assert caught.value.context["field"] == name

    @pytest.mark.parametrize("name", ["options", "labels", "answer_choices"])
    def test_a_list_of_answers_is_a_constraint_only_where_text_is_generated(self, name):
        raw = json.dumps({name: ["a"]}).encode()
        check_pass_through("/classify", raw)
        for route in ("/v1/responses", "/v1/messages"):
            with pytest.raises(ParameterError):
                check_pass_through(route, raw)

    @pytest.mark.parametrize("route", ["/v1/embeddings", "/v1/responses", "/tokenize", "/v1/messages"])
    @pytest.mark.parametrize("name", ["candidates", "candidate_set", "candidate", "canditates", "guided_choice"])
    def test_candidates_on_another_route_are_refused(self, route, name):
        with pytest.raises(ParameterError) as caught:
            check_pass_through(route, json.dumps({"input": "x", name: ["a"]}).encode())
        assert caught.value.context["field"] == name

    @pytest.mark.parametrize("name", ["ids", "options", "documents", "metadata", "tool_choice", "criteria"])
    def test_other_routes_keep_their_own_names(self, name):
        check_pass_through("/v1/systemone", json.dumps({name: ["a"]}).encode())

    def test_a_body_of_another_route_is_read_strictly_too(self):
        check_pass_through("/v1/models", b"")
        for raw in (b'{"candidates": NaN}', b"[1]", b'{"candidates": ["a"]'):
            with pytest.raises(ParameterError):
                check_pass_through("/tokenize", raw)

    @pytest.mark.parametrize("wrap", [lambda many: many, lambda many: {"vllm_xargs": many}])
    def test_a_flood_of_names_is_refused_before_they_are_compared(self, wrap):
        assert isinstance(parse(wrap({f"n{i}": 1 for i in range(1_024)})), NativeRequest)
        error = refusal(wrap({f"cxndidat{i}": 1 for i in range(1_025)}))
        assert (error.context["limit"], error.context["value"]) == (1_024, 1_025)

    def test_long_names_are_cut_in_the_error(self):
        assert len(param_of(refusal({"candidate" * 1_000: 1}))) == 64


class TestPlainRequests:
    def test_they_go_on_as_the_very_bytes_that_came_in(self):
        raw = b' {"model" : "m",\n"messages":[{"role":"user","content":"hi \\u00e9"}], "model": "again", "x": 1e400}'
        request = parse(raw)
        assert request == NativeRequest(CHAT, raw, None)
        assert request.body is raw


class TestFlags:
    @pytest.mark.parametrize(
        ("route", "body", "n"),
        [
            (CHAT, {}, 1),
            (CHAT, {"n": None}, 1),
            (CHAT, {"n": 3}, 3),
            (CHAT, {"n": 3, "prompt": ["a", "b"]}, 3),
            (COMPLETIONS, {"prompt": "a", "n": 3}, 3),
            (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 6),
            (COMPLETIONS, {"prompt": [1, 2, 3], "n": 2}, 2),
            (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
            (COMPLETIONS, {"prompt": [], "prompt_embeds": ["x", "y"]}, 2),
            (COMPLETIONS, {"prompt": "a", "prompt_embeds": "x"}, 2),
            (COMPLETIONS, {}, 1),
        ],
    )
    def test_each_prompt_gets_its_own_choices(self, route, body, n):
        assert parse({**body, "candidates": ["a"]}, route=route).n == n

    def test_what_the_gateway_acts_on_is_read(self):
        body = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True, "x": 1}}
        request = parse({**body, "candidates": ["a"], "stop": "x", "stop_token_ids": [5]})
        assert (request.stream, request.wants_token_ids, request.include_usage) == (True, True, True)
        assert (request.stop_strings, request.stop_token_ids) == (("x",), (5,))

    def test_null_counts_as_absent(self):
        names = ("stream", "stream_options", "n", "return_token_ids", "stop", "stop_token_ids", "vllm_xargs")
        request = parse({**dict.fromkeys(names), "candidates": ["a"]})
        assert (request.stream, request.n, request.stop_strings, request.stop_token_ids) == (False, 1, (), ())
        assert engine_body(request, handle=HANDLE, record=RECORD, longest_bytes=1)["stop_token_ids"] == [301]


class TestEngineBody:
    def body_for(self, body, *, route=CHAT, longest_bytes=9):
        request = parse({**body, "candidates": ["a"]}, route=route)
        return engine_body(request, handle=HANDLE, record=RECORD, longest_bytes=longest_bytes)

    def test_a_chat_request_gets_the_handle_and_what_the_check_needs(self):
        body = {"model": "m", "messages": [1], "stream_options": {"include_usage": True}, "stream": True}
        assert self.body_for({**body, "candidate_options": {}}) == {
            **body,
            "vllm_xargs": {"maskfeed": HANDLE.to_text()},
            "stop_token_ids": [301],
            "return_token_ids": True,
            "include_reasoning": True,
            "max_tokens": 10,
        }

    def test_a_completion_request_gets_no_field_that_its_route_does_not_have(self):
        assert set(self.body_for({"prompt": "x"}, route=COMPLETIONS)) <= completion_fields()

    def test_everything_that_is_sent_can_be_encoded_again(self):
        body = self.body_for({"seed": 2**80, "temperature": 0.1, "messages": [{"content": "é\0"}]})
        assert json.loads(msgspec.json.encode(body)) == body

    def test_the_clients_own_values_are_kept_beside_ours(self):
        body = self.body_for({"vllm_xargs": {"other": 1}, "stop_token_ids": [7, 8], "include_reasoning": False})
        assert body["vllm_xargs"] == {"other": 1, "maskfeed": HANDLE.to_text()}
        assert body["stop_token_ids"] == [301, 7, 8]
        assert body["include_reasoning"] is True

    def test_the_request_itself_is_not_changed(self):
        request = parse({"candidates": ["a"], "vllm_xargs": {"other": 1}})
        engine_body(request, handle=HANDLE, record=RECORD, longest_bytes=1)
        assert request.body == {"vllm_xargs": {"other": 1}}

    @pytest.mark.parametrize(
        ("body", "longest_bytes", "max_tokens"),
        [
            ({}, 9, 10),
            ({"max_tokens": None, "max_completion_tokens": None}, 9, 10),
            ({"candidate_options": {"leading_space": "optional"}}, 9, 11),
            ({"candidate_options": {"leading_space": "always"}}, 9, 11),
            ({}, 511, 512),
            ({}, 65_536, 512),
            ({"max_tokens": 3}, 9, 3),
            ({"max_tokens": 0}, 9, 0),
        ],
    )
    def test_max_tokens_left_out_is_enough_for_the_longest_candidate(self, body, longest_bytes, max_tokens):
        assert self.body_for(body, longest_bytes=longest_bytes)["max_tokens"] == max_tokens

    def test_max_completion_tokens_of_a_chat_counts_as_given(self):
        body = self.body_for({"max_completion_tokens": 4})
        assert "max_tokens" not in body
        assert body["max_completion_tokens"] == 4

    @pytest.mark.parametrize(
        ("body", "max_tokens"),
        [
            ({"max_completion_tokens": 30}, 30),
            ({"max_completion_tokens": 30, "max_tokens": None}, 30),
            ({"max_completion_tokens": 30, "max_tokens": 3}, 3),
            ({"max_completion_tokens": None}, 10),
        ],
    )
    def test_max_completion_tokens_of_a_completion_which_vllm_ignores_becomes_max_tokens(self, body, max_tokens):
        sent = self.body_for(body, route=COMPLETIONS)
        assert sent["max_tokens"] == max_tokens
        assert "max_completion_tokens" not in sent


def test_a_hundred_thousand_candidates_are_read_without_a_python_object_per_candidate_but_the_string():
    values = [f"candidate {i}" for i in range(100_000)]
    request = parse({"candidates": values})
    assert request.values == values
    assert request.ids is None
