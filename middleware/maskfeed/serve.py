"""The gateway as a Ray Serve application: over HTTP, and by handle for callers in the cluster.

`serve run maskfeed.serve:build_app upstream_url=http://engine:8000 redis_url=redis://redis:6379`. Each replica is a
gateway of its own; they share Redis, compile actors and the engine group. It knows Ray Serve, and no candidate.
Invariant: every answer comes from the same core as that of `maskfeed serve`.
"""

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import quote

import msgspec
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from maskfeed.config import ENVIRONMENT_PREFIX, GatewaySettings, variables
from maskfeed.service.embedded import EmbeddedGateway, embedded_gateway
from maskfeed.service.exchange import Headers, Reply, end_to_end
from maskfeed.service.requests import Route
from maskfeed.service.streams import DONE, SseSplitter
from maskfeed_automata.errors import ParameterError, RequestError, UpstreamError

__all__ = ["Gateway", "build_app"]

# The gateway has a bounded line of its own, which says 429; Serve's default of 5 would make requests wait outside it.
_MAX_ONGOING_REQUESTS: Final = 8_192
# beyond the time that running requests are given
_CLOSING_S: Final = 10


def build_app(arguments: Mapping[str, Any]) -> serve.Application:
    """The application, for `serve run`, a Serve config file, or `serve.run(build_app({...}))`.

    Args:
        arguments: settings of the gateway by the names of their variables, in small letters and without the prefix;
            they win over MASKFEED_* in the environment of the process that builds. `redis_url` must be given in one of
            the two ways. Without `compiler`, Ray actors compile. `host` and `port` are Serve's matter.

    Raises:
        ParameterError: a name that is no setting, a value that is none, or no Redis.
    """
    given = {ENVIRONMENT_PREFIX + name.upper(): str(value) for name, value in arguments.items()}
    unknown = sorted(given.keys() - variables())
    if unknown:
        raise ParameterError(f"no such setting: {', '.join(unknown)}", field=unknown[0])
    settings = GatewaySettings.from_mapping({f"{ENVIRONMENT_PREFIX}COMPILER": "ray", **os.environ, **given})
    address = settings.redis.address
    if address is None:
        raise ParameterError("a gateway in Ray Serve needs a Redis that all nodes reach", field="redis_url")
    deployment = serve.deployment(
        name="Gateway",
        max_ongoing_requests=_MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + _CLOSING_S,
    )
    return deployment(Gateway).bind(settings, address)


class Gateway:
    """One replica.

    Over HTTP it has all routes of `maskfeed serve`. By handle it answers what the two routes that take candidates
    answer: `handle.answer.remote(route, body)` and `handle.options(stream=True).stream.remote(route, body)`.
    """

    async def __init__(self, settings: GatewaySettings, redis_url: str) -> None:  # type: ignore[misc]  # Serve awaits it
        self._stack = AsyncExitStack()
        self._gateway: EmbeddedGateway = await self._stack.enter_async_context(embedded_gateway(settings, redis_url))

    async def __del__(self) -> None:
        await self._stack.aclose()

    async def __call__(self, request: Request) -> Response:
        """Answer a request over HTTP."""
        return _Relayed(self._gateway, request, await request.body())

    async def answer(self, route: Route, body: Mapping[str, Any], headers: Headers = ()) -> dict[str, Any]:
        """Answer a request of one of the two routes that take candidates.

        Args:
            route: "/v1/chat/completions" or "/v1/completions".
            body: as posted there.
            headers: as sent there, such as `Authorization`.

        Returns:
            The OpenAI object, with `maskfeed` in it.

        Raises:
            RequestError: the gateway, or the engine (then with `status`), refuses the request.
            MaskfeedError: anything else that goes wrong.
        """
        if body.get("stream"):
            raise ParameterError("a stream is read with `stream`", field="stream")
        async with self._gateway.core.answer(route, _encoded(body), headers=headers, request_id=_new_id()) as reply:
            found: dict[str, Any] = msgspec.json.decode(await _whole(reply))
            _check_status(reply, found)
            return found

    async def stream(
        self, route: Route, body: Mapping[str, Any], headers: Headers = ()
    ) -> AsyncIterator[dict[str, Any]]:
        """The same as a stream of chunks. One with `error` in it is the last.

        Raises:
            MaskfeedError: anything that goes wrong before the first chunk.
        """
        raw, splitter = _encoded({**body, "stream": True}), SseSplitter()
        async with self._gateway.core.answer(route, raw, headers=headers, request_id=_new_id()) as reply:
            if isinstance(reply.body, bytes):
                _check_status(reply, msgspec.json.decode(reply.body))
                raise UpstreamError("the engine sent no stream", stage="generate")
            async for piece in reply.body:
                for event in splitter.feed(piece):
                    if event != DONE:
                        yield msgspec.json.decode(event)


class _Relayed(Response):
    """The gateway's response, sent while it comes; cancelling it cancels the request."""

    def __init__(self, gateway: EmbeddedGateway, request: Request, body: bytes) -> None:
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._sent = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = tuple(self._request.headers.items())
        async with self._gateway.open(
            self._request.method, _target(scope), headers=headers, body=self._sent
        ) as response:
            sent = [(name.lower().encode(), value.encode()) for name, value in end_to_end(response.headers)]
            await send({"type": "http.response.start", "status": response.status, "headers": sent})
            async for chunk in response.chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _target(scope: Scope) -> str:
    """Path below the application's prefix, and query, as the client sent them."""
    path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("ascii").partition("?")[0]
    query = scope["query_string"].decode("ascii")
    path = path.removeprefix(scope.get("root_path", ""))
    return f"{path}?{query}" if query else path


async def _whole(reply: Reply) -> bytes:
    if isinstance(reply.body, bytes):
        return reply.body
    return b"".join([piece async for piece in reply.body])


def _check_status(reply: Reply, found: Any) -> None:
    if reply.status == 200:
        return
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    kind = RequestError if 400 <= reply.status < 500 else UpstreamError
    raise kind(str(message or f"the engine answered {reply.status}"), status=reply.status)


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except TypeError as error:
        raise ParameterError(f"the body can't be sent: {error}", field="body") from error


def _new_id() -> str:
    return uuid.uuid4().hex
