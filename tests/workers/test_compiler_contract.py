"""What every compiler must do."""

import asyncio
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gated_store import VOCABULARY, GatedBlobStore, job_for
from local_ray import CompilerOverStore, served_store
from maskfeed_automata import Automaton, LeadingSpace, Vocabulary
from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    CorruptArtifact,
    StoreUnavailable,
    UnknownArtifact,
)
from maskfeed_cache.store import hash_blob
from maskfeed_workers.compiler import CompileJob, Compiler
from maskfeed_workers.ray_actor import ActorPlan
from maskfeed_workers.ray_compiler import RayCompiler
from maskfeed_workers.thread_compiler import ThreadCompiler

MakeCompiler = Callable[[GatedBlobStore, Path], AbstractContextManager[Compiler]]


@contextmanager
def thread_compiler(blobs: GatedBlobStore, folder: Path) -> Iterator[Compiler]:
    yield ThreadCompiler(blobs, blobs, parallelism=1, cache_directory=folder)


@contextmanager
def ray_compiler(blobs: GatedBlobStore, folder: Path) -> Iterator[Compiler]:
    with served_store(blobs) as store:
        plan = ActorPlan(CompilerOverStore(store, folder))
        yield RayCompiler(plan, pool=f"contract-{secrets.token_hex(4)}", size=1)


COMPILERS: dict[str, MakeCompiler] = {"thread": thread_compiler, "ray": ray_compiler}


@pytest.fixture
def blobs() -> GatedBlobStore:
    blobs = GatedBlobStore()
    blobs.put_vocabulary(VOCABULARY.fingerprint, VOCABULARY.to_bytes())
    return blobs


@pytest.fixture(params=COMPILERS)
async def compiler(request: pytest.FixtureRequest, blobs: GatedBlobStore, tmp_path: Path) -> AsyncIterator[Compiler]:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with COMPILERS[request.param](blobs, tmp_path) as compiler:
        yield compiler
        blobs.gate.set()
        await compiler.close()


@pytest.mark.parametrize("leading_space", ["never", "optional", "always"])
async def test_the_artifact_in_the_store_is_the_compiled_set(
    compiler: Compiler, blobs: GatedBlobStore, leading_space: LeadingSpace
) -> None:
    job = job_for(["abc", "abd", "j"], leading_space=leading_space)
    result = await compiler.compile(job)
    blob = blobs.get(result.artifact_hash)
    assert result.size_bytes == len(blob)
    automaton = Automaton.from_bytes(blob, VOCABULARY, stop_token_ids=(14,))
    assert (automaton.digest, automaton.n_candidates, automaton.n_nodes) == (job.digest, 3, result.n_nodes)


async def test_the_same_job_twice_gives_the_same_bytes(compiler: Compiler, blobs: GatedBlobStore) -> None:
    first = await compiler.compile(job_for(["abc", "abd"]))
    blob = blobs.get(first.artifact_hash)
    second = await compiler.compile(job_for(["abd", "abc", "abd"]))
    assert second.artifact_hash == first.artifact_hash == hash_blob(blob)
    assert list(blobs.blobs) == [first.artifact_hash]


