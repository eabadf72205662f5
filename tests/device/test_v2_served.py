"""The whole road with the V2 model runner: gateway, Redis, feed, the set on the device, the answer."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import aiohttp
import pytest
from test_v2_engine import HERE

from divergence import FOLDER_VARIABLE, read_counts
from engine_server import EngineServer
from maskfeed_cache.private_redis import PrivateRedis
from model_files import tiny_model_directory
from stack import Stack, gateway

pytestmark = [pytest.mark.engine, pytest.mark.full]

ARENA_BYTES = 64 * 1024
V2 = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def v2_stack(request, tmp_path_factory) -> Iterator[Stack]:
    """With two ranks, these compare their masks in every step, and end when two differ."""
    folder = tmp_path_factory.mktemp("v2")
    arguments, environment = [], V2
    if request.param == 2:
        arguments = ["--tensor-parallel-size", "2", "--logits-processors", "divergence:CheckedProcessor"]
        environment = V2 | {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "TORCHDYNAMO_DISABLE": "1"}
        environment |= {FOLDER_VARIABLE: str(folder)}
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
                arguments=arguments,
                environment=environment,
                extra_path=[HERE.parent / "v2_platform", HERE.parent / "engine"],
            )
        )
        url = opened.enter_context(gateway(engine.url, redis.url))
        yield Stack(gateway_url=url, engine_url=engine.url, redis_url=redis.url, model=engine.model)
    if request.param == 2:
        (n_steps, n_rows, _), others = read_counts(folder)
        assert others[:2] == (n_steps, n_rows)
        assert n_rows > 100, "rows were compared"


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


async def test_requests_at_the_same_time_and_some_that_leave_are_answered_from_their_own_sets(v2_stack, http):
    sets = [[f"{n} {k:02} end" for k in range(30)] for n in range(6)]
    asked = [asyncio.create_task(ask(http, v2_stack, each)) for each in sets]
    left = [asyncio.create_task(ask(http, v2_stack, each)) for each in sets[:2]]
    await asyncio.wait([*asked, *left], return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    answers = await asyncio.gather(*asked)
    for (status, body), candidates in zip(answers, sets, strict=True):
        assert status == 200, body
        assert body["choices"][0]["text"] in candidates


async def test_a_set_larger_than_the_arena_is_refused_with_both_numbers(v2_stack, http):
    status, body = await ask(http, v2_stack, [f"{k:06}" for k in range(20_000)])
    assert status == 503, body
    # Beside the sets of requests there is the one by which the gateway knows the engine.
    said = re.search(r"would hold (\d+) bytes .* its limit is (\d+)", body["error"]["message"])
    assert said is not None, body
    assert ARENA_BYTES - 2_048 < int(said[2]) < ARENA_BYTES < int(said[1])
    status, body = await ask(http, v2_stack, ["small", "set"])
    assert status == 200, body
