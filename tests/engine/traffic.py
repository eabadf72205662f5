"""Mixed traffic through a gateway: fresh sets, several answers a request, free text, long prompts, clients that leave.

Whatever comes back with status 200 is checked on its token bytes; what comes back otherwise is counted by its error
code, and the caller says whether there may be any.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import aiohttp

from answer_check import Request, check_answer, requests
from maskfeed_automata import Vocabulary

__all__ = ["KINDS", "LONG_BEGINNING", "Traffic", "turns"]

# What becomes of turns where nothing is wrong.
KINDS = {"1 answers", "3 answers", "left", "free"}
# One beginning for all long prompts, so that prefix caching has something to find.
LONG_BEGINNING = "The patient was seen again after two weeks and reported less pain in the left knee. " * 6


class Traffic:
    """Requests over HTTP, and what became of them.

    Args:
        http: with a time-out; a request that hangs is an error of the test.
        gateway_url: of a ready gateway.
        model: its name.
        vocabulary: for the check.
        made: the constrained turns; the plain ones come between them.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        gateway_url: str,
        model: str,
        vocabulary: Vocabulary,
        made: Sequence[Request],
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._http = http
        self._url = f"{gateway_url}/v1/completions"
        self._model = model
        self._vocabulary = vocabulary
        self._made = made

    async def run(self, *, n_at_once: int) -> None:
        """All turns, `n_at_once` at a time."""
        turns = iter(enumerate(self._made))
        async with asyncio.TaskGroup() as group:
            for _ in range(n_at_once):
                group.create_task(self._client(turns))

    async def _client(self, turns: Iterator[tuple[int, Request]]) -> None:
        for number, request in turns:
            kind = self._answers if number % 7 else self._leaves
            body = self._body(request, n=3 if number % 5 == 1 else 1, long=number % 4 == 2)
            self.outcomes[await self._guarded(kind, request, body)] += 1
            if number % 3 == 0:
                self.outcomes[await self._guarded(self._free, request, body)] += 1

    def _body(self, request: Request, *, n: int, long: bool) -> dict:
        body = {
            "model": self._model,
            "prompt": (LONG_BEGINNING if long else "") + request.prompt,
            "candidates": request.candidates,
            "max_tokens": 200,
            "temperature": max(request.temperature, float(n > 1)),
            "return_token_ids": True,
        }
        return body | ({"n": n} if n > 1 else {})

    async def _guarded(self, kind, request: Request, body: dict) -> str:
        try:
            return await kind(request, body)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return "connection lost"

    async def _answers(self, request: Request, body: dict) -> str:
        async with self._http.post(self._url, json=body) as response:
            answer = await response.json()
            if response.status != 200:
                return f"{response.status} {answer['error']['code']}"
        for choice in answer["choices"]:
            check_answer(request, self._vocabulary, choice["token_ids"], self._vocabulary.stop_token_ids)
        return f"{len(answer['choices'])} answers"

    async def _leaves(self, request: Request, body: dict) -> str:
        """A client that has seen enough after the first event."""
        async with self._http.post(self._url, json=body | {"stream": True}) as response:
            if response.status != 200:
                return f"{response.status} {(await response.json())['error']['code']}"
            await response.content.readline()
        return "left"

    async def _free(self, request: Request, body: dict) -> str:
        free = {"model": self._model, "prompt": request.prompt, "max_tokens": 60, "temperature": 1, "ignore_eos": True}
        async with self._http.post(self._url, json=free) as response:
            answer = await response.text()
            if response.status != 200:
                return f"{response.status} free"
        assert json.loads(answer)["usage"]["completion_tokens"] == 60
        return "free"


def turns(n: int, *, seed: int) -> list[Request]:
    """Turns whose answers take long enough for the batch to be full."""
    made = requests(n, seed=seed)
    random.Random(seed).shuffle(made)
    return made
