"""A compiler in this process: a pool of threads.

The kernels release the interpreter's lock, so threads compile side by side and beside an event loop. It knows no
index, no engine and no request. Invariant: a blob is in the store before its hash is told.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from maskfeed_automata import build, warm_kernels
from maskfeed_automata.errors import CapacityError, CompileFailed, RequestError, StoreError
from maskfeed_cache.store import BlobStore, VocabularySource
from maskfeed_workers.compiler import CompileJob, CompileResult
from maskfeed_workers.resident_vocabularies import ResidentVocabularies

__all__ = ["ThreadCompiler"]

_T = TypeVar("_T")


class ThreadCompiler:
    """A `Compiler` in threads.

    Args:
        blobs: where artifacts go; written from the compiling thread. Not closed here.
        vocabularies: where the engines published theirs.
        parallelism: number of threads.
        resident: how many vocabularies stay in memory.
        cache_directory: where tokenizer automata are kept between processes; None for the automata room's own choice.
        clock: seconds, for the times in results.
    """

    def __init__(
        self,
        blobs: BlobStore,
        vocabularies: VocabularySource,
        parallelism: int,
        *,
        resident: int = 4,
        cache_directory: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._blobs = blobs
        self._vocabularies = ResidentVocabularies(vocabularies, capacity=resident, cache_directory=cache_directory)
        self._parallelism = parallelism
        self._clock = clock
        self._threads = ThreadPoolExecutor(parallelism, thread_name_prefix="maskfeed-compile")
        self._is_closed = False

    @property
    def parallelism(self) -> int:
        """See `Compiler`."""
        return self._parallelism

    async def warm(self, fingerprint: str) -> None:
        """See `Compiler`. Loads the kernels, too."""
        await self._run(lambda: self._warm(fingerprint))

    async def compile(self, job: CompileJob) -> CompileResult:
        """See `Compiler`. A job that no thread has begun is dropped when the call is cancelled."""
        return await self._run(lambda: self._compile_and_store(job))

    async def close(self) -> None:
        """See `Compiler`. What waits inside is compiled, too, unless its caller cancels."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, work: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise CompileFailed("the compiler is closed", stage="compile")
        return await asyncio.wrap_future(self._threads.submit(_typed_failures, work))

    def _warm(self, fingerprint: str) -> None:
        warm_kernels()
        self._vocabularies.get(fingerprint)

    def _compile_and_store(self, job: CompileJob) -> CompileResult:
        vocabulary = self._vocabularies.get(job.fingerprint)
        started_s = self._clock()
        automaton = build(vocabulary, job.candidate_set, leading_space=job.leading_space)
        if automaton.digest != job.digest:
            # stored under the wrong digest it would be another caller's answer
            raise CompileFailed(f"asked for {job.digest}, compiled {automaton.digest}", stage="digest")
        blob = automaton.to_bytes()
        compiled_s = self._clock()
        artifact_hash = self._blobs.put(blob)
        stored_s = self._clock()
        return CompileResult(
            artifact_hash=artifact_hash,
            size_bytes=len(blob),
            n_nodes=automaton.n_nodes,
            compile_ms=(compiled_s - started_s) * 1000,
            store_ms=(stored_s - compiled_s) * 1000,
        )


def _typed_failures(work: Callable[[], _T]) -> _T:
    """Do `work`; anything that is neither the caller's fault nor the store's becomes CompileFailed."""
    try:
        return work()
    except (RequestError, StoreError, CapacityError, CompileFailed):
        raise
    except Exception as error:
        # the message of an unknown error may quote a candidate: only its type is told, the rest is the cause
        raise CompileFailed(f"the compiler broke: {type(error).__name__}", stage="compile") from error
