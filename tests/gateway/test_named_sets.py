"""Named candidate sets over HTTP, in requests, and in races."""

import asyncio
import gzip
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_engine import FakeEngine
from gateway_stack import gateway_stack, http_client, serving
from manual_clock import settle
from maskfeed.config import GatewaySettings
from maskfeed.service.app import create_app, open_parts
from maskfeed.service.named_references import SetReference
from maskfeed.service.named_sets import NamedSets
from maskfeed.service.preconditions import Precondition, Tags
from maskfeed.service.requests import parse_request
from maskfeed.service.tenants import tenant_of
from maskfeed_automata import CandidateSet
from maskfeed_automata.errors import (
    CorruptArtifact,
    PreconditionFailed,
    StaleGeneration,
    StoreUnavailable,
)
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.memory_named_sets import MemoryNamedSets
from maskfeed_cache.named_sets import NamedSetLimits
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore

SETS = "/v1/candidate-sets"
TOOLS = f"{SETS}/tools"
COMPLETIONS = "/v1/completions"
NAMES = ["get_user", "get_users", "Paris", "東京"]
ENTRIES = [{"value": "get_user", "id": 7}, {"value": "get_users", "id": "seven"}, "Paris"]
NO_CONDITION = Precondition()
ALICE, BOB = ({"Authorization": f"Bearer {token}"} for token in ("alice", "bob"))


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
    assert response.headers["X-Request-Id"] == error["request_id"]
    return error


async def put(client, candidates=NAMES, path=TOOLS, **options):
    return await client.put(path, json={"candidates": candidates}, **options)


async def ask(client, named="tools", *, headers=None, **more):
    body = {"model": "fake", "prompt": "x", "candidate_set": named, **more}
    return await client.post(COMPLETIONS, json=body, headers=headers)


# -- storing -------------------------------------------------------------------------------------------------------


async def test_a_list_is_stored_under_a_name_and_told_with_its_generation_digest_and_count(client):
    response = await put(client)
    assert response.status == 201
    assert response.headers["ETag"] == '"1"'
    assert response.headers["Location"] == TOOLS
    text = json.dumps(NAMES, ensure_ascii=False, separators=(",", ":")).encode()
    described = {"name": "tools", "generation": 1, "digest": hashlib.sha256(text).hexdigest(), "count": 4}
    assert await response.json() == described
    shown = await client.get(TOOLS)
    assert (shown.status, shown.headers["ETag"], await shown.json()) == (200, '"1"', described)


async def test_storing_again_replaces_the_list_under_the_next_generation(client):
    await put(client)
    response = await put(client, ["a", "a"])
    assert response.status == 200
    assert "Location" not in response.headers
    answer = await response.json()
    assert (answer["generation"], answer["count"]) == (2, 2)


async def test_the_digest_tells_values_ids_and_order_apart_and_nothing_else(client):
    lists = [["a", "b"], ["b", "a"], [{"value": "a", "id": 1}, "b"], [{"value": "a", "id": "1"}, "b"]]
    digests = [(await (await put(client, each)).json())["digest"] for each in lists]
    assert len(set(digests)) == 4
    same = await put(client, [{"id": None, "value": "a"}, {"value": "b"}], f"{SETS}/other", headers=ALICE)
    assert (await same.json())["digest"] == digests[0]


async def test_the_list_comes_back_as_it_was_sent_if_it_is_asked_for(client):
    await put(client, ENTRIES)
    shown = await (await client.get(f"{TOOLS}?candidates=true")).json()
    assert shown["candidates"] == ENTRIES
    assert (shown["generation"], shown["count"]) == (1, 3)
    assert "candidates" not in await (await client.get(f"{TOOLS}?candidates=false")).json()
    refused = await client.get(f"{TOOLS}?candidates=yes")
    assert (refused.status, (await error_of(refused))["param"]) == (400, "candidates")


