"""Redis killed under traffic and started again, empty: nothing else is restarted, and nothing is answered wrongly."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from clients import http_session
from stack import gateway
from traffic import KINDS, Traffic, turns
from two_ranks import compared_rows, two_rank_engine
from waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.full]


async def test_engine_and_gateway_outlive_a_redis_that_is_killed_and_comes_back_empty(
    fragile_redis, vocabulary, capsys
):
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        two_rank_engine(fragile_redis.url, Path(folder)) as engine,
        gateway(engine.url, fragile_redis.url) as url,
    ):
        async with http_session() as http:
            during = Traffic(http, url, engine.model, vocabulary, turns(120, seed=41))
            running = asyncio.create_task(during.run(n_at_once=16))

            async def seen(n_outcomes: int) -> bool:
                return during.outcomes.total() >= n_outcomes

            await eventually(lambda: seen(10), within_s=60)
            fragile_redis.kill()
            before = during.outcomes.total()
            await eventually(lambda: seen(before + 10), within_s=60)
            fragile_redis.restart()
            await running
            refused = {outcome for outcome in during.outcomes if outcome not in KINDS}
            assert refused, "requests met the loss"
            assert all(outcome.startswith("503 ") for outcome in refused), during.outcomes

            async def answers_again() -> bool:
                probe = Traffic(http, url, engine.model, vocabulary, turns(2, seed=42))
                await probe.run(n_at_once=2)
                return set(probe.outcomes) <= KINDS

            await eventually(answers_again, within_s=60)
            after = Traffic(http, url, engine.model, vocabulary, turns(40, seed=43))
            await after.run(n_at_once=16)
            assert set(after.outcomes) == KINDS, after.outcomes
        assert await compared_rows(Path(folder) / "compared") > 100
    with capsys.disabled():
        print(f"\nRedis killed under {dict(during.outcomes)}, then {dict(after.outcomes)}")
