"""Artifacts in shared memory: one copy for a host, mapped read-only by every rank that uses it.

    <directory>/start.lock                     held while an owner moves in and sweeps
    <directory>/<artifact hash>.lock           held by the one process that writes this artifact
    <directory>/owner-<pid>-<random>/alive     locked for as long as its process lives
    <directory>/owner-<pid>-<random>/<artifact hash>

A host is whoever sees the same directory. Each process has a folder of its own; a file that another process has
already is hard-linked into it, so the memory is shared and no process depends on another's life: the kernel frees it
when the last name and the last mapping are gone. What a killed process leaves is swept by the next one to start.

It knows bytes and hashes, not what they mean. Invariants: a buffer is handed out only after its mapped bytes were
found to have the hash, so a damaged or foreign file is replaced, never used; a file appears under its name only when
it is complete; memory is reserved before it is written, so that a full filesystem is an error, not a SIGBUS.
"""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from maskfeed_automata.errors import CapacityError, CorruptArtifact, DeadlineExceeded, EngineUnsupported
from maskfeed_cache.store import hash_blob
from maskfeed_workers.memory_map import map_read_only

__all__ = ["SharedFiles"]

_ALIVE: Final = "alive"
_START_LOCK: Final = "start.lock"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
# flock has no time-out of its own, so a taken lock is asked for again, first soon and then less often (seconds).
_FIRST_WAIT_S: Final = 0.000_5
_LONGEST_WAIT_S: Final = 0.02


def _nothing() -> None:
    """The default for a caller that does not care when the file is there."""


class SharedFiles:
    """This process's part of the host's directory. Thread-safe: threads only meet in the filesystem.

    Args:
        directory: on a shared-memory filesystem; made if it is missing, and then only for this user.
        lock_timeout_s: the longest wait for another process that writes the same artifact.

    Raises:
        EngineUnsupported: the directory can't be made, or belongs to somebody else or is open to others.
        DeadlineExceeded: another process has been starting in it for longer than `lock_timeout_s`.
    """

    def __init__(self, directory: Path, *, lock_timeout_s: float = 2.0) -> None:
        self._directory = directory
        self._lock_timeout_s = lock_timeout_s
        _make_private(directory)
        with self._locked(_START_LOCK):
            self._sweep()
            self._own = Path(tempfile.mkdtemp(prefix=f"owner-{os.getpid()}-", dir=directory))
            # The one descriptor that we keep: its lock ends when our process ends, whatever ends it.
            self._alive = _open_lock(self._own / _ALIVE)
            fcntl.flock(self._alive, fcntl.LOCK_EX)

    def load(
        self, artifact_hash: str, fetch: Callable[[], bytes], *, available: Callable[[], None] = _nothing
    ) -> memoryview:
        """Map an artifact, from a neighbour's file if there is one, else from `fetch`.

        Args:
            artifact_hash: 64 hex digits.
            fetch: called at most once, and by one process of the host at a time.
            available: called when the file is there for others to map, before its bytes are checked here.

        Returns:
            Read-only bytes. The mapping ends with the last object that refers to them.

        Raises:
            CapacityError: the filesystem has no room. Context: `value` (bytes), `stage`.
            CorruptArtifact: `fetch` returned bytes with another hash.
            DeadlineExceeded: another process has held the lock for longer than `lock_timeout_s`.
        """
        if (buffer := self._map_existing(artifact_hash, available)) is not None:
            return buffer
        with self._locked(f"{artifact_hash}.lock", then_remove=True):
            # Whoever had the lock before us has probably written it.
            if (buffer := self._map_existing(artifact_hash, available)) is not None:
                return buffer
            self._write(artifact_hash, fetch())
            if (buffer := self._map_existing(artifact_hash, available)) is not None:
                return buffer
        raise CorruptArtifact(f"the bytes of {artifact_hash[:12]} have another hash", section="hash")

    def discard(self, artifact_hash: str) -> None:
        """Give up this process's name for the artifact; mappings live on. One that is not there changes nothing."""
        (self._own / artifact_hash).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Artifacts that this process has a name for, sorted."""
        return sorted(path.name for path in self._own.iterdir() if path.name != _ALIVE)

    def close(self) -> None:
        """Give up all names. Idempotent; a load that is still running fails, and leaves nothing."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def _map_existing(self, artifact_hash: str, available: Callable[[], None]) -> memoryview | None:
        """Our file, or a neighbour's, if its bytes are right; those that are not right are removed."""
        own = self._own / artifact_hash
        for found in [own, *self._directory.glob(f"owner-*/{artifact_hash}")]:
            try:
                if found != own:
                    # Another thread of ours may have linked it just now.
                    with suppress(FileExistsError):
                        os.link(found, own)
                buffer = map_read_only(own)
            except FileNotFoundError:
                continue
            available()
            if hash_blob(buffer) == artifact_hash:
                return buffer
            found.unlink(missing_ok=True)
            own.unlink(missing_ok=True)
        return None

    def _write(self, artifact_hash: str, blob: bytes) -> None:
        temporary = self._own / f".{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if blob:
                os.posix_fallocate(descriptor, 0, len(blob))
            view = memoryview(blob)
            while view:
                view = view[os.write(descriptor, view) :]
            temporary.rename(self._own / artifact_hash)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno not in _NO_SPACE:
                raise
            raise CapacityError(
                f"shared memory has no room for {len(blob)} bytes", value=len(blob), stage="ready"
            ) from error
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove the folders of processes that are gone, and locks that a killed writer has left."""
        for lock in self._directory.glob("*.lock"):
            if lock.name != _START_LOCK and (descriptor := _try_lock(lock)) is not None:
                lock.unlink()
                os.close(descriptor)
        for owner in self._directory.glob("owner-*"):
            with suppress(FileNotFoundError):
                descriptor = _open_lock(owner / _ALIVE)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(owner)
                except BlockingIOError:
                    continue
                finally:
                    os.close(descriptor)

    @contextmanager
    def _locked(self, name: str, *, then_remove: bool = False) -> Iterator[None]:
        """Hold the host-wide lock `name`; with `then_remove` no file of it remains."""
        path = self._directory / name
        ends_at = time.monotonic() + self._lock_timeout_s
        wait_s = _FIRST_WAIT_S
        while (descriptor := _try_lock(path)) is None:
            if time.monotonic() >= ends_at:
                raise DeadlineExceeded(
                    f"{name} was locked for longer than {self._lock_timeout_s * 1e3:.0f} ms",
                    stage="ready",
                    limit_ms=self._lock_timeout_s * 1e3,
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        try:
            yield
        finally:
            if then_remove:
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise EngineUnsupported(f"shm_dir {directory} can't be made: {error}", field="shm_dir") from error
    if directory.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EngineUnsupported(
            f"shm_dir {directory} must be a folder of uid {os.geteuid()} with mode 0700", field="shm_dir"
        )


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of the file that is at `path` now, or None."""
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed the file between our open and our lock.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
