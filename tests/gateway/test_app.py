"""The HTTP surface: routes, statuses, headers, bodies; and the whole gateway over a real Redis."""

import asyncio
import gzip
import io
import json
import zlib
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
import zstandard
from aiohttp import ClientConnectionError, ClientConnectionResetError, ClientPayloadError

from fake_engine import RAW_PIECES, VOCABULARY, FakeEngine, engine_record
from gateway_stack import gateway_stack, http_client, serving
from manual_clock import settle
from maskfeed.config import GatewaySettings, QueueSettings
from maskfeed.service.app import create_app, open_parts
from maskfeed.service.routes import PARTS, PASSED_THROUGH
from maskfeed.service.telemetry import SERVER_LOG
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore

NAMES = ["get_user", "get_users", "Paris", "東京"]
COMPLETIONS = "/v1/completions"


def a_body(candidates=NAMES, **more):
    return {"model": "fake", "prompt": "x", "candidates": list(candidates), **more}


@pytest.fixture
async def stack():
    async with gateway_stack() as opened:
        yield opened


@pytest.fixture
async def client(stack):
    async with http_client(stack) as opened:
        yield opened


async def error_of(response):
    error = (await response.json())["error"]
    assert {"message", "type", "param", "code", "request_id"} <= error.keys()
    assert response.headers["X-Request-Id"] == error["request_id"]
    return error


async def all_ended(stack):
    await stack.engine.until(lambda seen: {each.nonce for each in seen.announced} <= set(seen.ended))
    assert stack.parts.promises.held == 0


# -- answers and errors --------------------------------------------------------------------------------------------


async def test_an_answer_is_a_normal_object_with_ours_in_it(client):
    response = await client.post(COMPLETIONS, json=a_body())
    assert response.status == 200
    assert response.content_type == "application/json"
    answer = await response.json()
    assert answer["object"] == "text_completion"
    assert answer["maskfeed"]["candidate"] in NAMES


async def test_the_request_id_goes_to_the_engine_and_back(client, stack):
    response = await client.post(COMPLETIONS, json=a_body(), headers={"X-Request-Id": "mine-7"})
    assert response.headers["X-Request-Id"] == "mine-7"
    assert stack.engine.seen.headers[-1]["X-Request-Id"] == "mine-7"


