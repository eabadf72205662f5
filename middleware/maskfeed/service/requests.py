"""The body of a request, read: which constraint it asks for, and what goes on to the engine.

Bytes in, values out; no network, no clock. It decides between a request that maskfeed constrains and one that goes on
untouched. Invariants: a body with a constraint that maskfeed would ignore is an error, never a plain request; a
`structured_outputs.choice` is taken over only where that leaves its meaning as it is; the body of an untouched request
is the very bytes that came in.

The list may be long, so a list of strings costs one typed decode and no Python code per candidate.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from maskfeed.config import MAX_DEADLINE_MS
from maskfeed.service.candidate_lists import (
    CandidateId,
    CandidateList,
    read_candidates,
    read_choice,
    unencodable_candidate,
)
from maskfeed.service.field_names import check_names
from maskfeed.service.json_text import convert_members, read, read_members
from maskfeed.service.named_references import SetReference, read_reference
from maskfeed.service.parameters import broken_rule, check_parameters
from maskfeed.service.resident_lists import ListPart
from maskfeed_automata import LeadingSpace
from maskfeed_automata.errors import ParameterError
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.handle import HANDLE_KEY, Handle

__all__ = [
    "MAX_DEADLINE_MS",
    "ConstrainedRequest",
    "NativeRequest",
    "Route",
    "check_pass_through",
    "engine_body",
    "parse_request",
]

Route = Literal["/v1/chat/completions", "/v1/completions"]


@dataclass(frozen=True, slots=True)
class ConstrainedRequest:
    """A request whose answer must be one of `values`, or of `part`. Owns its lists; nobody changes them."""

    route: Route
    source: Literal["candidates", "choice", "named", "ids"]
    # as the caller gave them: in order, with duplicates, not checked against limits; empty where he named a set
    values: list[str]
    # the caller's ids, parallel to values; None when all candidates are plain strings
    ids: list[CandidateId] | None
    leading_space: LeadingSpace
    # None: the gateway's own
    deadline_ms: int | None
    # the client's body without the fields that only maskfeed reads
    body: dict[str, Any]
    stream: bool
    # how many choices the answer must have: the client's `n` for each prompt
    n: int
    wants_token_ids: bool
    include_usage: bool
    # the set that the caller named, None for his own list; its generation is known when `part` is
    reference: SetReference | None = None
    # candidates of that set; None until they are looked up
    part: ListPart | None = None

    def candidate_at(self, index: int) -> tuple[int, str, CandidateId]:
        """Of input `index` of the candidate set: position in the caller's list, value, id."""
        if self.part is not None:
            return self.part.place_of(index), *self.part.candidate_at(index)
        return index, self.values[index], self.ids[index] if self.ids is not None else None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The client's `stop`."""
        stop = self.body.get("stop") or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The client's, without any of the model."""
        return tuple(self.body.get("stop_token_ids") or ())


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A request that goes on as it is."""

    route: Route
    # the very bytes that came in
    body: bytes
    # the field because of which a `choice` stays with the engine's own implementation; None: there is no `choice`
    reason: str | None


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    leading_space: LeadingSpace | None = None
    deadline_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Flags(msgspec.Struct, frozen=True):
    """The client's fields that the gateway acts on. vLLM would also take "true" for true; here both must agree."""

    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    vllm_xargs: dict[str, Any] | None = None


def parse_request(route: Route, raw: bytes, *, reasoning_parser: str | None) -> ConstrainedRequest | NativeRequest:
    """Read a body of one of the two routes that take candidates.

    Args:
        route: where it was posted.
        raw: the body, decompressed.
        reasoning_parser: the engine's, None without one.

    Raises:
        ParameterError: no strict JSON, a field of another type, an unknown or misplaced constraint, or a parameter that
            can't go with `candidates`. Context: `field`, `position`.
        CandidateError: no list, or a candidate that is no string of Unicode characters. Context: `field`, `index`.

    A set that is named is not looked up here.

    Cost: linear in the body; 0.1 s for a million short strings.
    """
    try:
        fields = read_members(raw)
    except ParameterError:
        # a lone surrogate is no JSON either, but the caller is told which candidate has it
        if (culprit := unencodable_candidate(raw)) is not None:
            raise culprit from None
        raise
    check_names(fields, route=route)
    choice = _structured_outputs(fields)
    options = fields.pop("candidate_options", None)
    reference = read_reference(fields)
    if reference is not None or "candidates" in fields:
        return _constrained(route, fields, options, reference, raw)
    if options is not None and bytes(memoryview(options)) != b"null":
        raise ParameterError("`candidate_options` needs `candidates` or `candidate_set`", field="candidate_options")
    if "choice" not in choice:
        return NativeRequest(route, raw, None)
    return _taken_over(route, fields, choice, raw, reasoning_parser)


