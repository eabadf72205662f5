"""What a running request hangs on: it ends when none of the engines that may serve it lives any more.

An engine's HTTP server can outlive its engine and keep a connection open on which nothing will ever come. This module
does not know who lives; it cuts short the waits of one request when it is told to. Invariant: after the cut no wait
begins or goes on, and each ends with the same typed error, the connection closed by whoever holds it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from maskfeed.service.exchange import Headers, Upstream, UpstreamResponse
from maskfeed_automata.errors import EngineNotReady

__all__ = ["Lifeline", "open_while_alive"]


class Lifeline:
    """Whole until it is cut, once and for good. For one event loop."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._waits: set[asyncio.Timeout] = set()

    def cut(self, reason: str) -> None:
        """End every wait that is under way, and every later one. Only the first reason counts."""
        if self._reason is not None:
            return
        self._reason = reason
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Cancel the block, wherever it waits, when the line is cut.

        Raises:
            EngineNotReady: the line was cut, before or inside the block.
        """
        if self._reason is not None:
            raise self._gone()
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError as error:
            if wait.expired():
                raise self._gone() from error
            raise

    def _gone(self) -> EngineNotReady:
        return EngineNotReady(f"the engine went away while it answered: {self._reason}", stage="generate")


@asynccontextmanager
async def open_while_alive(
    lifeline: Lifeline, upstream: Upstream, method: str, target: str, *, headers: Headers, body: bytes
) -> AsyncIterator[UpstreamResponse]:
    """`Upstream.open`, every wait of which, and of the response, ends when the line is cut.

    Raises:
        EngineNotReady: the line was cut.
        UpstreamError: no connection, or no answer in time.
    """
    async with AsyncExitStack() as held:
        async with lifeline.holding():
            response = await held.enter_async_context(upstream.open(method, target, headers=headers, body=body))
        yield _Response(response, lifeline)


class _Response:
    """A response that is read only while the line is whole. The client's slowness is no wait of ours: no cut there."""

    def __init__(self, response: UpstreamResponse, lifeline: Lifeline) -> None:
        self._response = response
        self._lifeline = lifeline

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    async def read(self) -> bytes:
        async with self._lifeline.holding():
            return await self._response.read()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._response.chunks()) as chunks:
            while True:
                async with self._lifeline.holding():
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                yield chunk
