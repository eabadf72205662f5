"""Every implementation of the cache's index with its blobs, and what a test must be able to do behind its back."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Protocol

import pytest
import redis

from manual_clock import ManualClock
from maskfeed_cache.fence import Acquired, Commit, Granted, IndexEntry, Layer, Lease, Pin
from maskfeed_cache.keys import INDEX_TTL_S, Keyspace
from maskfeed_cache.memory_index import MemoryIndex
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.store import CacheIndex
from redis_cluster import RedisCluster
from redis_process import RedisProcess
from redis_programs import redis_program

__all__ = [
    "INDEX_KINDS",
    "KEYS",
    "LEASE_MS",
    "IndexServers",
    "IndexStore",
    "MemoryIndexStore",
    "RedisIndexStore",
    "index_servers",
    "new_name",
]

INDEX_KINDS = ("memory", "redis-6.2", "redis-7", "cluster-7")
KEYS = Keyspace(namespace="index")
LEASE_MS = 60_000

_UNLIMITED: Mapping[Layer, int | None] = {}
_NAMES = (f"{number:032x}" for number in itertools.count(1))


def new_name() -> str:
    """A token of a holder or of a pin."""
    return next(_NAMES)


class Blobs(Protocol):
    def put(self, blob: bytes) -> str: ...
    def close(self) -> None: ...


class IndexStore:
    """One cache, begun anew, with one index."""

    blobs: Blobs
    index: CacheIndex

    def has_blob(self, artifact_hash: str) -> bool:
        raise NotImplementedError

    def delete_blob(self, artifact_hash: str) -> None:
        raise NotImplementedError

    def lose_everything(self) -> None:
        """What a restart without data does."""
        raise NotImplementedError

    def pass_ms(self, duration_ms: int) -> None:
        """So much time passes for index and blobs, and for nobody else."""
        raise NotImplementedError

    async def close(self) -> None:
        self.blobs.close()
        await self.index.close()

    # what most tests do; here so that they say it in a word

    def entry(self, blob: bytes) -> IndexEntry:
        return IndexEntry(self.blobs.put(blob), len(blob))

    async def granted(self, key: str, *, layer: Layer = Layer.SETS) -> Lease:
        answer = await self.ask(key, layer=layer)
        assert isinstance(answer, Granted), answer
        return answer.lease

    async def ask(self, key: str, *, layer: Layer = Layer.SETS, pin: Pin | None = None) -> Acquired:
        return await self.index.acquire(layer, key, token=new_name(), lease_ms=LEASE_MS, pin=pin)

    async def fill(self, key: str, blob: bytes, *, layer: Layer = Layer.SETS, pin: Pin | None = None) -> IndexEntry:
        lease, entry = await self.granted(key, layer=layer), self.entry(blob)
        assert await self.index.commit(lease, entry, pin=pin) is Commit.INDEXED
        return entry


class MemoryIndexStore(IndexStore):
    def __init__(
        self, *, limit_bytes: Mapping[Layer, int | None] = _UNLIMITED, entry_ttl_s: float = INDEX_TTL_S
    ) -> None:
        self._clock = ManualClock()
        self.blobs: MemoryBlobStore = MemoryBlobStore(clock=self._clock.time)
        self.index: MemoryIndex = MemoryIndex(
            self.blobs, limit_bytes=limit_bytes, entry_ttl_s=entry_ttl_s, clock=self._clock.time
        )

    def has_blob(self, artifact_hash: str) -> bool:
        return artifact_hash in self.blobs.blobs

    def delete_blob(self, artifact_hash: str) -> None:
        self.blobs.blobs.pop(artifact_hash, None)

    def lose_everything(self) -> None:
        self.index.lose_state()

    def pass_ms(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms / 1000)


class RedisIndexStore(IndexStore):
    """Args: a server or a cluster that runs; it is emptied."""

    def __init__(
        self,
        server: RedisProcess | RedisCluster,
        *,
        limit_bytes: Mapping[Layer, int | None] = _UNLIMITED,
        entry_ttl_s: float = INDEX_TTL_S,
    ) -> None:
        self._nodes = server.nodes if isinstance(server, RedisCluster) else [server]
        self._server = server
        self.url = server.url
        self.lose_everything()
        self.blobs: RedisBlobStore = RedisBlobStore(server.url, KEYS)
        self.index: RedisIndex = RedisIndex(server.url, KEYS, limit_bytes=limit_bytes, entry_ttl_s=entry_ttl_s)

    def client_of(self, key: str) -> redis.Redis:
        return self._server.node_of(key).client if isinstance(self._server, RedisCluster) else self._server.client

    def has_blob(self, artifact_hash: str) -> bool:
        return bool(self.client_of(KEYS.blob(artifact_hash)).exists(KEYS.blob(artifact_hash)))

    def delete_blob(self, artifact_hash: str) -> None:
        self.client_of(KEYS.blob(artifact_hash)).delete(KEYS.blob(artifact_hash))

    def lose_everything(self) -> None:
        for node in self._nodes:
            node.client.flushall()

    def pass_ms(self, duration_ms: int) -> None:
        """Every moment that is kept moves into the past: nothing in the scripts can tell that from a clock that ran."""
        for node in self._nodes:
            for key in list(node.client.scan_iter()):
                self._age(node.client, key, duration_ms)

    @staticmethod
    def _age(client: redis.Redis, key: bytes, duration_ms: int) -> None:
        kind = client.type(key)
        if kind == b"string":
            left_ms = client.pttl(key) - duration_ms
            if left_ms > 0:
                client.pexpire(key, left_ms)
            else:
                client.delete(key)
        elif kind == b"zset":
            for member in client.zrange(key, 0, -1):
                client.zincrby(key, -duration_ms * 1000, member)
        elif key.decode() == KEYS.cache_state:
            for field in {"clock", "cleared"} & {name.decode() for name in client.hkeys(key)}:
                client.hincrby(key, field, -duration_ms * 1000)


class IndexServers:
    """Starts each server at its first use and keeps it for the whole run."""

    def __init__(self) -> None:
        self._started: dict[str, RedisProcess | RedisCluster] = {}

    def get(self, kind: str) -> RedisProcess | RedisCluster:
        if kind not in self._started:
            name, version = kind.split("-")
            server = RedisCluster(version) if name == "cluster" else RedisProcess(redis_program(version))
            self._started[kind] = server.start()
        return self._started[kind]

    def open(
        self, kind: str, *, limit_bytes: Mapping[Layer, int | None] = _UNLIMITED, entry_ttl_s: float = INDEX_TTL_S
    ) -> IndexStore:
        if kind == "memory":
            return MemoryIndexStore(limit_bytes=limit_bytes, entry_ttl_s=entry_ttl_s)
        return RedisIndexStore(self.get(kind), limit_bytes=limit_bytes, entry_ttl_s=entry_ttl_s)

    def remove(self) -> None:
        for server in self._started.values():
            server.remove()


@pytest.fixture(scope="session")
def index_servers() -> Iterator[IndexServers]:
    """The servers of all kinds; none runs before it is asked for."""
    servers = IndexServers()
    yield servers
    servers.remove()
