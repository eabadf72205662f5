"""An engine that is replaced between a set's READY and the request: the new one refuses the old handle visibly."""

import tempfile
from pathlib import Path

import pytest

from direct_client import DirectClient
from engine_server import EngineServer
from maskfeed_cache.private_redis import PrivateRedis
from model_files import tiny_model_directory

pytestmark = [pytest.mark.engine, pytest.mark.full]

CITIES = ["Paris", "London"]


async def test_a_handle_of_the_engine_before_is_refused_by_the_next_one_and_a_fresh_one_is_answered():
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, PrivateRedis(Path(folder) / "redis") as redis:
        settings = {"redis_url": redis.url, "shm_dir": str(Path(folder) / "shm")}
        with EngineServer(maskfeed=settings, model=tiny_model_directory()) as first:
            async with DirectClient(first.url, redis.url) as client:
                old = await client.ready(CITIES)
        with EngineServer(maskfeed=settings, model=tiny_model_directory(), port=first.port) as second:
            async with DirectClient(second.url, redis.url) as client:
                assert client.record.epoch not in old.epochs
                status, answer = await client.complete(old, n=2, temperature=1)
                assert status == 200
                assert [client.is_refusal(choice) for choice in answer["choices"]] == [True, True]
                status, answer = await client.complete(await client.ready(CITIES))
                assert (status, answer["choices"][0]["text"] in CITIES) == (200, True)
