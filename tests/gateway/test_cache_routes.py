"""The cache over HTTP: what anybody may read, and what only the administrator may do."""

import asyncio

import pytest

from gateway_stack import gateway_stack, http_client
from manual_clock import settle
from maskfeed.config import GatewaySettings
from maskfeed_automata.errors import StoreUnavailable

COMPLETIONS = "/v1/completions"
KEY = {"Authorization": "Bearer sesame"}


def a_body(*candidates):
    return {"model": "fake", "prompt": "x", "candidates": candidates or ("Paris", "London")}


@pytest.fixture
async def stack():
    async with gateway_stack(settings=GatewaySettings(admin_key="sesame")) as opened:
        yield opened


@pytest.fixture
async def client(stack):
    async with http_client(stack) as opened:
        yield opened


async def sets_of(client):
    response = await client.get("/v1/cache")
    assert response.status == 200
    return (await response.json())["layers"]["sets"]


async def test_the_figures_of_every_layer_are_shown(client, stack):
    for _ in range(2):
        await client.post(COMPLETIONS, json=a_body())
    body = await (await client.get("/v1/cache")).json()
    (blob,) = stack.broker.blobs.blobs.values()
    assert body["generation"] == 1
    assert len(body["epoch"]) == 32
    assert body["layers"]["sets"] == {
        "generation": 1,
        "entries": 1,
        "bytes": len(blob),
        "orphaned_pinned_bytes": 0,
        "limit_bytes": None,
        "hits": 1,
        "misses": 1,
        "evictions": 0,
        "expirations": 0,
    }
    assert body["layers"]["automata"]["entries"] == 0
    assert body["layers"]["compilers"]["entries"] == 1
    assert body["layers"]["names"]["entries"] == 0
    assert set(body["layers"]["engines"]) == {stack.engine.record.epoch}


async def test_a_clear_empties_the_index_and_tells_compilers_and_engines(client, stack):
    await client.post(COMPLETIONS, json=a_body())
    response = await client.post("/v1/cache/clear", headers=KEY)
    cleared = await response.json()
    assert (response.status, cleared["generation"], cleared["engines_told"]) == (200, 2, True)
    sets = await sets_of(client)
    assert (sets["generation"], sets["entries"], sets["bytes"]) == (2, 0, 0)
    assert stack.compiler.cleared == 1
    await stack.engine.until(lambda seen: seen.cleared)
    assert [message.generation for message in stack.engine.seen.cleared] == [2]
    answer = await (await client.post(COMPLETIONS, json=a_body())).json()
    assert answer["maskfeed"]["cache"] == "miss"
    assert stack.engine.seen.announced[-1].generation == 2


async def test_a_clear_waits_for_no_compile_and_the_compile_still_answers_who_waits_for_it(client, stack):
    stack.compiler.gate.clear()
    running = asyncio.create_task(client.post(COMPLETIONS, json=a_body()))
    await asyncio.wait_for(stack.compiler.busy.wait(), 5)
    await client.post("/v1/cache/clear", headers=KEY)
    stack.compiler.gate.set()
    answer = await (await running).json()
    assert answer["maskfeed"]["cache"] == "miss"
    assert stack.engine.seen.announced[-1].generation == 1
    sets = await sets_of(client)
    assert (sets["entries"], sets["bytes"]) == (0, 0)
    assert stack.metric('maskfeed_compiles_total{outcome="stale"}') == 1


async def test_engines_that_can_not_be_told_do_not_stop_a_clear(client, stack):
    stack.parts.engines._feed.clear = _away
    response = await client.post("/v1/cache/clear", headers=KEY)
    assert (response.status, (await response.json())["engines_told"]) == (200, False)
    assert (await sets_of(client))["generation"] == 2


async def _away(fence):
    raise StoreUnavailable("away", stage="clear")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic sesame"},
        {"Authorization": "sesame"},
        {"Authorization": "Bearer sesame2"},
    ],
)
async def test_a_wrong_key_is_401_and_changes_nothing(client, stack, headers):
    response = await client.post("/v1/cache/clear", headers=headers)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (401, "wrong-admin-key")
    assert (response.headers["WWW-Authenticate"], response.headers["x-should-retry"]) == ("Bearer", "false")
    assert error["request_id"] == response.headers["X-Request-Id"]
    assert (await sets_of(client))["generation"] == 1


async def test_a_gateway_without_a_key_lets_nobody_clear_and_says_why():
    async with gateway_stack() as stack, http_client(stack) as client:
        response = await client.post("/v1/cache/clear", headers=KEY)
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (403, "no-admin-key")
        assert "MASKFEED_ADMIN_KEY" in error["message"]
        assert (await sets_of(client))["generation"] == 1


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/cache"), ("POST", "/v1/cache/clear")])
async def test_a_store_that_is_away_is_503(client, stack, method, path):
    stack.broker.faults.fail_next("usage" if method == "GET" else "clear")
    response = await client.request(method, path, headers=KEY)
    assert (response.status, (await response.json())["error"]["code"]) == (503, "store-unavailable")
    await settle()
    assert (await client.request(method, path, headers=KEY)).status == 200
