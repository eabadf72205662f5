"""What every compiler must do."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from maskfeed_automata import Automaton, CandidateSet, LeadingSpace, Vocabulary
from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    CorruptArtifact,
    StoreUnavailable,
    UnknownArtifact,
)
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.store import hash_blob
from maskfeed_workers.compiler import CompileJob, Compiler
from maskfeed_workers.thread_compiler import ThreadCompiler

TOKENS = [bytes([byte]) for byte in b"abcdefghij "] + [b"ab", b"abc", b" a", None]
VOCABULARY = Vocabulary.from_token_bytes(TOKENS)


class GatedBlobStore(MemoryBlobStore):
    """A store in which `put` can be held up, and fail as told."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.n_vocabularies_read = 0

    def put(self, blob: bytes) -> str:
        self.entered.release()
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        return super().put(blob)

    def get_vocabulary(self, fingerprint: str) -> bytes:
        self.n_vocabularies_read += 1
        return super().get_vocabulary(fingerprint)

    async def has_been_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=10)


MakeCompiler = Callable[[GatedBlobStore, Path], Compiler]
COMPILERS: dict[str, MakeCompiler] = {
    "thread": lambda blobs, folder: ThreadCompiler(blobs, blobs, parallelism=1, cache_directory=folder)
}


@pytest.fixture
def blobs() -> GatedBlobStore:
    blobs = GatedBlobStore()
    blobs.put_vocabulary(VOCABULARY.fingerprint, VOCABULARY.to_bytes())
    return blobs


@pytest.fixture(params=COMPILERS)
async def compiler(request: pytest.FixtureRequest, blobs: GatedBlobStore, tmp_path: Path) -> AsyncIterator[Compiler]:
    compiler = COMPILERS[request.param](blobs, tmp_path)
    yield compiler
    blobs.gate.set()
    await compiler.close()


def job_for(
    candidates: list[str], *, vocabulary: Vocabulary = VOCABULARY, leading_space: LeadingSpace = "never"
) -> CompileJob:
    candidate_set = CandidateSet.from_strings(candidates)
    digest = candidate_set.digest(vocabulary.fingerprint, leading_space)
    return CompileJob(digest, vocabulary.fingerprint, candidate_set, leading_space)


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
    assert isinstance(caught.value.__cause__, RuntimeError)
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
    compiler = ThreadCompiler(blobs, blobs, parallelism=4, resident=2, cache_directory=tmp_path)
    await asyncio.gather(*(compiler.compile(job_for([text])) for text in "abcd"))
    assert blobs.n_vocabularies_read == 1
    others = [Vocabulary.from_token_bytes([b"a", *[None] * n]) for n in (1, 2)]
    for other in others:
        blobs.put_vocabulary(other.fingerprint, other.to_bytes())
    await compiler.warm(others[0].fingerprint)
    await compiler.warm(VOCABULARY.fingerprint)
    await compiler.warm(others[1].fingerprint)
    assert blobs.n_vocabularies_read == 3
    await compiler.warm(VOCABULARY.fingerprint)
    assert blobs.n_vocabularies_read == 3
    await compiler.warm(others[0].fingerprint)
    assert blobs.n_vocabularies_read == 4
    await compiler.close()