@pytest.mark.parametrize("given", [None, "x" * 200, "a b"])
async def test_a_request_without_a_usable_id_gets_one(client, given):
    response = await client.get("/health", headers={"X-Request-Id": given} if given else {})
    assert len(response.headers["X-Request-Id"]) == 32


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "numbers"),
    [
        (a_body([]), 400, "bad-candidate", "candidates", {}),
        (a_body(["a", ""]), 422, "bad-candidate", "candidates[1]", {"index": 1}),
        (a_body(["a", None]), 400, "bad-candidate", "candidates[1]", {"index": 1}),
        (b'{"prompt": "x", "candidates": ["\\udfff"]}', 400, "bad-candidate", "candidates[0]", {"index": 0}),
        (a_body(["b" * 70_000]), 422, "limit-exceeded", "candidates[0]", {"limit": 65_536, "value": 70_000}),
        (a_body(["a", "b" * 64]), 422, "bad-candidate", "candidates[1]", {"limit": 63, "value": 64}),
        (a_body(guided_choice=["a"]), 400, "bad-parameter", "guided_choice", {}),
        ({"prompt": "x", "candidate": ["a"]}, 400, "bad-parameter", "candidate", {}),
        (a_body(ignore_eos=True), 400, "bad-parameter", "ignore_eos", {}),
        (a_body(candidate_options={"deadline_ms": 0}), 400, "bad-parameter", "candidate_options.deadline_ms", {}),
        (b"not json", 400, "bad-parameter", None, {}),
    ],
)
async def test_bad_input_is_told_with_its_field_its_index_and_its_numbers(client, body, status, code, param, numbers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(COMPLETIONS, data=data, headers={"Content-Type": "application/json"})
    error = await error_of(response)
    assert (response.status, error["code"]) == (status, code)
    assert param is None or error["param"] == param
    assert numbers.items() <= error.items()
    assert response.headers["x-should-retry"] == "false"


async def test_too_many_bytes_of_candidates_in_all_are_413(client):
    candidates = [f"{number:04d}" + "b" * 60_000 for number in range(1_200)]
    response = await client.post(COMPLETIONS, data=io.BytesIO(json.dumps(a_body(candidates)).encode()))
    error = await error_of(response)
    assert response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert error["limit"] == 64 * 1024 * 1024
    assert error["unit"] == "bytes"


async def test_candidates_on_another_route_are_400(client, stack):
    response = await client.post("/v1/responses", json={"input": "x", "candidates": ["a"]})
    assert (response.status, (await error_of(response))["param"]) == (400, "candidates")
    assert len(stack.engine.seen.requests) == 1


async def test_a_full_queue_is_429_and_says_when_to_come_again():
    settings = GatewaySettings(queue=QueueSettings(limit=0))
    async with gateway_stack(settings=settings, parallelism=1) as stack, http_client(stack) as client:
        stack.compiler.gate.clear()
        first = asyncio.create_task(client.post(COMPLETIONS, json=a_body(["a"])))
        await stack.compiler.busy.wait()
        response = await client.post(COMPLETIONS, json=a_body(["b"]))
        error = await error_of(response)
        assert (response.status, error["code"], error["stage"]) == (429, "over-capacity", "queue")
        assert response.headers["Retry-After"] == "1"
        stack.compiler.gate.set()
        assert (await first).status == 200


async def test_not_ready_by_the_deadline_is_504_with_the_stage(client, stack):
    stack.engine.faults.is_slow = True
    task = asyncio.create_task(client.post(COMPLETIONS, json=a_body(candidate_options={"deadline_ms": 50})))
    await stack.engine.until(lambda seen: seen.announced)
    await settle()
    stack.clock.advance(1)
    response = await task
    error = await error_of(response)
    assert (response.status, error["stage"], error["limit_ms"]) == (504, "ready", 50)
    await all_ended(stack)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ({"refuses": True}, 503, "set-refused"),
        ({"fails_with": "no room"}, 503, "rank-failure"),
        ({"dies": True}, 502, "upstream-error"),
        ({"answers_with": (200, "<html>")}, 502, "upstream-error"),
        ({"has_no_plugin": True}, 500, "internal-invariant"),
    ],
)
async def test_what_the_engine_does_wrong_is_an_error_object_and_never_text(client, stack, fault, status, code):
    for name, value in fault.items():
        setattr(stack.engine.faults, name, value)
    response = await client.post(COMPLETIONS, json=a_body())
    assert (response.status, (await error_of(response))["code"]) == (status, code)
    await all_ended(stack)


async def test_a_store_that_is_away_is_503(client, stack):
    stack.broker.faults.fail_next("acquire")
    response = await client.post(COMPLETIONS, json=a_body())
    assert (response.status, (await error_of(response))["code"]) == (503, "store-unavailable")
    assert response.headers["Retry-After"] == "1"
    assert (await client.post(COMPLETIONS, json=a_body())).status == 200


async def test_a_defect_of_the_gateway_is_an_error_object_without_details(client, stack, caplog):
    async def broken(*args, **kwargs):
        raise ZeroDivisionError("secret detail")

    stack.parts.index.acquire = broken
    response = await client.post(COMPLETIONS, json=a_body())
    error = await error_of(response)
    assert (response.status, error["code"]) == (500, "internal-invariant")
    assert "secret" not in json.dumps(error)
    assert "secret detail" in caplog.text


