"""A request whose set is ready, at the engine: what is sent there, and what of the answer goes on to the client.

It joins the reading of requests and answers with the promise under which they run; it opens no connection. Invariant:
nothing that the engine said leaves here unchecked.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from maskfeed.service.admission import PreparedSet
from maskfeed.service.answers import Figures, finish
from maskfeed.service.engines import LiveGroup
from maskfeed.service.exchange import UpstreamResponse
from maskfeed.service.problems import error_object
from maskfeed.service.promises import Promise
from maskfeed.service.requests import ConstrainedRequest, engine_body
from maskfeed.service.streams import DONE, SseSplitter, StreamRewriter, frame
from maskfeed_automata.errors import MaskfeedError, UpstreamError
from maskfeed_cache.handle import Handle

__all__ = ["Admitted", "checked_answer", "engine_request", "events"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose set is ready, on its way to the engine."""

    request: ConstrainedRequest
    prepared: PreparedSet
    live: LiveGroup
    promise: Promise
    figures: Figures
    request_id: str


def engine_request(admitted: Admitted) -> bytes:
    """The body for the engine."""
    record = admitted.live.record
    handle = Handle(
        artifact_hash=admitted.promise.artifact_hash,
        epochs=admitted.promise.epochs,
        reserved_id=record.reserved_id,
        nonce=admitted.promise.nonce,
    )
    longest = admitted.prepared.candidate_set.longest_bytes
    return msgspec.json.encode(engine_body(admitted.request, handle=handle, record=record, longest_bytes=longest))


def checked_answer(admitted: Admitted, body: bytes) -> bytes:
    """The client's response from the engine's.

    Raises:
        UpstreamError: no JSON object, or no answer to this request.
        SetRefused: the engine did not apply the set.
        InternalInvariant: a finished answer that is no candidate.
    """
    try:
        response = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamError("the engine's answer is no JSON object", stage="answer") from error
    answer = finish(
        admitted.request,
        admitted.prepared.candidate_set,
        admitted.live.vocabulary,
        admitted.live.record,
        response,
        admitted.figures,
    )
    return msgspec.json.encode(answer)


async def events(
    admitted: Admitted, response: UpstreamResponse, *, on_failure: Callable[[str], None]
) -> AsyncGenerator[bytes, None]:
    """The client's events, as the engine's arrive.

    What fails after the first byte becomes an error event; it can't become a status any more.

    Args:
        admitted: the request.
        response: the engine's, status 200.
        on_failure: called once with the error's code if the stream ends with an error event.
    """
    splitter = SseSplitter()
    rewriter = StreamRewriter(
        admitted.request,
        admitted.prepared.candidate_set,
        admitted.live.vocabulary,
        admitted.live.record,
        admitted.figures,
        request_id=admitted.request_id,
    )
    try:
        async for chunk in response.chunks():
            events = b"".join(frame(data) for event in splitter.feed(chunk) for data in rewriter.feed(event))
            if events:
                yield events
            if rewriter.failure is not None:
                break
        closing = rewriter.end()
        failure = rewriter.failure
    except MaskfeedError as error:
        closing, failure = [msgspec.json.encode(error_object(error, admitted.request_id)), DONE], error
    if failure is not None:
        on_failure(failure.code)
    if closing:
        yield b"".join(frame(data) for data in closing)
