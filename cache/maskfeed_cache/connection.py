"""From a URL to Redis clients, and from the driver's exceptions to ours.

It knows the driver's defaults and overrides those that would make a thread deaf for a minute: no hidden retries,
every wait bounded. It knows no key and no command. Invariant: code inside `store_errors` lets no driver exception out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
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
    "store_errors",
]

# All roots of the driver's exceptions, and what its sockets raise beside them.
DRIVER_ERRORS: Final = (RedisError, RedisClusterException, ChildDeadlockedError, OSError)

# An event loop has many requests at once; they share this many connections and wait for one, bounded.
_ASYNC_CONNECTIONS: Final = 16

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
    """Synchronous, thread-safe client for `redis://`, `rediss://` or `unix://`. Connects at the first command.

    Raises:
        StoreError: the URL can't be read.
    """
    with _url_errors():
        pool = redis.ConnectionPool.from_url(
            url, **_options(timeouts), socket_timeout=timeouts.answer_s, retry=Retry(NoBackoff(), 0)
        )
        pool.connection_class(**pool.connection_kwargs)
        return redis.Redis.from_pool(pool)


def open_async_client(url: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> redis.asyncio.Redis:
    """Client for one event loop, with a bounded pool in which callers wait. Connects at the first command.

    It has no time-out of its own for answers: use it inside `async_store_errors`. The driver would put each write into
    `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that comes as the write ends.

    Raises:
        StoreError: the URL can't be read.
    """
    with _url_errors():
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            **_options(timeouts),
            socket_timeout=None,
            retry=AsyncRetry(NoBackoff(), 0),
            max_connections=_ASYNC_CONNECTIONS,
            timeout=timeouts.answer_s,
        )
        pool.connection_class(**pool.connection_kwargs)
        return redis.asyncio.Redis.from_pool(pool)


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


def _options(timeouts: Timeouts) -> dict[str, Any]:
    return {
        "socket_connect_timeout": timeouts.connect_s,
        "decode_responses": False,
        # version 3 adds pushed messages and other shapes of answers; nothing here needs them
        "protocol": 2,
    }


@contextmanager
def _url_errors() -> Iterator[None]:
    """Around the making of a pool and of one connection object: only the latter knows the options in the query."""
    try:
        yield
    except (ValueError, TypeError) as error:
        # the URL may hold a password: it is not repeated
        raise StoreError(f"the Redis URL can't be read: {error}", stage="url") from error
