"""Errors as HTTP."""

import json

import pytest

from maskfeed.service.problems import STATUS_BY_ERROR, engine_refusal, error_object, status_of, to_response
from maskfeed_automata import CandidateSet, Limits, errors
from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    CorruptArtifact,
    DeadlineExceeded,
    EngineNotReady,
    FormatVersionError,
    HandleError,
    InternalInvariant,
    MaskfeedError,
    ParameterError,
    RankFailure,
    SetRefused,
    StoreUnavailable,
    UpstreamError,
)

ALL = [getattr(errors, name) for name in errors.__all__]


def respond(error):
    status, headers, body = to_response(error, "req-1")
    return status, headers, json.loads(body)["error"]


def error_of(candidates, **limits):
    with pytest.raises(CandidateError) as caught:
        CandidateSet.from_strings(candidates, limits=Limits(**limits))
    return caught.value


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_class_of_the_tree_has_a_status_nearer_than_the_root(cls):
    nearest = next(base for base in cls.__mro__ if base in STATUS_BY_ERROR)
    assert cls is MaskfeedError or nearest is not MaskfeedError
    status, headers, body = respond(cls("what happened"))
    assert 400 <= status < 600
    assert body["code"] == cls.code
    assert (headers.get("x-should-retry") == "false") == (not cls.retryable)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        pytest.param(error_of([]), 400, id="empty list"),
        pytest.param(CandidateError("x", field="candidates", index=1, malformed=True), 400, id="no string"),
        pytest.param(error_of(["a", ""]), 422, id="empty string"),
        pytest.param(CandidateError("not producible", index=3), 422, id="not producible"),
        pytest.param(error_of(["a", "bb"], max_candidate_bytes=1), 422, id="one candidate too long"),
        pytest.param(error_of(["a", "b"], max_candidates=1), 413, id="too many"),
        pytest.param(error_of(["a", "bb"], max_total_bytes=2), 413, id="too long in all"),
        pytest.param(ParameterError("x", field="n"), 400, id="parameter"),
        pytest.param(HandleError("x"), 500, id="handle"),
        pytest.param(CapacityError("x"), 429, id="capacity"),
        pytest.param(DeadlineExceeded("x", stage="compile"), 504, id="deadline"),
        pytest.param(StoreUnavailable("x"), 503, id="store"),
        pytest.param(CorruptArtifact("x"), 500, id="artifact"),
        pytest.param(FormatVersionError("x"), 500, id="format"),
        pytest.param(EngineNotReady("x"), 503, id="engine"),
        pytest.param(RankFailure("x"), 503, id="rank"),
        pytest.param(SetRefused("x"), 503, id="refusal"),
        pytest.param(CompileFailed("x"), 500, id="compiler"),
        pytest.param(UpstreamError("x"), 502, id="upstream"),
        pytest.param(InternalInvariant("x"), 500, id="defect"),
    ],
)
def test_the_status_says_whose_fault_it_is(error, status):
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("error", "type_", "param"),
    [
        (error_of(["a", "b", "c", ""]), "invalid_request_error", "candidates[3]"),
        (error_of([]), "invalid_request_error", "candidates"),
        (CandidateError("x", index=7), "invalid_request_error", "candidates[7]"),
        (ParameterError("x", field="candidates[1].text"), "invalid_request_error", "candidates[1].text"),
        (CapacityError("x", limit=1), "rate_limit_error", None),
        (SetRefused("x", stage="admission"), "server_error", None),
    ],
)
def test_the_body_is_an_openai_error_object(error, type_, param):
    _, headers, body = respond(error)
    assert headers["Content-Type"] == "application/json"
    assert (body["type"], body["param"], body["message"], body["request_id"]) == (type_, param, error.message, "req-1")


def test_the_numbers_of_an_error_are_members_of_the_body():
    _, _, body = respond(error_of(["a", "bb"], max_candidate_bytes=1))
    assert body.items() >= {"limit": 1, "value": 2, "unit": "bytes", "index": 1}.items()
    _, _, body = respond(DeadlineExceeded("x", stage="compile", limit_ms=30))
    assert body.items() >= {"stage": "compile", "limit_ms": 30}.items()


def test_text_that_could_be_the_callers_is_not_repeated():
    _, _, body = respond(CandidateError("x", index=1, candidate="SECRET", value="SECRET", malformed=True))
    assert "SECRET" not in json.dumps(body)
    assert "malformed" not in body


def test_a_fact_never_overwrites_a_member_of_the_shape():
    _, _, body = respond(UpstreamError("x", code=7, type=8, param=9, request_id=10))
    assert (body["code"], body["type"], body["param"], body["request_id"]) == (
        "upstream-error",
        "server_error",
        None,
        "req-1",
    )


def test_a_client_is_told_when_to_come_back():
    assert respond(CapacityError("x", retry_after_s=4))[1]["Retry-After"] == "4"
    assert respond(StoreUnavailable("x"))[1]["Retry-After"] == "1"
    assert "Retry-After" not in respond(UpstreamError("x"))[1]
    assert "Retry-After" not in respond(ParameterError("x"))[1]


class TestEngineRefusals:
    def test_a_refusal_keeps_its_status_message_and_parameter_and_gets_our_shape(self):
        problem = {"message": "too long", "type": "BadRequestError", "param": "prompt", "code": 400}
        status, headers, body = engine_refusal(400, json.dumps({"error": problem}).encode(), "req-1")
        assert (status, headers["x-should-retry"], headers["Content-Type"]) == (400, "false", "application/json")
        assert json.loads(body) == {
            "error": {
                "message": "too long",
                "type": "invalid_request_error",
                "param": "prompt",
                "code": "upstream-refused",
                "request_id": "req-1",
            }
        }

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            (b'{"error": "Unauthorized"}', "Unauthorized"),
            (b'{"object": "error", "message": "no such model", "code": 404}', "no such model"),
            (b'{"error": {"message": 7}}', "its server gave no reason"),
            (b'{"detail": "Not Found"}', "its server gave no reason"),
            (b"<html>", "its server gave no reason"),
            (b"", "its server gave no reason"),
        ],
    )
    def test_other_shapes_of_its_answer_are_read_too(self, raw, message):
        _, _, body = engine_refusal(404, raw, None)
        assert json.loads(body)["error"]["message"] == message

    @pytest.mark.parametrize(("status", "may_pass"), [(401, False), (404, False), (422, False), (429, True)])
    def test_only_what_may_pass_may_be_tried_again(self, status, may_pass):
        _, headers, body = engine_refusal(status, b"{}", None)
        assert ("x-should-retry" not in headers) == may_pass
        assert json.loads(body)["error"]["type"] == ("rate_limit_error" if status == 429 else "invalid_request_error")

    @pytest.mark.parametrize("status", [500, 503, 302, 204])
    def test_what_is_no_client_error_is_a_failure_of_the_engine_in_one_line(self, status):
        raw = json.dumps({"error": {"message": "EngineCore encountered an issue.\nTraceback", "code": status}}).encode()
        with pytest.raises(UpstreamError) as caught:
            engine_refusal(status, raw, "req-1")
        answered, _, body = respond(caught.value)
        assert (answered, body["code"], body["upstream_status"]) == (502, "upstream-error", status)
        assert body["message"] == "the engine failed: EngineCore encountered an issue."


def test_without_a_request_id_the_member_is_null():
    assert error_object(ParameterError("x"), None)["error"]["request_id"] is None
