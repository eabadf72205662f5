"""The engine's end of the feed, on Redis streams.

Commands go through a pool; the one blocking read has a connection of its own, so that the engine's thread can poll its
socket beside others. It knows no set and no rank. Invariant: there is at most one unanswered read on that connection,
so one answer is one `receive`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from maskfeed_automata.errors import InternalInvariant
from maskfeed_cache.connection import DEFAULT_TIMEOUTS, Timeouts, open_client, open_node_client, store_errors
from maskfeed_cache.feed_messages import (
    EngineEvent,
    EngineRecord,
    GatewayMessage,
    HeldUsage,
    decode_gateway_message,
    encode_message,
)
from maskfeed_cache.keys import LEASE_MS, STREAM_MAX_ENTRIES, VOCABULARY_TTL_S, Keyspace
from maskfeed_cache.stream import BEGINNING, decode_entries, resume_position

__all__ = ["RedisEngineFeed"]

# For how long Redis holds an empty answer back.
_BLOCK_MS: Final = 2_000
_ENTRIES_PER_READ: Final = 64


class RedisEngineFeed:
    """An `EngineFeed` on Redis. Connects at `register`.

    Args:
        url: see `maskfeed_cache.connection`.
        keys: the engine group.
        lease_ms: life of the record after `register` and each `renew`.
        block_ms: how long `receive` may wait.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace,
        *,
        lease_ms: int = LEASE_MS,
        block_ms: int = _BLOCK_MS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._keys = keys
        self._lease_ms = lease_ms
        self._block_ms = block_ms
        self._client = open_client(url, timeouts)
        # a read may be silent for block_ms before its answer is late
        patient = Timeouts(connect_s=timeouts.connect_s, answer_s=timeouts.answer_s + block_ms / 1000)
        self._open_reader = partial(open_node_client, url, keys.feed, patient)
        self._reader: redis.Redis | None = None
        # a connection of the reader's pool; its driver class has no public name for the socket
        self._connection: Any = None
        self._position = BEGINNING
        self._is_armed = False
        self._registered: tuple[EngineRecord, bytes] | None = None
        self._n_skipped = 0

    @property
    def n_skipped(self) -> int:
        """See `EngineFeed`."""
        return self._n_skipped

    def register(self, record: EngineRecord, vocabulary: bytes) -> None:
        """See `EngineFeed`. The record comes last: whoever sees it finds the vocabulary and is heard."""
        with store_errors("register"):
            self._position = self._newest_entry_id() or BEGINNING
            self._connect()
            self._client.set(self._keys.vocabulary(record.fingerprint), vocabulary, ex=VOCABULARY_TTL_S)
            self._write_record(record)
        self._registered = (record, vocabulary)

    def renew(self, held: HeldUsage | None = None) -> None:
        """See `EngineFeed`. The record is written each time: the same work as extending it, and it mends a loss."""
        if self._registered is None:
            raise InternalInvariant("renew before register or after retire")
        record, vocabulary = self._registered
        key = self._keys.vocabulary(record.fingerprint)
        with store_errors("renew"):
            if not self._client.expire(key, VOCABULARY_TTL_S):
                self._client.set(key, vocabulary, ex=VOCABULARY_TTL_S)
            self._write_record(replace(record, held=held))

    def retire(self) -> None:
        """See `EngineFeed`."""
        if self._registered is None:
            return
        epoch = self._registered[0].epoch
        with store_errors("retire"), self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(self._keys.engine(epoch))
            pipeline.srem(self._keys.engines, epoch)
            pipeline.execute()
        self._registered = None

    def arm(self) -> None:
        """See `EngineFeed`."""
        if self._is_armed:
            return
        with store_errors("arm"):
            self._live_connection().send_command(
                *("XREAD", "COUNT", _ENTRIES_PER_READ, "BLOCK", self._block_ms),
                *("STREAMS", self._keys.feed, self._position),
            )
        self._is_armed = True

    def fileno(self) -> int:
        """See `EngineFeed`."""
        with store_errors("fileno"):
            descriptor: int = self._live_connection()._sock.fileno()
        return descriptor

    def receive(self) -> list[GatewayMessage]:
        """See `EngineFeed`."""
        if not self._is_armed:
            raise InternalInvariant("receive without arm")
        self._is_armed = False
        with store_errors("receive"):
            client: Any = self._reader  # untyped in the driver
            streams = client.parse_response(self._live_connection(), "XREAD")
        if not streams:
            return []
        ((_, entries),) = streams
        self._position = entries[-1][0]
        messages, n_skipped = decode_entries(entries, decode_gateway_message, self._keys.feed)
        self._n_skipped += n_skipped
        return messages

    def reconnect(self) -> None:
        """See `EngineFeed`."""
        with store_errors("reconnect"):
            self._position = resume_position(self._position, self._newest_entry_id())
            self._connect()

    def publish(self, events: Sequence[EngineEvent]) -> None:
        """See `EngineFeed`. One round trip."""
        with store_errors("publish"), self._client.pipeline(transaction=False) as pipeline:
            for event in events:
                # the driver's type of a field mapping is invariant in its keys
                fields: dict[Any, Any] = dict(encode_message(event))
                pipeline.xadd(self._keys.events, fields, maxlen=STREAM_MAX_ENTRIES, approximate=True)
            pipeline.execute()

    def dead_gateways(self, gateways: Collection[str]) -> set[str]:
        """See `EngineFeed`. One round trip."""
        names = list(gateways)
        if not names:
            return set()
        with store_errors("dead-gateways"):
            leases = self._client.mget([self._keys.gateway(name) for name in names])
        return {name for name, lease in zip(names, leases, strict=True) if lease is None}

    def close(self) -> None:
        """See `EngineFeed`."""
        self._drop_connection()
        self._client.close()

    def _newest_entry_id(self) -> bytes | None:
        newest: Any = self._client.xrevrange(self._keys.feed, count=1)
        return newest[0][0] if newest else None

    def _write_record(self, record: EngineRecord) -> None:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.set(self._keys.engine(record.epoch), record.to_json(), px=self._lease_ms)
            pipeline.sadd(self._keys.engines, record.epoch)
            pipeline.execute()

    def _live_connection(self) -> Any:
        # The driver would connect again by itself, behind the back of whoever polls the old socket.
        if self._connection is None or self._connection._sock is None:
            raise RedisConnectionError("the reading connection is gone")
        return self._connection

    def _connect(self) -> None:
        self._drop_connection()
        # in a cluster the stream may lie on another node by now
        self._reader = self._open_reader()
        self._connection = self._reader.connection_pool.get_connection()

    def _drop_connection(self) -> None:
        self._is_armed = False
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
