"""What only the index in Redis has: scripts, servers that go away, memory limits, and what others do to its keys."""

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import maskfeed_cache
from index_stores import KEYS, LEASE_MS, IndexServers, RedisIndexStore, new_name
from maskfeed_automata.errors import CapacityError, CorruptArtifact, StoreUnavailable
from maskfeed_cache.connection import Timeouts, open_async_client
from maskfeed_cache.fence import Commit, Failure, Granted, Hit, IndexEntry, Layer, Lease, News, Pin, Resync, Settled
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_store import RedisBlobStore
from redis_cluster import RedisCluster
from redis_process import RedisProcess
from redis_programs import redis_program
from waiting import eventually

SETS = Layer.SETS
STATE, _, PINS, _, _, REFERENCES, _, INDEX, ORDER, *_ = KEYS.cache
FAILURE = Failure("bad-candidate", "empty", {"rank": 0})
# short for a test that waits for its end, long for a busy machine
IMPATIENT = Timeouts(connect_s=1.0, answer_s=1.0)

Operation = Callable[[RedisIndex, Lease], Awaitable[object]]
OPERATIONS: dict[str, Operation] = {
    "acquire": lambda index, lease: index.acquire(SETS, "k", token=lease.token, lease_ms=LEASE_MS),
    "heartbeat": lambda index, lease: index.heartbeat(lease, lease_ms=LEASE_MS),
    "commit": lambda index, lease: index.commit(lease, IndexEntry("0" * 64, 8)),
    "fail": lambda index, lease: index.fail(lease, FAILURE, remember_ms=1_000),
    "release": lambda index, lease: index.release(lease),
    "unpin": lambda index, lease: index.unpin([new_name()]),
    "clear": lambda index, lease: index.clear(),
    "usage": lambda index, lease: index.usage(),
    "sweep": lambda index, lease: index.sweep(),
    "ping": lambda index, lease: index.ping(),
}


@pytest.fixture(params=["redis-6.2", "redis-7"])
async def store(request: pytest.FixtureRequest, index_servers: IndexServers) -> AsyncIterator[RedisIndexStore]:
    opened = index_servers.open(request.param, limit_bytes={SETS: 100})
    assert isinstance(opened, RedisIndexStore)
    yield opened
    await opened.close()


@pytest.fixture(params=["6.2", "7"])
def server(request: pytest.FixtureRequest) -> Any:
    """A server of the test's own, for freezing and killing."""
    started = RedisProcess(redis_program(request.param)).start()
    yield started
    started.remove()


@pytest.fixture
async def index(server: RedisProcess) -> AsyncIterator[RedisIndex]:
    opened = RedisIndex(server.url, KEYS, timeouts=IMPATIENT)
    yield opened
    await opened.close()


async def grant(index: RedisIndex, key: str = "k") -> Lease:
    answer = await index.acquire(SETS, key, token=new_name(), lease_ms=LEASE_MS)
    assert isinstance(answer, Granted)
    return answer.lease


async def next_news(news: AsyncIterator[News]) -> News:
    async with asyncio.timeout(10):
        return await anext(news)


# --- servers that go away ------------------------------------------------------------------------------------------


