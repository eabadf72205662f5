"""Two gateways in front of one engine: the same sets on both at one time."""

import asyncio

import pytest

from clients import http_session
from stack import gateway_process
from traffic import KINDS, Traffic, turns
from two_ranks import TwoRanks

pytestmark = pytest.mark.engine


async def test_two_gateways_feed_one_engine(crowded_ranks: TwoRanks, vocabulary):
    with gateway_process(crowded_ranks.engine.url, crowded_ranks.redis_url) as (url, _):
        async with http_session() as http:
            model, urls = crowded_ranks.engine.model, (crowded_ranks.gateway_url, url)
            # the same sets on both, at the same time
            traffics = [Traffic(http, each, model, vocabulary, turns(40, seed=31)) for each in urls]
            await asyncio.gather(*(traffic.run(n_at_once=10) for traffic in traffics))
    for traffic in traffics:
        assert set(traffic.outcomes) == KINDS, traffic.outcomes
    await crowded_ranks.rows_compared()
