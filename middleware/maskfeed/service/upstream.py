"""The engine's HTTP server, through aiohttp.

It knows nothing of candidates. Invariants: bodies pass undecoded in both directions, nothing is sent twice, and no
aiohttp error leaves this module.
"""

import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from maskfeed.service.exchange import Headers, UpstreamResponse
from maskfeed_automata.errors import UpstreamError

__all__ = ["HttpUpstream", "client_session"]

# aiohttp would add these of its own; the client's are forwarded instead.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


def client_session(*, silence_timeout_s: float) -> aiohttp.ClientSession:
    """A session for one engine group: without a bound on connections or on the length of an answer.

    Args:
        silence_timeout_s: longest time without a byte from the server.
    """
    return aiohttp.ClientSession(
        # shorter than servers keep an idle connection (vLLM: 5 s): used while it is closed, it loses the request
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class HttpUpstream:
    """Implements `Upstream`.

    Args:
        session: borrowed; whoever made it closes it.
        base_url: of the server, without `/v1`.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url.rstrip("/")

    @asynccontextmanager
    async def open(self, method: str, target: str, *, headers: Headers, body: bytes) -> AsyncIterator[UpstreamResponse]:
        """Send a request. See `Upstream.open`."""
        try:
            response = await self._session.request(
                method,
                URL(self._base_url + target, encoded=True),
                headers=headers,
                # in pieces: a large body in one write would hold up the event loop
                data=io.BytesIO(body) if body else None,
                allow_redirects=False,
                skip_auto_headers=_NOT_ADDED,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamError(
                f"the engine's server can't be reached ({type(error).__name__})", stage="connect"
            ) from error
        try:
            yield _HttpResponse(response)
        finally:
            # gives the connection back if the body was read to its end, and ends the engine's work on it if not
            response.close()


class _HttpResponse:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return tuple(self._response.headers.items())

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _broken(error) from error

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _broken(error) from error


def _broken(error: Exception) -> UpstreamError:
    return UpstreamError(f"the engine's server broke off its answer ({type(error).__name__})", stage="generate")
