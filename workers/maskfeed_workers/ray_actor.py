"""A compiler in an actor of its own, on any machine of a Ray cluster.

It wraps a `ThreadCompiler` and writes blobs to the store itself, so that a job goes in and only a result comes out. It
knows no pool and no request. Invariant: an actor to which no gateway has spoken for its idle time ends itself, so none
is left behind by gateways that were killed.
"""

import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ray

from maskfeed_automata import warm_kernels
from maskfeed_cache.fence import LayerUsage
from maskfeed_workers.compiler import CompileJob, CompileResult
from maskfeed_workers.thread_compiler import ThreadCompiler

__all__ = ["ActorPlan", "ActorReport", "CompileActor"]


_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """What an actor is made of; travels to it."""

    # Called once in the actor, on its event loop. The compiler is never closed: it ends with the actor's process.
    open_compiler: Callable[[], ThreadCompiler]
    # of that compiler; so many jobs are given to one actor at once
    threads: int = 1
    # life without any gateway
    idle_exit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ActorReport:
    """What an actor says of itself."""

    pid: int
    node_id: str
    # resident set size of its process
    memory_bytes: int
    # fingerprints of the vocabularies in memory
    resident: tuple[str, ...]
    # jobs that ended with a result in this life
    n_compiled: int
    # from the actor's making, in this life, until its first vocabulary (without one: its kernels) was in memory
    start_to_warm_ms: float | None


class CompileActor:
    """The actor's class: every method is called through Ray, and runs on the actor's event loop."""

    def __init__(self, plan: ActorPlan) -> None:
        self._started_s = time.monotonic()
        self._start_to_warm_ms: float | None = None
        self._n_compiled = 0
        self._open_compiler = plan.open_compiler
        self._opened: ThreadCompiler | None = None
        self._idle_exit_s = plan.idle_exit_s
        # gateway -> when it was last heard; one that is silent for the idle time is gone
        self._heard_s: dict[str, float] = {}
        self._last_heard_s = self._started_s
        self._is_left = threading.Event()
        threading.Thread(target=self._end_when_left, name="maskfeed-idle", daemon=True).start()

    async def warm(self, fingerprints: tuple[str, ...]) -> ActorReport:
        """Load the kernels and these vocabularies.

        Raises:
            UnknownArtifact: no engine has published one of them.
            CorruptArtifact: one of them can't be read.
            StoreUnavailable: the store does not answer.
        """
        compiler = self._compiler
        await asyncio.to_thread(warm_kernels)
        for fingerprint in fingerprints:
            await compiler.warm(fingerprint)
        if self._start_to_warm_ms is None:
            self._start_to_warm_ms = (time.monotonic() - self._started_s) * 1000
        return self._report()

    async def compile(self, job: CompileJob) -> CompileResult:
        """See `Compiler`. Doing a job twice, because its first actor died after it, stores the same bytes again."""
        result = await self._compiler.compile(job)
        self._n_compiled += 1
        return result

    async def clear(self) -> None:
        """See `Compiler`."""
        await self._compiler.clear()

    async def usage(self) -> LayerUsage:
        """See `Compiler`."""
        return await self._compiler.usage()

    async def attend(self, gateway: str, wait_s: float) -> ActorReport:
        """Note that the gateway is there, and report after `wait_s`. Whoever waits for it hears of a death by it."""
        self._last_heard_s = now_s = time.monotonic()
        self._heard_s = {**self._still_there(now_s), gateway: now_s}
        await asyncio.sleep(wait_s)
        return self._report()

    async def leave(self, gateway: str) -> None:
        """The gateway needs the actor no longer; the last one to leave ends it."""
        self._heard_s.pop(gateway, None)
        if not self._still_there(time.monotonic()):
            self._is_left.set()

    @property
    def _compiler(self) -> ThreadCompiler:
        if self._opened is None:
            self._opened = self._open_compiler()
        return self._opened

    def _still_there(self, now_s: float) -> dict[str, float]:
        return {gateway: heard_s for gateway, heard_s in self._heard_s.items() if now_s - heard_s < self._idle_exit_s}

    def _end_when_left(self) -> None:
        rest_s = self._idle_exit_s
        while rest_s > 0 and not self._is_left.wait(rest_s):
            rest_s = self._last_heard_s + self._idle_exit_s - time.monotonic()
        # an end of this kind is none that Ray would mend by a restart
        ray.kill(ray.get_runtime_context().current_actor)

    def _report(self) -> ActorReport:
        return ActorReport(
            pid=os.getpid(),
            node_id=ray.get_runtime_context().get_node_id(),
            memory_bytes=_memory_bytes(),
            resident=self._compiler.resident,
            n_compiled=self._n_compiled,
            start_to_warm_ms=self._start_to_warm_ms,
        )


def _memory_bytes() -> int:
    """Resident set size of this process; where the system does not tell it, the largest it has had."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except FileNotFoundError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource.getpagesize()
