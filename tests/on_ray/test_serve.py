"""The gateway as a Ray Serve application, on a real Serve, in front of a fake engine."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio
import ray
import ray.util
from ray import serve
from ray.serve.handle import DeploymentHandle

from fake_engine import FakeEngine
from gateway_process import an_engine
from maskfeed.serve import build_app
from maskfeed_automata.errors import CandidateError, ParameterError
from maskfeed_workers.ray_cluster import NAMESPACE
from redis_server import RedisServer
from waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ["Paris", "London", "東京"]
BODY = {"model": "fake", "prompt": "x", "candidates": NAMES}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "candidates": NAMES}


@dataclass
class Served:
    engine: FakeEngine
    http: aiohttp.ClientSession
    handle: DeploymentHandle


@pytest.fixture(scope="module")
def proxy_url(ray_cluster: None) -> Iterator[str]:
    """Where the proxy of a running Serve listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(proxy_url: str, shared_redis: RedisServer) -> AsyncIterator[Served]:
    """The application in front of an engine, ready."""
    async with an_engine(shared_redis.url) as engine:
        application = build_app({"upstream_url": engine.url, "redis_url": shared_redis.url, "ray_actors": 1})
        handle = await asyncio.to_thread(serve.run, application, name="maskfeed", route_prefix="/")
        async with aiohttp.ClientSession(proxy_url) as http:

            async def is_ready() -> bool:
                return (await http.get("/ready")).status == 200

            await eventually(is_ready, within_s=30)
            yield Served(engine, http, handle)
        await asyncio.to_thread(serve.delete, "maskfeed")

        async def are_gone() -> bool:
            actors = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
            return not any(actor["namespace"] == NAMESPACE for actor in actors)

        # the replica has closed its gateway, and that has left its actors
        await eventually(are_gone, within_s=30)


async def test_a_constrained_request_is_answered_over_http(served: Served) -> None:
    response = await served.http.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "mine"})
    answer = await response.json()
    assert (response.status, response.headers["X-Request-Id"]) == (200, "mine")
    assert answer["maskfeed"]["candidate"] in NAMES
    assert answer["choices"][0]["message"]["content"] == answer["maskfeed"]["candidate"]


async def test_a_stream_comes_while_it_is_generated(served: Served) -> None:
    served.engine.faults.hangs_after_events = 2
    response = await served.http.post("/v1/completions", json={**BODY, "candidates": ["get_users"], "stream": True})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    first = await response.content.readany()
    assert first.startswith(b"data: ")
    served.engine.faults.hangs_after_events = None
    served.engine.let_go.set()
    events = (first + await response.content.read()).decode().split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event and "[DONE]" not in event]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "get_users"
    served.engine.let_go.clear()


async def test_a_client_that_leaves_ends_its_request_at_the_engine(served: Served) -> None:
    aborted = served.engine.seen.aborted
    served.engine.faults.hangs = True
    running = asyncio.create_task(served.http.post("/v1/completions", json=BODY))
    seen = len(served.engine.seen.requests)
    await served.engine.until(lambda seen_now: len(seen_now.requests) > seen)
    running.cancel()
    await served.engine.until(lambda seen_now: seen_now.aborted > aborted)
    served.engine.faults.hangs = False


async def test_refusals_and_other_routes_are_those_of_the_gateway(served: Served) -> None:
    response = await served.http.post("/v1/completions", json={**BODY, "candidates": []})
    assert (response.status, (await response.json())["error"]["code"]) == (400, "bad-candidate")
    assert (await (await served.http.get("/v1/limits")).json())["max_candidates"] == 1_000_000
    assert "maskfeed_warm_actors 1.0" in await (await served.http.get("/metrics")).text()
    assert (await served.http.get("/nowhere")).status == 404


async def test_a_constrained_request_is_answered_by_handle(served: Served) -> None:
    answer = await served.handle.answer.remote("/v1/chat/completions", CHAT)
    assert answer["maskfeed"]["candidate"] in NAMES
    chunks = [chunk async for chunk in served.handle.options(stream=True).stream.remote("/v1/completions", BODY)]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) in NAMES


async def test_an_error_reaches_the_handles_caller_as_what_it_is(served: Served) -> None:
    with pytest.raises(CandidateError) as caught:
        await served.handle.answer.remote("/v1/completions", {**BODY, "candidates": ["a", ""]})
    assert caught.value.cause.context["index"] == 1
    with pytest.raises(ParameterError):
        await served.handle.answer.remote("/v1/completions", {**BODY, "stream": True})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"redis_url": "redis://h", "upstream": "http://e"}, "MASKFEED_UPSTREAM"),
        ({"upstream_url": "http://e"}, "needs a Redis"),
        ({"redis_url": "redis://h", "queue_limit": "many"}, "whole number"),
    ],
)
async def test_arguments_that_cannot_be_met_are_refused_when_the_application_is_built(
    arguments: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASKFEED_REDIS_URL", raising=False)
    with pytest.raises(ParameterError, match=problem):
        build_app(arguments)
