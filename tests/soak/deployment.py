"""What the soak runs and kills: Redis, a gateway with Ray actors, and one engine of two ranks after another.

It starts, kills and starts again; it sends no request and decides nothing about when. Redis keeps nothing on disk, so
each of its deaths loses all that was in it.
"""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from divergence import read_counts
from engine_server import EngineServer
from processes import ChildFailed, ChildProcess, http_answers
from redis_process import RedisProcess
from redis_programs import redis_program
from services import free_port, gateway_command
from two_ranks import two_rank_engine

__all__ = ["ADMIN_KEY", "N_ACTORS", "Deployment", "EngineLife"]

ADMIN_KEY = "soak"
N_ACTORS = 2
# Few, so that an engine is as full as it gets soon after its start, and what it gains afterwards is a leak.
HELD_LIMIT_SETS = 64
# Likewise: vLLM takes block after block of its cache into use before it uses one again.
_SMALL_KV_CACHE = ("--block-size", "32", "--num-gpu-blocks-override", "512")
# What docs/operations.md recommends for gateways: large buffers go back to the system as soon as they are freed.
_STEADY_ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
# Ranks that poll would leave the two cores of a small machine to nobody else.
_RESTING_ENGINE = Path(__file__).resolve().parents[2] / "benchmarks" / "resting_engine"
_START_S = 240.0
_STARTS = 3
_DIES_WITHIN_S = 30.0


@dataclass(slots=True)
class EngineLife:
    """One engine from its start to its end."""

    server: EngineServer
    # of the comparison of its ranks
    compared: Path
    # whether the soak has killed one of its ranks
    is_condemned: bool = False

    def rank_pids(self) -> list[int]:
        """Process ids in the order of the ranks."""
        return [int(path.read_text()) for path in sorted(self.compared.glob("pid-*"))]

    def rows_compared(self) -> int:
        """Rows that both ranks have compared."""
        return min((rows for _, rows, _ in read_counts(self.compared)), default=0)

    def disagreements(self) -> int:
        """Steps in which the ranks' masks differed: at most one, because they end with it."""
        return int("MASKS DIFFER" in self.server.log())


@dataclass(slots=True)
class Deployment:
    """All processes of one soak. Blocking methods belong in a thread.

    Args:
        folder: for sockets, logs and comparisons.
        shm_dir: of the engines' mapped sets.
    """

    folder: Path
    shm_dir: Path
    lives: list[EngineLife] = field(default_factory=list)
    failed_starts: int = 0
    redis: RedisProcess = field(default_factory=lambda: RedisProcess(redis_program("6.2")))
    _port: int = field(default_factory=free_port)
    _gateway: ChildProcess | None = None
    gateway_url: str = ""

    @property
    def engine(self) -> EngineLife:
        """The one that was started last."""
        return self.lives[-1]

    @property
    def gateway_pid(self) -> int:
        """Process id of the gateway, which lives as long as the soak."""
        assert self._gateway is not None
        return self._gateway.pid

    @property
    def gateway_log(self) -> Path:
        """What the gateway writes."""
        return self.folder / "gateway.log"

    def start(self) -> None:
        """Redis, an engine, and a gateway that is ready."""
        self.redis.start()
        self.start_engine()
        port = free_port()
        self.gateway_url = f"http://127.0.0.1:{port}"
        command = gateway_command(port, engine_url=self.engine.server.url, redis_url=self.redis.url)
        environment = {
            "PYTHONPATH": EngineServer.python_path(),
            "MASKFEED_RAY_ACTORS": str(N_ACTORS),
            "MASKFEED_ADMIN_KEY": ADMIN_KEY,
            **_STEADY_ALLOCATOR,
        }
        self._gateway = ChildProcess(
            "gateway", [*command, "--compiler", "ray"], log_path=self.gateway_log, environment=environment
        )
        self._gateway.wait_until(lambda: http_answers(f"{self.gateway_url}/ready"), timeout_s=_START_S)

    def start_engine(self) -> None:
        """A new life on the same port; tried again, as a supervisor would, if Redis was killed under the start."""
        for attempt in range(1, _STARTS + 1):
            folder = self.folder / f"engine-{len(self.lives) + 1}-{attempt}"
            server = two_rank_engine(
                self.redis.url,
                folder,
                async_scheduling=True,
                settings={"shm_dir": str(self.shm_dir), "held_limit_sets": HELD_LIMIT_SETS},
                port=self._port,
                extra_path=[_RESTING_ENGINE],
                arguments=_SMALL_KV_CACHE,
            )
            try:
                server.__enter__()
            except ChildFailed:
                self.failed_starts += 1
                if attempt == _STARTS:
                    raise
            else:
                self.lives.append(EngineLife(server, folder / "compared"))
                return

    def kill_rank(self, rank: int) -> None:
        """SIGKILL to one rank of the engine that lives."""
        self.engine.is_condemned = True
        os.kill(self.engine.rank_pids()[rank], signal.SIGKILL)

    async def replace_engine(self) -> None:
        """Wait until the engine has ended by itself, or end it, and start the next one."""
        process = self.engine.server.process
        with suppress(ChildFailed):
            # how it ends: as soon as it has, or after that time
            await asyncio.to_thread(process.wait_until, lambda: False, timeout_s=_DIES_WITHIN_S)
        await asyncio.to_thread(process.stop)
        await asyncio.to_thread(self.start_engine)

    def engine_is_missing(self) -> bool:
        """Whether an engine has ended that nobody has killed."""
        return not self.engine.is_condemned and self.engine.server.process.exit_code is not None

    def actor_pids(self) -> list[int]:
        """Process ids of the compile actors that live."""
        found = []
        for process in psutil.Process(self.gateway_pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith("ray::CompileActor"):
                    found.append(process.pid)
        return sorted(found)

    def stop(self) -> None:
        """Everything, in the reverse order."""
        if self._gateway is not None:
            self._gateway.stop(grace_s=20)
        for life in self.lives[-1:]:
            life.server.process.stop()
        self.redis.remove()
