"""What does a large named set cost, and does a request that names a part of it save time against posting the strings?

    python benchmarks/named_sets.py [--candidates 1000000] [--part 10000] [--rounds 15]

`maskfeed serve` in a process of its own with its embedded Redis, in front of an engine of this process that answers at
once from the real artifact, so that everything in a time is the gateway's. Every request brings a part that nobody has
compiled. A time counts only if the answer is a candidate of its own part.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import aiohttp
import psutil

from gateway_process import an_engine, served
from maskfeed_cache.private_redis import PrivateRedis
from waiting import eventually

NAME = "entities"
ROUTE = f"/v1/candidate-sets/{NAME}"
MB = 1e6


def candidates_of(n: int) -> list[dict[str, str]]:
    """Values of 18 bytes with ids of 16."""
    return [{"value": f"Candidate {number:08d}", "id": f"id-{number:013d}"} for number in range(n)]


class Gateway:
    """HTTP against the gateway, timed.

    Args:
        http: with the gateway's address as its base.
        process: the gateway's.
    """

    def __init__(self, http: aiohttp.ClientSession, process: psutil.Process) -> None:
        self._http = http
        self._process = process

    def resident_mb(self) -> float:
        """Resident set of the gateway."""
        return self._process.memory_info().rss / MB

    async def store(self, method: str, change: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Milliseconds of a PUT or PATCH, and its answer; the body is made before."""
        body = json.dumps(change, separators=(",", ":")).encode()
        began_s = time.perf_counter()
        async with self._http.request(method, ROUTE, data=body) as response:
            answer = await response.json()
        took_ms = (time.perf_counter() - began_s) * 1e3
        assert response.status in (200, 201), answer
        return took_ms, answer

    async def ask(self, constraint: dict[str, Any], permitted: set[str]) -> float:
        """Milliseconds of a request, whose answer must be one of `permitted`."""
        request = {"model": "fake", "prompt": "x", "max_tokens": 60, "temperature": 0, **constraint}
        body = json.dumps(request, separators=(",", ":")).encode()
        began_s = time.perf_counter()
        async with self._http.post("/v1/completions", data=body) as response:
            answer = await response.json()
        took_ms = (time.perf_counter() - began_s) * 1e3
        assert response.status == 200, answer
        assert answer["choices"][0]["text"] in permitted
        return took_ms


async def measure(gateway: Gateway, n_candidates: int, n_part: int, n_rounds: int) -> dict[str, Any]:
    """All figures of one run."""
    candidates = candidates_of(n_candidates)
    before_mb = gateway.resident_mb()
    put_plain_ms, answer = await gateway.store("PUT", {"candidates": [candidate["value"] for candidate in candidates]})
    assert answer["count"] == n_candidates
    put_ms, answer = await gateway.store("PUT", {"candidates": candidates})
    assert answer["count"] == n_candidates
    change = {"remove": [candidates[0]], "add": [{"value": "Candidate of later", "id": "id-of-one-later-"}]}
    patch_ms, answer = await gateway.store("PATCH", change)
    assert (answer["removed"], answer["added"], answer["count"]) == (1, 1, n_candidates)
    del candidates[0]
    choose = random.Random(1)

    def part() -> list[dict[str, str]]:
        return choose.sample(candidates, n_part)

    ways: dict[str, Callable[[list[dict[str, str]]], dict[str, Any]]] = {
        "ids": lambda chosen: {"candidate_set": NAME, "ids": [candidate["id"] for candidate in chosen]},
        "strings": lambda chosen: {"candidates": [candidate["value"] for candidate in chosen]},
        "strings_and_ids": lambda chosen: {"candidates": chosen},
    }

    async def one(way: str) -> float:
        chosen = part()
        return await gateway.ask(ways[way](chosen), {candidate["value"] for candidate in chosen})

    first_ms = await one("ids")
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    # side by side in every round, so that what else the machine does meets all of them
    for _ in range(n_rounds):
        for way in ways:
            times_ms[way].append(await one(way))
    return {
        "candidates": n_candidates,
        "part": n_part,
        "rounds": n_rounds,
        "put_without_ids_ms": put_plain_ms,
        "put_ms": put_ms,
        "patch_ms": patch_ms,
        "first_request_ms": first_ms,
        "request_ms": {way: statistics.median(times) for way, times in times_ms.items()},
        "gateway_grew_mb": gateway.resident_mb() - before_mb,
    }


async def run(n_candidates: int, n_part: int, n_rounds: int) -> dict[str, Any]:
    """Start Redis, engine and gateway, measure, stop them."""
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, PrivateRedis(Path(folder)) as redis:
        async with (
            an_engine(redis.url) as engine,
            served("--upstream", engine.url, "--redis-url", redis.url) as gateway,
            aiohttp.ClientSession(gateway.read_until("MASKFEED_URL"), timeout=aiohttp.ClientTimeout(120)) as http,
        ):

            async def is_ready() -> bool:
                async with http.get("/ready") as response:
                    return response.status == 200

            await eventually(is_ready, within_s=60)
            return await measure(Gateway(http, psutil.Process(gateway.process.pid)), n_candidates, n_part, n_rounds)


def describe(row: dict[str, Any]) -> str:
    """For a person."""
    request = row["request_ms"]
    put, plain, patch = (f"{row[name]:,.0f} ms" for name in ("put_ms", "put_without_ids_ms", "patch_ms"))
    stored = f"PUT {put} ({plain} without ids), PATCH {patch}"
    ways = ", ".join(f"{way.replace('_', ' ')} {time_ms:.1f} ms" for way, time_ms in request.items())
    return (
        f"{row['candidates']:,} candidates: {stored}, gateway grew by {row['gateway_grew_mb']:.0f} MB\n"
        f"a fresh part of {row['part']:,}, whole request, median of {row['rounds']}: {ways};"
        f" the first request, by ids, {row['first_request_ms']:,.0f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--part", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    row = asyncio.run(run(arguments.candidates, arguments.part, arguments.rounds))
    print(json.dumps(row) if arguments.json else describe(row))


if __name__ == "__main__":
    main()
