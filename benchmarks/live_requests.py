"""Requests to a running gateway or engine, timed by the client; streams beside them; figures over many.

It knows HTTP and the answers' fields, not how the servers are started. An answer counts only if it is one of the
candidates that were posted.
"""

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import aiohttp
from made_up_sets import made_up_set

__all__ = ["Asked", "Client", "Distribution", "FreshLists", "Stream", "Wanted", "distribution", "open_client"]

ROUTE = "/v1/completions"
PROMPT = "One of them is "
_STAGE = re.compile(r'^maskfeed_stage_seconds_sum\{stage="(\w+)"\} (\S+)$', re.MULTILINE)
# Longer than what any peer is given.
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that is ready to be sent."""

    body: bytes
    candidates: Sequence[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer."""

    took_ms: float
    text: str
    n_tokens: int
    # the object `maskfeed` of a gateway's answer; empty from an engine
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of times in milliseconds."""

    n: int
    p50: float
    p90: float
    p99: float
    worst: float


def distribution(times_ms: Sequence[float]) -> Distribution:
    """Percentiles of at least two values, between the measured ones where there are few."""
    cuts = quantiles(times_ms, n=100, method="inclusive")
    return Distribution(len(times_ms), median(times_ms), cuts[89], cuts[98], max(times_ms))


class FreshLists:
    """Lists that nobody has compiled: random parts of one long list, in random order.

    Args:
        kind: of `made_up_set`.
        n: candidates in each.
    """

    def __init__(self, kind: str, n: int) -> None:
        self._all = made_up_set(kind, 4 * n)
        self._n = n
        self._choose = random.Random(f"{kind} {n}")

    def __iter__(self) -> Iterator[list[str]]:
        while True:
            yield self._choose.sample(self._all, self._n)


class Client:
    """Asks for answers. For one event loop.

    Args:
        http: its session.
        model: the name that the engine serves.
    """

    def __init__(self, http: aiohttp.ClientSession, model: str) -> None:
        self._http = http
        self._model = model
        self._seed = 0

    def wanted(self, candidates: Sequence[str], constraint: Mapping[str, Any], **more: Any) -> Wanted:
        """A request with `constraint`, which must permit `candidates` and nothing else; each has another seed."""
        return Wanted(self._body(**constraint, **more), candidates)

    async def ask(self, base_url: str, wanted: Wanted) -> Asked:
        """The answer, which must be one of the candidates."""
        asked = await self.ask_freely(base_url, wanted.body)
        assert asked.text in set(wanted.candidates), asked
        return asked

    async def ask_freely(self, base_url: str, body: bytes) -> Asked:
        """Any answer to a whole body."""
        began_s = time.perf_counter()
        async with self._http.post(base_url + ROUTE, data=body, headers=_JSON) as response:
            raw = await response.read()
        took_ms = (time.perf_counter() - began_s) * 1e3
        answer = json.loads(raw)
        assert response.status == 200, answer
        text, told = answer["choices"][0]["text"], answer.get("maskfeed", {})
        return Asked(took_ms, text, answer["usage"]["completion_tokens"], told)

    async def stage_seconds(self, gateway_url: str) -> dict[str, float]:
        """Seconds that all finished requests together have spent in each stage."""
        async with self._http.get(f"{gateway_url}/metrics") as response:
            text = await response.text()
        return {stage: float(seconds) for stage, seconds in _STAGE.findall(text)}

    def free_body(self, n_tokens: int, **more: Any) -> bytes:
        """An unconstrained request that gets exactly so many tokens."""
        return self._body(max_tokens=n_tokens, ignore_eos=True, **more)

    def stream(self, engine_url: str, n_tokens: int) -> "Stream":
        """An unconstrained stream at an engine, begun again as often as it ends."""
        return Stream(self._http, engine_url, lambda: self.free_body(n_tokens, stream=True))

    def _body(self, **fields: Any) -> bytes:
        self._seed += 1
        request = {"model": self._model, "prompt": PROMPT, "temperature": 1.0, "seed": self._seed, **fields}
        return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(slots=True)
class Stream:
    """Tokens as they come to a client who is not concerned by anybody's set."""

    http: aiohttp.ClientSession
    engine_url: str
    make_body: Callable[[], bytes]
    # milliseconds between the tokens of one stream
    gaps_ms: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have it run for the length of the block, from its first token on."""
        first = asyncio.Event()
        task = asyncio.create_task(self._run(first))
        waiting = asyncio.create_task(first.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield
        finally:
            assert not task.done(), task.exception()
            task.cancel()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self, first: asyncio.Event) -> None:
        while True:
            last_s: float | None = None
            async with self.http.post(self.engine_url + ROUTE, data=self.make_body(), headers=_JSON) as response:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    now_s = time.perf_counter()
                    if last_s is not None:
                        self.gaps_ms.append((now_s - last_s) * 1e3)
                        first.set()
                    last_s = now_s


@asynccontextmanager
async def open_client(model: str) -> AsyncIterator[Client]:
    """A client for the block."""
    # shorter than vLLM keeps an idle connection (5 s): used while it is closed, it loses the request
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as http:
        yield Client(http, model)


_JSON = {"Content-Type": "application/json"}
