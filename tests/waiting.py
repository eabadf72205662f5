"""Waiting for something that another process or task will do, bounded."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

__all__ = ["eventually"]

_PAUSE_S = 0.005


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = 10.0) -> None:
    """Return as soon as `condition` holds; fail if it does not in time."""
    never = asyncio.Event()
    async with asyncio.timeout(within_s):
        while not await condition():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), _PAUSE_S)
