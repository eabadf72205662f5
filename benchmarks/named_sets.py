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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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


async def store_list(gateway: Gateway, candidates: list[dict[str, str]]) -> dict[str, float]:
    """Put the list, without ids and with them, and change it; `candidates` is then what is stored, but for one more."""
    put_plain_ms, answer = await gateway.store("PUT", {"candidates": [candidate["value"] for candidate in candidates]})
    assert answer["count"] == len(candidates)
    put_ms, answer = await gateway.store("PUT", {"candidates": candidates})
    assert answer["count"] == len(candidates)
    change = {"remove": [candidates.pop()], "add": [{"value": "Candidate of later", "id": "id-of-one-later-"}]}
    patch_ms, answer = await gateway.store("PATCH", change)
    assert (answer["removed"], answer["added"], answer["count"]) == (1, 1, len(candidates) + 1)
    return {"put_without_ids_ms": put_plain_ms, "put_ms": put_ms, "patch_ms": patch_ms}


async def ask_parts(gateway: Gateway, candidates: list[dict[str, str]], n_part: int, n_rounds: int) -> dict[str, Any]:
    """Ask for fresh parts, in each way."""
    choose = random.Random(1)
    ways: dict[str, Callable[[list[dict[str, str]]], dict[str, Any]]] = {
        "ids": lambda chosen: {"candidate_set": NAME, "ids": [candidate["id"] for candidate in chosen]},
        "strings": lambda chosen: {"candidates": [candidate["value"] for candidate in chosen]},
        "strings_and_ids": lambda chosen: {"candidates": chosen},
    }

    async def one(way: str) -> float:
        chosen = choose.sample(candidates, n_part)
        return await gateway.ask(ways[way](chosen), {candidate["value"] for candidate in chosen})

    before_mb = gateway.resident_mb()
    first_ms = await one("ids")
    grown_mb = gateway.resident_mb() - before_mb
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    # side by side in every round, so that what else the machine does meets all of them
    for _ in range(n_rounds):
        for way in ways:
            times_ms[way].append(await one(way))
    medians_ms = {way: statistics.median(times) for way, times in times_ms.items()}
    return {"first_request_ms": first_ms, "grown_mb": grown_mb, "request_ms": medians_ms}


@asynccontextmanager
async def a_gateway(upstream_url: str, redis_url: str) -> AsyncIterator[Gateway]:
    """A new gateway, ready."""
    async with (
        served("--upstream", upstream_url, "--redis-url", redis_url) as gateway,
        aiohttp.ClientSession(gateway.read_until("MASKFEED_URL"), timeout=aiohttp.ClientTimeout(120)) as http,
    ):

        async def is_ready() -> bool:
            async with http.get("/ready") as response:
                return response.status == 200

        await eventually(is_ready, within_s=60)
        yield Gateway(http, psutil.Process(gateway.process.pid))


async def run(n_candidates: int, n_part: int, n_rounds: int) -> dict[str, Any]:
    """One gateway stores the list, another one that starts later uses it."""
    candidates = candidates_of(n_candidates)
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, PrivateRedis(Path(folder)) as redis:
        async with an_engine(redis.url) as engine:
            async with a_gateway(engine.url, redis.url) as gateway:
                stored = await store_list(gateway, candidates)
            async with a_gateway(engine.url, redis.url) as gateway:
                asked = await ask_parts(gateway, candidates, n_part, n_rounds)
    return {"candidates": n_candidates, "part": n_part, "rounds": n_rounds, **stored, **asked}


def describe(row: dict[str, Any]) -> str:
    """For a person."""
    request = row["request_ms"]
    put, plain, patch = (f"{row[name]:,.0f} ms" for name in ("put_ms", "put_without_ids_ms", "patch_ms"))
    ways = ", ".join(f"{way.replace('_', ' ')} {time_ms:.1f} ms" for way, time_ms in request.items())
    return (
        f"{row['candidates']:,} candidates: PUT {put} ({plain} without ids), PATCH {patch}\n"
        f"the first request to a new gateway: {row['first_request_ms']:,.0f} ms; it grew by {row['grown_mb']:.0f} MB\n"
        f"a fresh part of {row['part']:,}, whole request, median of {row['rounds']}: {ways}"
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