async def test_an_engines_own_refusal_keeps_its_status_and_gets_our_shape(client, stack):
    stack.engine.faults.answers_with = (401, '{"error": "Unauthorized"}')
    response = await client.post(COMPLETIONS, json=a_body())
    error = await error_of(response)
    assert (response.status, response.headers["x-should-retry"]) == (401, "false")
    assert (error["message"], error["code"]) == ("Unauthorized", "upstream-refused")
    assert error["request_id"] == response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not-found"),
        ("POST", "/v1/chat/completions/batch", 404, "not-found"),
        ("POST", "/wake_up", 404, "not-found"),
        ("GET", COMPLETIONS, 405, "method-not-allowed"),
    ],
)
async def test_a_route_that_is_not_listed_does_not_exist(client, stack, method, path, status, code):
    response = await client.request(method, path)
    assert (response.status, (await error_of(response))["code"]) == (status, code)
    assert len(stack.engine.seen.requests) == 1


# -- bodies --------------------------------------------------------------------------------------------------------


def deflated(data):
    return zlib.compress(data)


def two_members(data):
    return gzip.compress(data[:10]) + gzip.compress(data[10:])


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", two_members),
        ("deflate", deflated),
        ("zstd", zstandard.compress),
        ("identity", bytes),
    ],
)
async def test_a_compressed_body_is_unpacked(client, encoding, pack):
    data = pack(json.dumps(a_body()).encode())
    response = await client.post(COMPLETIONS, data=data, headers={"Content-Encoding": encoding})
    assert response.status == 200
    assert (await response.json())["maskfeed"]["candidate"] in NAMES


async def test_a_compressed_body_of_a_passed_through_route_reaches_the_engine_unpacked(client, stack):
    response = await client.post(
        "/v1/embeddings", data=gzip.compress(b'{"input": "x"}'), headers={"Content-Encoding": "gzip"}
    )
    assert await response.read() == b'{"input": "x"}'
    assert "Content-Encoding" not in stack.engine.seen.headers[-1]


@pytest.fixture
async def narrow_client():
    async with gateway_stack(settings=GatewaySettings(max_body_bytes=1_000)) as stack, http_client(stack) as opened:
        yield opened


@pytest.mark.parametrize("encoding", [None, "gzip", "zstd"])
async def test_a_body_over_the_limit_is_413_with_limit_and_value(narrow_client, encoding):
    data = json.dumps(a_body(["b" * 2_000])).encode()
    if encoding is not None:
        data = gzip.compress(data) if encoding == "gzip" else zstandard.compress(data)
        assert len(data) < 1_000
    headers = {"Content-Encoding": encoding} if encoding else {}
    response = await narrow_client.post(COMPLETIONS, data=data, headers=headers)
    error = await error_of(response)
    assert (response.status, error["code"], error["param"]) == (413, "limit-exceeded", "body")
    assert (error["limit"], error["unit"]) == (1_000, "bytes")
    assert error["value"] == (len(data) if encoding is None else 1_001)


async def test_a_body_that_does_not_say_its_length_is_bounded_too(narrow_client):
    async def pieces():
        for _ in range(3):
            yield b"b" * 500

    response = await narrow_client.post(COMPLETIONS, data=pieces())
    assert (response.status, (await error_of(response))["limit"]) == (413, 1_000)


async def test_a_body_of_exactly_the_limit_is_read(narrow_client):
    body = json.dumps(a_body(["a"]))
    response = await narrow_client.post(COMPLETIONS, data=body + " " * (1_000 - len(body)))
    assert response.status == 200


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("gzip", b"no gzip"), ("gzip", gzip.compress(b"{}" * 100)[:-9]), ("zstd", b"no zstd"), ("br", b"x")],
)
async def test_a_body_that_can_not_be_unpacked_is_400(client, encoding, data):
    response = await client.post(COMPLETIONS, data=data, headers={"Content-Encoding": encoding})
    error = await error_of(response)
    assert (response.status, error["param"]) == (400, "Content-Encoding")
    assert error["message"] in {
        f"the body is no valid {encoding} data",
        "the compressed body is cut off",
        "Content-Encoding 'br' is not supported; gzip, deflate and zstd are",
    }


