"""The HTTP routes of the cache, over aiohttp: its figures for everybody, a new generation for the administrator.

Invariants: without the admin key nothing is changed; what is cleared first is the index, so that whatever fails
afterwards holds memory for a while and answers nobody with something old.
"""

import hmac
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from aiohttp import web

from maskfeed.service.http_messages import PARTS, SETTINGS, json_response
from maskfeed.service.tenants import bearer_token
from maskfeed_automata.errors import NotPermitted, WrongKey
from maskfeed_cache.fence import LayerUsage

__all__ = ["cache_routes"]


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
    _check_key(request)
    parts = request.app[PARTS]
    fence = await parts.cache.clear()
    await parts.compiler.clear()
    engines_told = await parts.engines.clear(fence)
    return json_response(HTTPStatus.OK, {**asdict(fence), "engines_told": engines_told})


def _figures(usage: LayerUsage, generation: int) -> dict[str, Any]:
    return {"generation": generation, **asdict(usage)}


def _check_key(request: web.Request) -> None:
    """Return if it is the administrator who asks.

    Raises:
        NotPermitted: this gateway has none.
        WrongKey: it is somebody else.
    """
    key = request.app[SETTINGS].admin_key
    if key is None:
        raise NotPermitted("this gateway has no admin key (MASKFEED_ADMIN_KEY)")
    given = bearer_token(tuple(request.headers.items())) or b""
    if not hmac.compare_digest(given, key.encode()):
        raise WrongKey("the bearer token is not the admin key")