async def expect_unavailable(index: RedisIndex, lease: Lease, stage: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await asyncio.wait_for(OPERATIONS[stage](index, lease), 10)
    assert caught.value.context["stage"] == stage
    assert caught.value.retryable


async def test_while_the_server_is_dead_each_step_fails_typed_and_the_same_index_goes_on_after_a_restart(
    server: RedisProcess, index: RedisIndex
):
    lease = await grant(index)
    server.kill()
    for stage in OPERATIONS:
        await expect_unavailable(index, lease, stage)
    server.start()
    assert await index.commit(lease, IndexEntry("0" * 64, 8)) is Commit.STALE
    fence = (await index.usage()).fence
    assert fence.epoch != lease.fence.epoch
    for operation in OPERATIONS.values():
        await operation(index, await grant(index, new_name()))


async def test_while_the_server_is_frozen_each_step_times_out(server: RedisProcess, index: RedisIndex):
    lease = await grant(index)
    server.freeze()
    try:
        await asyncio.gather(*(expect_unavailable(index, lease, stage) for stage in OPERATIONS))
    finally:
        server.thaw()
    await index.ping()


async def test_a_commit_whose_answer_was_lost_may_be_sent_again_and_counts_once(
    server: RedisProcess, index: RedisIndex
):
    lease, entry = await grant(index), IndexEntry("0" * 64, 8)
    server.freeze()
    try:
        # the server gets it, and does it when it thaws
        with pytest.raises(StoreUnavailable):
            await index.commit(lease, entry, pin=Pin("p", LEASE_MS))
    finally:
        server.thaw()
    assert await index.commit(lease, entry, pin=Pin("p", LEASE_MS)) is Commit.INDEXED
    usage = (await index.usage()).layers[SETS]
    assert (usage.entries, usage.bytes) == (1, 8)
    await index.unpin(["p"])
    await index.clear()
    assert (await index.usage()).layers[SETS].orphaned_pinned_bytes == 0


async def test_news_outlive_a_restart_and_say_that_something_may_be_missing(server: RedisProcess, index: RedisIndex):
    news = index.news()
    assert await next_news(news) == Resync()
    await index.release(await grant(index))
    assert await next_news(news) == Settled(SETS, "k")
    waiting = asyncio.ensure_future(next_news(news))
    server.kill()
    server.start()
    assert await waiting == Resync()
    await index.release(await grant(index, "l"))
    assert await next_news(news) == Settled(SETS, "l")
    await news.aclose()  # type: ignore[attr-defined]


async def test_news_that_were_lost_in_between_are_a_resync(store: RedisIndexStore):
    news = store.index.news()
    await next_news(news)
    await store.index.release(await store.granted("a"))
    await store.index.release(await store.granted("b"))
    client = store.client_of(KEYS.cache_news)
    client.xtrim(KEYS.cache_news, maxlen=1, approximate=False)
    assert [await next_news(news) for _ in range(2)] == [Resync(), Settled(SETS, "b")]
    await news.aclose()  # type: ignore[attr-defined]


async def test_a_stream_that_began_anew_with_older_ids_is_read_again(store: RedisIndexStore):
    news = store.index.news()
    await next_news(news)
    client = store.client_of(KEYS.cache_news)
    # as if the clock of the server that came back were far behind
    client.xadd(KEYS.cache_news, {"n": 1, "kind": "settled", "layer": "sets", "key": "a"}, id="9999999999999-0")
    assert await next_news(news) == Settled(SETS, "a")
    store.lose_everything()
    await store.index.release(await store.granted("b"))
    assert await next_news(news) == Resync()
    await store.index.release(await store.granted("c"))
    assert await next_news(news) == Settled(SETS, "c")
    await news.aclose()  # type: ignore[attr-defined]


# --- scripts -------------------------------------------------------------------------------------------------------


async def test_a_server_that_has_forgotten_the_scripts_gets_them_again(store: RedisIndexStore):
    client = store.client_of(STATE)
    lease = await store.granted("k")
    for operation in OPERATIONS.values():
        client.script_flush()
        await operation(store.index, lease)


def test_every_script_says_what_it_is_given_what_it_returns_and_why_it_is_atomic():
    scripts = sorted((Path(maskfeed_cache.__file__).parent / "lua").glob("*.lua"))
    assert len(scripts) > 10
    for script in scripts:
        header = re.match(r"(--.*\n)+", script.read_text())
        assert header is not None, script.name
        wanted = ["KEYS", "ARGV"] if script.stem == "ledger" else ["KEYS", "ARGV", "Returns", "Atomic"]
        assert [word for word in wanted if not re.search(rf"^-- {word}\b", header[0], re.MULTILINE)] == [], script.name


async def test_the_work_of_one_call_is_bounded(store: RedisIndexStore):
    client = store.client_of(STATE)
    for number in range(100):
        await store.fill(f"k{number}", b"x")
    client.config_resetstat()
    await store.fill("large", b"x" * 100)
    calls = {name: figures["calls"] for name, figures in client.info("commandstats").items()}
    # the commit came in two calls at least, and all of them together did no more than it takes
    assert calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0) >= 3
    assert calls["cmdstat_hdel"] <= 2 * 100
    assert (await store.index.usage()).layers[SETS].evictions == 100