# -- pass-through --------------------------------------------------------------------------------------------------


async def test_a_passed_through_request_and_its_answer_are_unchanged(client, stack):
    raw = b'{"input":  ["x"], "unknown": 1}'
    response = await client.post("/v1/embeddings?a=b%20c", data=raw, headers={"Authorization": "Bearer k"})
    assert (response.status, await response.read()) == (201, raw)
    assert response.headers["X-Engine"] == "fake"
    assert "x-maskfeed" not in response.headers
    assert stack.engine.seen.headers[-1]["Authorization"] == "Bearer k"


async def test_a_passed_through_stream_is_unchanged_byte_for_byte(client):
    response = await client.post("/v1/responses", json={"input": "x", "stream": True})
    assert response.content_type == "text/event-stream"
    assert await response.read() == b"".join(RAW_PIECES)


async def test_models_are_listed_by_the_engine(client):
    response = await client.get("/v1/models")
    assert (await response.json())["data"] == [{"id": "fake"}]


async def test_an_untouched_choice_is_marked_and_a_plain_request_is_not(client):
    choice = {"model": "fake", "prompt": "x", "structured_outputs": {"choice": ["a", ""]}}
    marked = await client.post(COMPLETIONS, json=choice)
    assert marked.headers["x-maskfeed"] == "native; reason=structured_outputs.choice"
    plain = await client.post(COMPLETIONS, json={"model": "fake", "prompt": "x"})
    assert "x-maskfeed" not in plain.headers


async def test_a_passed_through_answer_that_breaks_off_is_not_taken_for_whole(client, stack):
    stack.engine.faults.dies_after_events = 2
    response = await client.post(COMPLETIONS, json={"model": "fake", "prompt": "x", "stream": True})
    with pytest.raises((ClientPayloadError, ClientConnectionError)):
        await response.read()


def test_no_passed_through_route_takes_candidates_or_administers_the_engine():
    paths = {path for _, path in PASSED_THROUGH}
    assert len(paths) == len(PASSED_THROUGH)
    assert not paths & {"/v1/completions", "/v1/chat/completions", "/wake_up", "/sleep", "/reset_prefix_cache"}


# -- clients that leave --------------------------------------------------------------------------------------------


async def test_a_client_that_hangs_up_ends_its_request_at_the_engine_and_its_promise(client, stack):
    stack.engine.faults.hangs = True
    task = asyncio.create_task(client.post(COMPLETIONS, json=a_body()))
    await stack.engine.until(lambda seen: len(seen.requests) == 2)
    task.cancel()
    await stack.engine.until(lambda seen: seen.aborted == 1)
    await all_ended(stack)
    assert stack.metric('maskfeed_requests_total{outcome="cancelled"}') == 1
    assert stack.metric("maskfeed_requests_in_flight") == 0


async def test_a_client_that_hangs_up_in_mid_stream_ends_its_promise(client, stack):
    response = await client.post(COMPLETIONS, json=a_body(["a" * 40], stream=True))
    await response.content.readany()
    response.close()
    await all_ended(stack)


# -- state ---------------------------------------------------------------------------------------------------------


async def test_health_needs_nothing():
    async with gateway_stack(records=[]) as stack, http_client(stack) as client:
        assert (await client.get("/health")).status == 200


async def test_ready_is_200_with_the_engines_that_were_proven(client, stack):
    response = await client.get("/ready")
    assert response.status == 200
    assert await response.json() == {"ready": True, "reasons": [], "engines": [stack.engine.record.epoch]}


async def test_ready_is_503_with_every_reason():
    async with gateway_stack(records=[]) as stack, http_client(stack) as client:
        stack.broker.faults.fail_next("ping")
        response = await client.get("/ready")
        assert response.status == 503
        assert (await response.json())["reasons"] == [
            "no engine of the group is registered",
            "scripted failure during ping",
        ]


