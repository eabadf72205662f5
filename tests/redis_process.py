"""A redis-server of any version with any settings, on a UNIX socket or a TCP port; it dies with the test process."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

from maskfeed_cache import redis_watchdog
from redis_programs import RedisProgram

__all__ = ["RedisProcess", "free_port"]

_START_TIMEOUT_S = 10.0
# The bus of a cluster's node listens that much higher, so both must be valid.
_BUS_OFFSET = 10_000


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses, and whose cluster bus port nobody uses either."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port - _BUS_OFFSET if port > 50_000 else port + _BUS_OFFSET))
                return port if port <= 50_000 else port - _BUS_OFFSET


class RedisProcess:
    """Args:
    program: which server.
    settings: of redis.conf, without dashes; "port" is 0 and a UNIX socket is there unless told otherwise.
    connect: how a client of the test reaches it, for `redis.Redis.from_url`; None: the socket.
    """

    def __init__(self, program: RedisProgram, settings: dict[str, str] | None = None, *, connect: str | None = None):
        # pytest's own temporary paths are too long for a socket
        self.directory = Path(tempfile.mkdtemp(prefix="mf-"))
        self._program = program
        self._settings = {
            "port": "0",
            "unixsocket": str(self.directory / "redis.sock"),
            "save": "",
            "appendonly": "no",
            "dir": str(self.directory),
            "logfile": str(self.directory / "redis.log"),
            **(settings or {}),
        }
        self.url = connect or f"unix://{self.directory}/redis.sock"
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.client: redis.Redis

    def start(self) -> "RedisProcess":
        arguments = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", redis_watchdog.__file__, str(self._program.path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | self._program.environment,
        )
        self.client = redis.Redis.from_url(self.url, protocol=2)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self._pid = int(self.client.info("server")["process_id"])
                return self
            except redis.ConnectionError:
                assert time.monotonic() < deadline_s, self._log()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(0.01)
                raise AssertionError(self._log())

    def kill(self) -> None:
        """SIGKILL; connections break, new ones are refused. `start` brings an empty server back at the same URL."""
        self.client.close()
        os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def remove(self) -> None:
        self.client.close()
        self._reap()
        shutil.rmtree(self.directory)

    def _reap(self) -> None:
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None

    def _log(self) -> str:
        log = self.directory / "redis.log"
        return log.read_text() if log.exists() else "no log"
