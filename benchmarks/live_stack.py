"""Redis, a real engine and gateways as processes on this machine, for benchmarks of the whole road.

It starts and stops them, and says what processor time each has used; it sends no request. The engine runs with the
processor and without the tests' comparison of its ranks.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "icd10_rag"))

import psutil

from engine_server import EngineServer
from maskfeed_automata import Vocabulary
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from model_files import smollm2_directory, tiny_model_directory
from processes import ChildProcess, http_answers
from services import free_port, gateway_command
from tokenizer_files import tokenizer_directory

__all__ = [
    "COMPILERS",
    "MODELS",
    "Gateway",
    "Place",
    "cpu_seconds",
    "gateway",
    "load_average",
    "place",
    "published_vocabulary",
    "running_engine",
]

COMPILERS = ("thread", "ray")
# The tiny ones have random weights, and heads that two ranks can share; "tiny" has SmolLM2's tokenizer.
MODELS = {
    "smollm2": smollm2_directory,
    "tiny": tiny_model_directory,
    "tiny-qwen3": lambda: tiny_model_directory(tokenizer_directory("qwen3")),
}
# a core for each rank
_FLAGS_OF_RANKS = {1: (), 2: ("--tensor-parallel-size", "2")}
_CORES_OF_RANKS = {1: "0", 2: "0|1"}
_RESTING = Path(__file__).resolve().parent / "resting_engine"
_START_S = 180.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run keeps what it needs; gone after it."""

    # sockets and logs
    folder: Path
    # shared memory of the engines
    shm: Path
    redis_url: str
    redis_pid: int


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is ready."""

    url: str
    pid: int


@contextmanager
def place() -> Iterator[Place]:
    """A folder of its own and a Redis in it."""
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        tempfile.TemporaryDirectory(prefix="mf-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as shm,
        PrivateRedis(Path(folder) / "redis") as redis,
    ):
        (server,) = (child for child in psutil.Process().children(recursive=True) if "server" in child.name())
        yield Place(Path(folder), Path(shm) / "maskfeed", redis.url, server.pid)


@contextmanager
def running_engine(
    at: Place,
    model: str,
    *,
    n_ranks: int = 1,
    arguments: Sequence[str] = (),
) -> Iterator[EngineServer]:
    """vLLM's server with the processor, its processes resting where they would poll.

    Args:
        at: for its feed.
        model: one of MODELS.
        n_ranks: 1 or 2; each has a core.
        arguments: more flags.
    """
    settings: Mapping[str, Any] = {"redis_url": at.redis_url, "shm_dir": str(at.shm)}
    flags = [*_FLAGS_OF_RANKS[n_ranks], *arguments]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": _CORES_OF_RANKS[n_ranks]}
    directory = MODELS[model]()
    with EngineServer(
        maskfeed=settings,
        model=directory,
        arguments=flags,
        environment=environment,
        extra_path=[_RESTING],
    ) as engine:
        yield engine


@contextmanager
def gateway(at: Place, engine: EngineServer, *, compiler: str = "thread") -> Iterator[Gateway]:
    """`maskfeed serve` in front of an engine; without an address, Ray's is a cluster of the gateway's own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*gateway_command(port, engine_url=engine.url, redis_url=at.redis_url), "--compiler", compiler]
    environment = {"PYTHONPATH": EngineServer.python_path(), "RAY_USAGE_STATS_ENABLED": "0"}
    log = at.folder / f"gateway-{compiler}-{port}.log"
    with ChildProcess("gateway", command, log_path=log, environment=environment) as child:
        child.wait_until(lambda: http_answers(f"{url}/ready"), timeout_s=_START_S)
        yield Gateway(url, child.pid)


async def published_vocabulary(at: Place) -> Vocabulary:
    """The one that masks are made with, as the one engine has published it."""
    feed = RedisGatewayFeed(at.redis_url, Keyspace())
    try:
        (record,) = await feed.engines()
        return Vocabulary.from_bytes(await feed.vocabulary(record.fingerprint))
    finally:
        await feed.close()


def cpu_seconds(at: Place, engine: EngineServer, through: Gateway) -> dict[str, float]:
    """Processor time that each part has used since its start, system time included.

    Of the engine only the threads beside those that decode, which are busy whether there is work or not.
    """
    front = psutil.Process(through.pid)
    behind = front.children(recursive=True)
    actors = [process for process in behind if _title(process).startswith("ray::CompileActor")]
    parts = {
        "gateway": [front],
        "compile actors": actors,
        "rest of Ray": [process for process in behind if process not in actors],
        "Redis": [psutil.Process(at.redis_pid)],
    }
    used = {part: sum(map(_seconds, processes)) for part, processes in parts.items()}
    ranks = [
        child
        for child in psutil.Process(engine.process.pid).children(recursive=True)
        if _title(child).startswith("VLLM::Worker")
    ]
    return {**used, "feeds": sum(map(_beside_decoding_seconds, ranks))}


def _title(process: psutil.Process) -> str:
    # one that has just ended has none
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _beside_decoding_seconds(rank: psutil.Process) -> float:
    return sum(thread.user_time + thread.system_time for thread in rank.threads() if thread.id != rank.pid)


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]