async def test_a_clear_costs_the_same_with_many_entries(store: RedisIndexStore):
    client = store.client_of(STATE)

    async def commands_of_a_clear() -> int:
        client.config_resetstat()
        await store.index.clear()
        return sum(figures["calls"] for figures in client.info("commandstats").values())

    # the first one begins the epoch and sends the script
    await store.index.clear()
    few = await commands_of_a_clear()
    for number in range(100):
        await store.fill(f"k{number}", b"x")
    assert await commands_of_a_clear() == few


# --- blobs ---------------------------------------------------------------------------------------------------------


async def test_an_entry_that_was_committed_while_a_hit_looked_for_its_blob_is_not_dropped(
    store: RedisIndexStore, monkeypatch: pytest.MonkeyPatch
):
    lost = await store.fill("k", b"lost")
    store.delete_blob(lost.artifact_hash)
    other = RedisIndex(store.url, KEYS)
    client = store.index._client
    expire = client.expire

    async def expire_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        found = await expire(*arguments)
        answer = await other.acquire(SETS, "k", token=new_name(), lease_ms=LEASE_MS)
        assert isinstance(answer, Granted)
        await other.commit(answer.lease, store.entry(b"found"))
        return found

    monkeypatch.setattr(client, "expire", expire_late)
    answer = await store.ask("k")
    assert isinstance(answer, Hit)
    assert answer.entry == store.entry(b"found")
    usage = (await other.usage()).layers[SETS]
    assert (usage.entries, usage.bytes, usage.hits, usage.misses) == (1, 5, 1, 2)
    await other.close()


async def test_what_becomes_garbage_again_while_it_is_swept_is_swept_later(
    store: RedisIndexStore, monkeypatch: pytest.MonkeyPatch
):
    entry = await store.fill("k", b"artifact")
    await store.index.clear()
    await store.index.sweep()
    store.pass_ms(15_000)
    delete_blob = store.index._delete_blob

    async def delete_late(artifact_hash: bytes) -> int:
        monkeypatch.undo()
        outcome = await delete_blob(artifact_hash)
        await store.fill("k", b"artifact")
        await store.index.clear()
        await store.index.sweep()
        return outcome

    monkeypatch.setattr(store.index, "_delete_blob", delete_late)
    assert await store.index.sweep() == 1
    assert store.has_blob(entry.artifact_hash)
    store.pass_ms(15_000)
    assert await store.index.sweep() == 1
    assert not store.has_blob(entry.artifact_hash)


async def test_a_blob_store_and_an_index_agree_on_the_life_of_a_blob(store: RedisIndexStore):
    entry = await store.fill("k", b"artifact")
    client = store.client_of(KEYS.blob(entry.artifact_hash))
    client.expire(KEYS.blob(entry.artifact_hash), 100)
    await store.ask("k")
    assert client.ttl(KEYS.blob(entry.artifact_hash)) > 7_000


# --- what others may do to Redis -----------------------------------------------------------------------------------


async def test_at_the_memory_limit_new_work_is_refused_and_all_that_gives_memory_back_goes_on(store: RedisIndexStore):
    client = store.client_of(STATE)
    pin = Pin(new_name(), LEASE_MS)
    await store.fill("k", b"artifact", pin=pin)
    garbage = await store.fill("l", b"other")
    lease, failing = await store.granted("m"), await store.granted("n")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(CapacityError) as caught:
            await store.ask("new")
        assert caught.value.context["stage"] == "acquire"
        assert isinstance(await store.ask("k"), Hit)
        assert await store.index.heartbeat(lease, lease_ms=LEASE_MS)
        assert await store.index.fail(failing, FAILURE, remember_ms=1_000)
        await store.index.release(lease)
        await store.index.clear()
        assert (await store.index.usage()).layers[SETS].orphaned_pinned_bytes == 8
        await store.index.unpin([pin.token])
        assert (await store.index.usage()).layers[SETS].orphaned_pinned_bytes == 0
        await store.index.sweep()
        client.config_set("maxmemory", 0)
        store.pass_ms(15_000)
        client.config_set("maxmemory", 1)
        while await store.index.sweep():
            pass
        assert not store.has_blob(garbage.artifact_hash)
    finally:
        client.config_set("maxmemory", 0)
    assert isinstance(await store.ask("new"), Granted)


