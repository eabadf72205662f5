"""What all routes share: the parts behind the application, bodies in, JSON out.

It knows aiohttp and no route. Invariant: at no moment is more of a body held, as sent and unpacked, than the limit
allows for each.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from maskfeed.config import GatewaySettings
from maskfeed.service.bodies import body_too_large, unpack
from maskfeed.service.request_life import GatewayCore, Parts
from maskfeed_automata.errors import ParameterError

__all__ = ["CORE", "PARTS", "REQUEST_ID", "SETTINGS", "json_response", "read_body"]

CORE: Final = web.AppKey("core", GatewayCore)
PARTS: Final = web.AppKey("parts", Parts)
SETTINGS: Final = web.AppKey("settings", GatewaySettings)
REQUEST_ID: Final = web.RequestKey("request_id", str)


async def read_body(request: web.Request) -> bytes:
    """The body, unpacked.

    Raises:
        LimitExceeded: it is larger than the settings allow, as sent or unpacked.
        ParameterError: broken framing, or a Content-Encoding that is not supported or does not fit.
    """
    limit = request.app[SETTINGS].max_body_bytes
    if request.content_length is not None and request.content_length > limit:
        raise body_too_large(limit, request.content_length)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise body_too_large(limit, limit + 1) from error
    except web.RequestPayloadError as error:
        raise ParameterError("the body can't be read: its framing is broken", field="body") from error
    encoding = request.headers.get("Content-Encoding", "identity")
    if not body or encoding.strip().lower() == "identity":
        return body
    executor = request.app[PARTS].executor
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: unpack(body, encoding, limit_bytes=limit))


def json_response(status: int, body: object, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response whose body is `body` as JSON."""
    return web.Response(
        status=status, body=msgspec.json.encode(body), headers={**(headers or {}), "Content-Type": "application/json"}
    )
