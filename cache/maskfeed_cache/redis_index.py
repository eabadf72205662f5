"""A `CacheIndex` in Redis: one script for each step.

It turns calls into scripts and their answers into values; what is compared and counted, the scripts do. It does not
know what an artifact means, and moves no blob. Invariant: a hit that it hands out left its blob there, with a whole
life before it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from maskfeed_automata.errors import CorruptArtifact
from maskfeed_cache.connection import DEFAULT_TIMEOUTS, Timeouts, async_store_errors, open_async_client
from maskfeed_cache.fence import (
    Acquired,
    Commit,
    Failure,
    Fence,
    Granted,
    Held,
    Hit,
    IndexEntry,
    Layer,
    LayerUsage,
    Lease,
    News,
    Pin,
    Remembered,
    Usage,
)
from maskfeed_cache.keys import BLOB_GRACE_S, BLOB_TTL_S, INDEX_TTL_S, Keyspace
from maskfeed_cache.redis_news import decode_fence, read_news
from maskfeed_cache.scripts import Script, run_script
from maskfeed_cache.store import all_is_pinned, over_limit

__all__ = ["RedisIndex"]

_DEFAULT_KEYS: Final = Keyspace()
_UNLIMITED: Final[Mapping[Layer, int | None]] = MappingProxyType({})
_PINS_PER_CALL: Final = 64


class RedisIndex:
    """See `CacheIndex`. Connects at the first call.

    All who share a namespace give the same limits and lives.

    Args:
        url: see `maskfeed_cache.connection`.
        keys: namespace of the keys; its group is not used.
        limit_bytes: per layer, for live and orphaned bytes together; missing or None: unlimited.
        entry_ttl_s: life of an entry that nobody asks for and nobody has pinned.
        blob_ttl_s: what a hit leaves its blob to live; longer than `entry_ttl_s`, and the same as the blob store's.
        blob_grace_s: a blob that was stored or asked for within that time is not swept; longer than it takes from
            storing a blob to committing it.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace = _DEFAULT_KEYS,
        *,
        limit_bytes: Mapping[Layer, int | None] = _UNLIMITED,
        entry_ttl_s: float = INDEX_TTL_S,
        blob_ttl_s: int = BLOB_TTL_S,
        blob_grace_s: float = BLOB_GRACE_S,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._client = open_async_client(url, timeouts)
        self._answer_s = timeouts.answer_s
        self._keys = keys
        self._limit_bytes = dict(limit_bytes)
        self._entry_ttl_us = round(entry_ttl_s * 1e6)
        self._blob_ttl_s = blob_ttl_s
        self._blob_grace_s = blob_grace_s

    async def acquire(self, layer: Layer, key: str, *, token: str, lease_ms: int, pin: Pin | None = None) -> Acquired:
        """See `CacheIndex`. One round trip, two for a hit.

        The blob has its own hash tag, so no script may touch it together with the index; EXPIRE is check and renewal
        in one.
        """
        while True:
            verdict, *rest = await self._run(
                "acquire", layer, key, token, lease_ms, *_pin_arguments(pin), of=(layer, key)
            )
            if verdict == b"granted":
                return Granted(Lease(layer, key, token, decode_fence(rest[0])))
            if verdict == b"held":
                return Held(int(rest[1]), decode_fence(rest[0]))
            if verdict == b"failed":
                return Remembered(_decode_failure(rest[0]))
            fence, entry = rest[0], IndexEntry(rest[1].decode(), int(rest[2]))
            async with async_store_errors("acquire", within_s=self._answer_s):
                if await self._client.expire(self._keys.blob(entry.artifact_hash), self._blob_ttl_s):
                    return Hit(entry, decode_fence(fence))
            await self._run("drop", layer, key, fence, entry.artifact_hash, pin.token if pin is not None else "")

    async def heartbeat(self, lease: Lease, *, lease_ms: int) -> bool:
        """See `CacheIndex`."""
        answer = await self._run(
            "heartbeat", lease.token, _encode_fence(lease.fence), lease_ms, of=(lease.layer, lease.key)
        )
        return bool(answer)

    async def commit(self, lease: Lease, entry: IndexEntry, *, pin: Pin | None = None) -> Commit:
        """See `CacheIndex`. More than one round trip only if much has to be evicted."""
        limit = self._limit_bytes.get(lease.layer)
        verdict, numbers = b"again", []
        while verdict == b"again":
            verdict, *numbers = await self._run(
                *("commit", lease.layer, lease.key, lease.token, _encode_fence(lease.fence)),
                *(entry.artifact_hash, entry.size_bytes, "" if limit is None else limit),
                *_pin_arguments(pin),
                of=(lease.layer, lease.key),
            )
        if verdict == b"large":
            raise over_limit(entry, lease.layer, limit)
        if verdict == b"pinned":
            immovable, wait_us = map(int, numbers)
            raise all_is_pinned(entry, lease.layer, limit, immovable_bytes=immovable, wait_s=wait_us / 1e6)
        return Commit(verdict.decode())

    async def fail(self, lease: Lease, failure: Failure, *, remember_ms: int) -> bool:
        """See `CacheIndex`."""
        answer = await self._run(
            *("fail", lease.layer, lease.key, lease.token, _encode_fence(lease.fence)),
            *(msgspec.json.encode(failure), remember_ms),
            of=(lease.layer, lease.key),
        )
        return bool(answer)

    async def release(self, lease: Lease) -> None:
        """See `CacheIndex`."""
        await self._run(
            *("release", lease.layer, lease.key, lease.token, _encode_fence(lease.fence)), of=(lease.layer, lease.key)
        )

    async def unpin(self, pins: Sequence[str]) -> None:
        """See `CacheIndex`."""
        for begin in range(0, len(pins), _PINS_PER_CALL):
            await self._run("unpin", *pins[begin : begin + _PINS_PER_CALL])

    async def clear(self) -> Fence:
        """See `CacheIndex`."""
        (fence,) = await self._run("clear")
        return decode_fence(fence)

    async def usage(self) -> Usage:
        """See `CacheIndex`. More than one round trip only if much has expired."""
        verdict, fence, figures = b"again", b"", []
        while verdict == b"again":
            verdict, fence, *figures = await self._run("usage")
        layers = {}
        for begin in range(0, len(figures), 8):
            layer = Layer(figures[begin].decode())
            entries, size, orphaned, *counters = map(int, figures[begin + 1 : begin + 8])
            layers[layer] = LayerUsage(entries, size, orphaned, self._limit_bytes.get(layer), *counters)
        return Usage(decode_fence(fence), layers)

    async def sweep(self) -> int:
        """See `CacheIndex`. At most 64 blobs a call."""
        verdict, n_deleted = b"again", 0
        while verdict == b"again" and n_deleted == 0:
            verdict, moment, *garbage = await self._run("sweep", round(self._blob_grace_s * 1e6))
            outcomes = await asyncio.gather(*map(self._delete_blob, garbage))
            gone = [artifact_hash for artifact_hash, outcome in zip(garbage, outcomes, strict=True) if outcome >= 0]
            if gone:
                await self._run("forget", moment, *gone)
            n_deleted = outcomes.count(1)
        return n_deleted

    def news(self) -> AsyncIterator[News]:
        """See `CacheIndex`."""
        return read_news(self._client, self._keys.cache_news, answer_s=self._answer_s)

    async def ping(self) -> None:
        """See `CacheIndex`. Asks the server that has the index."""
        async with async_store_errors("ping", within_s=self._answer_s):
            await self._client.exists(self._keys.cache_state)

    async def close(self) -> None:
        """See `CacheIndex`."""
        await self._client.aclose()

    async def _run(self, name: str, *arguments: str | int | bytes, of: tuple[Layer, str] | None = None) -> Any:
        """Run a script of the cache; `of` names the key whose lease and failure it may touch."""
        keys = self._keys.cache
        if of is not None:
            keys += (self._keys.lease(*of), self._keys.failure(*of))
        async with async_store_errors(name, within_s=self._answer_s):
            return await run_script(
                self._client,
                Script.load_with_ledger(name),
                keys,
                (uuid.uuid4().hex, self._entry_ttl_us, *arguments),
            )

    async def _delete_blob(self, artifact_hash: bytes) -> int:
        async with async_store_errors("sweep", within_s=self._answer_s):
            outcome: int = await run_script(
                self._client,
                Script.load("delete_blob"),
                [self._keys.blob(artifact_hash.decode())],
                [self._blob_ttl_s * 1000, round(self._blob_grace_s * 1000)],
            )
        return outcome


def _pin_arguments(pin: Pin | None) -> tuple[str, int]:
    return (pin.token, pin.lifetime_ms) if pin is not None else ("", 0)


def _encode_fence(fence: Fence) -> str:
    return f"{fence.epoch}|{fence.generation}"


def _decode_failure(text: bytes) -> Failure:
    try:
        return msgspec.json.decode(text, type=Failure)
    except msgspec.MsgspecError as error:
        raise CorruptArtifact(f"a remembered failure can't be read: {error}", section="failure") from error
