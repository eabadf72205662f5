"""The gateway's end of the feed, on Redis streams.

Two tasks in the background: one renews the gateway's lease, one reads the events into a bounded queue. Both outlive a
loss of Redis. It knows no request. Invariant: an announcement goes out only together with a fresh lease, so no engine
hears of a gateway that counts as dead.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

from maskfeed_automata.errors import CapacityError, CorruptArtifact, StoreError, StoreUnavailable, UnknownArtifact
from maskfeed_cache.connection import (
    DEFAULT_TIMEOUTS,
    Timeouts,
    as_bytes,
    async_store_errors,
    backoff_s,
    open_async_client,
)
from maskfeed_cache.feed_messages import (
    Announcement,
    Clear,
    Ended,
    EngineEvent,
    EngineRecord,
    Gap,
    GatewayMessage,
    decode_engine_event,
    encode_message,
)
from maskfeed_cache.fence import Fence
from maskfeed_cache.keys import LEASE_MS, STREAM_MAX_ENTRIES, Keyspace
from maskfeed_cache.stream import BEGINNING, decode_entries, resume_position

__all__ = ["RedisGatewayFeed"]

_LOG: Final = logging.getLogger(__name__)

_BLOCK_MS: Final = 2_000
_ENTRIES_PER_READ: Final = 256
# Beyond this the reader waits, and the events wait in Redis.
_QUEUED_EVENTS: Final = 1_024


class RedisGatewayFeed:
    """A `GatewayFeed` on Redis.

    Args:
        url: see `maskfeed_cache.connection`.
        keys: the engine group.
        lease_ms: life of the gateway's lease; renewed every third of it.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace,
        *,
        lease_ms: int = LEASE_MS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._gateway = uuid.uuid4().hex
        self._keys = keys
        self._lease_ms = lease_ms
        self._client = open_async_client(url, timeouts)
        self._answer_s = timeouts.answer_s
        self._position = BEGINNING
        self._queue: asyncio.Queue[EngineEvent | Gap | None] = asyncio.Queue(_QUEUED_EVENTS)
        self._tasks: list[asyncio.Task[None]] = []
        # a read is out or has failed: whether Redis still has the stream must be looked up before the next one
        self._is_adrift = False
        self._is_closed = False
        self._n_skipped = 0

    @property
    def gateway(self) -> str:
        """See `GatewayFeed`."""
        return self._gateway

    @property
    def n_skipped(self) -> int:
        """See `GatewayFeed`."""
        return self._n_skipped

    async def start(self) -> None:
        """See `GatewayFeed`."""
        async with self._store_errors("start"):
            self._position = await self._newest_entry_id() or BEGINNING
            await self._take_lease()
        self._tasks = [
            asyncio.create_task(self._repeat(self._keep_lease), name="maskfeed-lease"),
            asyncio.create_task(self._repeat(self._read_events), name="maskfeed-events"),
        ]

    async def close(self) -> None:
        """See `GatewayFeed`."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        # a lease that can't be given up lapses by itself
        with suppress(StoreUnavailable):
            async with self._store_errors("close"):
                await self._client.delete(self._keys.gateway(self._gateway))
        await self._client.aclose()

    async def engines(self) -> list[EngineRecord]:
        """See `GatewayFeed`. An engine that renews in the instant of being dropped is back with its next renewal."""
        async with self._store_errors("engines"), self._client.pipeline(transaction=False) as pipeline:
            # a full store refuses this write, and then says nothing of engines that could not renew either
            pipeline.set(self._keys.gateway(self._gateway), 1, px=self._lease_ms, xx=True)
            pipeline.smembers(self._keys.engines)
            _, members = await pipeline.execute()
            epochs = sorted(epoch.decode() for epoch in members)
            if not epochs:
                return []
            texts: Any = await self._client.mget([self._keys.engine(epoch) for epoch in epochs])
            expired = [epoch for epoch, text in zip(epochs, texts, strict=True) if text is None]
            if expired:
                await self._client.srem(self._keys.engines, *expired)
        records = (self._decode_record(text) for text in texts if text is not None)
        return [record for record in records if record is not None]

    async def vocabulary(self, fingerprint: str) -> bytes:
        """See `GatewayFeed`."""
        async with self._store_errors("vocabulary"):
            blob = as_bytes(await self._client.get(self._keys.vocabulary(fingerprint)))
        if blob is None:
            raise UnknownArtifact(f"no engine has published the vocabulary {fingerprint}", artifact_hash=fingerprint)
        return blob

    async def announce(self, announcement: Announcement) -> None:
        """See `GatewayFeed`. One round trip, one transaction."""
        async with self._store_errors("announce"), self._client.pipeline(transaction=True) as pipeline:
            pipeline.set(self._keys.gateway(self._gateway), 1, px=self._lease_ms)
            self._add(pipeline, announcement)
            await pipeline.execute()

    async def end(self, nonces: Sequence[str]) -> None:
        """See `GatewayFeed`. One round trip."""
        async with self._store_errors("end"), self._client.pipeline(transaction=False) as pipeline:
            for nonce in nonces:
                self._add(pipeline, Ended(nonce))
            await pipeline.execute()

    async def clear(self, fence: Fence) -> None:
        """See `GatewayFeed`. One round trip."""
        async with self._store_errors("clear"), self._client.pipeline(transaction=False) as pipeline:
            self._add(pipeline, Clear(fence.epoch, fence.generation))
            await pipeline.execute()

    async def events(self) -> AsyncIterator[EngineEvent | Gap]:
        """See `GatewayFeed`."""
        while not self._is_closed and (event := await self._queue.get()) is not None:
            yield event

    def _store_errors(self, stage: str, *, patience_s: float = 0.0) -> AbstractAsyncContextManager[None]:
        return async_store_errors(stage, within_s=self._answer_s + patience_s)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take `step` again and again until cancelled; wait longer after each failure in a row."""
        waits = backoff_s()
        while True:
            try:
                await step()
                waits = backoff_s()
            except (StoreError, CapacityError) as error:
                wait_s = next(waits)
                _LOG.warning(
                    *("event=feed-step-failed step=%s wait_s=%.2f error=%r cause=%r", step.__name__, wait_s),
                    *(error.message, str(error.__cause__)),
                )
                await asyncio.sleep(wait_s)

    async def _keep_lease(self) -> None:
        await asyncio.sleep(self._lease_ms / 3000)
        async with self._store_errors("lease"):
            await self._take_lease()

    async def _take_lease(self) -> None:
        await self._client.set(self._keys.gateway(self._gateway), 1, px=self._lease_ms)

    async def _read_events(self) -> None:
        if self._is_adrift:
            async with self._store_errors("events"):
                self._position = resume_position(self._position, await self._newest_entry_id())
            await self._queue.put(Gap())
        async with self._store_errors("events", patience_s=_BLOCK_MS / 1000):
            self._is_adrift = True
            streams: Any = await self._client.xread(
                {self._keys.events: self._position}, count=_ENTRIES_PER_READ, block=_BLOCK_MS
            )
            self._is_adrift = False
        if not streams:
            return
        ((_, entries),) = streams
        messages, n_skipped = decode_entries(entries, decode_engine_event, self._keys.events)
        self._n_skipped += n_skipped
        self._position = entries[-1][0]
        for message in messages:
            await self._queue.put(message)

    async def _newest_entry_id(self) -> bytes | None:
        newest: Any = await self._client.xrevrange(self._keys.events, count=1)
        return newest[0][0] if newest else None

    def _add(self, pipeline: Any, message: GatewayMessage) -> None:
        pipeline.xadd(self._keys.feed, encode_message(message), maxlen=STREAM_MAX_ENTRIES, approximate=True)

    def _decode_record(self, text: bytes) -> EngineRecord | None:
        try:
            return EngineRecord.from_json(text)
        except CorruptArtifact:
            self._n_skipped += 1
            _LOG.warning("event=engine-record-skipped group=%s", self._keys.group)
            return None
