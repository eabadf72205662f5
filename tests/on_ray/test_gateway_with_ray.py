"""`maskfeed serve --compiler ray`: on a cluster of its own, and on one that it is told."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
import ray
from click.testing import CliRunner

from gateway_process import an_engine, served
from maskfeed.cli import main

NAMES = ["Paris", "London", "東京"]
BODY = {"model": "fake", "prompt": "x", "candidates": NAMES}


@pytest.mark.parametrize("cluster", ["its own", "given"])
async def test_the_gateway_compiles_in_ray_actors_and_stops_when_it_is_told(cluster, redis_url, ray_cluster):
    address = [] if cluster == "its own" else ["--ray-address", ray.get_runtime_context().gcs_address]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(an_engine(redis_url))
        gateway = await stack.enter_async_context(
            served("--redis-url", redis_url, "--upstream", engine.url, "--compiler", "ray", *address)
        )
        url = await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        await asyncio.to_thread(gateway.log_until, "group-ready")
        response = await session.post("/v1/completions", json=BODY)
        answer = await response.json()
        assert answer["maskfeed"]["candidate"] in NAMES
        assert answer["maskfeed"]["cache"] == "miss"
        metrics = await (await session.get("/metrics")).text()
        assert "maskfeed_warm_actors 1.0" in metrics
        gateway.ask_to_stop()
        code, log = await asyncio.to_thread(gateway.wait)
    assert code == 0, log
    assert "event=stopped" in log


def test_a_private_redis_does_not_go_with_a_cluster_of_other_machines():
    result = CliRunner().invoke(main, ["serve", "--compiler", "ray", "--ray-address", "ray.example:6379"])
    assert result.exit_code == 2
    assert "--redis-url" in result.output


async def test_a_cluster_that_does_not_answer_is_named(redis_url):
    async with served("--redis-url", redis_url, "--compiler", "ray", "--ray-address", "127.0.0.1:1") as gateway:
        code, log = await asyncio.to_thread(gateway.wait)
    assert code == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in log


def test_the_doctor_joins_the_cluster_and_says_what_it_would_get(redis_url, ray_cluster):
    arguments = ["--compiler", "ray", "--ray-address", ray.get_runtime_context().gcs_address, "--redis-url", redis_url]
    result = CliRunner().invoke(main, ["doctor", "--upstream", "http://127.0.0.1:9", *arguments])
    assert f"ok      ray: {ray.__version__}; 4 CPUs at" in result.output
    assert "1 actors" in result.output
