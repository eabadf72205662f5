"""Errors as HTTP: one table from error class to status, one shape for all bodies.

The shape is OpenAI's error object, because client libraries parse it; our numbers are extra members of it. It knows no
server library. Invariants: every class of the error tree has a status; no text of a candidate is ever in an answer (an
error names a candidate by its index); an error that trying again can't help says so in a header that clients obey.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    CorruptArtifact,
    DeadlineExceeded,
    DeletedSet,
    Detail,
    EngineNotReady,
    EngineUnsupported,
    HandleError,
    InternalInvariant,
    LimitExceeded,
    MaskfeedError,
    NotPermitted,
    ParameterError,
    PreconditionFailed,
    RankFailure,
    RequestError,
    SetRefused,
    StaleGeneration,
    StoreError,
    StoreUnavailable,
    TokenNotAllowed,
    UnknownArtifact,
    UnknownSet,
    UpstreamError,
    VocabularyError,
    VocabularyMismatch,
    WorkerError,
    WrongKey,
)

__all__ = ["STATUS_BY_ERROR", "engine_refusal", "error_object", "refusal_object", "status_of", "to_response"]


def _candidate_status(error: MaskfeedError) -> int:
    """A list that can't be read, or is empty: 400. One good string that can't be a candidate: 422."""
    whole_list = error.context.get("index") is None
    return 400 if whole_list or error.context.get("malformed") else 422


def _limit_status(error: MaskfeedError) -> int:
    """Too much in all: 413. One candidate that is too long: 422."""
    return 413 if error.context.get("index") is None else 422


# The nearest class in the error's method resolution order counts.
STATUS_BY_ERROR: Final[Mapping[type[MaskfeedError], int | Callable[[MaskfeedError], int]]] = {
    MaskfeedError: 500,
    RequestError: 400,
    CandidateError: _candidate_status,
    LimitExceeded: _limit_status,
    ParameterError: 400,
    UnknownSet: 404,
    DeletedSet: 410,
    StaleGeneration: 409,
    NotPermitted: 403,
    WrongKey: 401,
    PreconditionFailed: 412,
    # a client of the gateway sends neither handles nor artifacts, so these are ours
    HandleError: 500,
    VocabularyMismatch: 500,
    TokenNotAllowed: 500,
    VocabularyError: 500,
    CapacityError: 429,
    DeadlineExceeded: 504,
    StoreError: 500,
    StoreUnavailable: 503,
    UnknownArtifact: 503,
    CorruptArtifact: 500,
    WorkerError: 500,
    CompileFailed: 500,
    EngineNotReady: 503,
    EngineUnsupported: 503,
    RankFailure: 503,
    SetRefused: 503,
    UpstreamError: 502,
    InternalInvariant: 500,
}

_DEFAULT_RETRY_AFTER_S: Final = 1
# The code of what the engine's server refused.
_UPSTREAM_REFUSED: Final = "upstream-refused"
# Client errors that may pass.
_MAY_PASS: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
_SHOWN_CHARACTERS: Final = 200
# Context of these names is text of our own making; other text could be the caller's.
_TEXT_SHOWN: Final = frozenset({"stage", "unit", "epoch", "reason", "expected", "found", "section", "artifact_hash"})
# Shown under other names, or meant for this module.
_NOT_REPEATED: Final = frozenset({"field", "malformed", "message", "type", "param", "code", "request_id"})


def status_of(error: MaskfeedError) -> int:
    """The HTTP status of an error."""
    for cls in type(error).__mro__:
        if cls in STATUS_BY_ERROR:
            status = STATUS_BY_ERROR[cls]
            return status if isinstance(status, int) else status(error)
    raise AssertionError("MaskfeedError itself is in the table")


def error_object(error: MaskfeedError, request_id: str | None) -> dict[str, Any]:
    """The body of an error response, or of an error event in a stream.

    Returns:
        `{"error": {"message", "type", "param", "code", "request_id", ...}}`; `param` is the field, with the index where
        one element is at fault; the rest are the error's numbers.
    """
    facts = {
        name: value for name, value in error.context.items() if name not in _NOT_REPEATED and _is_shown(name, value)
    }
    body = {
        "message": error.message,
        "type": _type_of(status_of(error)),
        "param": _param(error),
        "code": error.code,
        "request_id": request_id,
        **facts,
    }
    return {"error": body}


def to_response(error: MaskfeedError, request_id: str | None) -> tuple[int, dict[str, str], bytes]:
    """An error as an HTTP response.

    Args:
        error: what happened.
        request_id: of the request, repeated in the body.

    Returns:
        Status, headers (`Content-Type`, `Retry-After` or `x-should-retry: false`, `WWW-Authenticate` with 401), body.
    """
    status = status_of(error)
    headers = {"Content-Type": "application/json"}
    if not error.retryable:
        headers["x-should-retry"] = "false"
    elif status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers["Retry-After"] = str(error.context.get("retry_after_s", _DEFAULT_RETRY_AFTER_S))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return status, headers, msgspec.json.encode(error_object(error, request_id))


def engine_refusal(status: int, body: bytes, request_id: str | None) -> tuple[int, dict[str, str], bytes]:
    """What the engine's server refused, as an error of ours.

    Args:
        status: of its response; not 200.
        body: of its response.
        request_id: of the request, repeated in the body.

    Returns:
        The same status, headers to add to the engine's, body.

    Raises:
        UpstreamError: it is no refusal, but a failure of the engine, or no answer at all.
    """
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    problem = answer.get("error", answer) if isinstance(answer, dict) else answer
    headers = {"Content-Type": "application/json"}
    if status not in _MAY_PASS:
        headers["x-should-retry"] = "false"
    return status, headers, msgspec.json.encode(refusal_object(problem, status, request_id))


def refusal_object(problem: object, status: object, request_id: str | None) -> dict[str, Any]:
    """The engine's error object in our shape: its message and parameter, our type and code.

    Args:
        problem: the member `error` of its answer or event, whatever that is.
        status: HTTP status, or what stands for it.
        request_id: of the request.

    Raises:
        UpstreamError: `status` is no client error, so that the engine itself is at fault.
    """
    known = problem if isinstance(problem, dict) else {"message": problem}
    message = known.get("message")
    if not isinstance(message, str) or not message.strip():
        message = "its server gave no reason"
    if not isinstance(status, int) or not _is_client_error(status):
        line = message.strip().splitlines()[0][:_SHOWN_CHARACTERS]
        raise UpstreamError(
            f"the engine failed: {line}", stage="generate", upstream_status=status if isinstance(status, int) else None
        )
    param = known.get("param")
    body = {
        "message": message,
        "type": _type_of(status),
        "param": param if isinstance(param, str) else None,
        "code": _UPSTREAM_REFUSED,
        "request_id": request_id,
    }
    return {"error": body}


def _is_client_error(status: int) -> bool:
    return HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR


def _param(error: MaskfeedError) -> str | None:
    field, index = error.context.get("field"), error.context.get("index")
    if field is None and index is not None:
        field = "candidates"
    if field is None:
        return None
    return str(field) if index is None else f"{field}[{index}]"


def _type_of(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def _is_shown(name: str, value: Detail) -> bool:
    return value is not None and (not isinstance(value, str) or name in _TEXT_SHOWN)
