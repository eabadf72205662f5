"""An artifact that is damaged between the compiler and the engine: never used, and compiled again for who waits."""

import secrets

import pytest
import redis

from clients import http_session
from direct_client import DirectClient, SetFailed
from maskfeed_cache.fence import Fence
from maskfeed_cache.store import hash_blob
from two_ranks import TwoRanks

pytestmark = pytest.mark.engine

CITIES = ["Paris", "London", "Reykjavík"]
RIVERS = ["Seine", "Thames", "Elliðaár"]


def damaged(blob: bytes) -> bytes:
    middle = len(blob) // 2
    return blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :]


async def test_a_damaged_artifact_fails_on_all_ranks_and_its_whole_copy_is_taken_later(crowded_ranks: TwoRanks):
    async with DirectClient(crowded_ranks.engine.url, crowded_ranks.redis_url) as client:
        store = redis.Redis.from_url(crowded_ranks.redis_url)
        blob = client.artifact(CITIES)
        store.set(client.keys.blob(hash_blob(blob)), damaged(blob))
        event = await client.announce(blob, secrets.token_hex(16))
        assert "corrupt-artifact" in event.reason
        status, answer = await client.complete(client.handle(hash_blob(blob)))
        assert (status, client.is_refusal(answer["choices"][0])) == (200, True)
        store.delete(client.keys.blob(hash_blob(blob)))
        status, answer = await client.complete(await client.ready(CITIES))
        assert (status, answer["choices"][0]["text"] in CITIES) == (200, True)
        store.close()


async def test_a_gateway_has_a_damaged_artifact_compiled_again_and_the_client_notices_nothing(crowded_ranks: TwoRanks):
    body = {"model": crowded_ranks.engine.model, "prompt": "Name a river:", "candidates": RIVERS, "temperature": 1}
    async with (
        DirectClient(crowded_ranks.engine.url, crowded_ranks.redis_url) as client,
        http_session() as http,
    ):
        store = redis.Redis.from_url(crowded_ranks.redis_url)

        async def ask() -> str:
            async with http.post(f"{crowded_ranks.gateway_url}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                return (await response.json())["choices"][0]["text"]

        assert await ask() in RIVERS
        key = client.keys.blob(hash_blob(client.artifact(RIVERS)))
        whole = store.get(key)
        store.set(key, damaged(whole))
        await client.feed.clear(Fence(secrets.token_hex(16), 1))  # so that the engine must fetch it again
        with pytest.raises(SetFailed, match="corrupt-artifact"):
            await announced(client, whole)
        assert await ask() in RIVERS
        assert store.get(key) == whole
        store.close()


async def announced(client: DirectClient, blob: bytes) -> None:
    event = await client.announce(blob, secrets.token_hex(16))
    raise SetFailed(getattr(event, "reason", "it was ready"))
