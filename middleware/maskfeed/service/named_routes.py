"""The HTTP routes of named candidate sets, over aiohttp.

It knows aiohttp and no candidate. Invariants: an answer about a set has its generation as `ETag`; a change whose
precondition does not hold changes nothing.
"""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from maskfeed.service.http_messages import PARTS, json_response, read_body
from maskfeed.service.named_references import check_name
from maskfeed.service.named_sets import NamedSets
from maskfeed.service.preconditions import Precondition, entity_tag, read_precondition
from maskfeed.service.tenants import tenant_of
from maskfeed_automata.errors import ParameterError
from maskfeed_cache.named_sets import NamedSet

__all__ = ["named_routes"]

_COLLECTION: Final = "/v1/candidate-sets"
_ONE: Final = f"{_COLLECTION}/{{name}}"
# query parameter of GET, and what it may say
_WITH_LIST: Final = "candidates"
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def named_routes() -> list[web.RouteDef]:
    """The routes."""
    return [
        web.get(_COLLECTION, _names),
        web.get(_ONE, _get),
        web.put(_ONE, _put),
        web.patch(_ONE, _patch),
        web.delete(_ONE, _delete),
    ]


async def _names(request: web.Request) -> web.Response:
    listed = await _sets(request).names(_tenant(request))
    return json_response(HTTPStatus.OK, {"candidate_sets": [_described(named) for named in listed]})


async def _get(request: web.Request) -> web.Response:
    tenant, name, condition = _tenant(request), _name(request), _precondition(request)
    wants_list = _wants_list(request)
    named = await _sets(request).get(tenant, name)
    if condition.none_match is not None and named.generation in condition.none_match:
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": entity_tag(named.generation)})
    condition.check(named.generation)
    body = _described(named)
    if wants_list:
        named, text = await _sets(request).text(tenant, name)
        condition.check(named.generation)
        body = {**_described(named), _WITH_LIST: msgspec.Raw(text)}
    return json_response(HTTPStatus.OK, body, {"ETag": entity_tag(named.generation)})


async def _put(request: web.Request) -> web.Response:
    tenant, name, condition = _tenant(request), _name(request), _precondition(request)
    named, is_new = await _sets(request).put(tenant, name, await read_body(request), condition)
    headers = {"ETag": entity_tag(named.generation)}
    if not is_new:
        return json_response(HTTPStatus.OK, _described(named), headers)
    return json_response(HTTPStatus.CREATED, _described(named), {**headers, "Location": f"{_COLLECTION}/{name}"})


async def _patch(request: web.Request) -> web.Response:
    tenant, name, condition = _tenant(request), _name(request), _precondition(request)
    named, changed = await _sets(request).patch(tenant, name, await read_body(request), condition)
    body = {**_described(named), "added": changed.added, "removed": changed.removed}
    return json_response(HTTPStatus.OK, body, {"ETag": entity_tag(named.generation)})


async def _delete(request: web.Request) -> web.Response:
    await _sets(request).delete(_tenant(request), _name(request), _precondition(request))
    return web.Response(status=HTTPStatus.NO_CONTENT)


def _sets(request: web.Request) -> NamedSets:
    return request.app[PARTS].named_sets


def _tenant(request: web.Request) -> str:
    return tenant_of(tuple(request.headers.items()))


def _name(request: web.Request) -> str:
    name = request.match_info["name"]
    check_name(name)
    return name


def _precondition(request: web.Request) -> Precondition:
    def given(header: str) -> str | None:
        # a list may come as several headers
        lines = request.headers.getall(header, [])
        return ", ".join(lines) if lines else None

    return read_precondition(if_match=given("If-Match"), if_none_match=given("If-None-Match"))


def _wants_list(request: web.Request) -> bool:
    text = request.query.get(_WITH_LIST, "false")
    if text not in _BOOLEANS:
        raise ParameterError(f"`{_WITH_LIST}` must be true or false", field=_WITH_LIST)
    return _BOOLEANS[text]


def _described(named: NamedSet) -> dict[str, Any]:
    return {
        "name": named.name,
        "generation": named.generation,
        "digest": named.digest,
        "count": named.count,
    }
