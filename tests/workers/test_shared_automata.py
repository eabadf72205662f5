"""Tokenizer automata shared between compilers: built once in the cluster, fenced, and never a reason to fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from gated_store import VOCABULARY, GatedBlobStore, job_for
from maskfeed_automata import TokenizerAutomaton
from maskfeed_automata.errors import StoreUnavailable
from maskfeed_automata.kernels import I64, U8
from maskfeed_cache.fence import Layer, LayerUsage
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.memory_index import MemoryIndex
from maskfeed_cache.shared_cache import SharedCache
from maskfeed_workers.thread_compiler import ThreadCompiler
from waiting import eventually

FINGERPRINT = VOCABULARY.fingerprint
AUTOMATON = VOCABULARY.tokenizer_automaton.to_bytes(FINGERPRINT)
RESIDENT_BYTES = VOCABULARY.tokenizer_automaton.nbytes + VOCABULARY.data.nbytes + VOCABULARY.offsets.nbytes


class Cluster:
    """Compilers with memories, disks and caches of their own, over one index and one blob store."""

    def __init__(self, folder: Path, limit_bytes: dict[Layer, int | None]) -> None:
        self.blobs = GatedBlobStore()
        self.blobs.put_vocabulary(FINGERPRINT, VOCABULARY.to_bytes())
        self.index = MemoryIndex(self.blobs, limit_bytes=limit_bytes)
        self._folder = folder
        self._opened: list[tuple[ThreadCompiler, SharedCache, IndexFollower]] = []

    def compiler(self) -> ThreadCompiler:
        loop = asyncio.get_running_loop()
        follower = IndexFollower(self.index, clock=loop)
        automata = SharedCache(follower, Layer.AUTOMATA, clock=loop)
        follower.start()
        directory = self._folder / f"disk-{len(self._opened)}"
        compiler = ThreadCompiler(self.blobs, self.blobs, parallelism=1, automata=automata, cache_directory=directory)
        follower.subscribe(compiler.take)
        self._opened.append((compiler, automata, follower))
        return compiler

    async def shared(self) -> LayerUsage:
        return (await self.index.usage()).layers[Layer.AUTOMATA]

    async def close(self) -> None:
        self.blobs.gate.set()
        for compiler, automata, follower in self._opened:
            await automata.close()
            await follower.close()
            await compiler.close()


MakeCluster = Callable[..., Cluster]


@pytest.fixture
async def make_cluster(tmp_path: Path) -> AsyncIterator[MakeCluster]:
    clusters = []

    def make(**limits: int) -> Cluster:
        clusters.append(Cluster(tmp_path, {Layer(name): limit for name, limit in limits.items()}))
        return clusters[-1]

    yield make
    for cluster in clusters:
        await cluster.close()


@pytest.fixture
def n_built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that the vocabulary's automaton is built rather than read."""
    built: list[int] = []
    build = TokenizerAutomaton.build

    def counted(data: U8, offsets: I64) -> TokenizerAutomaton:
        # warming the kernels builds some for vocabularies of its own
        if np.array_equal(offsets, VOCABULARY.offsets):
            built.append(1)
        return build(data, offsets)

    monkeypatch.setattr(TokenizerAutomaton, "build", counted)
    return built


async def test_one_compiler_builds_the_automaton_and_the_others_read_it(
    make_cluster: MakeCluster, n_built: list[int]
) -> None:
    cluster = make_cluster()
    first, second, third = (cluster.compiler() for _ in range(3))
    await asyncio.gather(first.warm(FINGERPRINT), second.warm(FINGERPRINT))
    result = await third.compile(job_for(["abc", "j"]))
    assert result.n_nodes > 0
    assert len(n_built) == 1
    usage = await cluster.shared()
    assert (usage.entries, usage.bytes, usage.orphaned_pinned_bytes) == (1, len(AUTOMATON), 0)
    assert AUTOMATON in cluster.blobs.blobs.values()
    for compiler in (first, second, third):
        assert (await compiler.usage()).bytes == RESIDENT_BYTES


