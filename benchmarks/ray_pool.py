"""What a pool of Ray actors adds to a compile: the way there and back, a death, a warm start. With a real vocabulary.

    python benchmarks/ray_pool.py [--tokenizer .cache/tokenizers/qwen3] [--sets 200]

Starts Redis and a Ray cluster of its own. Each result is checked against the same compile in this process.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

from names import candidate_names

from maskfeed import CandidateSet, Vocabulary
from maskfeed.config import CacheSettings, GatewaySettings, RaySettings
from maskfeed.service.compilers import open_compiler
from maskfeed.service.stores import StoreSettings
from maskfeed_automata import build
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.store import hash_blob
from maskfeed_workers.compiler import CompileJob
from maskfeed_workers.ray_compiler import RayCompiler

SIZES = (100, 1_000, 10_000, 100_000)


def job_for(vocabulary: Vocabulary, n: int, seed: int) -> CompileJob:
    candidate_set = CandidateSet.from_strings(candidate_names(n, seed=seed))
    return CompileJob(
        candidate_set.digest(vocabulary.fingerprint, "never"), vocabulary.fingerprint, candidate_set, "never"
    )


def tell(what: str, values_ms: list[float]) -> None:
    worst = max(values_ms)
    p90 = quantiles(values_ms, n=10)[-1] if len(values_ms) > 1 else worst
    print(f"{what:<44} p50 {median(values_ms):8.2f}   p90 {p90:8.2f}   worst {worst:8.2f} ms   of {len(values_ms)}")


async def until(condition: Callable[[], bool], pause_s: float = 0.05) -> None:
    while not condition():  # noqa: ASYNC110 (a pool tells nobody when an actor is back)
        await asyncio.sleep(pause_s)


async def measure(compiler: RayCompiler, vocabulary: Vocabulary, n_sets: int) -> None:
    began = time.perf_counter()
    await compiler.warm(vocabulary.fingerprint)
    print(f"start of the pool until the first actor is warm {(time.perf_counter() - began) * 1000:.0f} ms")
    for n in SIZES:
        jobs = [job_for(vocabulary, n, seed) for seed in range(max(3, n_sets // max(1, n // 1_000)))]
        whole, inside = [], []
        for job in jobs:
            began = time.perf_counter()
            result = await compiler.compile(job)
            whole.append((time.perf_counter() - began) * 1000)
            inside.append(result.compile_ms + result.store_ms)
        assert result.artifact_hash == hash_blob(build(vocabulary, job.candidate_set).to_bytes())
        tell(f"{n} names: whole call", whole)
        tell(f"{n} names: of that, beside compile and store", [a - b for a, b in zip(whole, inside, strict=True)])
    await lose_actors(compiler, vocabulary)


async def lose_actors(compiler: RayCompiler, vocabulary: Vocabulary, n_deaths: int = 5) -> None:
    with_death, back, memory = [], [], []
    for number in range(n_deaths):
        await until(lambda: all(member.is_warm for member in compiler.members))
        job = job_for(vocabulary, 100_000, 1_000 + number)
        began = time.perf_counter()
        running = asyncio.create_task(compiler.compile(job))
        await until(lambda: any(member.in_flight for member in compiler.members), pause_s=0)
        (victim,) = (member for member in compiler.members if member.in_flight)
        assert victim.report is not None
        memory.append(victim.report.memory_bytes / 2**20)
        os.kill(victim.report.pid, signal.SIGKILL)
        result = await running
        with_death.append((time.perf_counter() - began) * 1000)
        assert result.artifact_hash == hash_blob(build(vocabulary, job.candidate_set).to_bytes())
        await until(lambda: all(member.is_warm for member in compiler.members))
        (after,) = (member for member in compiler.members if member.name == victim.name)
        assert after.restart_to_warm_ms is not None
        back.append(after.restart_to_warm_ms)
    tell("100000 names, its actor killed: whole call", with_death)
    tell("from the news of a death to warm again", back)
    print(f"memory of an actor {max(memory):.0f} MiB")


async def main(tokenizer: Path, n_sets: int, redis_url: str) -> None:
    stores = StoreSettings(redis_url, Keyspace(), CacheSettings())
    blobs, index = stores.open_blobs(), stores.open_index()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    blobs.put_vocabulary(vocabulary.fingerprint, vocabulary.to_bytes())
    settings = GatewaySettings(compiler="ray", ray=RaySettings(actors=2))
    async with open_compiler(settings, stores, index, watch=lambda *_: None) as compiler:
        assert isinstance(compiler, RayCompiler)
        await measure(compiler, vocabulary, n_sets)
    await index.close()
    blobs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenizer", type=Path, default=Path(".cache/tokenizers/qwen3"))
    parser.add_argument("--sets", type=int, default=200, help="of up to 1,000 names; fewer of larger ones")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, PrivateRedis(Path(folder) / "redis") as redis:
        asyncio.run(main(arguments.tokenizer, arguments.sets, redis.url))