async def test_a_change_adds_and_removes(client):
    await put(client, ENTRIES)
    change = {"add": ["Berlin", {"value": "Rome", "id": 9}, "Paris"], "remove": ["get_user", {"id": "seven"}, "nobody"]}
    response = await client.patch(TOOLS, json=change)
    answer = await response.json()
    assert (response.status, response.headers["ETag"]) == (200, '"2"')
    assert (answer["generation"], answer["count"], answer["added"], answer["removed"]) == (2, 3, 2, 2)
    shown = await (await client.get(f"{TOOLS}?candidates=1")).json()
    assert shown["candidates"] == ["Paris", "Berlin", {"value": "Rome", "id": 9}]
    assert shown["digest"] == answer["digest"]


async def test_a_change_that_leaves_nothing_is_refused_and_changes_nothing(client):
    await put(client, ["a"])
    response = await client.patch(TOOLS, json={"remove": ["a"]})
    error = await error_of(response)
    assert (response.status, error["code"], error["param"]) == (400, "bad-candidate", "remove")
    assert (await (await client.get(TOOLS)).json())["generation"] == 1


async def test_names_are_listed_in_order(client):
    assert await (await client.get(SETS)).json() == {"candidate_sets": []}
    for name in ("b", "a", "c"):
        await put(client, ["x"], f"{SETS}/{name}")
    await client.delete(f"{SETS}/b")
    listed = (await (await client.get(SETS)).json())["candidate_sets"]
    assert [(each["name"], each["generation"], each["count"]) for each in listed] == [("a", 1, 1), ("c", 1, 1)]


async def test_a_deleted_set_is_gone_and_its_name_goes_on_counting(client):
    await put(client)
    assert (await client.delete(TOOLS)).status == 204
    for response in (
        await client.get(TOOLS),
        await client.patch(TOOLS, json={"add": ["a"]}),
        await client.delete(TOOLS),
        await ask(client),
        await ask(client, "tools@1"),
    ):
        error = await error_of(response)
        assert (response.status, error["code"], error["generation"]) == (410, "deleted-candidate-set", 1)
        assert response.headers["x-should-retry"] == "false"
    response = await put(client)
    assert (response.status, (await response.json())["generation"]) == (201, 2)
    stale = await ask(client, "tools@1")
    assert stale.status == 409


async def test_a_name_that_never_was_is_404_everywhere(client):
    for response in (
        await client.get(TOOLS),
        await client.get(f"{TOOLS}?candidates=true"),
        await client.patch(TOOLS, json={"add": ["a"]}, headers={"If-Match": "*"}),
        await client.delete(TOOLS),
        await ask(client),
    ):
        error = await error_of(response)
        assert (response.status, error["code"]) == (404, "unknown-candidate-set")


@pytest.mark.parametrize("name", ["a b", "a@1", "ä", "x" * 129, "a%2Fb"])
async def test_what_can_be_no_name_is_refused(client, name):
    for response in (await put(client, path=f"{SETS}/{name}"), await client.get(f"{SETS}/{name}")):
        error = await error_of(response)
        assert (response.status, error["code"], error["param"]) == (400, "bad-parameter", "name")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"no json", 400, "bad-parameter", None),
        (b"{}", 400, "bad-parameter", "candidates"),
        (b'{"candidates": []}', 400, "bad-candidate", "candidates"),
        (b'{"candidates": ["a", ""]}', 422, "bad-candidate", "candidates[1]"),
        (b'{"candidates": ["a", 1]}', 400, "bad-candidate", "candidates[1]"),
        (b'{"candidates": ["a"], "ttl": 5}', 400, "bad-parameter", "ttl"),
        (rb'{"candidates": ["a", "\ud800"]}', 400, "bad-candidate", "candidates[1]"),
    ],
)
async def test_a_list_that_cannot_be_used_is_refused_when_it_is_stored(client, body, status, code, param):
    response = await client.put(TOOLS, data=body)
    error = await error_of(response)
    assert (response.status, error["code"], error["param"]) == (status, code, param or error["param"])
    assert (await client.get(TOOLS)).status == 404


