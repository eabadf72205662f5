"""A compile actor killed in the middle of a compile, as a client sees it: the answer comes a little later."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import psutil
import pytest

from gateway_process import Served, an_engine, served
from waiting import eventually

pytestmark = pytest.mark.full

NAMES = ["Paris", "London", "東京"]
BODY = {"model": "fake", "prompt": "x", "candidates": NAMES}


def only_actor(gateway: Served) -> psutil.Process:
    """Of the cluster that the gateway has started for itself."""
    processes = psutil.Process(gateway.process.pid).children(recursive=True)
    (actor,) = (each for each in processes if each.cmdline()[:1] == ["ray::CompileActor"])
    return actor


async def test_an_actor_that_is_killed_at_work_costs_its_client_a_retry_and_no_error(redis_url):
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(an_engine(redis_url))
        command = ["--redis-url", redis_url, "--upstream", engine.url, "--compiler", "ray"]
        gateway = await stack.enter_async_context(served(*command, MASKFEED_RAY_ACTORS="1"))
        url = await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        await asyncio.to_thread(gateway.log_until, "group-ready")
        metrics = Metrics(session)
        # it takes the work, and never ends it
        actor = only_actor(gateway)
        actor.suspend()
        asking = asyncio.create_task(session.post("/v1/completions", json=BODY))
        await eventually(lambda: metrics.show("maskfeed_compiling_sets 1.0"))
        actor.kill()
        response = await asking
        told = (await response.json())["maskfeed"]
        assert (told["candidate"] in NAMES, told["cache"]) == (True, "miss")
        await eventually(lambda: metrics.show("maskfeed_warm_actors 1.0"))
        assert only_actor(gateway).pid != actor.pid
        assert await metrics.show("maskfeed_lost_actors 1.0")


class Metrics:
    """What the gateway says of itself."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def show(self, line: str) -> bool:
        """Whether a line is there."""
        async with self._session.get("/metrics") as response:
            return line in (await response.text()).splitlines()
