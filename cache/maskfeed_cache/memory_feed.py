"""Both ends of the feed in one process, for tests of what stands on either end.

Feeds made over one `MemoryBroker` hear each other. Invariant: the same contract as over Redis, except that nothing is
ever damaged, so nothing is skipped.
"""

import asyncio
import os
import select
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from maskfeed_automata.errors import InternalInvariant, StoreUnavailable
from maskfeed_cache.feed_messages import (
    Announcement,
    Clear,
    Ended,
    EngineEvent,
    EngineRecord,
    Gap,
    GatewayMessage,
    HeldUsage,
)
from maskfeed_cache.fence import Fence
from maskfeed_cache.keys import LEASE_MS
from maskfeed_cache.memory_broker import MemoryBroker

__all__ = ["MemoryEngineFeed", "MemoryGatewayFeed"]


class MemoryEngineFeed:
    """An `EngineFeed` over a broker. Its descriptor is a pipe that gets a byte with each new message.

    Args:
        broker: shared with the group's other feeds.
        lease_ms: life of the record after `register` and each `renew`.
        block_ms: how long `receive` may wait.
    """

    def __init__(self, broker: MemoryBroker, *, lease_ms: int = LEASE_MS, block_ms: int = 2_000) -> None:
        self._broker = broker
        self._lease_ms = lease_ms
        self._block_ms = block_ms
        self._position = 0
        self._is_armed = False
        self._is_connected = False
        self._registered: tuple[EngineRecord, bytes] | None = None
        self._pipe: tuple[int, int] | None = os.pipe()
        for descriptor in self._pipe:
            os.set_blocking(descriptor, False)

    @property
    def n_skipped(self) -> int:
        """See `EngineFeed`."""
        return 0

    def register(self, record: EngineRecord, vocabulary: bytes) -> None:
        """See `EngineFeed`."""
        self._broker.faults.check("register")
        self._position = self._broker.feed_length()
        self._broker.join_as_engine(self._wake)
        self._is_connected = True
        self._registered = (record, vocabulary)
        self._write_record()

    def renew(self, held: HeldUsage | None = None) -> None:
        """See `EngineFeed`."""
        if self._registered is None:
            raise InternalInvariant("renew before register or after retire")
        self._broker.faults.check("renew")
        self._write_record(held)

    def retire(self) -> None:
        """See `EngineFeed`."""
        if self._registered is None:
            return
        self._broker.faults.check("retire")
        self._broker.delete_record(self._registered[0].epoch)
        self._registered = None

    def arm(self) -> None:
        """See `EngineFeed`."""
        self._check_connection("arm")
        self._is_armed = True
        if self._broker.feed_length() > self._position:
            self._wake()

    def fileno(self) -> int:
        """See `EngineFeed`."""
        self._check_connection("fileno")
        return self._open_pipe()[0]

    def receive(self) -> list[GatewayMessage]:
        """See `EngineFeed`."""
        if not self._is_armed:
            raise InternalInvariant("receive without arm")
        self._is_armed = False
        self._check_connection("receive")
        reading_end = self._open_pipe()[0]
        readable, _, _ = select.select([reading_end], [], [], self._block_ms / 1000)
        if readable:
            os.read(reading_end, 4096)
        messages = self._broker.feed_after(self._position)
        self._position += len(messages)
        return messages

    def reconnect(self) -> None:
        """See `EngineFeed`."""
        self._broker.faults.check("reconnect")
        self._is_armed = False
        self._is_connected = True

    def publish(self, events: Sequence[EngineEvent]) -> None:
        """See `EngineFeed`."""
        self._broker.faults.check("publish")
        self._broker.send_to_gateways(events)

    def dead_gateways(self, gateways: Collection[str]) -> set[str]:
        """See `EngineFeed`."""
        self._broker.faults.check("dead-gateways")
        return {gateway for gateway in gateways if not self._broker.is_leased(gateway)}

    def close(self) -> None:
        """See `EngineFeed`."""
        self._broker.leave_as_engine(self._wake)
        self._is_connected = False
        if self._pipe is not None:
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    def _write_record(self, held: HeldUsage | None = None) -> None:
        assert self._registered is not None
        record, vocabulary = self._registered
        self._broker.blobs.vocabularies[record.fingerprint] = vocabulary
        self._broker.write_record(replace(record, held=held), self._lease_ms)

    def _check_connection(self, stage: str) -> None:
        try:
            self._broker.faults.check(stage)
        except StoreUnavailable:
            self._is_connected = False
            self._is_armed = False
            raise
        if not self._is_connected:
            raise StoreUnavailable(f"no connection during {stage}", stage=stage)

    def _open_pipe(self) -> tuple[int, int]:
        assert self._pipe is not None
        return self._pipe

    def _wake(self) -> None:
        # a full pipe is readable already
        with suppress(BlockingIOError):
            os.write(self._open_pipe()[1], b"!")


class MemoryGatewayFeed:
    """A `GatewayFeed` over a broker.

    Args:
        broker: shared with the group's other feeds.
        lease_ms: life of the gateway's lease; renewed every third of it.
    """

    def __init__(self, broker: MemoryBroker, *, lease_ms: int = LEASE_MS) -> None:
        self._gateway = uuid.uuid4().hex
        self._broker = broker
        self._lease_ms = lease_ms
        self._queue: asyncio.Queue[EngineEvent | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lease_task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def gateway(self) -> str:
        """See `GatewayFeed`."""
        return self._gateway

    @property
    def n_skipped(self) -> int:
        """See `GatewayFeed`."""
        return 0

    async def start(self) -> None:
        """See `GatewayFeed`."""
        self._broker.faults.check("start")
        self._loop = asyncio.get_running_loop()
        self._broker.join_as_gateway(self._take_event)
        self._broker.write_lease(self._gateway, self._lease_ms)
        self._lease_task = asyncio.create_task(self._keep_lease(), name="maskfeed-lease")

    async def close(self) -> None:
        """See `GatewayFeed`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._broker.leave_as_gateway(self._take_event)
        if self._lease_task is not None:
            self._lease_task.cancel()
            await asyncio.gather(self._lease_task, return_exceptions=True)
        self._broker.delete_lease(self._gateway)
        self._queue.put_nowait(None)

    async def engines(self) -> list[EngineRecord]:
        """See `GatewayFeed`."""
        self._broker.faults.check("engines")
        return self._broker.live_records()

    async def vocabulary(self, fingerprint: str) -> bytes:
        """See `GatewayFeed`."""
        self._broker.faults.check("vocabulary")
        return self._broker.blobs.get_vocabulary(fingerprint)

    async def announce(self, announcement: Announcement) -> None:
        """See `GatewayFeed`."""
        self._broker.faults.check("announce")
        self._broker.write_lease(self._gateway, self._lease_ms)
        self._broker.send_to_engines([announcement])

    async def end(self, nonces: Sequence[str]) -> None:
        """See `GatewayFeed`."""
        self._broker.faults.check("end")
        self._broker.send_to_engines([Ended(nonce) for nonce in nonces])

    async def clear(self, fence: Fence) -> None:
        """See `GatewayFeed`."""
        self._broker.faults.check("clear")
        self._broker.send_to_engines([Clear(fence.epoch, fence.generation)])

    async def events(self) -> AsyncIterator[EngineEvent | Gap]:
        """See `GatewayFeed`."""
        while not self._is_closed and (event := await self._queue.get()) is not None:
            yield event

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            self._broker.write_lease(self._gateway, self._lease_ms)

    def _take_event(self, event: EngineEvent) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
