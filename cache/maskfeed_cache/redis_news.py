"""The news of a cache, read from its stream.

It knows the entries that the scripts write, and nothing of leases. Invariant: between two Resyncs nothing is missing;
each entry has a number, and a gap in them is a Resync as well.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import redis.asyncio

from maskfeed_automata.errors import CapacityError, StoreError
from maskfeed_cache.connection import async_store_errors, backoff_s
from maskfeed_cache.fence import Cleared, Fence, Layer, News, Resync, Settled
from maskfeed_cache.stream import BEGINNING

__all__ = ["decode_fence", "read_news"]

_LOG: Final = logging.getLogger(__name__)

_BLOCK_MS: Final = 2_000
_ENTRIES_PER_READ: Final = 256

# id and number of an entry
_Place = tuple[bytes, int]


async def read_news(client: redis.asyncio.Redis, stream: str, *, answer_s: float) -> AsyncIterator[News]:
    """See `CacheIndex.news`. One connection is in use all the time."""
    waits = backoff_s()
    # of the last entry that was seen; None: to be looked up
    place: _Place | None = None
    while True:
        try:
            if place is None:
                async with async_store_errors("news", within_s=answer_s):
                    place = await _find_end(client, stream)
                news: list[News] = [Resync()]
            else:
                async with async_store_errors("news", within_s=answer_s + _BLOCK_MS / 1000):
                    place, news = await _read_on(client, stream, place)
            waits = backoff_s()
        except (StoreError, CapacityError) as error:
            wait_s = next(waits)
            _LOG.warning(
                "event=cache-news-lost wait_s=%.2f error=%r cause=%r", wait_s, error.message, str(error.__cause__)
            )
            place = None
            await asyncio.sleep(wait_s)
            continue
        for one in news:
            yield one


def decode_fence(text: bytes) -> Fence:
    """A fence as the scripts write it."""
    epoch, generation = text.decode().split("|")
    return Fence(epoch, int(generation))


async def _find_end(client: redis.asyncio.Redis, stream: str) -> _Place:
    newest: Any = await client.xrevrange(stream, count=1)
    return (newest[0][0], int(newest[0][1][b"n"])) if newest else (BEGINNING, 0)


async def _read_on(client: redis.asyncio.Redis, stream: str, place: _Place) -> tuple[_Place | None, list[News]]:
    streams: Any = await client.xread({stream: place[0]}, count=_ENTRIES_PER_READ, block=_BLOCK_MS)
    if not streams:
        # a stream that began anew may have entries before the place, and they would never be read
        return (place if await _find_end(client, stream) == place else None), []
    news: list[News] = []
    for entry_id, fields in streams[0][1]:
        number = int(fields[b"n"])
        if number != place[1] + 1:
            news.append(Resync())
        news.append(_decode(fields))
        place = (entry_id, number)
    return place, news


def _decode(fields: Mapping[bytes, bytes]) -> News:
    if fields[b"kind"] == b"cleared":
        return Cleared(decode_fence(fields[b"fence"]))
    return Settled(Layer(fields[b"layer"].decode()), fields[b"key"].decode())
