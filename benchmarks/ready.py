"""How long from posting a list that nobody has compiled until every rank of a real engine holds its set?

    python benchmarks/ready.py [--compilers thread ray] [--candidates 10000] [--sets 200]

Two ranks of a real vLLM on the CPU, a real Redis, `maskfeed serve` as its own process, whose sets are compiled by its
threads or by Ray actors; lists are posted one at a time, to an idle engine and to one that decodes. The time is the
client's for the whole request less the gateway's stage `generate`, which begins when all ranks are ready: so it has
the transfer of the body in it, and that of the answer, too.

Beside it: the share of each stage; processor time for each request, with a new list and with a known one; and the
tokens of an unconstrained stream while lists are posted. Before a figure counts, every answer was one of its own
list, and afterwards both ranks have every set in their shared memory, under the hash of the same compile here.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from live_requests import Client, Distribution, FreshLists, Wanted, distribution, open_client
from live_stack import (
    COMPILERS,
    Gateway,
    Place,
    cpu_seconds,
    gateway,
    load_average,
    place,
    published_vocabulary,
    running_engine,
)
from made_up_sets import KINDS

from engine_server import EngineServer
from maskfeed_automata import CandidateSet, Vocabulary, build
from maskfeed_cache.store import hash_blob

WARM_UP_SETS = 10
# each way in turn, so that what else the machine does meets all of them
STREAM_BLOCKS = 4
STREAM_TOKENS = 900
GATES_MS = {"p50": 20.0, "p99": 60.0}
GATE_STREAM = 1.2
WAYS = {"alone": "alone", "known": "beside a known list", "fresh": "beside new lists"}
STAGES = ("http", "parse", "lookup", "queue", "compile", "commit", "ready")


@dataclass(frozen=True)
class Run:
    """Lists posted one after the other."""

    ready_ms: list[float]
    # mean milliseconds in each of STAGES
    stages_ms: Mapping[str, float]
    cpu_ms: Mapping[str, float]


class Bench:
    """One gateway in front of one engine.

    Args:
        at: where they run.
        engine: behind it.
        through: the gateway.
        client: its.
        lists: an endless supply.
    """

    def __init__(
        self, at: Place, engine: EngineServer, through: Gateway, client: Client, lists: Iterator[list[str]]
    ) -> None:
        self.posted: list[list[str]] = []
        self._at = at
        self._engine = engine
        self._through = through
        self._client = client
        self._lists = lists

    def fresh(self, n: int) -> list[Wanted]:
        """Requests with lists of their own."""
        lists = list(islice(self._lists, n))
        self.posted += lists
        return [self._client.wanted(candidates, {"candidates": candidates}) for candidates in lists]

    def known(self, n: int) -> list[Wanted]:
        """Requests with the list that was posted last."""
        candidates = self.posted[-1]
        return [self._client.wanted(candidates, {"candidates": candidates}) for _ in range(n)]

    async def post(self, requests: Sequence[Wanted], *, cache: str) -> Run:
        """One after the other; `cache` is what each answer must say of its set."""
        ready_ms: list[float] = []
        before_cpu = cpu_seconds(self._at, self._engine, self._through)
        first = before = await self._client.stage_seconds(self._through.url)
        for wanted in requests:
            asked = await self._client.ask(self._through.url, wanted)
            assert asked.told["cache"] == cache, asked.told
            after = await self._client.stage_seconds(self._through.url)
            ready_ms.append(asked.took_ms - (after["generate"] - before.get("generate", 0.0)) * 1e3)
            before = after
        cpu = cpu_seconds(self._at, self._engine, self._through)
        n = len(requests)
        stages = {stage: (before[stage] - first.get(stage, 0.0)) * 1e3 / n for stage in STAGES[1:]}
        stages["http"] = sum(ready_ms) / n - sum(stages.values())
        return Run(ready_ms, stages, {part: (cpu[part] - before_cpu[part]) * 1e3 / n for part in cpu})

    async def beside_a_stream(self, n: int) -> dict[str, Any]:
        """Gaps of a stream alone, beside requests with a known list, and beside requests with new ones."""
        gaps_ms: dict[str, list[float]] = {way: [] for way in WAYS}
        ready_ms: list[float] = []
        for _ in range(STREAM_BLOCKS):
            for way in WAYS:
                stream = self._client.stream(self._engine.url, STREAM_TOKENS)
                requests = self.fresh(n // STREAM_BLOCKS) if way == "fresh" else self.known(n // STREAM_BLOCKS)
                async with stream.running():
                    if way == "alone":
                        await asyncio.sleep(3.0)
                    else:
                        run = await self.post(requests, cache="miss" if way == "fresh" else "hit")
                        ready_ms += run.ready_ms if way == "fresh" else []
                gaps_ms[way] += stream.gaps_ms
        return {"ready": distribution(ready_ms), "gaps": {way: distribution(gaps) for way, gaps in gaps_ms.items()}}

    def check_ranks(self, vocabulary: Vocabulary, n_ranks: int) -> int:
        """Every set that was posted lies with every rank; the number of sets."""
        for candidates in self.posted:
            blob = build(vocabulary, CandidateSet.from_strings(candidates)).to_bytes()
            holders = list(self._at.shm.glob(f"owner-*/{hash_blob(blob)}"))
            assert len(holders) == n_ranks, f"{len(holders)} ranks hold the set"
        return len(self.posted)


async def measure_idle(bench: Bench, n_sets: int) -> dict[str, Any]:
    """One at a time, each to an engine without requests."""
    await bench.post(bench.fresh(WARM_UP_SETS), cache="miss")
    began_load = load_average()
    fresh = await bench.post(bench.fresh(n_sets), cache="miss")
    known = await bench.post(bench.known(n_sets // 2), cache="hit")
    return {
        "load_average": began_load,
        "ready": distribution(fresh.ready_ms),
        "known": distribution(known.ready_ms),
        "stages_ms": fresh.stages_ms,
        "cpu_ms": {"fresh": fresh.cpu_ms, "known": known.cpu_ms},
    }


async def measure_decoding(bench: Bench, n_sets: int) -> dict[str, Any]:
    """One after the other beside a stream."""
    await bench.post(bench.fresh(WARM_UP_SETS), cache="miss")
    return {"load_average": load_average(), **await bench.beside_a_stream(n_sets)}


async def run(
    compilers: Sequence[str], n_candidates: int, n_sets: int, kind: str, phases: Sequence[str]
) -> list[dict[str, Any]]:
    """Start everything, measure each compiler, stop everything."""
    lists = iter(FreshLists(kind, n_candidates))
    results = []
    for phase in phases:
        measure, n_ranks = PHASES[phase]
        with ExitStack() as opened:
            at = opened.enter_context(place())
            engine = opened.enter_context(running_engine(at, "tiny", n_ranks=n_ranks))
            vocabulary = await published_vocabulary(at)
            for compiler in compilers:
                with gateway(at, engine, compiler=compiler) as through:
                    async with open_client(engine.model) as client:
                        bench = Bench(at, engine, through, client, lists)
                        figures = await measure(bench, n_sets)
                    checked = bench.check_ranks(vocabulary, n_ranks)
                what = {"phase": phase, "compiler": compiler, "kind": kind, "candidates": n_candidates}
                results.append({**what, "ranks": n_ranks, "checked_sets": checked, **figures})
                print(describe(results[-1]), flush=True)
    return results


# How it is measured, and ranks. Of the second, the rank has a core, and everything else the other.
PHASES = {"idle": (measure_idle, 2), "decoding": (measure_decoding, 1)}


def describe(row: Mapping[str, Any]) -> str:
    """A table for a person, and the gates."""
    lines = [
        f"\n{row['candidates']:,} {row['kind']}, {row['phase']} engine, {row['ranks']} ranks, "
        f"compiled by {row['compiler']}; every answer a candidate, {row['checked_sets']} sets found with every rank; "
        f"load average before {row['load_average']:.1f}",
        f"{'ms':<44}{'n':>6}{'p50':>9}{'p90':>9}{'p99':>9}{'worst':>9}",
        _line("POST to READY", row["ready"]),
    ]
    if row["phase"] == "idle":
        stages, cpu = row["stages_ms"], row["cpu_ms"]
        whole_ms = sum(stages.values())
        shares = [f"{stage} {stages[stage]:.2f} ({stages[stage] / whole_ms:.0%})" for stage in STAGES]
        times = [f"{part} {ms:.1f} ({cpu['known'][part]:.1f})" for part, ms in cpu["fresh"].items() if ms]
        lines += [
            _line("the same with a list that is known", row["known"]),
            f"shares of the mean, ms: {', '.join(shares)}",
            f"processor time, ms for each new list (known list): {', '.join(times)}",
        ]
    else:
        lines += [_line(f"between tokens of a stream: {WAYS[way]}", gaps) for way, gaps in row["gaps"].items()]
    return "\n".join([*lines, *gates(row)])


def gates(row: Mapping[str, Any]) -> list[str]:
    """What is to be reached, and whether it is."""
    if row["phase"] == "idle":
        found = [
            (f"{name} of POST to READY at most {limit:.0f} ms", getattr(row["ready"], name), limit)
            for name, limit in GATES_MS.items()
        ]
    else:
        gaps: Mapping[str, Distribution] = row["gaps"]
        found = [
            (
                f"p99 between tokens, new lists / {WAYS[way]}, at most {GATE_STREAM}",
                gaps["fresh"].p99 / gaps[way].p99,
                GATE_STREAM,
            )
            for way in ("known", "alone")
        ]
    return [f"{'reached' if value <= limit else 'not reached'}: {what}: {value:.2f}" for what, value, limit in found]


def _line(what: str, times: Distribution) -> str:
    cells = "".join(f"{value:9.2f}" for value in (times.p50, times.p90, times.p99, times.worst))
    return f"{what:<44}{times.n:6}{cells}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=COMPILERS)
    parser.add_argument("--phases", nargs="+", choices=tuple(PHASES), default=tuple(PHASES))
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS, default="names")
    parser.add_argument("--sets", type=int, default=100, help="lists posted in each phase")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, too")
    given = parser.parse_args()
    began_s = time.monotonic()
    rows = asyncio.run(run(given.compilers, given.candidates, given.sets, given.kind, given.phases))
    print(f"took {time.monotonic() - began_s:.0f} s")
    if given.json:
        print(json.dumps(rows, default=asdict))


if __name__ == "__main__":
    sys.exit(main())
