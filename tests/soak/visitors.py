"""Clients of the soak: each turn posts a list that nobody has posted before, and looks at what comes back.

A visible error with a code is counted, and the client goes on after the pause that the error asks for. What must
never happen is kept in `Book.violations`: an answer outside its set, an answer that does not say that it was masked, a
failure without a code, an error that says that maskfeed itself is broken, a request that does not end.
"""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from answer_check import PROMPTS, Request, check_answer
from candidate_sets import candidate_set
from maskfeed_automata import Vocabulary

__all__ = ["DEADLINE_MS", "HANGS_AFTER_S", "Book", "Turn", "Visitors", "fresh_turns"]

POOLS = (
    *("icd10cm_codes", "places_names", "places_nonlatin", "numeric_ids", "aws_operations", "emoji", "bfcl_functions"),
    *("mcp_tools", "github_operations", "nasty_blns", "nasty_whitespace", "nasty_json_escape"),
)
LARGE_POOLS = ("icd10cm_codes", "places_names", "places_nonlatin")
# Short answers, because the soak is about sets and not about tokens.
LONGEST_BYTES = 32
SMALLEST, USUAL_LARGEST, LARGE = 20, 2_000, 10_000
N_OF_LARGE = 100  # one turn in so many
WAYS = {"whole": 14, "streams": 4, "leaves after the first event": 1, "leaves at any moment": 1}
DEADLINE_MS = 20_000
# The deadline is for the set; the answer itself takes a second, and the machine is small.
HANGS_AFTER_S = DEADLINE_MS / 1_000 + 30.0
# A client that was refused asks again after this even where the gateway still says that it is not ready.
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and how its client behaves."""

    number: int
    request: Request
    way: str
    n: int
    # of a client that leaves at any moment
    stays_s: float


@dataclass(slots=True)
class Book:
    """What has become of the turns."""

    outcomes: Counter[str] = field(default_factory=Counter)
    answers_checked: int = 0
    hangs: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def n_ended(self) -> int:
        """Turns that have ended in whatever way."""
        return self.outcomes.total()


def fresh_turns(n: int, *, seed: int) -> Iterator[Turn]:
    """`n` turns; each list has one candidate that no other list has, so every set is new."""
    rng = random.Random(seed)
    pools = {name: [c for c in candidate_set(name) if 0 < len(c.encode()) <= LONGEST_BYTES] for name in POOLS}
    for number in range(n):
        is_large = number % N_OF_LARGE == N_OF_LARGE // 2
        name = rng.choice(LARGE_POOLS if is_large else POOLS)
        usual = int(math.exp(rng.uniform(math.log(SMALLEST), math.log(USUAL_LARGEST))))
        size = min(LARGE if is_large else usual, len(pools[name]))
        candidates = [*rng.sample(pools[name], size - 1), f"turn {seed}.{number}"]
        rng.shuffle(candidates)
        n_answers = rng.choices((1, 3), (4, 1))[0]
        temperature = 1.0 if n_answers > 1 else float(rng.randrange(2))
        request = Request(name, rng.choice(PROMPTS), candidates, temperature, seed=number)
        (way,) = rng.choices(tuple(WAYS), tuple(WAYS.values()))
        yield Turn(number, request, way, n_answers, stays_s=rng.uniform(0.0, 0.5))


class Visitors:
    """The clients.

    Args:
        http: without a time-out of its own.
        gateway_url: of the gateway.
        model: its name.
        vocabulary: for the check of answers.
        is_ready: set while the gateway says that it is ready.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        gateway_url: str,
        model: str,
        vocabulary: Vocabulary,
        is_ready: asyncio.Event,
    ) -> None:
        self.book = Book()
        self._http = http
        self._url = f"{gateway_url}/v1/completions"
        self._model = model
        self._vocabulary = vocabulary
        self._is_ready = is_ready
        self._ways = {
            "whole": self._whole,
            "streams": self._streams,
            "leaves after the first event": self._leaves_after_the_first_event,
            "leaves at any moment": self._leaves_at_any_moment,
        }

    async def take(self, turns: Iterator[Turn], *, n_at_once: int) -> None:
        """All turns, so many at a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(n_at_once):
                group.create_task(self._visit_again_and_again(turns))

    async def _visit_again_and_again(self, turns: Iterator[Turn]) -> None:
        for turn in turns:
            outcome = await self._visit(turn)
            self.book.outcomes[outcome] += 1
            if outcome[0].isdigit():
                await self._pause()

    async def _pause(self) -> None:
        # what Retry-After says wherever there is one
        await asyncio.sleep(1)
        try:
            async with asyncio.timeout(_LONGEST_PAUSE_S):
                await self._is_ready.wait()
        except TimeoutError:
            return

    async def _visit(self, turn: Turn) -> str:
        try:
            async with asyncio.timeout(HANGS_AFTER_S):
                return await self._ways[turn.way](turn)
        except TimeoutError:
            self.book.hangs += 1
            return self._violation(turn, f"no end within {HANGS_AFTER_S:.0f} s")
        except AssertionError as error:
            return self._violation(turn, f"wrong answer: {error}")
        except (aiohttp.ClientError, json.JSONDecodeError) as error:
            return self._violation(turn, f"failure without a code: {error!r}")

    async def _whole(self, turn: Turn) -> str:
        async with self._http.post(self._url, json=self._body(turn)) as response:
            answer = await response.json()
            if response.status != 200:
                return self._failed(turn, response.status, answer["error"])
        assert answer["maskfeed"]["enforced"] is True
        told = {choice["index"]: choice["maskfeed"]["candidate"] for choice in answer["choices"]}
        self._check(turn, {choice["index"]: choice["token_ids"] for choice in answer["choices"]}, told)
        return "answered"

    async def _streams(self, turn: Turn) -> str:
        token_ids: dict[int, list[int]] = {}
        told: dict[int, str] = {}
        async with self._http.post(self._url, json=self._body(turn) | {"stream": True}) as response:
            if response.status != 200:
                return self._failed(turn, response.status, (await response.json())["error"])
            is_done = False
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                is_done = line.strip() == b"data: [DONE]"
                event: dict[str, Any] = {} if is_done else json.loads(line[len(b"data: ") :])
                if "error" in event:
                    return self._failed(turn, response.status, event["error"])
                for choice in event.get("choices", ()):
                    token_ids.setdefault(choice["index"], []).extend(choice["token_ids"] or ())
                    if choice["finish_reason"] is not None:
                        assert event["maskfeed"]["enforced"] is True
                        told[choice["index"]] = choice["maskfeed"]["candidate"]
        assert is_done, "the stream ends with [DONE]"
        self._check(turn, token_ids, told)
        return "answered in a stream"

    async def _leaves_after_the_first_event(self, turn: Turn) -> str:
        async with self._http.post(self._url, json=self._body(turn) | {"stream": True}) as response:
            if response.status != 200:
                return self._failed(turn, response.status, (await response.json())["error"])
            await response.content.readline()
        return "left after the first event"

    async def _leaves_at_any_moment(self, turn: Turn) -> str:
        try:
            async with asyncio.timeout(turn.stays_s):
                return await self._whole(turn)
        except TimeoutError:
            return "left before the answer"

    def _body(self, turn: Turn) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": turn.request.prompt,
            "candidates": turn.request.candidates,
            "temperature": turn.request.temperature,
            "n": turn.n,
            "deadline_ms": DEADLINE_MS,
            "return_token_ids": True,
        }

    def _check(self, turn: Turn, token_ids: dict[int, list[int]], told: dict[int, str]) -> None:
        assert sorted(token_ids) == sorted(told) == list(range(turn.n)), "each of the answers is there"
        for index, ids in token_ids.items():
            candidate = check_answer(turn.request, self._vocabulary, ids, self._vocabulary.stop_token_ids)
            assert told[index] == candidate, "the gateway names the candidate that the tokens spell"
            self.book.answers_checked += 1

    def _failed(self, turn: Turn, status: int, error: dict[str, Any]) -> str:
        code = error["code"]
        if code == "internal-invariant":
            return self._violation(turn, f"{code}: {error['message']}")
        place = f" at {error['stage']}" if "stage" in error else ""
        return f"{status} {code}{place}" + (" in the stream" if status == 200 else "")

    def _violation(self, turn: Turn, text: str) -> str:
        self.book.violations.append(f"turn {turn.number} ({turn.way}): {text}")
        return f"violation: {text[:60]}"