async def test_metrics_have_the_stages_the_outcomes_and_the_gauges(client):
    await client.post(COMPLETIONS, json=a_body())
    await client.post(COMPLETIONS, json=a_body([]))
    await client.get("/v1/models")
    response = await client.get("/metrics")
    text = await response.text()
    assert 'maskfeed_stage_seconds_count{stage="parse"} 2.0' in text
    for stage in ("lookup", "queue", "compile", "commit", "ready", "generate"):
        assert f'maskfeed_stage_seconds_count{{stage="{stage}"}} 1.0' in text
    assert 'maskfeed_errors_total{code="bad-candidate"} 1.0' in text
    assert 'maskfeed_forwarded_requests_total{kind="pass-through"} 1.0' in text
    assert not any(name in text for name in NAMES)


async def test_limits_are_told_before_anything_is_sent(client):
    limits = await (await client.get("/v1/limits")).json()
    assert limits["max_candidates"] == 1_000_000
    assert limits["max_body_bytes"] == 128 * 1024 * 1024
    assert limits["max_model_len"] == 64
    assert limits["leading_space"] == ["never", "optional", "always"]


async def test_candidates_are_never_logged(client, stack, caplog):
    caplog.set_level("DEBUG", logger="maskfeed")
    await client.post(COMPLETIONS, json=a_body(["Paris", "Paris-secret"]))
    await client.post(COMPLETIONS, json=a_body(["Paris-secret", ""]))
    assert "event=request-ended" in caplog.text
    assert "event=request-refused" in caplog.text
    assert "secret" not in caplog.text


# -- over a real Redis ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def redis_gateway(redis_url, **settings):
    """The gateway as `serve` runs it, and its client."""
    settings = GatewaySettings(**settings)
    app = create_app(settings, lambda: open_parts(settings, redis_url))
    async with serving(app, settings) as client:
        yield client, app[PARTS]


@asynccontextmanager
async def redis_engine(redis_url, record=None):
    blobs = RedisBlobStore(redis_url)
    feed = RedisEngineFeed(redis_url, Keyspace())
    try:
        async with FakeEngine(feed, blobs, record=record) as engine:
            yield engine
    finally:
        blobs.close()


async def until_status(client, path, status, **request):
    """Ask again until the answer has this status: each turn is a round trip of real processes, bounded by 30 s."""
    async with asyncio.timeout(30):
        while True:
            response = await client.request(request.get("method", "GET"), path, json=request.get("json"))
            if response.status == status:
                return response
            await response.read()


async def test_the_whole_road_over_a_real_redis(redis_url):
    async with redis_engine(redis_url) as engine, redis_gateway(redis_url, upstream_url=engine.url) as (client, _):
        await until_status(client, "/ready", 200)
        for cache in ("miss", "hit"):
            answer = await (await client.post(COMPLETIONS, json=a_body())).json()
            assert answer["maskfeed"]["candidate"] in NAMES
            assert answer["maskfeed"]["cache"] == cache
        await engine.until(lambda seen: {each.nonce for each in seen.announced} <= set(seen.ended))


async def test_many_clients_with_sets_of_their_own_each_get_one_of_theirs(redis_url):
    async with redis_engine(redis_url) as engine, redis_gateway(redis_url, upstream_url=engine.url) as (client, parts):
        await until_status(client, "/ready", 200)
        bodies = [a_body([f"set {number} name {name}" for name in range(20)]) for number in range(40)]
        responses = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))
        for body, response in zip(bodies, responses, strict=True):
            assert (await response.json())["choices"][0]["text"] in body["candidates"]
        assert parts.queue.taken == parts.queue.waiting == parts.promises.held == 0


