"""Sixteen requests at once, each with a list that nobody has compiled, until all have answered: beside native vLLM.

    python benchmarks/end_to_end.py [--kind paths] [--sizes 1000 10000 50000] [--rounds 5]

All ways go to the same engine, one after the other in every round: ours through `maskfeed serve`, the native ones and
the unconstrained ones to vLLM itself. Native are `choice`, which vLLM gives to xgrammar, and, on an engine with the
guidance backend, a Lark grammar with one terminal, the form that is fast for it. Unconstrained are as many tokens as
our answers had. A round counts only if each answer is one of its own list.

Then one list after the other is posted beside an unconstrained stream, whose tokens should not wait for somebody's
compile; and at last tokens a second of sixteen long answers at once from SmolLM2, constrained and not.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from random import Random
from statistics import median
from typing import Any

from live_requests import Asked, Client, Distribution, FreshLists, Wanted, distribution, open_client
from live_stack import gateway, load_average, place, running_engine
from made_up_sets import KINDS

# with the vocabulary of 151,669 tokens that most benchmarks here have
MODEL = "tiny-qwen3"
N_AT_ONCE = 16
# more than any answer has
MAX_TOKENS = 200
SIZES = (1_000, 10_000, 50_000)
STREAM_TOKENS = 900
# the first that comes
STALL_S = 5.0
STALL_LISTS = 100
STALL_SIZE = 10_000
# A way that takes longer than this is not asked for more of the same size, nor for larger lists.
ENOUGH_S = 20.0
# times ours must be faster: (way, size) -> factor
GATES = {
    ("xgrammar choice", 1_000): 5.0,
    ("xgrammar choice", 10_000): 29.0,
    ("guidance, one terminal", 10_000): 2.0,
    ("guidance, one terminal", 50_000): 4.0,
}
GATE_RATE = 0.97
# Every candidate is so many digits, and SmolLM2 has a token for each digit.
DIGITS = 200
RATE_SIZE = 10_000
RATE_ROUNDS = 5


def lark_terminal(candidates: Sequence[str]) -> str:
    """A grammar that llguidance reads as one automaton."""
    return "start: NAME\nNAME: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in candidates)


CONSTRAINTS = {
    "maskfeed": lambda candidates: {"candidates": candidates},
    "xgrammar choice": lambda candidates: {"structured_outputs": {"choice": candidates}},
    "guidance, one terminal": lambda candidates: {"structured_outputs": {"grammar": lark_terminal(candidates)}},
}
# The backend that an engine is started with, and the native way that it serves.
BACKENDS = {"xgrammar": "xgrammar choice", "guidance": "guidance, one terminal"}


class Bench:
    """One engine and the gateway in front of it.

    Args:
        client: of both.
        engine_url: for native and unconstrained requests.
        gateway_url: for ours.
    """

    def __init__(self, client: Client, engine_url: str, gateway_url: str) -> None:
        self._client = client
        self._engine_url = engine_url
        self._gateway_url = gateway_url

    async def compare(self, native: str, size: int, lists: Iterator[list[str]], n_rounds: int) -> dict[str, Any]:
        """Seconds until all have answered, of each way in each round."""
        seconds: dict[str, list[float]] = {"maskfeed": [], native: [], "unconstrained": []}
        for number in range(n_rounds + 1):
            answers, took_s = await self._at_once("maskfeed", lists, N_AT_ONCE)
            free_s = await self._unconstrained([answer.n_tokens for answer in answers])
            if not _has_had_enough(seconds[native]):
                _, native_s = await self._at_once(native, lists, N_AT_ONCE)
                # the first round warms the machine, unless it is too dear to be thrown away
                if number or native_s > ENOUGH_S:
                    seconds[native].append(native_s)
            if number:
                seconds["maskfeed"].append(took_s)
                seconds["unconstrained"].append(free_s)
        return {"size": size, "native": native, "seconds": seconds}

    async def stalls(self, native: str, size: int, lists: Iterator[list[str]]) -> dict[str, Any]:
        """Gaps between the tokens of a stream while nothing is posted, our lists are, and native ones."""
        streams = {way: await self._stall(way, lists) for way in ("nothing", "maskfeed", native)}
        return {"size": size, "native": native, "streams": streams}

    async def rate(self, candidates: Sequence[str]) -> dict[str, Any]:
        """Tokens a second of N_AT_ONCE long answers at once, constrained and not, in turn."""
        rates: dict[str, list[float]] = {"constrained": [], "unconstrained": []}
        for number in range(RATE_ROUNDS + 1):
            requests = [self._client.wanted(candidates, {"candidates": candidates}) for _ in range(N_AT_ONCE)]
            answers, took_s = await self._post(self._gateway_url, requests)
            n_tokens = [answer.n_tokens for answer in answers]
            free_s = await self._unconstrained(n_tokens)
            if number:
                rates["constrained"].append(sum(n_tokens) / took_s)
                rates["unconstrained"].append(sum(n_tokens) / free_s)
        return {"n_tokens": n_tokens[0], **rates}

    async def _at_once(self, way: str, lists: Iterator[list[str]], n: int) -> tuple[list[Asked], float]:
        return await self._post(self._url_of(way), self._requests(way, lists, n))

    def _requests(self, way: str, lists: Iterator[list[str]], n: int) -> list[Wanted]:
        return [
            self._client.wanted(candidates, CONSTRAINTS[way](candidates), max_tokens=MAX_TOKENS)
            for candidates in islice(lists, n)
        ]

    def _url_of(self, way: str) -> str:
        return self._gateway_url if way == "maskfeed" else self._engine_url

    async def _post(self, url: str, requests: Sequence[Wanted]) -> tuple[list[Asked], float]:
        began_s = time.perf_counter()
        raw = await asyncio.gather(*(self._client.ask_freely(url, wanted.body) for wanted in requests))
        took_s = time.perf_counter() - began_s
        for asked, wanted in zip(raw, requests, strict=True):
            assert asked.text in wanted.candidates, asked
        return raw, took_s

    async def _unconstrained(self, n_tokens: Sequence[int]) -> float:
        bodies = [self._client.free_body(n) for n in n_tokens]
        began_s = time.perf_counter()
        await asyncio.gather(*(self._client.ask_freely(self._engine_url, body) for body in bodies))
        return time.perf_counter() - began_s

    async def _stall(self, way: str, lists: Iterator[list[str]]) -> dict[str, Any]:
        stream = self._client.stream(self._engine_url, STREAM_TOKENS)
        # made before: this process reads the stream, too
        waiting = self._requests(way, lists, STALL_LISTS) if way != "nothing" else []
        n_posted = 0
        async with stream.running():
            ends_s = time.perf_counter() + STALL_S
            while time.perf_counter() < ends_s:
                if waiting:
                    await self._post(self._url_of(way), [waiting.pop()])
                    n_posted += 1
                else:
                    await asyncio.sleep(0.1)
        gaps_ms = stream.gaps_ms
        rate = 1e3 * len(gaps_ms) / sum(gaps_ms)
        return {"n_posted": n_posted, "tokens_per_s": rate, "gaps": distribution(gaps_ms)}


def _has_had_enough(seconds: Sequence[float]) -> bool:
    return bool(seconds) and seconds[-1] > ENOUGH_S


async def compare_at(backend: str, kind: str, sizes: Sequence[int], n_rounds: int) -> list[dict[str, Any]]:
    """All sizes with one native way, on one engine."""
    native = BACKENDS[backend]
    results: list[dict[str, Any]] = []
    flags = ("--structured-outputs-config", json.dumps({"backend": backend}))
    with ExitStack() as opened:
        at = opened.enter_context(place())
        engine = opened.enter_context(running_engine(at, MODEL, arguments=flags))
        through = opened.enter_context(gateway(at, engine))
        async with open_client(engine.model) as client:
            bench = Bench(client, engine.url, through.url)
            for size in sizes:
                began_load = load_average()
                lists = iter(FreshLists(kind, size))
                row = await bench.compare(native, size, lists, n_rounds)
                print(describe_row(row, began_load), flush=True)
                results.append({"kind": kind, "load_average": began_load, **row})
                if _has_had_enough(row["seconds"][native]):
                    print(f"{native}: larger lists are not tried")
                    break
            stalls = await bench.stalls(native, STALL_SIZE, iter(FreshLists(kind, STALL_SIZE)))
            print(describe_stalls(stalls), flush=True)
            results.append({"kind": kind, **stalls})
    return results


async def compare_rates() -> dict[str, Any]:
    """Of SmolLM2."""
    digits = Random(1)
    candidates = ["".join(digits.choices("0123456789", k=DIGITS)) for _ in range(RATE_SIZE)]
    with ExitStack() as opened:
        at = opened.enter_context(place())
        # without instructions for bfloat16 a processor takes several times as long for it
        engine = opened.enter_context(running_engine(at, "smollm2", arguments=("--dtype", "float32")))
        through = opened.enter_context(gateway(at, engine))
        async with open_client(engine.model) as client:
            rates = await Bench(client, engine.url, through.url).rate(candidates)
    print(describe_rates(rates), flush=True)
    return rates


def describe_row(row: Mapping[str, Any], began_load: float) -> str:
    """One comparison for a person."""
    seconds: Mapping[str, Sequence[float]] = row["seconds"]
    native, size = row["native"], row["size"]
    middle = {way: median(times) for way, times in seconds.items()}
    told = ", ".join(f"{way} {middle[way]:.3f} ({len(times)} rounds)" for way, times in seconds.items())
    ratio = middle[native] / middle["maskfeed"]
    line = f"\n{N_AT_ONCE} lists of {size:,} at once, s: {told}; load average before {began_load:.1f}"
    free_ratio = middle["maskfeed"] / middle["unconstrained"]
    beside = f"{native} / maskfeed {ratio:.1f}, maskfeed / unconstrained {free_ratio:.2f}"
    if (gate := GATES.get((native, size))) is not None:
        beside += f"\n{judged(ratio, gate)}: {gate:.0f} times as fast as {native} at {size:,}: {ratio:.1f}"
    return f"{line}\n{beside}"


def judged(value: float, gate: float) -> str:
    """Whether a value that should be large is large enough."""
    return "reached" if value >= gate else "not reached"


def describe_stalls(row: Mapping[str, Any]) -> str:
    """What a stream feels, for a person."""
    lines = [f"\na stream beside lists of {row['size']:,}, one after the other; ms between its tokens"]
    lines.append(f"{'':<26}{'lists':>6}{'tokens/s':>10}{'p50':>9}{'p99':>9}{'worst':>9}")
    for way, told in row["streams"].items():
        gaps: Distribution = told["gaps"]
        cells = "".join(f"{value:9.2f}" for value in (gaps.p50, gaps.p99, gaps.worst))
        lines.append(f"{way:<26}{told['n_posted']:>6}{told['tokens_per_s']:>10.0f}{cells}")
    return "\n".join(lines)


def describe_rates(rates: Mapping[str, Any]) -> str:
    """Tokens a second for a person."""
    constrained, free = median(rates["constrained"]), median(rates["unconstrained"])
    ratio = constrained / free
    return (
        f"\nSmolLM2, {N_AT_ONCE} answers of {rates['n_tokens']} tokens at once, {RATE_SIZE:,} candidates, tokens/s: "
        f"constrained {constrained:.0f}, unconstrained {free:.0f} (medians of {RATE_ROUNDS})\n"
        f"{judged(ratio, GATE_RATE)}: constrained / unconstrained at least {GATE_RATE}: {ratio:.3f}"
    )


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    results: dict[str, Any] = {"compared": []}
    for backend in given.backends:
        results["compared"] += await compare_at(backend, given.kind, given.sizes, given.rounds)
    if given.rates:
        results["rates"] = await compare_rates()
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="names")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", nargs="*", choices=tuple(BACKENDS), default=tuple(BACKENDS))
    parser.add_argument("--no-rates", dest="rates", action="store_false", help="without SmolLM2")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, too")
    given = parser.parse_args()
    began_s = time.monotonic()
    results = asyncio.run(run(given))
    print(f"took {time.monotonic() - began_s:.0f} s")
    if given.json:
        print(json.dumps(results, default=asdict))


if __name__ == "__main__":
    sys.exit(main())