def check_pass_through(route: str, raw: bytes) -> None:
    """Refuse a body of another route that holds a constraint which that route would ignore.

    Args:
        route: where it was posted; for the message.
        raw: the body; empty for none.

    Raises:
        ParameterError: no JSON object, a constraint that is none of this route's fields, or `structured_outputs` that
            are no object. Context: `field`.
    """
    if raw:
        fields = read_members(raw)
        check_names(fields, route=route)
        _structured_outputs(fields)


def engine_body(
    request: ConstrainedRequest, *, handle: Handle, record: EngineRecord, longest_bytes: int
) -> dict[str, Any]:
    """What is sent to the engine: the client's body, the handle, and what the gateway needs to check the answer.

    Args:
        request: not changed.
        handle: of the compiled set, with this request's nonce.
        record: of the engine.
        longest_bytes: of the set.
    """
    body = dict(request.body)
    body["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), HANDLE_KEY: handle.to_text()}
    body["stop_token_ids"] = [record.reserved_id, *request.stop_token_ids]
    body["return_token_ids"] = True
    if request.route == "/v1/chat/completions":
        # vLLM withholds token ids together with the reasoning
        body["include_reasoning"] = True
    if request.route == "/v1/completions":
        # that route ignores the newer name, and would cut the answer at its own 16
        newer = body.pop("max_completion_tokens", None)
        if body.get("max_tokens") is None:
            body["max_tokens"] = newer
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        # a token is at least one byte; one more ends the answer, and one may be the leading space
        enough = longest_bytes + 1 + (request.leading_space != "never")
        body["max_tokens"] = min(enough, record.max_model_len)
    return body


def _constrained(
    route: Route,
    fields: dict[str, msgspec.Raw],
    options: msgspec.Raw | None,
    reference: SetReference | None,
    raw: bytes,
) -> ConstrainedRequest:
    source: Literal["candidates", "named", "ids"] = "candidates"
    if reference is not None:
        candidates = CandidateList([], None)
        source = "named" if reference.ids is None else "ids"
    else:
        candidates = read_candidates(fields.pop("candidates"), raw)
    chosen = None if options is None else read(options, _Options | None, field="candidate_options")
    body = _read_values(fields)
    check_parameters(body)
    return _request(route, source, candidates, chosen or _Options(), body, reference)


def _taken_over(
    route: Route,
    fields: dict[str, msgspec.Raw],
    choice: dict[str, msgspec.Raw],
    raw: bytes,
    reasoning_parser: str | None,
) -> ConstrainedRequest | NativeRequest:
    values = read_choice(choice["choice"], raw)
    del fields["structured_outputs"]
    body = _read_values(fields)
    rule = broken_rule(body)
    if len(choice) > 1:
        reason = "structured_outputs"
    elif "" in values:
        reason = "structured_outputs.choice"
    elif rule is not None:
        reason = rule.name
    elif body.get("stop_token_ids"):
        reason = "stop_token_ids"
    elif reasoning_parser is not None:
        # the engine's own constraint starts when the reasoning has ended, ours with the first token
        reason = "reasoning_parser"
    else:
        return _request(route, "choice", CandidateList(values, None), _Options(), body)
    return NativeRequest(route, raw, reason)


def _request(
    route: Route,
    source: Literal["candidates", "choice", "named", "ids"],
    candidates: CandidateList,
    options: _Options,
    body: dict[str, Any],
    reference: SetReference | None = None,
) -> ConstrainedRequest:
    flags = convert_members(body, _Flags)
    return ConstrainedRequest(
        route=route,
        source=source,
        values=candidates.values,
        ids=candidates.ids,
        leading_space=options.leading_space or "never",
        deadline_ms=options.deadline_ms,
        body=body,
        stream=bool(flags.stream),
        n=(flags.n or 1) * (_n_prompts(body) if route == "/v1/completions" else 1),
        wants_token_ids=bool(flags.return_token_ids),
        include_usage=bool(flags.stream_options and flags.stream_options.include_usage),
        reference=reference,
    )


def _read_values(fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: read(value, Any, field=name) for name, value in fields.items()}


def _structured_outputs(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Its members that are not null."""
    name = "structured_outputs"
    if name not in fields:
        return {}
    # vLLM breaks on anything but an object
    members = read(fields[name], dict[str, msgspec.Raw] | None, field=name) or {}
    return {key: member for key, member in members.items() if bytes(memoryview(member)[:5]) != b"null"}


def _n_prompts(body: dict[str, Any]) -> int:
    """Prompts of a completion request, each of which gets its own choices."""
    n = 0
    for name in ("prompt", "prompt_embeds"):
        given = body.get(name)
        if isinstance(given, list):
            n += 1 if given and isinstance(given[0], int) else len(given)
        elif given is not None:
            n += 1
    return max(n, 1)
