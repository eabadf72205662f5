"""Several engines behind one URL: each holds every set before a request is sent, so any of them may answer it."""

import asyncio
import os
import re
import signal
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest

from clients import http_session
from connection_balancer import ConnectionBalancer
from engine_server import EngineServer
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from model_files import tiny_model_directory
from processes import http_answers
from stack import gateway
from traffic import KINDS, Traffic, turns
from waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with http_session(answer_s=60) as session:
        yield session


@contextmanager
def redis_and_folder() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, PrivateRedis(Path(folder) / "redis") as redis:
        yield redis.url, Path(folder)


def engine(redis_url: str, folder: Path, *, cores: str, arguments: tuple[str, ...] = ()) -> EngineServer:
    return EngineServer(
        maskfeed={"redis_url": redis_url, "shm_dir": str(folder / "shm")},
        model=tiny_model_directory(),
        arguments=arguments,
        environment={"VLLM_CPU_OMP_THREADS_BIND": cores},
    )


def n_answered(server: EngineServer) -> list[int]:
    """How many requests each engine behind a server has finished."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    counts: dict[str, int] = {}
    for number, value in re.findall(r'^vllm:request_success_total{engine="(\d+)".*} (\S+)$', text, re.MULTILINE):
        counts[number] = counts.get(number, 0) + int(float(value))
    return list(counts.values())


async def registered_epochs(redis_url: str) -> set[str]:
    feed = RedisGatewayFeed(redis_url, Keyspace())
    await feed.start()
    try:
        return {record.epoch for record in await feed.engines()}
    finally:
        await feed.close()


async def test_two_engines_behind_one_url_share_the_work_and_one_goes_on_without_the_other(vocabulary, http, capsys):
    with ExitStack() as opened:
        redis_url, folder = opened.enter_context(redis_and_folder())
        first = opened.enter_context(engine(redis_url, folder, cores="0"))
        second = engine(redis_url, folder, cores="1")
        with second:
            async with ConnectionBalancer(first.port, second.port) as balancer:
                # in a thread: the gateway's probes go through this event loop
                url = await asyncio.to_thread(opened.enter_context, gateway(balancer.url, redis_url))
                assert len(await registered_epochs(redis_url)) == 2
                both = Traffic(http, url, first.model, vocabulary, turns(60, seed=51))
                await both.run(n_at_once=16)
                assert set(both.outcomes) == KINDS, both.outcomes
                shares = [n for server in (first, second) for n in n_answered(server)]
                assert min(shares) > 20, shares
                during = await kill_under(second, Traffic(http, url, first.model, vocabulary, turns(60, seed=52)))
                await eventually(lambda: asyncio.to_thread(http_answers, f"{url}/ready"), within_s=60)
                alone = Traffic(http, url, first.model, vocabulary, turns(40, seed=53))
                await alone.run(n_at_once=16)
                assert set(alone.outcomes) == KINDS, alone.outcomes
    with capsys.disabled():
        print(f"\ntwo engines behind one URL: {dict(both.outcomes)}, {shares} requests")
        print(f"one of them killed: {dict(during.outcomes)}, then {dict(alone.outcomes)}")


async def kill_under(server: EngineServer, traffic: Traffic) -> Traffic:
    """Run the traffic, and kill an engine with all its processes in the middle of it."""
    running = asyncio.create_task(traffic.run(n_at_once=16))

    async def in_full_swing() -> bool:
        return traffic.outcomes.total() > 10

    await eventually(in_full_swing, within_s=60)
    os.killpg(server.process.pid, signal.SIGKILL)
    await running
    lost = set(traffic.outcomes) - KINDS
    assert lost, "requests were in flight"
    assert all(outcome.split()[0] in ("502", "503") for outcome in lost), traffic.outcomes
    return traffic


async def test_data_parallel_engines_are_a_group_of_their_own(vocabulary, http, capsys):
    with ExitStack() as opened:
        redis_url, folder = opened.enter_context(redis_and_folder())
        parallel = engine(redis_url, folder, cores="0|1", arguments=("--data-parallel-size", "2"))
        opened.enter_context(parallel)
        url = opened.enter_context(gateway(parallel.url, redis_url))
        assert len(await registered_epochs(redis_url)) == 2
        traffic = Traffic(http, url, parallel.model, vocabulary, turns(100, seed=54))
        await traffic.run(n_at_once=16)
        shares = n_answered(parallel)
    assert set(traffic.outcomes) == KINDS, traffic.outcomes
    assert (len(shares), min(shares) > 20) == (2, True), shares
    with capsys.disabled():
        print(f"\ndata parallel 2: {dict(traffic.outcomes)}, {shares} requests")
