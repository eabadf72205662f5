"""Child processes that never outlive their owner, each with a log file.

A child leads its own process group, so that one signal reaches the processes that it starts in turn (an engine starts
several). This module knows nothing of what the children are. Invariant: when `ChildProcess.stop` has returned, or
`Supervisor` has been left in any way (an exception, Ctrl-C at any moment, SIGTERM, a closed terminal), every process of
their groups has ended or been killed.
"""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["ChildFailed", "ChildProcess", "Progress", "Supervisor", "http_answers"]

# (seconds since the wait began, the child's last log line)
Progress = Callable[[float, str], None]

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def http_answers(url: str) -> bool:
    """Whether a GET of `url` gives status 200 within five seconds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:  # URLError is one
        return False


class ChildFailed(Exception):
    """A child ended, or was not ready in time; the message ends with the last lines of its log."""


class ChildProcess:
    """One child with its process group and its log.

    Args:
        name: how messages call it.
        command: program and arguments.
        log_path: receives stdout and stderr; overwritten.
        environment: added to this process's own.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._stopped = False
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def log_tail(self, n_lines: int = 30) -> str:
        """The last lines that it has written."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-n_lines:])

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float, progress: Progress | None = None) -> float:
        """Ask four times a second whether it is ready, and return how many seconds that took.

        Raises:
            ChildFailed: the child ended, or the time is over.
        """
        began = time.monotonic()
        while not is_ready():
            elapsed_s = time.monotonic() - began
            if elapsed_s > timeout_s:
                raise ChildFailed(f"{self.name} was not ready after {timeout_s:.0f} s\n{self._log_excerpt()}")
            if progress is not None:
                progress(elapsed_s, self.log_tail(1))
            try:
                code = self._process.wait(timeout=0.25)
            except subprocess.TimeoutExpired:
                continue
            raise ChildFailed(f"{self.name} ended with exit code {code}\n{self._log_excerpt()}")
        return time.monotonic() - began

    def stop(self, *, grace_s: float = 5.0) -> None:
        """SIGTERM to the child, then SIGKILL to whatever is left of its group. Idempotent."""
        if self._stopped:
            return
        self._stopped = True  # from here on the number of the group may belong to somebody else
        try:
            if self.exit_code is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):  # it had its chance
                    self._process.wait(timeout=grace_s)
        finally:
            _kill_group(self.pid)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _log_excerpt(self) -> str:
        return f"--- the end of {self.log_path}\n{self.log_tail()}"


class Supervisor:
    """Starts children and stops them in reverse order when it is left. For the main thread."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._children: list[ChildProcess] = []
        self._held = False
        self._pending = False
        self._old_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _STOP_SIGNALS:
            self._old_handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = True  # for good: a second Ctrl-C must not leave half of them running
        for child in reversed(self._children):
            child.stop()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start a child whose log is `<log_dir>/<name>.log`."""
        with self._signals_held():
            child = ChildProcess(name, command, log_path=self._log_dir / f"{name}.log", environment=environment)
            self._children.append(child)
        return child

    @contextmanager
    def _signals_held(self) -> Iterator[None]:
        """No KeyboardInterrupt between the birth of a child and the note of it."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._pending = True


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):  # all gone already
        os.killpg(group, signal.SIGKILL)