@pytest.mark.parametrize("evicted", [STATE, INDEX])
async def test_after_redis_has_evicted_what_it_must_not_a_new_epoch_begins_with_exact_counts(
    store: RedisIndexStore, evicted: str
):
    await store.fill("k", b"artifact", pin=Pin(new_name(), LEASE_MS))
    await store.fill("l", b"other")
    lease = await store.granted("m")
    before = (await store.index.usage()).fence
    store.client_of(evicted).delete(evicted)
    # what nobody has pinned is met by the end of its life at the latest
    store.pass_ms(3_600_000)
    await store.index.usage()
    after = await store.index.usage()
    assert after.fence.epoch != before.epoch
    assert (after.layers[SETS].entries, after.layers[SETS].bytes, after.layers[SETS].orphaned_pinned_bytes) == (0, 0, 0)
    assert await store.index.commit(lease, store.entry(b"x")) is Commit.STALE
    await store.fill("k", b"artifact")
    assert (await store.index.usage()).layers[SETS].bytes == 8


async def test_a_remembered_failure_that_can_not_be_read_is_told(store: RedisIndexStore):
    lease = await store.granted("k")
    await store.index.fail(lease, FAILURE, remember_ms=60_000)
    fence = f"{lease.fence.epoch}|{lease.fence.generation}"
    store.client_of(STATE).set(KEYS.failure(SETS, "k"), f"{fence}|{{")
    with pytest.raises(CorruptArtifact):
        await store.ask("k")


async def test_a_key_of_another_type_is_a_typed_error(store: RedisIndexStore):
    store.client_of(STATE).set(STATE, "text")
    with pytest.raises(StoreUnavailable):
        await store.ask("k")


async def test_no_count_has_a_ttl_and_all_keys_of_the_cache_share_a_tag(store: RedisIndexStore):
    await store.fill("k", b"artifact", pin=Pin(new_name(), LEASE_MS))
    await store.fill("l", b"other")
    await store.granted("m")
    await store.index.fail(await store.granted("n"), FAILURE, remember_ms=60_000)
    client = store.client_of(STATE)
    for key in client.scan_iter():
        if b"{cache}" in key:
            has_end = b":lease:" in key or b":failure:" in key
            assert (client.ttl(key) > 0) is has_end, key
        else:
            assert b":blob:{" in key, key


# --- a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(index_servers: IndexServers) -> RedisCluster:
    started = index_servers.get("cluster-7")
    assert isinstance(started, RedisCluster)
    started.flush()
    return started


async def test_in_a_cluster_the_loss_of_a_node_is_typed_and_the_other_nodes_go_on(cluster: RedisCluster):
    blobs = RedisBlobStore(cluster.url, KEYS, timeouts=IMPATIENT)
    index = RedisIndex(cluster.url, KEYS, timeouts=IMPATIENT)
    async with contextlib.AsyncExitStack() as closing:
        closing.callback(blobs.close)
        closing.push_async_callback(index.close)
        names = [blobs.put(b"%d" % number) for number in range(30)]
        home = cluster.node_of(STATE)
        at_home = {name for name in names if cluster.node_of(KEYS.blob(name)) is home}
        assert 0 < len(at_home) < len(names)
        lease = await grant(index)
        home.kill()
        try:
            for stage in ("acquire", "commit", "ping"):
                await expect_unavailable(index, lease, stage)
            for name in at_home:
                with pytest.raises(StoreUnavailable):
                    blobs.get(name)
            await eventually(succeeds(lambda: [blobs.get(name) for name in names if name not in at_home]), within_s=60)
        finally:
            home.start()
        await eventually(succeeds(index.ping), within_s=60)
        assert await index.commit(lease, IndexEntry(names[0], 1)) is Commit.STALE
        await grant(index)


def succeeds(attempt: Callable[[], Any]) -> Callable[[], Awaitable[bool]]:
    """Whether `attempt` finds the store there."""

    async def is_there() -> bool:
        try:
            outcome = attempt()
            if inspect.isawaitable(outcome):
                await outcome
        except StoreUnavailable:
            return False
        return True

    return is_there


@pytest.mark.parametrize("n_steps", range(0, 60, 3))
async def test_in_a_cluster_a_cancelled_wait_leaves_no_answer_behind(cluster: RedisCluster, n_steps: int):
    client: Any = open_async_client(cluster.url)
    waiting = asyncio.create_task(client.blpop(["none"], timeout=30))
    for _ in range(n_steps):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.cancelled()
    await client.set("none", b"mine")
    assert await client.get("none") == b"mine"
    await client.aclose()
