"""The whole road with an engine that schedules asynchronously, which vLLM does by default everywhere but on the CPU."""

import asyncio
import tempfile
from pathlib import Path

import aiohttp
import pytest

from answer_check import Request, check_answer, requests
from engine_server import EngineServer
from maskfeed_automata import Vocabulary
from maskfeed_cache.private_redis import PrivateRedis
from stack import gateway

pytestmark = [pytest.mark.engine, pytest.mark.full]


async def test_served_answers_are_members_with_async_scheduling_really_on(vocabulary: Vocabulary):
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        PrivateRedis(Path(folder) / "redis") as redis,
        EngineServer(
            maskfeed={"redis_url": redis.url, "shm_dir": str(Path(folder) / "shm")}, async_scheduling=True
        ) as engine,
        gateway(engine.url, redis.url) as url,
    ):
        assert engine.schedules_asynchronously, "the flag of the live engine"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:

            async def one(request: Request) -> str:
                body = {
                    "model": engine.model,
                    "prompt": request.prompt,
                    "candidates": request.candidates,
                    "temperature": request.temperature,
                    "seed": request.seed,
                    "return_token_ids": True,
                }
                async with http.post(f"{url}/v1/completions", json=body) as response:
                    answer = await response.json()
                    assert response.status == 200, answer
                token_ids = answer["choices"][0]["token_ids"]
                return check_answer(request, vocabulary, token_ids, vocabulary.stop_token_ids)

            made = requests(130, seed=17)
            answers = await asyncio.gather(*(one(request) for request in made))
    assert len(answers) == len(made)
