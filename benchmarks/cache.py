"""Does the cache keep within its bounds when every turn brings a new set, and what do a hit and a clear cost?

    python benchmarks/cache.py [--turns 10000] [--entries 100000] [--no-bounds] [--output FOLDER]

The process tier is `maskfeed.SetCache`; the shared tier is what a gateway and its compiler use, over a real Redis on a
UNIX socket with a memory limit of its own. Both have a limit that the first turns fill. A figure counts only if what
was measured was right: every turn compiled its set, samples equal `compile` byte for byte, sizes are exact.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from names import candidate_names

from maskfeed_automata import CandidateSet, Vocabulary, compile, warm_kernels
from maskfeed_cache.connection import open_client
from maskfeed_cache.fence import Commit, Granted, IndexEntry, Layer
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.set_cache import SetCache
from maskfeed_cache.shared_cache import Report, SharedCache, Source
from maskfeed_workers.compiler import CompileJob
from maskfeed_workers.thread_compiler import ThreadCompiler
from tokenizer_files import tokenizer_directory

MIB = 2**20
LIMIT_BYTES = 32 * MIB
REDIS_BYTES = 64 * MIB
NAMES_PER_SET = 300
N_SAMPLES = 200
N_HITS = 2_000
N_FILLING = 8
PIN_MS = 10_000
MAX_SLOPE_MB = 1.0
MAX_CLEAR_MS = 1.0


@dataclass(frozen=True, slots=True)
class Watch:
    """Memory beside the turns."""

    n_turns: int
    # after each of N_SAMPLES turns: turn, resident set of this process in bytes
    resident: list[tuple[int, int]]

    def look(self, turn: int) -> bool:
        """Take a sample if it is time for one."""
        is_due = turn % max(1, self.n_turns // N_SAMPLES) == 0
        if is_due:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident.append((turn, pages * resource.getpagesize()))
        return is_due

    def slope_mb(self) -> float:
        """Growth over the last 80 % of the turns, least squares, MB for 1,000 turns."""
        turns, sizes = np.array([sample for sample in self.resident if sample[0] >= self.n_turns / 5], float).T
        return float(np.polyfit(turns, sizes, 1)[0] * 1_000 / 1e6)


def percentiles(times_s: list[float], unit_s: float) -> dict[str, float]:
    """p50 and p99 in the unit."""
    cuts = statistics.quantiles(times_s, n=100, method="inclusive")
    return {"p50": cuts[49] / unit_s, "p99": cuts[98] / unit_s}


def timed(n: int, call: Callable[[], object]) -> list[float]:
    """Seconds of each of `n` calls."""
    times_s = []
    for _ in range(n):
        began_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - began_s)
    return times_s


def memory_row(watch: Watch, took_s: float) -> dict[str, float]:
    """What both tiers report of their turns."""
    sizes = [size for _, size in watch.resident]
    return {
        "turns": watch.n_turns,
        "turns_per_s": watch.n_turns / took_s,
        "rss_slope_mb_per_1000_turns": watch.slope_mb(),
        "rss_first_mb": sizes[0] / 1e6,
        "rss_last_mb": sizes[-1] / 1e6,
    }


def process_turns(vocabulary: Vocabulary, n_turns: int) -> dict[str, Any]:
    """New set after new set through a `SetCache` with a limit."""
    cache = SetCache(vocabulary, limit_bytes=LIMIT_BYTES)
    watch = Watch(n_turns, [])
    began_s = time.perf_counter()
    for turn in range(n_turns):
        candidates = candidate_names(NAMES_PER_SET, seed=turn)
        automaton = cache.get(candidates)
        if watch.look(turn):
            assert automaton.to_bytes() == compile(vocabulary, candidates).to_bytes()
            assert cache.size_bytes() <= LIMIT_BYTES
    row = memory_row(watch, time.perf_counter() - began_s)
    usage = cache.usage()
    assert (usage.misses, usage.hits, usage.entries + usage.evictions) == (n_turns, 0, n_turns)
    return {**row, "entries": usage.entries, "bytes": usage.bytes, "limit_bytes": LIMIT_BYTES}


def process_hits(vocabulary: Vocabulary) -> dict[str, Any]:
    """What a hit costs in the process, with the list as strings and as a set that was made before."""
    cache = SetCache(vocabulary)
    names = candidate_names(1_000)
    candidate_set = CandidateSet.from_strings(names)
    kept = cache.get(names)
    assert cache.get(names).arrays is cache.get(candidate_set).arrays is kept.arrays
    return {
        "set_us": percentiles(timed(N_HITS, lambda: cache.get(candidate_set)), 1e-6),
        "list_of_1000_us": percentiles(timed(N_HITS, lambda: cache.get(names)), 1e-6),
        "compile_of_1000_us": percentiles(timed(200, lambda: compile(vocabulary, names)), 1e-6),
    }


def process_clear(vocabulary: Vocabulary, n_entries: int) -> dict[str, Any]:
    """Milliseconds for a clear of so many real sets, the worst of three."""
    cache = SetCache(vocabulary)
    times_s = []
    for _ in range(3):
        for number in range(n_entries):
            cache.get([f"{number:x}"])
        assert cache.usage().entries == n_entries
        times_s += timed(1, cache.clear)
        assert cache.size_bytes() == 0
    return {"entries": n_entries, "worst_ms": max(times_s) * 1e3}


class SharedTier:
    """What a gateway with one compile thread has between a request and an artifact."""

    def __init__(self, url: str, vocabulary: Vocabulary, folder: Path) -> None:
        self.vocabulary = vocabulary
        self.client = open_client(url)
        self.blobs = RedisBlobStore(url)
        self.blobs.put_vocabulary(vocabulary.fingerprint, vocabulary.to_bytes())
        self.index = RedisIndex(url, limit_bytes=dict.fromkeys(Layer, LIMIT_BYTES))
        loop = asyncio.get_running_loop()
        self.follower = IndexFollower(self.index, clock=loop)
        self.sets, self.automata = (SharedCache(self.follower, layer, clock=loop) for layer in Layer)
        self.compiler = ThreadCompiler(self.blobs, self.blobs, 1, automata=self.automata, cache_directory=folder)

    async def get(self, candidate_set: CandidateSet) -> tuple[IndexEntry, Source]:
        """The artifact of a set, pinned for a moment as for the engine's READY."""
        digest = candidate_set.digest(self.vocabulary.fingerprint, "never")

        async def compute(report: Report) -> IndexEntry:
            job = CompileJob(digest, self.vocabulary.fingerprint, candidate_set, "never")
            result = await self.compiler.compile(job)
            return IndexEntry(result.artifact_hash, result.size_bytes)

        async with self.sets.hold(digest, compute, pin_ms=PIN_MS) as found:
            return found.entry, found.source

    async def close(self) -> None:
        """Everything, in the order of use."""
        await self.sets.close()
        await self.automata.close()
        await self.follower.close()
        await self.compiler.close()
        await self.index.close()
        self.blobs.close()
        self.client.close()


