"""The whole road with the V2 model runner: gateway, Redis, feed, the set on the device, the answer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import aiohttp
import pytest
from test_v2_engine import HERE

from engine_server import EngineServer
from maskfeed_cache.private_redis import PrivateRedis
from model_files import tiny_model_directory
from stack import Stack, gateway

pytestmark = [pytest.mark.engine, pytest.mark.full]

ARENA_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def v2_stack(tmp_path_factory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("v2")
    with ExitStack() as opened:
        redis = opened.enter_context(PrivateRedis(folder / "redis"))
        engine = opened.enter_context(
            EngineServer(
                maskfeed={
                    "redis_url": redis.url,
                    "shm_dir": str(folder / "shm"),
                    "device_arena_bytes": ARENA_BYTES,
                },
                model=tiny_model_directory(),
                environment={"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"},
                extra_path=[HERE.parent / "v2_platform"],
            )
        )
        url = opened.enter_context(gateway(engine.url, redis.url))
        yield Stack(gateway_url=url, engine_url=engine.url, redis_url=redis.url, model=engine.model)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def ask(http: aiohttp.ClientSession, stack: Stack, candidates: list[str]) -> tuple[int, dict]:
    body = {"model": stack.model, "prompt": "Name one:", "candidates": candidates, "temperature": 0}
    async with http.post(f"{stack.gateway_url}/v1/completions", json=body) as response:
        return response.status, await response.json()


async def test_fresh_sets_come_to_the_device_and_make_room_for_each_other(v2_stack, http):
    for n in range(12):
        candidates = [f"{n} {k:04}" for k in range(1_000)]
        status, body = await ask(http, v2_stack, candidates)
        assert status == 200, body
        assert body["choices"][0]["text"] in candidates


async def test_a_set_larger_than_the_arena_is_refused_with_both_numbers(v2_stack, http):
    status, body = await ask(http, v2_stack, [f"{k:06}" for k in range(20_000)])
    assert status == 503, body
    assert str(ARENA_BYTES) in body["error"]["message"]
    status, body = await ask(http, v2_stack, ["small", "set"])
    assert status == 200, body