async def test_redis_that_dies_is_503_and_when_it_is_back_the_gateway_is_too(fragile_redis, caplog):
    url = fragile_redis.url
    async with redis_engine(url) as engine, redis_gateway(url, upstream_url=engine.url) as (client, _):
        await until_status(client, "/ready", 200)
        fragile_redis.kill()
        response = await client.post(COMPLETIONS, json=a_body())
        error = await error_of(response)
        assert (response.status, error["code"]) == (503, "store-unavailable")
        assert (await client.get("/health")).status == 200
        ready = await client.get("/ready")
        assert ready.status == 503
        # where the store is, is for the log alone
        socket_path = str(fragile_redis.directory)
        assert socket_path not in json.dumps(error) + await ready.text()
        assert socket_path in caplog.text
        # what needs no set is served on
        assert (await client.get("/v1/models")).status == 200
        fragile_redis.restart()
        response = await until_status(client, COMPLETIONS, 200, method="POST", json=a_body())
        assert (await response.json())["maskfeed"]["candidate"] in NAMES


async def test_a_request_whose_announcement_was_lost_with_redis_is_announced_again_and_answered(fragile_redis):
    url = fragile_redis.url
    async with redis_engine(url) as engine, redis_gateway(url, upstream_url=engine.url) as (client, _):
        await until_status(client, "/ready", 200)
        engine.faults.is_slow = True
        answering = asyncio.create_task(client.post(COMPLETIONS, json=a_body()))
        await engine.until(lambda seen: len(seen.announced) == 1)
        fragile_redis.kill()
        fragile_redis.restart()
        await engine.until(lambda seen: len(seen.announced) == 2)
        first, again = engine.seen.announced
        assert first == again
        # its artifact went with Redis, too: the set is compiled once more
        engine.answer_announcements()
        answer = await (await answering).json()
        assert answer["maskfeed"]["candidate"] in NAMES
        await engine.until(lambda seen: {each.nonce for each in seen.announced} <= set(seen.ended))


async def test_the_tasks_of_the_event_loop_can_be_counted(redis_url):
    async with redis_engine(redis_url) as engine, redis_gateway(redis_url, upstream_url=engine.url) as (client, _):
        text = await (await client.get("/metrics")).text()
        (line,) = [line for line in text.splitlines() if line.startswith("maskfeed_event_loop_tasks ")]
        assert float(line.split()[1]) > 1


async def test_a_gateway_that_starts_before_redis_and_engine_becomes_ready_without_a_restart(fragile_redis):
    url = fragile_redis.url
    fragile_redis.kill()
    async with redis_gateway(url, upstream_url="http://127.0.0.1:9") as (client, parts):
        response = await until_status(client, COMPLETIONS, 503, method="POST", json=a_body())
        assert (await error_of(response))["code"] in ("store-unavailable", "engine-not-ready")
        fragile_redis.restart()
        async with redis_engine(url) as engine:
            parts.upstream._base_url = engine.url
            await until_status(client, "/ready", 200)
            assert (await client.post(COMPLETIONS, json=a_body())).status == 200


async def test_a_hundred_thousand_candidates_do_not_hold_up_other_requests(redis_url):
    record = engine_record(max_model_len=1_024, fingerprint=VOCABULARY.fingerprint)
    async with redis_engine(redis_url, record) as engine, redis_gateway(redis_url, upstream_url=engine.url) as made:
        client, _ = made
        await until_status(client, "/ready", 200)
        body = json.dumps(a_body(f"name {number:06d}" for number in range(100_000))).encode()
        large = asyncio.create_task(client.post(COMPLETIONS, data=io.BytesIO(body)))
        answered_meanwhile = 0
        while not large.done():
            assert (await client.get("/health")).status == 200
            answered_meanwhile += 1
        assert (await large).status == 200
        assert answered_meanwhile > 10


