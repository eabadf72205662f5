"""An HTTP client for tests against servers: many connections, and no request that hangs for ever."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

__all__ = ["http_session"]


@asynccontextmanager
async def http_session(*, answer_s: float = 120.0) -> AsyncIterator[aiohttp.ClientSession]:
    """A session in which an answer that takes longer than `answer_s` is an error."""
    timeout = aiohttp.ClientTimeout(total=answer_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=300)) as session:
        yield session
