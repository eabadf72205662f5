"""One of two gateways killed: the other's requests notice nothing, and what was promised to it lapses."""

import asyncio
import os
import signal

import pytest

from clients import http_session
from direct_client import DirectClient, SetFailed
from stack import gateway_process
from traffic import KINDS, Traffic, turns
from two_ranks import HELD_LIMIT_SETS, TwoRanks
from waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.full]

# A gateway's lease, the engine's patience with it, and a turn of the feed; with time for a busy machine.
LAPSE_S = 40


async def test_a_gateway_that_is_killed_takes_nothing_from_the_other_and_its_promises_lapse(
    crowded_ranks: TwoRanks, vocabulary, capsys
):
    with gateway_process(crowded_ranks.engine.url, crowded_ranks.redis_url) as (url, child):
        async with http_session() as http:
            model = crowded_ranks.engine.model
            survivor = Traffic(http, crowded_ranks.gateway_url, model, vocabulary, turns(40, seed=32))
            victim = Traffic(http, url, model, vocabulary, turns(200, seed=33))
            running = [asyncio.create_task(each.run(n_at_once=12)) for each in (survivor, victim)]

            async def in_full_swing() -> bool:
                return victim.outcomes.total() > 5

            await eventually(in_full_swing, within_s=60)
            os.kill(child.pid, signal.SIGKILL)
            await asyncio.gather(*running)
    assert set(survivor.outcomes) == KINDS, survivor.outcomes
    assert set(victim.outcomes) <= KINDS | {"connection lost"}, victim.outcomes
    assert victim.outcomes["connection lost"] > 12
    await crowded_ranks.rows_compared()
    await all_room_is_free(crowded_ranks)
    with capsys.disabled():
        print(f"\na gateway killed: {dict(victim.outcomes)}; beside it: {dict(survivor.outcomes)}")


async def all_room_is_free(ranks: TwoRanks) -> None:
    """As many sets as the engine may hold are promised to one client, so nothing is promised to anybody else."""
    async with DirectClient(ranks.engine.url, ranks.redis_url) as client:
        kept = []

        async def one_more_fits() -> bool:
            try:
                kept.append(await client.ready([f"kept {len(kept)}"]))
            except SetFailed:
                return False
            return len(kept) == HELD_LIMIT_SETS

        await eventually(one_more_fits, within_s=LAPSE_S)
        await client.end(*kept)
