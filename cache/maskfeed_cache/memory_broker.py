"""What stands for Redis between the in-process feeds of one engine group.

It knows messages, records, leases and its clock; it knows neither thread nor event loop of those who join. Invariant:
after `leave_as_engine` or `leave_as_gateway` returns, the caller is not called any more.
"""

import threading
import time
from collections.abc import Callable, Sequence

from maskfeed_cache.feed_messages import EngineEvent, EngineRecord, GatewayMessage
from maskfeed_cache.memory_store import FaultScript, MemoryBlobStore

__all__ = ["MemoryBroker"]


class MemoryBroker:
    """What the feeds of one engine group share. Thread-safe.

    Args:
        blobs: where vocabularies go; its fault script is the broker's.
        clock: seconds; leases are measured with it.
    """

    def __init__(self, blobs: MemoryBlobStore | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.blobs = blobs or MemoryBlobStore()
        self.faults: FaultScript = self.blobs.faults
        self._clock = clock
        self._lock = threading.Lock()
        self._feed: list[GatewayMessage] = []
        self._records: dict[str, tuple[EngineRecord, float]] = {}
        self._gateways: dict[str, float] = {}
        self._engine_wakers: set[Callable[[], None]] = set()
        self._event_sinks: set[Callable[[EngineEvent], None]] = set()

    def feed_length(self) -> int:
        """Position behind the last message for engines."""
        with self._lock:
            return len(self._feed)

    def feed_after(self, position: int) -> list[GatewayMessage]:
        """Messages for engines from `position` on."""
        with self._lock:
            return self._feed[position:]

    def send_to_engines(self, messages: Sequence[GatewayMessage]) -> None:
        """Append and wake the engines."""
        with self._lock:
            self._feed.extend(messages)
            for wake in self._engine_wakers:
                wake()

    def send_to_gateways(self, events: Sequence[EngineEvent]) -> None:
        """Hand each event to each gateway."""
        with self._lock:
            for event in events:
                for sink in self._event_sinks:
                    sink(event)

    def join_as_engine(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must not block, from any thread whenever there is a new message."""
        with self._lock:
            self._engine_wakers.add(wake)

    def leave_as_engine(self, wake: Callable[[], None]) -> None:
        """Undo `join_as_engine`. Idempotent."""
        with self._lock:
            self._engine_wakers.discard(wake)

    def join_as_gateway(self, sink: Callable[[EngineEvent], None]) -> None:
        """Call `sink`, which must not block, from any thread with each new event."""
        with self._lock:
            self._event_sinks.add(sink)

    def leave_as_gateway(self, sink: Callable[[EngineEvent], None]) -> None:
        """Undo `join_as_gateway`. Idempotent."""
        with self._lock:
            self._event_sinks.discard(sink)

    def write_record(self, record: EngineRecord, lease_ms: int) -> None:
        """Publish or extend an engine's record."""
        with self._lock:
            self._records[record.epoch] = (record, self._clock() + lease_ms / 1000)

    def delete_record(self, epoch: str) -> None:
        """Withdraw an engine's record. Idempotent."""
        with self._lock:
            self._records.pop(epoch, None)

    def live_records(self) -> list[EngineRecord]:
        """Records whose lease runs, ordered by epoch."""
        with self._lock:
            now_s = self._clock()
            self._records = {epoch: held for epoch, held in self._records.items() if held[1] > now_s}
            return [self._records[epoch][0] for epoch in sorted(self._records)]

    def write_lease(self, gateway: str, lease_ms: int) -> None:
        """Take or extend a gateway's lease."""
        with self._lock:
            self._gateways[gateway] = self._clock() + lease_ms / 1000

    def delete_lease(self, gateway: str) -> None:
        """Give a gateway's lease up. Idempotent."""
        with self._lock:
            self._gateways.pop(gateway, None)

    def is_leased(self, gateway: str) -> bool:
        """Whether the gateway's lease runs."""
        with self._lock:
            return self._gateways.get(gateway, 0.0) > self._clock()