async def test_a_redis_that_is_full_is_429_and_a_reason_not_to_be_ready_and_the_engines_are_not_taken_for_dead(
    fragile_redis,
):
    url, client_of_redis = fragile_redis.url, fragile_redis.client
    async with redis_engine(url) as engine, redis_gateway(url, upstream_url=engine.url) as (client, parts):
        await until_status(client, "/ready", 200)
        client_of_redis.config_set("maxmemory-policy", "noeviction")
        client_of_redis.config_set("maxmemory", 1)
        response = await client.post(COMPLETIONS, json=a_body())
        error = await error_of(response)
        assert (response.status, error["code"]) == (429, "over-capacity")
        assert "maxmemory" in error["message"]
        assert response.headers["Retry-After"] == "60"
        # the record can't be renewed either
        client_of_redis.delete(Keyspace().engine(engine.record.epoch))
        ready = await until_status(client, "/ready", 503)
        (reason,) = (await ready.json())["reasons"]
        assert "maxmemory" in reason
        assert parts.engines.live is not None
        client_of_redis.config_set("maxmemory", 0)
        await until_status(client, COMPLETIONS, 200, method="POST", json=a_body())


async def test_a_gateway_that_starts_over_a_full_redis_becomes_ready_when_there_is_room(fragile_redis):
    url = fragile_redis.url
    async with redis_engine(url) as engine:
        fragile_redis.client.config_set("maxmemory-policy", "noeviction")
        fragile_redis.client.config_set("maxmemory", 1)
        async with redis_gateway(url, upstream_url=engine.url) as (client, _):
            response = await until_status(client, COMPLETIONS, 429, method="POST", json=a_body())
            assert "maxmemory" in (await error_of(response))["message"]
            fragile_redis.client.config_set("maxmemory", 0)
            await until_status(client, "/ready", 200)


async def test_a_private_redis_that_is_full_drops_what_was_not_used_for_longest_and_nobody_notices(fragile_redis):
    url, redis = fragile_redis.url, fragile_redis.client
    record = engine_record(max_model_len=1_024)
    async with redis_engine(url, record) as engine, redis_gateway(url, upstream_url=engine.url) as (client, parts):
        await until_status(client, "/ready", 200)
        room = 2_000_000
        redis.config_set("maxmemory", redis.info("memory")["used_memory"] + room)
        redis.set("sample", b"x" * 100_000)
        for number in range(room // 100_000):
            # nobody has asked for these for an hour
            redis.restore(f"old:{number}", 7_200_000, redis.dump("sample"), idletime=3_600)
        n_bytes = 0
        for number in range(50):
            response = await client.post(COMPLETIONS, json=a_body(f"{number} {name:04d}" for name in range(2_000)))
            assert response.status == 200, await response.text()
            assert (await client.get("/ready")).status == 200
            n_bytes += engine.seen.announced[-1].size_bytes
        assert n_bytes > room // 2
        assert len(redis.keys("old:*")) < room // 100_000 // 2
        assert parts.engines.require().epochs == (record.epoch,)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nno header, secret\r\n\r\n", b"GET /secret HTTP/x\r\n\r\n"])
async def test_what_is_no_http_is_one_line_in_the_log_without_a_traceback(client, caplog, sent):
    gateway = await client.get("/health")
    reader, writer = await asyncio.open_connection(gateway.url.host, gateway.url.port)
    writer.write(sent)
    assert b" 400 " in await reader.readline()
    await reader.read()
    writer.close()
    (record,) = [record for record in caplog.records if record.levelname != "INFO"]
    assert record.levelname == "WARNING"
    assert "event=broken-http status=400" in record.getMessage()
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_an_expectation_that_nobody_knows_is_417_and_no_broken_connection(client, caplog):
    response = await client.post("/v1/chat/completions", data=b"{}", headers={"Expect": "the-unexpected"})
    assert response.status == 417
    assert response.headers["X-Request-Id"]
    assert "Traceback" not in caplog.text


def test_a_client_that_leaves_within_its_answer_is_one_line_in_the_log_without_a_traceback(caplog):
    caplog.set_level("INFO")
    # how aiohttp says it
    left = ClientConnectionResetError("Cannot write to closing transport")
    SERVER_LOG.error("Error handling request from %s", "127.0.0.1", exc_info=left)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", "event=client-left")
    assert "Traceback" not in caplog.text
