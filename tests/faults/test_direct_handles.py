"""A client that goes to the engine directly, with handles for sets that come and go: an answer or a refusal, always.

Sets are installed and evicted beside the requests all the time, so ranks hold different sets at the same instant; what
they do with a request must be the same nevertheless.
"""

import asyncio
import random
from collections import Counter

import pytest

from direct_client import DirectClient
from maskfeed_cache.handle import Handle
from maskfeed_cache.store import hash_blob
from two_ranks import HELD_LIMIT_SETS, TwoRanks

pytestmark = pytest.mark.engine

N_REQUESTS = 720
# more than the engine may hold
N_SETS = HELD_LIMIT_SETS + 24


class Race:
    """Requests against install and evict."""

    def __init__(self, client: DirectClient) -> None:
        self.client = client
        self.rng = random.Random(5)
        self.sets = {hash_blob(client.artifact(names)): names for names in map(self.names, range(N_SETS))}
        self.outcomes: Counter[str] = Counter()
        self.n_installed = 0
        self.left = iter(range(N_REQUESTS))

    @staticmethod
    def names(number: int) -> list[str]:
        return [f"set {number} member {member}" for member in range(1 + number % 7)]

    async def install(self, stop: asyncio.Event) -> None:
        """Announce one set after another, and give each up at once: the next ones push it out."""
        while not stop.is_set():
            handle = await self.client.ready(self.rng.choice(list(self.sets.values())))
            self.n_installed += 1
            await self.client.end(handle)

    async def ask(self) -> None:
        for number in self.left:
            match number % 4:
                case 0:
                    kind, handle = "unknown", self.client.handle(f"{number:064x}")
                case 1:
                    record = self.client.record
                    known = self.rng.choice(list(self.sets))
                    kind, handle = "old life", Handle(known, ("0" * 16,), record.reserved_id, f"{number:032x}")
                case _:
                    kind, handle = "comes and goes", self.client.handle(self.rng.choice(list(self.sets)))
            self.outcomes[f"{kind}: {await self.outcome(handle)}"] += 1

    async def outcome(self, handle: Handle) -> str:
        n = self.rng.choice((1, 1, 3))
        status, answer = await self.client.complete(handle, temperature=1, n=n, max_tokens=200)
        assert status == 200, answer
        said = set()
        for choice in answer["choices"]:
            if self.client.is_refusal(choice):
                said.add("refused")
            else:
                assert choice["text"] in self.sets[handle.artifact_hash], choice
                said.add("answered")
        assert len(said) == 1 or n > 1
        return " and ".join(sorted(said))


@pytest.mark.full
async def test_handles_that_nobody_promised_are_answered_rightly_or_refused_visibly(crowded_ranks: TwoRanks, capsys):
    before = await crowded_ranks.rows_compared()
    async with DirectClient(crowded_ranks.engine.url, crowded_ranks.redis_url) as client:
        race, stop = Race(client), asyncio.Event()
        installers = [asyncio.create_task(race.install(stop)) for _ in range(3)]
        await asyncio.gather(*(race.ask() for _ in range(12)))
        stop.set()
        await asyncio.gather(*installers)
    outcomes = race.outcomes
    assert sum(outcomes.values()) == N_REQUESTS
    assert outcomes["unknown: refused"] == outcomes["old life: refused"] == N_REQUESTS // 4
    assert min(outcomes["comes and goes: refused"], outcomes["comes and goes: answered"]) > 20
    rows = await crowded_ranks.rows_compared() - before
    with capsys.disabled():
        print(f"\n{N_REQUESTS} direct requests against {race.n_installed} installations, {rows} rows compared")
        print(f"{dict(outcomes)}")
