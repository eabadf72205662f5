"""Real Redis servers for tests: one shared by the whole run, and fragile ones that a test may freeze or kill."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from maskfeed_cache.private_redis import PrivateRedis

__all__ = ["RedisServer", "fragile_redis", "redis_url", "shared_redis"]


class RedisServer:
    """A redis-server on a UNIX socket in a directory of its own; it dies with the test process."""

    def __init__(self) -> None:
        # pytest's own temporary paths are too long for a socket
        self.directory = Path(tempfile.mkdtemp(prefix="mf-"))
        self._server = PrivateRedis(self.directory)
        self._pid = 0
        self.client: redis.Redis

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._server.start()
        self.client = redis.Redis.from_url(self.url, protocol=2)
        self._pid = int(self.client.info("server")["process_id"])

    def stop(self) -> None:
        self.client.close()
        self._server.stop()

    def kill(self) -> None:
        """SIGKILL; connections break, new ones are refused. `restart` brings an empty server back at the same URL."""
        os.kill(self._pid, signal.SIGKILL)
        self.stop()

    def restart(self) -> None:
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """One server for the whole run. Tests that need it empty take `redis_url`."""
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    """URL of the shared server, emptied."""
    shared_redis.client.flushall()
    return shared_redis.url


@pytest.fixture
def fragile_redis() -> Iterator[RedisServer]:
    """A server of the test's own, for freezing and killing."""
    server = RedisServer()
    server.start()
    yield server
    server.remove()
