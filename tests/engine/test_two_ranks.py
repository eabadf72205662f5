"""Tensor parallel for real: two ranks mask the same requests, and each step compares their masks bit by bit."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from maskfeed_automata import Vocabulary
from traffic import KINDS, LONG_BEGINNING, Traffic, turns
from two_ranks import CROWDED, TwoRanks, two_ranks

pytestmark = pytest.mark.engine

N_TURNS = 160
# The tokenizer has no token of two digits, so each of these has 320, and with a long prompt fits the longest sequence.
DIGITS = [str(i) * 320 for i in range(2)]
ROWS_OF_A_FULL_RUN = 100_000


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=200)) as session:
        yield session


async def check_crowded(ranks: TwoRanks, http: aiohttp.ClientSession, vocabulary: Vocabulary) -> str:
    def preemptions_and_hits() -> tuple[int, int]:
        return int(ranks.metric("vllm:num_preemptions_total")), int(ranks.metric("vllm:prefix_cache_hits_total"))

    rows_before, before = await ranks.rows_compared(), preemptions_and_hits()
    traffic = Traffic(http, ranks.gateway_url, ranks.engine.model, vocabulary, turns(N_TURNS, seed=3))
    await asyncio.gather(traffic.run(n_at_once=24), more_than_the_cache_holds(ranks, http))
    assert set(traffic.outcomes) == KINDS, traffic.outcomes
    rows = await ranks.rows_compared() - rows_before
    assert rows > 3_000
    preempted, hits = (now - then for now, then in zip(preemptions_and_hits(), before, strict=True))
    assert preempted > 0, "rows left the batch and came back"
    assert hits > 0, "prompts were found in the cache"
    return f"{rows} rows compared: {dict(traffic.outcomes)}, {preempted} preemptions, {hits} tokens from the cache"


async def more_than_the_cache_holds(ranks: TwoRanks, http: aiohttp.ClientSession) -> None:
    """One request whose three answers need 1,000 tokens of a cache of 768, however slowly all others come.

    So rows must leave the batch; and its long prompt, computed once, is found by the other two.
    """
    body = {"model": ranks.engine.model, "prompt": LONG_BEGINNING, "candidates": DIGITS, "n": 3, "max_tokens": 330}
    async with http.post(f"{ranks.gateway_url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        answers = [choice["text"] for choice in (await response.json())["choices"]]
    assert len(answers) == 3
    assert set(answers) <= set(DIGITS)


async def test_a_crowded_batch_of_every_kind_is_masked_alike_on_both_ranks(
    crowded_ranks: TwoRanks, http, vocabulary: Vocabulary, capsys
):
    said = await check_crowded(crowded_ranks, http, vocabulary)
    with capsys.disabled():
        print(f"\nasynchronous scheduling: {said}")


@pytest.mark.full
async def test_the_same_without_asynchronous_scheduling(http, vocabulary: Vocabulary, capsys):
    with two_ranks(arguments=CROWDED) as ranks:
        assert not ranks.engine.schedules_asynchronously
        said = await check_crowded(ranks, http, vocabulary)
    with capsys.disabled():
        print(f"\nsynchronous scheduling: {said}")


@pytest.mark.full
async def test_a_hundred_thousand_rows_are_masked_alike_on_both_ranks(http, vocabulary: Vocabulary, capsys):
    outcomes: Counter[str] = Counter()
    with two_ranks(async_scheduling=True, arguments=["--max-num-seqs", "128"]) as ranks:
        for seed in itertools.count(100):
            traffic = Traffic(http, ranks.gateway_url, ranks.engine.model, vocabulary, turns(600, seed=seed))
            await traffic.run(n_at_once=150)
            outcomes += traffic.outcomes
            if (rows := await ranks.rows_compared()) >= ROWS_OF_A_FULL_RUN:
                break
    assert set(outcomes) == KINDS, outcomes
    with capsys.disabled():
        print(f"\n{rows} rows compared on two ranks: {dict(outcomes)}")
