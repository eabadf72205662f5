"""The HTTP routes of the cache, over aiohttp: its figures for everybody, a new generation for the administrator.

Invariants: without the admin key nothing is changed; what is cleared first is the index, so that whatever fails
afterwards holds memory for a while and answers nobody with something old.
"""

import hmac
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from maskfeed.service.http_messages import PARTS, REQUEST_ID, SETTINGS, json_response
from maskfeed_cache.fence import LayerUsage

__all__ = ["cache_routes"]

_SCHEME: Final = "bearer"


def cache_routes() -> list[web.RouteDef]:
    """The routes."""
    return [web.get("/v1/cache", _describe), web.post("/v1/cache/clear", _clear)]


async def _describe(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    usage = await parts.index.usage()
    generation = usage.fence.generation
    layers: dict[str, Any] = {layer: _figures(figures, generation) for layer, figures in usage.layers.items()}
    layers["compilers"] = _figures(await parts.compiler.usage(), generation)
    layers["names"] = asdict(await parts.named_sets.usage())
    held = await parts.engines.held()
    layers["engines"] = {epoch: None if figures is None else asdict(figures) for epoch, figures in held.items()}
    return json_response(HTTPStatus.OK, {**asdict(usage.fence), "layers": layers})


async def _clear(request: web.Request) -> web.Response:
    refusal = _refusal(request)
    if refusal is not None:
        return refusal
    parts = request.app[PARTS]
    fence = await parts.cache.clear()
    await parts.compiler.clear()
    engines_told = await parts.engines.clear(fence)
    return json_response(HTTPStatus.OK, {**asdict(fence), "engines_told": engines_told})


def _figures(usage: LayerUsage, generation: int) -> dict[str, Any]:
    return {"generation": generation, **asdict(usage)}


def _refusal(request: web.Request) -> web.Response | None:
    """The answer to somebody who is not the administrator."""
    key = request.app[SETTINGS].admin_key
    if key is None:
        return _problem(
            request, HTTPStatus.FORBIDDEN, "this gateway has no admin key (MASKFEED_ADMIN_KEY)", "no-admin-key"
        )
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), key.encode())
    if scheme.lower() == _SCHEME and is_right:
        return None
    return _problem(request, HTTPStatus.UNAUTHORIZED, "the bearer token is not the admin key", "wrong-admin-key")


def _problem(request: web.Request, status: HTTPStatus, message: str, code: str) -> web.Response:
    body = {
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": code,
        "request_id": request[REQUEST_ID],
    }
    headers = {"x-should-retry": "false"}
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(status, {"error": body}, headers)
