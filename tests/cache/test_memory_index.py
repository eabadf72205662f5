"""What only the stores in memory have: faults by script, and a loss of everything at a word."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from maskfeed_automata.errors import StoreUnavailable
from maskfeed_cache.fence import Commit, Failure, Fence, Granted, Hit, IndexEntry, Layer, Lease, Resync, Settled
from maskfeed_cache.memory_index import MemoryIndex
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.store import hash_blob

SETS = Layer.SETS
LEASE = Lease(SETS, "k", "t", Fence("0" * 32, 1))
FAILURE = Failure("bad-candidate", "empty", {})
ENTRY = IndexEntry(hash_blob(b"artifact"), 8)


async def test_each_operation_fails_as_scripted_and_then_works() -> None:
    blobs = MemoryBlobStore()
    index = MemoryIndex(blobs)
    operations: dict[str, Callable[[], Any]] = {
        "put": lambda: blobs.put(b"artifact"),
        "get": lambda: blobs.get(ENTRY.artifact_hash),
        "put-vocabulary": lambda: blobs.put_vocabulary("f", b"v"),
        "get-vocabulary": lambda: blobs.get_vocabulary("f"),
        "acquire": lambda: index.acquire(SETS, "k", token="t", lease_ms=1_000),
        "heartbeat": lambda: index.heartbeat(LEASE, lease_ms=1_000),
        "commit": lambda: index.commit(LEASE, ENTRY),
        "fail": lambda: index.fail(LEASE, FAILURE, remember_ms=1_000),
        "release": lambda: index.release(LEASE),
        "unpin": lambda: index.unpin(["p"]),
        "clear": lambda: index.clear(),
        "usage": lambda: index.usage(),
        "sweep": lambda: index.sweep(),
        "ping": lambda: index.ping(),
    }

    async def attempt(stage: str) -> None:
        outcome = operations[stage]()
        if inspect.isawaitable(outcome):
            await outcome

    for stage in operations:
        blobs.faults.fail_next(stage, times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as caught:
                await attempt(stage)
            assert caught.value.context["stage"] == stage
        await attempt(stage)


async def test_a_step_whose_answer_is_lost_was_done() -> None:
    blobs = MemoryBlobStore()
    index = MemoryIndex(blobs)
    answer = await index.acquire(SETS, "k", token="t", lease_ms=1_000)
    assert isinstance(answer, Granted)
    entry = IndexEntry(blobs.put(b"artifact"), 8)
    blobs.faults.fail_next("commit-answer")
    with pytest.raises(StoreUnavailable):
        await index.commit(answer.lease, entry)
    assert await index.commit(answer.lease, entry) is Commit.INDEXED
    assert (await index.usage()).layers[SETS].bytes == 8
    assert isinstance(await index.acquire(SETS, "k", token="u", lease_ms=1_000), Hit)


async def test_scripted_news_are_lost_and_a_loss_of_everything_is_told() -> None:
    blobs = MemoryBlobStore()
    index = MemoryIndex(blobs)
    news = index.news()
    assert await anext(news) == Resync()
    blobs.faults.fail_next("news")
    for key in "ab":
        answer = await index.acquire(SETS, key, token="t", lease_ms=1_000)
        assert isinstance(answer, Granted)
        await index.release(answer.lease)
    assert [await anext(news), await anext(news)] == [Resync(), Settled(SETS, "b")]
    index.lose_state()
    assert await anext(news) == Resync()
    await news.aclose()  # type: ignore[attr-defined]
