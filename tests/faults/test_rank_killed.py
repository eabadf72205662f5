"""A rank that is killed: its epoch ends, requests in flight end with errors, and the next engine is fed."""

import asyncio
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients import http_session
from direct_client import DirectClient
from maskfeed_cache.private_redis import PrivateRedis
from processes import http_answers
from stack import gateway
from traffic import KINDS, Traffic, turns
from two_ranks import compared_rows, two_rank_engine
from waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.full]

# what may become of a request whose engine dies under it; never an answer outside its set, never silence
ENDS = KINDS | {"connection lost"}


async def test_a_killed_rank_ends_its_epoch_and_a_gateway_goes_on_with_the_next_engine(vocabulary, capsys):
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="mf-")))
        redis = opened.enter_context(PrivateRedis(folder / "redis"))
        first = two_rank_engine(redis.url, folder / "first")
        with first:
            url = opened.enter_context(gateway(first.url, redis.url))
            async with DirectClient(first.url, redis.url) as client, http_session(answer_s=60) as http:
                traffic = Traffic(http, url, first.model, vocabulary, turns(60, seed=9))
                await kill_rank_1_under(traffic, client, int((folder / "first/compared/pid-1").read_text()))
            lost = {outcome for outcome in traffic.outcomes if outcome not in ENDS}
            assert lost, "requests were in flight"
            assert all(outcome.split()[0] in ("502", "503", "500") for outcome in lost), traffic.outcomes
        with two_rank_engine(redis.url, folder / "second", port=first.port) as second:
            await eventually(lambda: asyncio.to_thread(http_answers, f"{url}/ready"), within_s=60)
            async with http_session() as http:
                again = Traffic(http, url, second.model, vocabulary, turns(40, seed=10))
                await again.run(n_at_once=16)
            assert set(again.outcomes) <= KINDS, again.outcomes
            assert await compared_rows(folder / "second/compared") > 40
    with capsys.disabled():
        print(f"\na rank killed under {dict(traffic.outcomes)}, then {dict(again.outcomes)}")


async def kill_rank_1_under(traffic: Traffic, client: DirectClient, pid: int) -> None:
    running = asyncio.create_task(traffic.run(n_at_once=16))

    async def in_full_swing() -> bool:
        return traffic.outcomes.total() > 10

    await eventually(in_full_swing, within_s=60)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        dead = await client.deaths.get()
    assert (dead.epoch, "rank 1" in dead.reason) == (client.record.epoch, True)
    await running
