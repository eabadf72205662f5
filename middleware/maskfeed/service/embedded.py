"""The gateway inside a process that has an HTTP server already, such as a Ray Serve replica.

All routes are served by the same application as in `maskfeed serve`, over a UNIX socket of this process: whoever has
the bytes of a request hands them in. It knows no such server. Invariant: when the block ends, running requests have
been given their time, and no socket is left.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from maskfeed.config import GatewaySettings
from maskfeed.service.app import create_app, open_parts, runner_options
from maskfeed.service.exchange import Headers, UpstreamResponse, end_to_end
from maskfeed.service.http_messages import CORE
from maskfeed.service.request_life import GatewayCore
from maskfeed.service.upstream import HttpUpstream

__all__ = ["EmbeddedGateway", "embedded_gateway"]

# the host's own header, as in any request over a socket
_HOST = "http://maskfeed"


class EmbeddedGateway:
    """A running gateway. For one event loop."""

    def __init__(self, core: GatewayCore, server: HttpUpstream) -> None:
        # for callers that need no HTTP
        self.core = core
        self._server = server

    def open(
        self, method: str, target: str, *, headers: Headers, body: bytes
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Let the gateway answer a request. Leaving the block before the body's end cancels the request.

        Args:
            method: as sent by the client.
            target: path and query, percent-encoded.
            headers: the client's.
            body: as sent, maybe compressed.
        """
        return self._server.open(method, target, headers=end_to_end(headers, without=("content-length",)), body=body)


@asynccontextmanager
async def embedded_gateway(settings: GatewaySettings, redis_url: str) -> AsyncIterator[EmbeddedGateway]:
    """A gateway in this process; `host` and `port` of the settings are not used.

    Args:
        settings: of the gateway.
        redis_url: of the Redis that the engine uses too.

    Raises:
        ParameterError: the settings can't be met here.
        StoreError: the URL can't be read.
    """
    app = create_app(settings, lambda: open_parts(settings, redis_url))
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="maskfeed-"))
        path = str(Path(directory) / "http.sock")
        runner = web.AppRunner(app, **runner_options(settings))
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        # the gateway bounds the silence of the engine; here nothing more is bounded
        session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        stack.push_async_callback(session.close)
        yield EmbeddedGateway(app[CORE], HttpUpstream(session, _HOST))