@contextlib.asynccontextmanager
async def shared_tier(vocabulary: Vocabulary) -> AsyncIterator[SharedTier]:
    """Over a Redis of its own, which refuses to write at REDIS_BYTES."""
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        running_redis(Path(folder), maxmemory_bytes=REDIS_BYTES) as url,
    ):
        tier = SharedTier(url, vocabulary, Path(folder))
        try:
            tier.follower.start()
            await tier.compiler.warm(vocabulary.fingerprint)
            yield tier
        finally:
            await tier.close()


@contextlib.contextmanager
def running_redis(folder: Path, *, maxmemory_bytes: int) -> Iterator[str]:
    """Its URL."""
    server = PrivateRedis(folder, maxmemory_bytes=maxmemory_bytes)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


async def shared_turns(tier: SharedTier, n_turns: int) -> dict[str, Any]:
    """New set after new set through index, compiler and blob store."""
    watch = Watch(n_turns, [])
    began_s = time.perf_counter()
    for turn in range(n_turns):
        candidate_set = CandidateSet.from_strings(candidate_names(NAMES_PER_SET, seed=turn))
        entry, source = await tier.get(candidate_set)
        assert source is Source.COMPILED
        if watch.look(turn):
            assert tier.blobs.get(entry.artifact_hash) == compile(tier.vocabulary, candidate_set).to_bytes()
    row = memory_row(watch, time.perf_counter() - began_s)
    usage = (await tier.index.usage()).layers[Layer.SETS]
    assert (usage.misses, usage.entries + usage.evictions) == (n_turns, n_turns)
    assert usage.bytes + usage.orphaned_pinned_bytes <= LIMIT_BYTES
    memory = tier.client.info("memory")
    return {
        **row,
        "entries": usage.entries,
        "bytes": usage.bytes,
        "limit_bytes": LIMIT_BYTES,
        "redis_peak_bytes": memory["used_memory_peak"],
        "redis_evicted_keys": tier.client.info("stats")["evicted_keys"],
        "redis_limit_bytes": memory["maxmemory"],
    }


