"""The whole road with a real engine: gateway, Redis, feed, vLLM, and back."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from answer_check import SET_NAMES, check_answer, requests
from engine_server import EngineServer
from maskfeed_cache.handle import Handle
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from stack import Stack, gateway

pytestmark = pytest.mark.engine

CITIES = ["Paris", "London", "Berlin", "Rome", "São Paulo", "京都", "Reykjavík"]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=64)) as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: dict) -> tuple[int, dict]:
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


def chat(stack: Stack, **fields) -> dict:
    message = {"role": "user", "content": "Which city is the capital of France?"}
    return {"model": stack.model, "messages": [message], "temperature": 0, "candidates": CITIES} | fields


async def events(http: aiohttp.ClientSession, url: str, body: dict) -> list[dict]:
    async with http.post(url, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        text = (await response.read()).decode()
    payloads = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    return [json.loads(p) for p in payloads[:-1]]


@pytest.mark.parametrize("n_answers", [260, pytest.param(2_080, marks=pytest.mark.full)])
async def test_every_fresh_set_gets_one_of_its_members_back(stack, http, vocabulary, capsys, n_answers):
    made = requests(n_answers, seed=11)
    room = asyncio.Semaphore(32)
    stop_ids = vocabulary.stop_token_ids

    async def one(request) -> str:
        body = {
            "model": stack.model,
            "prompt": request.prompt,
            "candidates": request.candidates,
            "temperature": request.temperature,
            "seed": request.seed,
            "return_token_ids": True,
        }
        async with room:
            status, answer = await post(http, f"{stack.gateway_url}/v1/completions", body)
        assert status == 200, answer
        choice = answer["choices"][0]
        member = check_answer(request, vocabulary, choice["token_ids"], stop_ids)
        assert choice["text"] == answer["maskfeed"]["candidate"] == member
        assert request.candidates[answer["maskfeed"]["index"]] == member
        return request.set_name

    names = Counter(await asyncio.gather(*(one(request) for request in made)))
    assert sum(names.values()) == n_answers
    assert set(names) == set(SET_NAMES)
    with capsys.disabled():
        print(f"\n{n_answers} answers of a real engine over {len(names)} sets, each checked on its token bytes")


async def test_a_chat_answer_is_a_plain_openai_object_with_our_figures_beside_it(stack, http):
    ids = [{"value": city, "id": f"city-{i}"} for i, city in enumerate(CITIES)]
    status, answer = await post(http, f"{stack.gateway_url}/v1/chat/completions", chat(stack, candidates=ids))
    assert status == 200, answer
    assert answer["object"] == "chat.completion"
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert answer["maskfeed"]["candidate"] == message["content"]
    assert answer["maskfeed"]["id"] == f"city-{CITIES.index(message['content'])}"
    assert {"queue_ms", "compile_ms", "commit_ms", "ready_ms", "digest"} <= set(answer["maskfeed"])
    assert "token_ids" not in answer["choices"][0]


async def test_choice_of_structured_outputs_is_taken_over(stack, http):
    body = chat(stack, structured_outputs={"choice": CITIES})
    del body["candidates"]
    status, answer = await post(http, f"{stack.gateway_url}/v1/chat/completions", body)
    assert status == 200, answer
    assert answer["maskfeed"]["candidate"] in CITIES


@pytest.mark.parametrize("leading_space", ["never", "optional", "always"])
async def test_streamed_text_is_the_candidate_and_its_figures_come_with_the_finish_reason(stack, http, leading_space):
    body = chat(stack, candidate_options={"leading_space": leading_space}, n=2, temperature=1, seed=5)
    chunks = await events(http, f"{stack.gateway_url}/v1/chat/completions", body)
    texts, finals = Counter(), {}
    text = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text[choice["index"]] += choice["delta"].get("content") or ""
            texts[choice["index"]] += 1
            if choice["finish_reason"]:
                finals[choice["index"]] = choice["maskfeed"]
    assert set(finals) == {0, 1}
    for index, final in finals.items():
        assert final["complete"] is True
        assert final["candidate"] == text[index]
        assert text[index] in CITIES


async def test_three_answers_of_one_request_are_three_members(stack, http):
    status, answer = await post(
        http, f"{stack.gateway_url}/v1/chat/completions", chat(stack, n=3, temperature=1, seed=1)
    )
    assert status == 200, answer
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(contents) == 3
    assert set(contents) <= set(CITIES)


@pytest.mark.parametrize("cut", [{"max_tokens": 1}, {"stop": ["o"]}])
async def test_an_answer_that_was_cut_says_so_and_is_no_candidate(stack, http, cut):
    only = ["Constantinople of old, now known by another name"]
    status, answer = await post(http, f"{stack.gateway_url}/v1/chat/completions", chat(stack, candidates=only, **cut))
    assert status == 200, answer
    assert answer["maskfeed"]["complete"] is False
    assert answer["maskfeed"]["candidate"] is None
    assert answer["choices"][0]["finish_reason"] == ("length" if "max_tokens" in cut else "stop")


async def test_a_client_that_leaves_frees_everything(stack, http):
    body = chat(stack, candidates=["la " * 300 + c for c in CITIES], max_tokens=700)
    leaving = asyncio.create_task(post(http, f"{stack.gateway_url}/v1/chat/completions", body))
    await gauge_becomes(http, stack.engine_url, "vllm:num_requests_running", lambda value: value > 0)
    leaving.cancel()
    await gauge_becomes(http, stack.engine_url, "vllm:num_requests_running", lambda value: value == 0)
    await gauge_becomes(http, stack.gateway_url, "maskfeed_requests_in_flight", lambda value: value == 0)


async def gauge_becomes(http: aiohttp.ClientSession, url: str, name: str, holds) -> None:
    """Read the gauge again and again, bounded by 30 s."""
    async with asyncio.timeout(30):
        while True:
            async with http.get(f"{url}/metrics") as response:
                lines = (await response.text()).splitlines()
            values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))]
            assert values, f"{name} is not at {url}/metrics"
            if holds(sum(values)):
                return


async def test_a_handle_of_another_life_comes_back_as_a_refusal_and_without_text(stack, http, vocabulary):
    record = await engine_record(stack)
    handle = Handle("probe", ("f" * 16,), record.reserved_id, "0" * 32).to_text()
    body = {
        "model": stack.model,
        "prompt": "x",
        "max_tokens": 8,
        "stop_token_ids": [record.reserved_id],
        "vllm_xargs": {"maskfeed": handle},
    }
    status, answer = await post(http, f"{stack.engine_url}/v1/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["stop_reason"] == record.reserved_id
    assert answer["choices"][0]["text"] == ""
    status, answer = await post(http, f"{stack.engine_url}/v1/completions", body | {"stop_token_ids": []})
    assert status == 400
    assert "reserved id" in answer["error"]["message"]


async def engine_record(stack: Stack):
    feed = RedisGatewayFeed(stack.redis_url, Keyspace(group="default"))
    try:
        (record,) = await feed.engines()
    finally:
        await feed.close()
    return record


async def test_requests_without_candidates_pass_through_unchanged(stack, http):
    async with http.get(f"{stack.gateway_url}/v1/models") as response:
        assert stack.model in await response.text()
    body = chat(stack, max_tokens=12, seed=0)
    del body["candidates"]
    _, direct = await post(http, f"{stack.engine_url}/v1/chat/completions", body)
    _, through = await post(http, f"{stack.gateway_url}/v1/chat/completions", body)
    assert through["choices"] == direct["choices"]
    assert "maskfeed" not in through


@pytest.mark.full
async def test_an_engine_without_the_plugin_is_never_used_for_candidates(stack, http):
    with EngineServer() as plain:
        # Alone in its group nobody has registered; in the other's group a live engine has, but the URL leads elsewhere.
        for group in ("alone", "default"):
            with gateway(plain.url, stack.redis_url, group=group, wait_ready=False) as url:
                status, answer = await post(http, f"{url}/v1/chat/completions", chat(stack))
                assert status == 503, answer
                assert answer["error"]["code"] == "engine-not-ready"
                async with http.get(f"{url}/ready") as response:
                    assert response.status == 503