async def test_a_long_list_is_read_in_a_thread_compressed_or_not(client, stack):
    names = [f"name {number}" for number in range(10_000)]
    body = gzip.compress(json.dumps({"candidates": names}).encode())
    before = stack.executor.submitted
    response = await client.put(TOOLS, data=body, headers={"Content-Encoding": "gzip"})
    assert (response.status, (await response.json())["count"]) == (201, 10_000)
    # unpacked, and read
    assert stack.executor.submitted == before + 2
    answer = await ask(client)
    assert (await answer.json())["choices"][0]["text"] in names


async def test_a_body_over_the_limit_is_413(stack):
    stack.settings = GatewaySettings(max_body_bytes=100)
    async with http_client(stack) as client:
        for response in (await put(client, ["x" * 200]), await client.patch(TOOLS, data=b"x" * 200)):
            assert (response.status, (await error_of(response))["limit"]) == (413, 100)


# -- preconditions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "text", "status"),
    [
        ("If-Match", '"2"', 200),
        ("If-Match", '"1", "2"', 200),
        ("If-Match", "*", 200),
        ("If-Match", '"1"', 412),
        ("If-Match", 'W/"2"', 412),
        ("If-Match", '"abc"', 412),
        ("If-None-Match", "*", 412),
        ("If-None-Match", '"2"', 412),
        ("If-None-Match", '"1"', 200),
        ("If-Match", "2", 400),
        ("If-Match", "", 400),
        ("If-None-Match", '"1" "2"', 400),
    ],
)
async def test_a_change_is_made_only_in_the_state_that_was_asked_for(client, header, text, status):
    for method, options in (("PUT", {"json": {"candidates": ["c"]}}), ("PATCH", {"json": {"add": ["c"]}})):
        await client.delete(TOOLS)
        await put(client)
        generation = (await (await put(client)).json())["generation"]
        sent = text.replace('"2"', f'"{generation}"')
        response = await client.request(method, TOOLS, headers={header: sent}, **options)
        assert response.status == status, method
        now = (await (await client.get(TOOLS)).json())["generation"]
        assert now == generation + (status == 200)
        if status != 200:
            error = await error_of(response)
            assert error["param"] == header
        if status == 412:
            assert (error["code"], error["generation"]) == ("precondition-failed", generation)
    response = await client.delete(TOOLS, headers={header: text.replace('"2"', f'"{generation + (status == 200)}"')})
    assert response.status == (204 if status == 200 else status)


async def test_a_name_that_is_free_fulfils_only_if_none_match(client):
    response = await put(client, headers={"If-Match": "*"})
    assert (response.status, (await error_of(response))["generation"]) == (412, 0)
    assert (await put(client, headers={"If-None-Match": "*"})).status == 201
    assert (await put(client, headers={"If-None-Match": "*"})).status == 412
    await client.delete(TOOLS)
    assert (await put(client, headers={"If-None-Match": "*"})).status == 201


async def test_a_reader_who_has_the_generation_is_told_so(client):
    await put(client)
    for path in (TOOLS, f"{TOOLS}?candidates=true"):
        response = await client.get(path, headers={"If-None-Match": 'W/"1"'})
        assert (response.status, response.headers["ETag"], await response.read()) == (304, '"1"', b"")
        assert (await client.get(path, headers={"If-None-Match": '"2"'})).status == 200
    assert (await client.get(TOOLS, headers={"If-Match": '"2"'})).status == 412


# -- requests ------------------------------------------------------------------------------------------------------


async def test_a_request_by_name_is_answered_as_if_the_list_had_been_posted(client, stack):
    await put(client, ENTRIES)
    by_name = (await (await ask(client)).json())["maskfeed"]
    assert by_name["candidate_set"] == {"name": "tools", "generation": 1}
    expected = {"get_user": (0, 7), "get_users": (1, "seven"), "Paris": (2, None)}
    assert (by_name["index"], by_name["id"]) == expected[by_name["candidate"]]
    assert by_name["candidates"] == 3
    posted = await client.post(COMPLETIONS, json={"model": "fake", "prompt": "x", "candidates": ENTRIES})
    by_list = (await posted.json())["maskfeed"]
    assert (by_list["digest"], by_list["cache"]) == (by_name["digest"], "hit")
    assert "candidate_set" not in by_list
    sent = stack.engine.seen.requests[-2]
    assert not {"candidate_set", "ids", "candidates"} & sent.keys()


