"""Time as an argument: what code that waits is given instead of the system's clock.

It decides nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Timer", "pause", "wait_until"]


class Timer(Protocol):
    """A call that is planned and can be called off."""

    def cancel(self) -> None:
        """Call it off. Harmless when it has happened."""
        ...


class Clock(Protocol):
    """Seconds from any fixed instant, never going back, and calls at an instant. An asyncio loop is one."""

    def time(self) -> float:
        """Now, in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Plan `callback` for the instant `when`, on the event loop's thread."""
        ...


async def wait_until(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait for the event; after `seconds` it is set."""
    timer = clock.call_at(clock.time() + seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def pause(clock: Clock, seconds: float) -> None:
    """Wait for so long."""
    await wait_until(asyncio.Event(), clock, seconds)
