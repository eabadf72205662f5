"""Pins on their way back to the index: in the background, many at a time.

It knows nothing of what was pinned. Invariant: a pin that was given back here is returned, or outlived by its own
lifetime; whoever gives one back neither waits nor fails.
"""

import asyncio

from maskfeed_automata.errors import CapacityError, StoreUnavailable
from maskfeed_cache.store import CacheIndex

__all__ = ["PinReturns"]


class PinReturns:
    """Returns pins to `index`. For one event loop."""

    def __init__(self, index: CacheIndex) -> None:
        self._index = index
        self._tokens: list[str] = []
        self._returning: asyncio.Task[None] | None = None

    def give_back(self, token: str) -> None:
        """Return the pin soon."""
        self._tokens.append(token)
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before."""
        if self._tokens and self._returning is None:
            self._returning = asyncio.get_running_loop().create_task(self._return())

    async def close(self) -> None:
        """Send what is left, if the store answers."""
        self.flush()
        if self._returning is not None:
            await self._returning

    async def _return(self) -> None:
        try:
            while self._tokens:
                # one turn of the loop: pins that end together go together
                await asyncio.sleep(0)
                sending = tuple(self._tokens)
                await self._index.unpin(sending)
                del self._tokens[: len(sending)]
        except (StoreUnavailable, CapacityError):
            # kept for the next call, and an index that never hears of them lets them lapse
            return
        finally:
            self._returning = None