async def test_the_generation_may_be_named_and_another_one_is_409_with_the_present_one(client):
    await put(client, ["a"])
    await put(client, ["b"])
    answer = await (await ask(client, "tools@2")).json()
    assert answer["choices"][0]["text"] == "b"
    for stale in (1, 3):
        response = await ask(client, f"tools@{stale}")
        error = await error_of(response)
        assert (response.status, error["code"], error["param"]) == (409, "stale-generation", "candidate_set")
        assert (error["generation"], error["expected"]) == (2, stale)
        # the client libraries would send a 409 again
        assert response.headers["x-should-retry"] == "false"


async def test_a_change_counts_for_the_next_request(client):
    await put(client, ["a"])
    assert (await (await ask(client)).json())["choices"][0]["text"] == "a"
    await client.patch(TOOLS, json={"add": ["b"], "remove": ["a"]})
    answer = await (await ask(client)).json()
    assert (answer["choices"][0]["text"], answer["maskfeed"]["candidate_set"]["generation"]) == ("b", 2)


async def test_ids_choose_a_part_and_positions_are_those_of_the_ids(client):
    await put(client, [{"value": f"name {number}", "id": number} for number in range(100)])
    answer = await (await ask(client, ids=[42, 7, 42])).json()
    report = answer["maskfeed"]
    assert (report["candidates"], report["duplicates"]) == (3, 1)
    assert (report["candidate"], report["id"], report["index"]) in [("name 42", 42, 0), ("name 7", 7, 1)]
    assert report["candidate_set"] == {"name": "tools", "generation": 1}
    posted = await client.post(COMPLETIONS, json={"prompt": "x", "candidates": ["name 7", "name 42"]})
    assert (await posted.json())["maskfeed"]["digest"] == report["digest"]


async def test_candidates_that_share_an_id_are_chosen_together(client):
    aliases = [{"value": "USA", "id": "us"}, {"value": "United States", "id": "us"}, {"value": "Fiji", "id": "fj"}]
    await put(client, aliases)
    seen = set()
    for _ in range(40):
        report = (await (await ask(client, ids=["fj", "us"])).json())["maskfeed"]
        assert report["candidates"] == 3
        seen.add((report["candidate"], report["id"], report["index"]))
    assert seen == {("Fiji", "fj", 0), ("USA", "us", 1), ("United States", "us", 1)}


async def test_an_unknown_id_is_400_with_its_index(client):
    await put(client, ENTRIES)
    response = await ask(client, ids=["Paris", 7, "7"])
    error = await error_of(response)
    assert (response.status, error["param"], error["index"]) == (400, "ids[2]", 2)
    response = await ask(client, ids=[])
    assert (response.status, (await error_of(response))["param"]) == (400, "ids")


@pytest.mark.parametrize(
    ("candidates", "more", "param"),
    [
        (["a", "b" * 70], {}, "candidate_set[1]"),
        ([{"value": "a", "id": 1}, {"value": "b" * 70, "id": 2}], {"ids": [1, 1, 2]}, "ids[2]"),
        ([{"value": "a", "id": 1}, {"value": "c", "id": 1}, {"value": "b" * 70, "id": 2}], {"ids": [1, 2]}, "ids[1]"),
    ],
)
async def test_a_candidate_that_the_engine_would_cut_is_named_by_the_callers_position(client, candidates, more, param):
    await put(client, candidates)
    response = await ask(client, **more)
    error = await error_of(response)
    assert (response.status, error["code"], error["param"]) == (422, "bad-candidate", param)
    assert error["message"].startswith(param)