async def test_a_vocabulary_in_memory_asks_the_index_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    compiler = cluster.compiler()
    for text in "abc":
        await compiler.compile(job_for([text]))
    usage = await cluster.shared()
    assert (usage.hits, usage.misses) == (0, 1)


@pytest.mark.parametrize("damage", ["lost", "other bytes"])
async def test_an_automaton_that_cannot_be_read_is_built_again_and_mended(
    make_cluster: MakeCluster, n_built: list[int], damage: str
) -> None:
    cluster = make_cluster()
    await cluster.compiler().warm(FINGERPRINT)
    artifact_hash = next(key for key, blob in cluster.blobs.blobs.items() if blob == AUTOMATON)
    if damage == "lost":
        del cluster.blobs.blobs[artifact_hash]
    else:
        cluster.blobs.blobs[artifact_hash] = AUTOMATON[:-1]
    await cluster.compiler().warm(FINGERPRINT)
    assert len(n_built) == 2
    assert cluster.blobs.blobs[artifact_hash] == AUTOMATON
    await cluster.compiler().warm(FINGERPRINT)
    assert len(n_built) == 2


async def test_an_automaton_that_a_clear_overtakes_serves_its_job_and_counts_nowhere(
    make_cluster: MakeCluster, n_built: list[int]
) -> None:
    cluster = make_cluster()
    compiler = cluster.compiler()
    cluster.blobs.gate.clear()
    job = asyncio.create_task(compiler.compile(job_for(["abc"])))
    await cluster.blobs.has_been_entered()
    await cluster.index.clear()
    await compiler.clear()
    cluster.blobs.gate.set()
    async with asyncio.timeout(5):
        assert (await job).n_nodes > 0
    for usage in (await compiler.usage(), await cluster.shared()):
        assert (usage.entries, usage.bytes) == (0, 0)
    await compiler.compile(job_for(["abc"]))
    assert (await compiler.usage()).bytes == RESIDENT_BYTES
    assert (await cluster.shared()).bytes == len(AUTOMATON)


async def test_without_room_for_it_among_all_the_automaton_lives_in_the_process(
    make_cluster: MakeCluster, n_built: list[int]
) -> None:
    cluster = make_cluster(automata=len(AUTOMATON) - 1)
    compiler = cluster.compiler()
    for text in "ab":
        await compiler.compile(job_for([text]))
    assert (await cluster.shared()).bytes == 0
    assert (await compiler.usage()).bytes == RESIDENT_BYTES
    assert len(n_built) == 1


async def test_without_the_index_nothing_is_loaded_and_afterwards_it_is(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    compiler = cluster.compiler()
    cluster.blobs.faults.fail_next("acquire")
    with pytest.raises(StoreUnavailable):
        await compiler.compile(job_for(["abc"]))
    assert (await compiler.compile(job_for(["abc"]))).n_nodes > 0


async def test_jobs_that_wait_for_one_automaton_are_cancelled_one_by_one(
    make_cluster: MakeCluster, n_built: list[int]
) -> None:
    cluster = make_cluster()
    compiler = cluster.compiler()
    cluster.blobs.gate.clear()
    jobs = [asyncio.create_task(compiler.compile(job_for([text]))) for text in "abc"]
    await cluster.blobs.has_been_entered()
    jobs[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await jobs[0]
    cluster.blobs.gate.set()
    async with asyncio.timeout(5):
        for job in jobs[1:]:
            assert (await job).n_nodes > 0
    assert len(n_built) == 1
    assert (await cluster.shared()).bytes == len(AUTOMATON)


async def test_a_clear_in_another_process_reaches_the_memory_of_this_one(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    one, other = cluster.compiler(), cluster.compiler()
    for compiler in (one, other):
        await compiler.warm(FINGERPRINT)
    await cluster.index.clear()

    async def both_have_forgotten() -> bool:
        return one.resident == other.resident == ()

    await eventually(both_have_forgotten)
    await one.warm(FINGERPRINT)
    assert (one.resident, other.resident) == ((FINGERPRINT,), ())
