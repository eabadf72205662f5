"""A real engine of two ranks on this machine, whose masks are compared in every step, and a gateway in front of it."""

import re
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from divergence import FOLDER_VARIABLE, read_counts
from engine_server import EngineServer
from maskfeed_cache.private_redis import PrivateRedis
from model_files import tiny_model_directory
from stack import gateway
from waiting import eventually

__all__ = ["CROWDED", "HELD_LIMIT_SETS", "TwoRanks", "compared_rows", "crowded_ranks", "two_rank_engine", "two_ranks"]

PROCESSOR = "divergence:CheckedProcessor"
# A cache that is too small for its batch, and steps that are too short for a prompt.
CROWDED = (
    *("--max-model-len", "512", "--max-num-seqs", "16", "--max-num-batched-tokens", "64"),
    *("--block-size", "32", "--num-gpu-blocks-override", "24", "--enable-chunked-prefill", "--enable-prefix-caching"),
)
# Room for the requests of `Traffic`, and little more.
HELD_LIMIT_SETS = 40


@dataclass(frozen=True, slots=True)
class TwoRanks:
    """Where the parts are."""

    engine: EngineServer
    gateway_url: str
    redis_url: str
    # of the comparison
    folder: Path

    async def rows_compared(self) -> int:
        """See `compared_rows`."""
        return await compared_rows(self.folder)

    def metric(self, name: str) -> float:
        """Sum of one of the engine's own figures."""
        with urllib.request.urlopen(f"{self.engine.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def compared_rows(folder: Path) -> int:
    """Rows that both ranks have compared so far, once they have counted the same."""

    async def equal() -> bool:
        counts = read_counts(folder)
        return len(counts) == 2 and counts[0] == counts[1]

    await eventually(equal)
    return read_counts(folder)[0][1]


def two_rank_engine(
    redis_url: str,
    folder: Path,
    *,
    async_scheduling: bool = False,
    arguments: Sequence[str] = (),
    settings: dict | None = None,
    processor: str = PROCESSOR,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    extra_path: Sequence[Path] = (),
) -> EngineServer:
    """An engine with tensor parallel size 2, not yet started.

    Args:
        redis_url: of its group "default".
        folder: for its shared memory and its comparison; made.
        async_scheduling: see `EngineServer`.
        arguments: more flags.
        settings: more keys of `additional_config.maskfeed`.
        processor: the class of `--logits-processors`.
        port: see `EngineServer`.
        environment: more environment variables.
        extra_path: see `EngineServer`.
    """
    compared = folder / "compared"
    compared.mkdir(parents=True, exist_ok=True)
    return EngineServer(
        maskfeed={"redis_url": redis_url, "shm_dir": str(folder / "shm"), **(settings or {})},
        model=tiny_model_directory(),
        async_scheduling=async_scheduling,
        arguments=["--tensor-parallel-size", "2", "--logits-processors", processor, *arguments],
        environment={FOLDER_VARIABLE: str(compared), "VLLM_CPU_OMP_THREADS_BIND": "0|1", **(environment or {})},
        port=port,
        extra_path=[Path(__file__).parent, Path(__file__).parents[1] / "faults", *extra_path],
    )


@contextmanager
def two_ranks(**options: Any) -> Iterator[TwoRanks]:
    """Redis, engine (`options` as for `two_rank_engine`) and gateway, ready."""
    with tempfile.TemporaryDirectory(prefix="mf-") as made:
        folder = Path(made)
        with (
            PrivateRedis(folder / "redis") as redis,
            two_rank_engine(redis.url, folder, **options) as engine,
            gateway(engine.url, redis.url) as url,
        ):
            yield TwoRanks(engine, url, redis.url, folder / "compared")


@pytest.fixture(scope="session")
def crowded_ranks() -> Iterator[TwoRanks]:
    """One engine for the whole run, with asynchronous scheduling, whose batch and cache are always full."""
    with two_ranks(async_scheduling=True, arguments=CROWDED, settings={"held_limit_sets": HELD_LIMIT_SETS}) as running:
        assert running.engine.schedules_asynchronously
        yield running
