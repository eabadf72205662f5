"""The HTTP routes, over aiohttp: from a request to a call of the core, and from its reply or error to a response.

It knows aiohttp and no candidate. Invariants: every response carries the request's id; every error is an OpenAI error
object; a route that is not listed here does not exist.
"""

import logging
import re
import uuid
from contextlib import aclosing
from dataclasses import asdict
from typing import Final, get_args

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from maskfeed.service.cache_routes import cache_routes
from maskfeed.service.exchange import Headers, Reply
from maskfeed.service.http_messages import CORE, PARTS, REQUEST_ID, SETTINGS, json_response, read_body
from maskfeed.service.named_routes import named_routes
from maskfeed.service.problems import to_response
from maskfeed.service.requests import MAX_DEADLINE_MS, Route
from maskfeed.service.telemetry import METRICS_CONTENT_TYPE, log_event
from maskfeed_automata import LeadingSpace, Limits
from maskfeed_automata.errors import InternalInvariant, MaskfeedError, StoreUnavailable

__all__ = ["CORE", "PARTS", "PASSED_THROUGH", "SETTINGS", "explain_errors", "name_response", "routes"]

_REQUEST_ID_HEADER: Final = "X-Request-Id"
_ACCEPTABLE_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")

# vLLM's routes for clients that read and write JSON. Routes that administer an engine are not for clients.
PASSED_THROUGH: Final[tuple[tuple[str, str], ...]] = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name:.+}"),
    ("GET", "/version"),
    ("GET", "/load"),
    ("GET", "/tokenizer_info"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{name}"),
    ("POST", "/v1/responses/{name}/cancel"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/score"),
    ("POST", "/score"),
    ("POST", "/v1/rerank"),
    ("POST", "/rerank"),
    ("POST", "/classify"),
    ("POST", "/pooling"),
    ("POST", "/generative_scoring"),
    ("POST", "/v1/systemone"),
)


def routes() -> list[web.RouteDef]:
    """All routes of the gateway."""
    return [
        web.post("/v1/chat/completions", _complete),
        web.post("/v1/completions", _complete),
        *named_routes(),
        *cache_routes(),
        web.get("/v1/limits", _limits),
        web.get("/health", _health),
        web.get("/ready", _ready),
        web.get("/metrics", _metrics),
        *(web.route(method, path, _pass_through) for method, path in PASSED_THROUGH),
    ]


@web.middleware
async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id, and turn what goes wrong into an error object."""
    given = request.headers.get(_REQUEST_ID_HEADER, "")
    request_id = request[REQUEST_ID] = given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
    try:
        return await handler(request)
    except MaskfeedError as error:
        return _problem(request, error)
    except web.HTTPException as error:
        return _http_problem(error, request_id)
    except ConnectionError:
        # the client has gone; nobody is there to be told
        raise
    except Exception:
        logging.getLogger("maskfeed.gateway").exception("event=defect request_id=%s", request_id)
        return _problem(request, InternalInvariant("an unexpected error of the gateway; its log has the details"))


async def name_response(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on a response that is about to be sent.

    What the server refuses before `explain_errors` has seen it, an unknown Expect header, has none yet.
    """
    response.headers[_REQUEST_ID_HEADER] = request.get(REQUEST_ID) or uuid.uuid4().hex


async def _complete(request: web.Request) -> web.StreamResponse:
    raw = await read_body(request)
    route: Route = "/v1/completions" if request.path == "/v1/completions" else "/v1/chat/completions"
    core = request.app[CORE]
    async with core.answer(route, raw, headers=_forwarded(request), request_id=request[REQUEST_ID]) as reply:
        return await _send(request, reply)


async def _pass_through(request: web.Request) -> web.StreamResponse:
    raw = await read_body(request)
    core = request.app[CORE]
    async with core.forward(request.method, request.raw_path, raw, headers=_forwarded(request)) as reply:
        return await _send(request, reply)


async def _health(_: web.Request) -> web.Response:
    return json_response(200, {"status": "alive"})


async def _ready(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    reasons = list(parts.engines.reasons())
    try:
        await parts.index.ping()
    except StoreUnavailable as error:
        if error.message not in reasons:
            reasons.append(error.message)
    live = parts.engines.live
    return json_response(
        503 if reasons else 200,
        {"ready": not reasons, "reasons": reasons, "engines": list(live.epochs) if live is not None else []},
    )


async def _metrics(request: web.Request) -> web.Response:
    body = request.app[PARTS].telemetry.exposition()
    return web.Response(body=body, headers={"Content-Type": METRICS_CONTENT_TYPE})


async def _limits(request: web.Request) -> web.Response:
    settings, live = request.app[SETTINGS], request.app[PARTS].engines.live
    return json_response(
        200,
        {
            **asdict(Limits()),
            "max_body_bytes": settings.max_body_bytes,
            "max_named_bytes": settings.cache.named_limit_bytes,
            "max_waiting_sets": settings.queue.limit,
            "default_deadline_ms": settings.deadline_ms,
            "max_deadline_ms": MAX_DEADLINE_MS,
            "max_model_len": live.record.max_model_len if live is not None else None,
            "leading_space": list(get_args(LeadingSpace)),
        },
    )


def _forwarded(request: web.Request) -> Headers:
    """The client's headers for the engine. The body goes on unpacked, and the id is the one that the client gets."""
    dropped = {"content-encoding", "content-length", _REQUEST_ID_HEADER.lower()}
    kept = tuple((name, value) for name, value in request.headers.items() if name.lower() not in dropped)
    return (*kept, (_REQUEST_ID_HEADER, request[REQUEST_ID]))


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    headers = CIMultiDict(reply.headers)
    if isinstance(reply.body, bytes):
        headers.popall("Content-Length", None)
        return web.Response(status=reply.status, headers=headers, body=reply.body)
    response = web.StreamResponse(status=reply.status, headers=headers)
    await response.prepare(request)
    try:
        async with aclosing(reply.body) as chunks:
            async for chunk in chunks:
                await response.write(chunk)
        await response.write_eof()
    except MaskfeedError as error:
        # the status is out: breaking the connection is the only way left to say that the body is not whole
        log_event("answer-broken", {"request_id": request[REQUEST_ID], "code": error.code}, level=logging.WARNING)
        if request.transport is not None:
            request.transport.abort()
    return response


def _problem(request: web.Request, error: MaskfeedError) -> web.Response:
    status, headers, body = to_response(error, request[REQUEST_ID])
    request.app[PARTS].telemetry.failed(error.code)
    told = {"request_id": request[REQUEST_ID], "status": status, "code": error.code}
    if isinstance(error, StoreUnavailable):
        # the driver's text is for whoever reads the log: it names the socket or the host
        told["cause"] = str(error.__cause__)
    log_event(
        "request-refused",
        {**told, "stage": error.context.get("stage", "-")},
        level=logging.WARNING if status >= 500 else logging.INFO,
    )
    return web.Response(status=status, headers=headers, body=body)


def _http_problem(error: web.HTTPException, request_id: str) -> web.Response:
    """What the server itself refuses: no such route, or not with this method."""
    body = {
        "message": error.reason,
        "type": "invalid_request_error",
        "param": None,
        "code": error.reason.lower().replace(" ", "-"),
        "request_id": request_id,
    }
    headers = {"x-should-retry": "false"}
    if "Allow" in error.headers:
        headers["Allow"] = error.headers["Allow"]
    return json_response(error.status, {"error": body}, headers)