async def shared_hits(tier: SharedTier) -> dict[str, Any]:
    """What a hit costs: two round trips and a pin given back."""
    candidate_set = CandidateSet.from_strings(candidate_names(1_000))
    await tier.get(candidate_set)
    times_s = []
    for _ in range(N_HITS):
        began_s = time.perf_counter()
        _, source = await tier.get(candidate_set)
        times_s.append(time.perf_counter() - began_s)
        assert source is Source.HIT
    return {"set_us": percentiles(times_s, 1e-6)}


async def shared_clear(n_entries: int) -> dict[str, Any]:
    """Milliseconds for a clear of an index with so many entries, the round trip included; the worst of two.

    Nobody follows the index's news or sweeps in this process meanwhile.
    """
    times_s = []
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        running_redis(Path(folder), maxmemory_bytes=1024 * MIB) as url,
    ):
        index = RedisIndex(url)
        # the script is there
        await index.clear()
        for round_number in range(2):
            keys = iter(range(n_entries))
            await asyncio.gather(*(_fill(index, round_number, keys) for _ in range(N_FILLING)))
            assert (await index.usage()).layers[Layer.SETS].entries == n_entries
            began_s = time.perf_counter()
            await index.clear()
            times_s.append(time.perf_counter() - began_s)
            assert (await index.usage()).layers[Layer.SETS].bytes == 0
        await index.close()
    return {"entries": n_entries, "worst_ms": max(times_s) * 1e3}


async def _fill(index: RedisIndex, round_number: int, keys: Iterator[int]) -> None:
    for number in keys:
        key = f"{round_number}{number:063x}"
        granted = await index.acquire(Layer.SETS, key, token=f"{number:032x}", lease_ms=60_000)
        assert isinstance(granted, Granted)
        # its blob is never asked for
        assert await index.commit(granted.lease, IndexEntry(key, 1)) is Commit.INDEXED


async def measure(n_turns: int, n_entries: int) -> dict[str, Any]:
    """All figures."""
    warm_kernels()
    vocabulary = Vocabulary.from_tokenizer(tokenizer_directory("qwen3"))
    progress(f"process: {n_turns:,} turns")
    process: dict[str, Any] = {"turns": process_turns(vocabulary, n_turns), "hit": process_hits(vocabulary)}
    progress(f"process: clear of {n_entries:,} entries")
    process["clear"] = process_clear(vocabulary, n_entries)
    async with shared_tier(vocabulary) as tier:
        progress(f"shared: {n_turns:,} turns")
        shared: dict[str, Any] = {"turns": await shared_turns(tier, n_turns), "hit": await shared_hits(tier)}
    progress(f"shared: clear of {n_entries:,} entries")
    shared["clear"] = await shared_clear(n_entries)
    return {"process": process, "shared": shared}