async def test_a_vocabulary_that_no_engine_published_is_told_and_found_once_it_is(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    other = Vocabulary.from_token_bytes([b"a", b"b"])
    with pytest.raises(UnknownArtifact):
        await compiler.warm(other.fingerprint)
    with pytest.raises(UnknownArtifact):
        await compiler.compile(job_for(["ab"], vocabulary=other))
    blobs.put_vocabulary(other.fingerprint, other.to_bytes())
    await compiler.warm(other.fingerprint)
    assert (await compiler.compile(job_for(["ab"], vocabulary=other))).n_nodes > 0


async def test_a_vocabulary_without_any_text_can_be_warmed(compiler: Compiler, blobs: GatedBlobStore) -> None:
    empty = Vocabulary.from_token_bytes([None, None])
    blobs.put_vocabulary(empty.fingerprint, empty.to_bytes())
    await compiler.warm(empty.fingerprint)


async def test_warming_stores_nothing_and_reads_the_vocabulary_once(compiler: Compiler, blobs: GatedBlobStore) -> None:
    for _ in range(3):
        await compiler.warm(VOCABULARY.fingerprint)
    await compiler.compile(job_for(["abc"]))
    assert blobs.n_vocabularies_read == 1
    assert len(blobs.blobs) == 1


async def test_a_clear_forgets_the_automata_in_memory(compiler: Compiler, blobs: GatedBlobStore) -> None:
    await compiler.warm(VOCABULARY.fingerprint)
    assert (await compiler.usage()).bytes == resident_bytes(VOCABULARY)
    await compiler.clear()
    usage = await compiler.usage()
    assert (usage.entries, usage.bytes, usage.orphaned_pinned_bytes) == (0, 0, 0)
    await compiler.compile(job_for(["abc"]))
    assert blobs.n_vocabularies_read == 2
    assert (await compiler.usage()).bytes == resident_bytes(VOCABULARY)


async def test_a_clear_waits_for_no_job_and_counts_what_the_job_uses_as_orphaned(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    blobs.gate.clear()
    running = asyncio.create_task(compiler.compile(job_for(["abc"])))
    await blobs.has_been_entered()
    await compiler.clear()
    usage = await compiler.usage()
    assert (usage.bytes, usage.orphaned_pinned_bytes) == (0, resident_bytes(VOCABULARY))
    blobs.gate.set()
    assert (await running).n_nodes > 0
    usage = await compiler.usage()
    assert (usage.bytes, usage.orphaned_pinned_bytes) == (0, 0)


@pytest.mark.parametrize("what", ["another vocabulary", "no vocabulary"])
async def test_a_damaged_vocabulary_is_told_and_not_kept(compiler: Compiler, blobs: GatedBlobStore, what: str) -> None:
    good = blobs.vocabularies[VOCABULARY.fingerprint]
    other = Vocabulary.from_token_bytes([b"a"]).to_bytes()
    blobs.vocabularies[VOCABULARY.fingerprint] = other if what == "another vocabulary" else good[:-1]
    with pytest.raises(CorruptArtifact):
        await compiler.compile(job_for(["abc"]))
    blobs.vocabularies[VOCABULARY.fingerprint] = good
    await compiler.compile(job_for(["abc"]))


async def test_a_candidate_that_the_vocabulary_cannot_produce_is_named_by_the_callers_index(
    compiler: Compiler,
) -> None:
    with pytest.raises(CandidateError) as caught:
        await compiler.compile(job_for(["j", "abc", "xyz", "abc"]))
    assert caught.value.context["index"] == 2


@pytest.mark.parametrize("failure", [StoreUnavailable("away", stage="put"), CapacityError("full", stage="put")])
async def test_a_failure_of_the_store_passes_through_and_is_not_remembered(
    compiler: Compiler, blobs: GatedBlobStore, failure: Exception
) -> None:
    blobs.failure = failure
    with pytest.raises(type(failure)):
        await compiler.compile(job_for(["abc"]))
    blobs.failure = None
    await compiler.compile(job_for(["abc"]))


async def test_any_other_failure_is_a_broken_compiler_with_its_cause_and_without_its_text(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    blobs.failure = RuntimeError("may quote abc")
    with pytest.raises(CompileFailed) as caught:
        await compiler.compile(job_for(["abc"]))
    assert caught.value.context["stage"] == "compile"
    assert "RuntimeError" in "".join(traceback.format_exception(caught.value))
    assert "abc" not in caught.value.message


async def test_a_job_under_a_wrong_digest_is_refused_before_it_is_stored(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    job = job_for(["abc"])
    with pytest.raises(CompileFailed):
        await compiler.compile(CompileJob("0" * 64, job.fingerprint, job.candidate_set, job.leading_space))
    assert blobs.blobs == {}


async def test_a_waiting_job_that_is_cancelled_is_never_compiled(compiler: Compiler, blobs: GatedBlobStore) -> None:
    blobs.gate.clear()
    running = [asyncio.create_task(compiler.compile(job_for([text]))) for text in "abcdefgh"[: compiler.parallelism]]
    for _ in running:
        await blobs.has_been_entered()
    waiting = asyncio.create_task(compiler.compile(job_for(["ij"])))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    blobs.gate.set()
    finished = await asyncio.gather(*running)
    await compiler.close()
    assert set(blobs.blobs) == {result.artifact_hash for result in finished}


async def test_cancelling_a_running_job_gives_up_the_wait_and_leaves_the_compiler_whole(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    blobs.gate.clear()
    running = asyncio.create_task(compiler.compile(job_for(["abc"])))
    await blobs.has_been_entered()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    blobs.gate.set()
    assert (await compiler.compile(job_for(["j"]))).n_nodes > 0


async def test_closing_waits_for_what_runs_and_refuses_what_comes_later(
    compiler: Compiler, blobs: GatedBlobStore
) -> None:
    blobs.gate.clear()
    running = asyncio.create_task(compiler.compile(job_for(["abc"])))
    await blobs.has_been_entered()
    closing = asyncio.create_task(compiler.close())
    await asyncio.sleep(0)
    with pytest.raises(CompileFailed, match="closed"):
        await compiler.compile(job_for(["j"]))
    assert not closing.done()
    blobs.gate.set()
    await closing
    assert (await running).artifact_hash in blobs.blobs
    await compiler.close()


async def test_times_are_measured_with_the_given_clock(blobs: GatedBlobStore, tmp_path: Path) -> None:
    ticks = iter([1.0, 1.25, 3.25])
    compiler = ThreadCompiler(blobs, blobs, parallelism=1, cache_directory=tmp_path, clock=lambda: next(ticks))
    result = await compiler.compile(job_for(["abc"]))
    assert (result.compile_ms, result.store_ms) == (250, 2_000)
    await compiler.close()


async def test_as_many_jobs_run_at_once_as_there_are_threads(blobs: GatedBlobStore, tmp_path: Path) -> None:
    compiler = ThreadCompiler(blobs, blobs, parallelism=3, cache_directory=tmp_path)
    assert compiler.parallelism == 3
    blobs.gate.clear()
    jobs = [asyncio.create_task(compiler.compile(job_for([text]))) for text in "abcd"]
    for _ in range(3):
        await blobs.has_been_entered()
    assert not blobs.entered.acquire(blocking=False)
    blobs.gate.set()
    assert len({result.artifact_hash for result in await asyncio.gather(*jobs)}) == 4
    await compiler.close()


async def test_one_of_many_threads_loads_a_vocabulary_and_the_least_used_one_leaves(
    blobs: GatedBlobStore, tmp_path: Path
) -> None:
    tokens = [VOCABULARY.token_bytes(token_id) for token_id in range(VOCABULARY.size)]
    others = [Vocabulary.from_token_bytes([*tokens, *[None] * n]) for n in (1, 2)]
    for other in others:
        blobs.put_vocabulary(other.fingerprint, other.to_bytes())
    room_for_two = 2 * resident_bytes(others[1])
    compiler = ThreadCompiler(blobs, blobs, parallelism=4, resident_bytes=room_for_two, cache_directory=tmp_path)
    await asyncio.gather(*(compiler.compile(job_for([text])) for text in "abcd"))
    assert blobs.n_vocabularies_read == 1
    await compiler.warm(others[0].fingerprint)
    await compiler.warm(VOCABULARY.fingerprint)
    await compiler.warm(others[1].fingerprint)
    assert blobs.n_vocabularies_read == 3
    assert compiler.resident == (VOCABULARY.fingerprint, others[1].fingerprint)
    await compiler.warm(VOCABULARY.fingerprint)
    assert blobs.n_vocabularies_read == 3
    await compiler.warm(others[0].fingerprint)
    assert blobs.n_vocabularies_read == 4
    usage = await compiler.usage()
    assert (usage.entries, usage.evictions, usage.limit_bytes) == (2, 2, room_for_two)
    assert usage.bytes == resident_bytes(VOCABULARY) + resident_bytes(others[0])
    await compiler.close()


def resident_bytes(vocabulary: Vocabulary) -> int:
    return vocabulary.tokenizer_automaton.nbytes + vocabulary.data.nbytes + vocabulary.offsets.nbytes