async def test_a_stream_by_name_carries_the_set_with_its_last_chunk(client):
    await put(client, ["a"])
    response = await ask(client, stream=True)
    events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: {")]
    assert events[-1]["maskfeed"]["candidate_set"] == {"name": "tools", "generation": 1}


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/embeddings"])
async def test_a_name_on_another_route_is_400(client, route):
    await put(client)
    response = await client.post(route, json={"input": "x", "candidate_set": "tools"})
    assert (response.status, (await error_of(response))["param"]) == (400, "candidate_set")


async def test_clearing_the_cache_leaves_named_sets_alone(client, stack):
    await put(client)
    before = await stack.parts.named_sets.usage()
    await stack.parts.index.clear()
    assert await stack.parts.named_sets.usage() == before
    report = (await (await ask(client)).json())["maskfeed"]
    assert (report["candidate_set"]["generation"], report["cache"]) == (1, "miss")


# -- tenants -------------------------------------------------------------------------------------------------------


async def test_tenants_do_not_see_each_others_names(client):
    await put(client, ["a"], headers=ALICE)
    for headers in (BOB, {}):
        assert (await client.get(TOOLS, headers=headers)).status == 404
        assert (await client.delete(TOOLS, headers=headers)).status == 404
        assert (await ask(client, headers=headers)).status == 404
        assert await (await client.get(SETS, headers=headers)).json() == {"candidate_sets": []}
    assert (await put(client, ["b"], headers=BOB)).status == 201
    for headers, expected in ((ALICE, "a"), (BOB, "b")):
        assert (await (await ask(client, headers=headers)).json())["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (None, "default"),
        ("Basic abc", "default"),
        ("Bearer ", "default"),
        ("Bearer key", hashlib.sha256(b"key").hexdigest()),
        ("bearer  key ", hashlib.sha256(b"key").hexdigest()),
    ],
)
def test_a_tenant_is_the_hash_of_his_token(header, tenant):
    headers = (("Accept", "*/*"),) if header is None else (("authorization", header),)
    assert tenant_of(headers) == tenant


# -- memory, races, losses -----------------------------------------------------------------------------------------


class HeldStore(MemoryNamedSets):
    """A store in which the next call of one method waits, and which counts reads."""

    def __init__(self, **options):
        super().__init__(**options)
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()
        self.held: str | None = None
        self.reads = 0

    async def _wait(self, method):
        if self.held == method:
            self.held = None
            self.arrived.set()
            await self.gate.wait()

    async def put(self, tenant, name, listed, *, expected=None):
        await self._wait("put")
        return await super().put(tenant, name, listed, expected=expected)

    async def read(self, named):
        self.reads += 1
        await self._wait("read")
        return await super().read(named)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as opened:
        yield opened


def body(**members):
    return json.dumps(members).encode()


def a_request(named="tools", **more):
    raw = body(prompt="x", candidate_set=named, **more)
    return parse_request("/v1/completions", raw, reasoning_parser=None)


async def candidates_of(sets, tenant="default"):
    return json.loads((await sets.text(tenant, "tools"))[1])


async def store_list(sets, *candidates, condition=NO_CONDITION):
    return await sets.put("default", "tools", body(candidates=candidates), condition)


async def test_of_two_changes_through_two_gateways_none_is_lost(executor):
    store = HeldStore()
    mine, theirs = NamedSets(store, executor), NamedSets(store, executor)
    await store_list(mine, "a")
    store.held = "put"
    first = asyncio.create_task(mine.patch("default", "tools", body(add=["b"]), NO_CONDITION))
    await store.arrived.wait()
    await theirs.patch("default", "tools", body(add=["c"], remove=["a"]), NO_CONDITION)
    store.gate.set()
    named, changed = await first
    assert (named.generation, changed.added, changed.removed) == (3, 1, 0)
    assert await candidates_of(mine) == ["c", "b"]


@pytest.mark.parametrize("method", ["put", "patch"])
async def test_of_two_changes_that_ask_for_one_generation_the_second_fails(executor, method):
    store = HeldStore()
    mine, theirs = NamedSets(store, executor), NamedSets(store, executor)
    await store_list(mine, "a")
    condition = Precondition(match=Tags(frozenset({1})))
    store.held = "put"
    sent = body(candidates=["b"]) if method == "put" else body(add=["b"])
    late = asyncio.create_task(getattr(mine, method)("default", "tools", sent, condition))
    await store.arrived.wait()
    await theirs.patch("default", "tools", body(add=["c"]), NO_CONDITION)
    store.gate.set()
    with pytest.raises(PreconditionFailed):
        await late
    assert await candidates_of(mine) == ["a", "c"]