def check(results: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    broken = []
    for tier, row in results.items():
        if (slope := row["turns"]["rss_slope_mb_per_1000_turns"]) >= MAX_SLOPE_MB:
            broken.append(f"{tier}: memory grows by {slope:.2f} MB for 1,000 turns")
        if (clear_ms := row["clear"]["worst_ms"]) >= MAX_CLEAR_MS:
            broken.append(f"{tier}: a clear takes {clear_ms:.2f} ms")
    turns = results["shared"]["turns"]
    if turns["redis_peak_bytes"] >= turns["redis_limit_bytes"] or turns["redis_evicted_keys"]:
        broken.append(f"Redis took {turns['redis_peak_bytes']} bytes and evicted {turns['redis_evicted_keys']} keys")
    return broken


def render(results: dict[str, Any]) -> str:
    """A table for a person."""
    lines = [f"{'':38}{'process':>12}{'shared':>12}"]

    def add(name: str, value: Callable[[dict[str, Any]], str | None]) -> None:
        cells = [value(results[tier]) or "-" for tier in ("process", "shared")]
        lines.append(f"{name:38}{cells[0]:>12}{cells[1]:>12}")

    add("turns, each with a new set", lambda row: f"{row['turns']['turns']:,}")
    add("turns a second", lambda row: f"{row['turns']['turns_per_s']:.0f}")
    add("RSS slope, MB per 1,000 turns", lambda row: f"{row['turns']['rss_slope_mb_per_1000_turns']:.3f}")
    add("bytes kept, MB (limit)", lambda row: f"{row['turns']['bytes'] / 1e6:.1f} ({LIMIT_BYTES / 1e6:.1f})")
    add("peak of Redis, MB (limit)", _redis_cell)
    add("clear, entries", lambda row: f"{row['clear']['entries']:,}")
    add("clear, worst, ms", lambda row: f"{row['clear']['worst_ms']:.3f}")
    for key, name in (
        ("set_us", "hit, set of 1,000, p50 / p99 us"),
        ("list_of_1000_us", "hit, list of 1,000, p50 / p99 us"),
        ("compile_of_1000_us", "compile, list of 1,000, p50 / p99 us"),
    ):
        add(name, lambda row, key=key: _pair(row["hit"].get(key)))
    return "\n".join(lines) + "\n"


def _redis_cell(row: dict[str, Any]) -> str | None:
    turns = row["turns"]
    if "redis_peak_bytes" not in turns:
        return None
    return f"{turns['redis_peak_bytes'] / 1e6:.0f} ({turns['redis_limit_bytes'] / 1e6:.0f})"


def _pair(figures: dict[str, float] | None) -> str | None:
    return None if figures is None else f"{figures['p50']:.0f} / {figures['p99']:.0f}"


def progress(text: str) -> None:
    """To standard error, with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, keep, and fail if a bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=10_000, help="turns of each tier")
    parser.add_argument("--entries", type=int, default=100_000, help="entries that a clear finds")
    parser.add_argument("--no-bounds", action="store_true", help="succeed whatever the figures are")
    parser.add_argument("--output", type=Path, help="folder for cache.json and cache.txt")
    arguments = parser.parse_args()
    results = asyncio.run(measure(arguments.turns, arguments.entries))
    rendered = render(results)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "cache.json").write_text(json.dumps(results, indent=1) + "\n")
        (arguments.output / "cache.txt").write_text(rendered)
    print(rendered)
    if (broken := check(results)) and not arguments.no_bounds:
        sys.exit("; ".join(broken))


if __name__ == "__main__":
    main()
