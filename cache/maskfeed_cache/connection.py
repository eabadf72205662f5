"""From a URL to Redis clients, and from the driver's exceptions to ours.

| URL | server |
|---|---|
| `redis://[user:password@]host[:port][/db]` | one server |
| `rediss://...` | the same over TLS; `?ssl_ca_certs=/path` names the authority |
| `unix://[user:password@]/path` | one server on a UNIX socket |
| `redis+cluster://[user:password@]host:port[,host:port...]` | a Redis Cluster; any of its nodes, several for safety |
| `rediss+cluster://...` | the same over TLS |

It knows the driver's defaults and overrides those that would make a thread deaf for a minute: no hidden retries,
every wait bounded. It knows no key and no command. Invariant: code inside `store_errors` lets no driver exception out.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import ChildDeadlockedError, OutOfMemoryError, RedisClusterException, RedisError
from redis.retry import Retry

from maskfeed_automata.errors import CapacityError, StoreError, StoreUnavailable

__all__ = [
    "DEFAULT_TIMEOUTS",
    "DRIVER_ERRORS",
    "Timeouts",
    "as_bytes",
    "async_store_errors",
    "backoff_s",
    "check_url",
    "open_async_client",
    "open_client",
    "open_node_client",
    "store_errors",
    "with_credentials",
]

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

# All roots of the driver's exceptions, and what its sockets raise beside them.
DRIVER_ERRORS: Final = (RedisError, RedisClusterException, ChildDeadlockedError, OSError)

# An event loop has many requests at once; they share this many connections and wait for one, bounded.
_ASYNC_CONNECTIONS: Final = 16
# To each node of a cluster; pipelines do not wait, and the driver refuses them beyond this.
_CLUSTER_CONNECTIONS: Final = 512

# A full Redis has room again when old sets expire, not in a moment.
_FULL_RETRY_S: Final = 60

_FIRST_BACKOFF_S: Final = 0.05
_LAST_BACKOFF_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for Redis, in seconds. Nothing is tried twice behind the caller's back."""

    connect_s: float = 2.0
    # for a synchronous client the silence on the socket after a command; for an asynchronous one the whole operation
    answer_s: float = 5.0


DEFAULT_TIMEOUTS: Final = Timeouts()


def open_client(url: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> redis.Redis:
    """Synchronous, thread-safe client. Connects at the first command.

    Of a cluster's client only what both kinds offer may be used: commands, scripts, pipelines on one hash tag.

    Raises:
        StoreError: the URL can't be read.
    """
    with _url_errors():
        address = _read_url(url)
        if address.nodes:
            return cast("redis.Redis", _LazyCluster(address, timeouts))
        return redis.Redis.from_pool(_open_pool(address.url, timeouts))


def open_node_client(url: str, key: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> redis.Redis:
    """Client of the one server on which `key` lies: for raw connections. Of a cluster, it asks where that is.

    Raises:
        StoreError: the URL can't be read.
        StoreUnavailable: the cluster does not answer.
    """
    with _url_errors():
        address = _read_url(url)
        if not address.nodes:
            return redis.Redis.from_pool(_open_pool(address.url, timeouts))
        cluster = _LazyCluster(address, timeouts)
        with store_errors("locate"), closing(cluster):
            node = cluster.get_node_from_key(key)
        pool = _open_pool(address.url, timeouts)
        pool.connection_kwargs |= {"host": node.host, "port": node.port}
        return redis.Redis.from_pool(pool)


def open_async_client(url: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> redis.asyncio.Redis:
    """Client for one event loop, with a bounded pool in which callers wait. Connects at the first command.

    It has no time-out of its own for answers: use it inside `async_store_errors`. The driver would put each write into
    `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that comes as the write ends.

    Raises:
        StoreError: the URL can't be read.
    """
    with _url_errors():
        address = _read_url(url)
        if address.nodes:
            cluster = _BoundedCluster.from_url(
                address.url,
                startup_nodes=[AsyncClusterNode(*node) for node in address.nodes],
                **_options(timeouts),
                socket_timeout=None,
                retry=AsyncRetry(NoBackoff(), 0),
                dynamic_startup_nodes=False,
                # a slot that has moved is noted; the driver would close all connections, in use or not
                reinitialize_steps=0,
                max_connections=_CLUSTER_CONNECTIONS,
            )
            return cast("redis.asyncio.Redis", cluster)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            address.url,
            **_options(timeouts),
            socket_timeout=None,
            retry=AsyncRetry(NoBackoff(), 0),
            max_connections=_ASYNC_CONNECTIONS,
            timeout=timeouts.answer_s,
        )
        pool.connection_class(**pool.connection_kwargs)
        return redis.asyncio.Redis.from_pool(pool)


def with_credentials(url: str, *, username: str | None, password: str | None) -> str:
    """`url` with user and password of the settings put in, if there are any.

    Raises:
        StoreError: the URL has a user or password of its own as well.
    """
    if username is None and password is None:
        return url
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise StoreError("the Redis URL names a user or password, and so do the settings", stage="url")
    user = quote(username or "", safe="") + (f":{quote(password, safe='')}" if password is not None else "")
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))