async def test_many_changes_through_one_gateway_take_turns(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(sets, "a")
    await asyncio.gather(
        *(sets.patch("default", "tools", body(add=[f"n{number}"]), NO_CONDITION) for number in range(40))
    )
    assert sorted(await candidates_of(sets)) == sorted(["a", *(f"n{number}" for number in range(40))])
    assert (await sets.get("default", "tools")).generation == 41
    # each change and the look at the end read the list once
    assert store.reads == 41


async def test_a_change_that_others_always_overtake_is_told_as_stale(executor):
    class Overtaken(MemoryNamedSets):
        async def put(self, tenant, name, listed, *, expected=None):
            if expected is not None:
                await super().put(tenant, name, listed)
            return await super().put(tenant, name, listed, expected=expected)

    sets = NamedSets(Overtaken(), executor)
    await store_list(sets, "a")
    with pytest.raises(StaleGeneration):
        await sets.patch("default", "tools", body(add=["b"]), NO_CONDITION)


async def test_a_reader_that_a_change_overtakes_reads_the_new_list(executor):
    store = HeldStore()
    sets, other = NamedSets(store, executor), NamedSets(store, executor)
    await store_list(sets, "a")
    store.held = "read"
    reading = asyncio.create_task(other.text("default", "tools"))
    await store.arrived.wait()
    await store_list(sets, "b")
    store.gate.set()
    named, text = await reading
    assert (named.generation, text) == (2, b'["b"]')


async def test_a_request_that_a_change_overtakes_uses_the_new_list_and_says_so(executor):
    store = HeldStore()
    sets, other = NamedSets(store, executor), NamedSets(store, executor)
    for text, generation in (("tools", 2), ("tools@3", None)):
        await store_list(sets, "a")
        store.held = "read"
        store.arrived.clear()
        store.gate.clear()
        asking = asyncio.create_task(other.resolve(a_request(text), "default"))
        await store.arrived.wait()
        await store_list(sets, "b")
        store.gate.set()
        if generation is None:
            with pytest.raises(StaleGeneration) as caught:
                await asking
            assert caught.value.context["generation"] == 4
        else:
            request = await asking
            assert request.reference == SetReference("tools", generation, None)
            assert request.candidate_at(0) == (0, "b", None)


async def test_a_list_is_read_once_for_all_who_ask_and_kept(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(NamedSets(store, executor), "a", "b")
    store.held = "read"
    asking = [asyncio.create_task(sets.resolve(a_request(), "default")) for _ in range(20)]
    await store.arrived.wait()
    await settle()
    # one of those who wait leaves; the others get the list
    asking[0].cancel()
    store.gate.set()
    requests = await asyncio.gather(*asking[1:])
    assert store.reads == 1
    assert len({id(request.part.candidate_set) for request in requests}) == 1
    await sets.resolve(a_request(ids=["a"]), "default")
    assert store.reads == 1
    assert sets.resident_bytes == requests[0].part.source.size_bytes


async def test_a_list_that_was_stored_here_needs_no_reading(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(sets, "a")
    await sets.resolve(a_request(), "default")
    assert store.reads == 0
    await sets.patch("default", "tools", body(add=["b"]), NO_CONDITION)
    await sets.resolve(a_request(), "default")
    assert store.reads == 1


async def test_lists_in_memory_keep_within_their_limit_and_one_without_room_is_used_and_not_kept(executor):
    store = HeldStore()
    probe = NamedSets(store, executor)
    await store_list(probe, "a")
    one = probe.resident_bytes
    sets = NamedSets(store, executor, resident_limit_bytes=2 * one)
    for number in range(5):
        await sets.put("default", f"n{number}", body(candidates=["a"]), NO_CONDITION)
        assert sets.resident_bytes <= 2 * one
    small = NamedSets(store, executor, resident_limit_bytes=one - 1)
    request = await small.resolve(a_request(), "default")
    assert (request.candidate_at(0), small.resident_bytes) == ((0, "a", None), 0)


async def test_a_part_is_taken_without_a_look_at_the_other_strings(executor, monkeypatch):
    sets = NamedSets(HeldStore(), executor)
    await store_list(sets, *({"value": f"name {number}", "id": number} for number in range(1_000)))
    made = []
    from_strings = CandidateSet.from_strings.__func__

    def counted(cls, candidates, **options):
        made.append(len(candidates))
        return from_strings(cls, candidates, **options)

    monkeypatch.setattr(CandidateSet, "from_strings", classmethod(counted))
    request = await sets.resolve(a_request(ids=list(range(0, 1_000, 100))), "default")
    # the ids alone
    assert made == [10]
    assert request.part.candidate_set.n_candidates == 10


async def test_a_list_that_the_store_has_lost_is_told_and_not_taken_for_another(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(NamedSets(store, executor), "a")
    store.lists.clear()
    for asking in (sets.resolve(a_request(), "default"), sets.text("default", "tools")):
        with pytest.raises(CorruptArtifact, match="send it again"):
            await asking


async def test_a_failure_while_a_list_is_read_is_everybodys_and_is_not_kept(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(NamedSets(store, executor), "a")
    store.faults.fail_next("names-read")
    results = await asyncio.gather(*(sets.resolve(a_request(), "default") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, StoreUnavailable) for each in results)
    assert (await sets.resolve(a_request(), "default")).candidate_at(0) == (0, "a", None)


async def test_closing_ends_what_is_being_read(executor):
    store = HeldStore()
    sets = NamedSets(store, executor)
    await store_list(NamedSets(store, executor), "a")
    store.held = "read"
    asking = asyncio.create_task(sets.resolve(a_request(), "default"))
    await store.arrived.wait()
    await sets.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_full_store_is_429_with_its_limit_and_a_list_over_it_alone_413(stack, executor):
    object.__setattr__(
        stack.parts, "named_sets", NamedSets(MemoryNamedSets(limits=NamedSetLimits(total_bytes=60)), executor)
    )
    async with http_client(stack) as client:
        await put(client, ["abcdefghijklmnopqrstuvwxyz"])
        response = await put(client, ["zyxwvutsrqponmlkjihgfedcba"], f"{SETS}/more")
        error = await error_of(response)
        assert (response.status, error["code"], error["limit"]) == (429, "over-capacity", 60)
        assert response.headers["Retry-After"] == "60"
        response = await put(client, [hashlib.sha256(b"x").hexdigest(), hashlib.sha256(b"y").hexdigest()])
        error = await error_of(response)
        assert (response.status, error["code"], error["limit"]) == (413, "limit-exceeded", 60)


async def until_ready(client, **more):
    """Ask again until the gateway has found its engine: each turn is a round trip of real processes, bounded."""
    async with asyncio.timeout(30):
        while (response := await ask(client, **more)).status == 503:
            await response.read()
        return response


async def test_over_a_real_redis_names_are_shared_by_gateways_and_gone_when_it_forgets(fragile_redis):
    url = fragile_redis.url
    blobs = RedisBlobStore(url)
    async with FakeEngine(RedisEngineFeed(url, Keyspace()), blobs) as engine:
        settings = GatewaySettings(upstream_url=engine.url)

        def gateway():
            return serving(create_app(settings, lambda: open_parts(settings, url)), settings)

        async with gateway() as one, gateway() as other:
            assert (await put(one, ENTRIES)).status == 201
            for each in (one, other):
                response = await until_ready(each, ids=[7])
            report = (await response.json())["maskfeed"]
            assert (report["candidate"], report["id"]) == ("get_user", 7)
            assert (await other.patch(TOOLS, json={"remove": [{"id": 7}]})).status == 200
            assert (await ask(one, ids=[7])).status == 400
            fragile_redis.kill()
            assert (await one.get(TOOLS)).status == 503
            fragile_redis.restart()
            assert (await one.get(TOOLS)).status == 404
            response = await put(one, ["other"])
            assert (response.status, (await response.json())["generation"]) == (201, 1)
            assert (await (await other.get(f"{TOOLS}?candidates=true")).json())["candidates"] == ["other"]
    blobs.close()