def check_url(url: str) -> None:
    """Return if clients can be made from `url`; nothing is connected.

    Raises:
        StoreError: the URL can't be read.
    """
    open_client(url).close()


@contextmanager
def store_errors(stage: str) -> Iterator[None]:
    """Turn what the driver raises inside the block into our errors, the cause chained.

    Our messages name neither path nor host; the cause does.

    Args:
        stage: which operation it was; travels in the error's context.

    Raises:
        CapacityError: Redis is at its memory limit and refused the write.
        StoreUnavailable: anything else that the driver raised.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        # A refusal inside a script or a transaction arrives as another class with the same text.
        if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error):
            raise CapacityError(
                f"Redis has reached its memory limit (maxmemory) and refuses to write during {stage}",
                stage=stage,
                retry_after_s=_FULL_RETRY_S,
            ) from error
        # the driver's text names the socket's path or the host, and clients read our message
        raise StoreUnavailable(f"Redis failed during {stage} ({type(error).__name__})", stage=stage) from error


@asynccontextmanager
async def async_store_errors(stage: str, *, within_s: float) -> AsyncIterator[None]:
    """The same for an asynchronous client, with a limit for all that happens inside.

    Raises:
        CapacityError: Redis is at its memory limit and refused the write.
        StoreUnavailable: anything else that the driver raised, or the time is up.
    """
    with store_errors(stage):
        async with asyncio.timeout(within_s):
            yield


def as_bytes(reply: bytes | str | None) -> bytes | None:
    """The driver types its answers for clients that decode; ours never do."""
    assert not isinstance(reply, str)
    return reply


def backoff_s() -> Iterator[float]:
    """Waits between attempts to reach a lost Redis, seconds: doubling, then constant."""
    wait_s = _FIRST_BACKOFF_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, _LAST_BACKOFF_S)


@dataclass(frozen=True, slots=True)
class _Address:
    # a URL that the driver reads: of the server, or of the first node
    url: str
    # host and port of each node that was named; empty: no cluster
    nodes: tuple[tuple[str, int], ...]


class _LazyCluster:
    """The driver's synchronous cluster client asks for the nodes while it is made; this one at the first use."""

    def __init__(self, address: _Address, timeouts: Timeouts) -> None:
        self._address = address
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._cluster: redis.RedisCluster | None = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._cluster is None:
                options = _sync_options(self._timeouts)
                del options["retry"]
                self._cluster = redis.RedisCluster.from_url(
                    self._address.url,
                    startup_nodes=[ClusterNode(*node) for node in self._address.nodes],  # type: ignore[no-untyped-call]
                    retry=Retry(NoBackoff(), 0),
                    # names outlive addresses
                    dynamic_startup_nodes=False,
                    **options,
                )
        return getattr(self._cluster, name)

    def close(self) -> None:
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None


class _BoundedCluster(redis.asyncio.RedisCluster):
    """The driver's cluster client with two mends.

    It refuses callers when all connections are in use; here they wait. It sends commands anywhere until it knows the
    nodes; here the first one waits for that.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._gate = asyncio.Semaphore(_ASYNC_CONNECTIONS)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self._gate:
            await self.initialize()
            return await super().execute_command(*args, **options)


def _read_url(url: str) -> _Address:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"it must begin with one of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}")
    scheme, _, kind = parts.scheme.partition("+")
    if kind != "cluster":
        return _Address(url, ())
    user, at, hosts = parts.netloc.rpartition("@")
    first, *_ = hosts.split(",")
    plain = urlunsplit(parts._replace(scheme=scheme, netloc=f"{user}{at}{first}"))
    # the same checks of scheme and options as for one server
    _open_pool(plain, DEFAULT_TIMEOUTS).close()
    if parts.path.strip("/"):
        raise ValueError("a Redis Cluster has no numbered databases")
    return _Address(plain, tuple(_read_node(host) for host in hosts.split(",")))


def _read_node(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.port is None:
        raise ValueError("each node of a Redis Cluster is given as host:port")
    return parts.hostname, parts.port


def _open_pool(url: str, timeouts: Timeouts) -> redis.ConnectionPool:
    pool = redis.ConnectionPool.from_url(url, **_sync_options(timeouts))
    pool.connection_class(**pool.connection_kwargs)
    return pool


def _options(timeouts: Timeouts) -> dict[str, Any]:
    return {
        "socket_connect_timeout": timeouts.connect_s,
        "decode_responses": False,
        # version 3 adds pushed messages and other shapes of answers; nothing here needs them
        "protocol": 2,
    }


def _sync_options(timeouts: Timeouts) -> dict[str, Any]:
    return _options(timeouts) | {"socket_timeout": timeouts.answer_s, "retry": Retry(NoBackoff(), 0)}


@contextmanager
def _url_errors() -> Iterator[None]:
    """Around the making of a pool and of one connection object: only the latter knows the options in the query."""
    try:
        yield
    except (ValueError, TypeError) as error:
        # the URL may hold a password: it is not repeated
        raise StoreError(f"the Redis URL can't be read: {error}", stage="url") from error
