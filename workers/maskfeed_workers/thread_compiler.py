"""A compiler in this process: a pool of threads.

The kernels release the interpreter's lock, so threads compile side by side and beside an event loop. It knows no
index, no engine and no request. Invariant: a blob is in the store before its hash is told.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from maskfeed_automata import Vocabulary, build, warm_kernels
from maskfeed_automata.errors import CapacityError, CompileFailed, LimitExceeded, RequestError, StoreError
from maskfeed_cache.fence import Cleared, IndexEntry, LayerUsage, News
from maskfeed_cache.shared_cache import Compute, Report, SharedCache
from maskfeed_cache.store import BlobStore, VocabularySource
from maskfeed_workers.compiler import CompileJob, CompileResult
from maskfeed_workers.resident_vocabularies import RESIDENT_BYTES, ResidentVocabularies

__all__ = ["ThreadCompiler"]

_T = TypeVar("_T")

# Reading an automaton from the store takes milliseconds; a reader that died pins it no longer than this.
_PIN_MS: Final = 60_000


class ThreadCompiler:
    """A `Compiler` in threads.

    Args:
        blobs: where artifacts go; written from the compiling thread. Not closed here.
        vocabularies: where the engines published theirs.
        parallelism: number of threads.
        automata: of all processes, by fingerprint, their blobs in `blobs`; used from one event loop, that of the calls.
            None: each process builds its own. Not closed here.
        resident_bytes: of the vocabularies that stay in memory, their automata included.
        cache_directory: where tokenizer automata are kept between processes; None for the automata room's own choice.
        clock: seconds, for the times in results.
    """

    def __init__(
        self,
        blobs: BlobStore,
        vocabularies: VocabularySource,
        parallelism: int,
        *,
        automata: SharedCache | None = None,
        resident_bytes: int = RESIDENT_BYTES,
        cache_directory: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._blobs = blobs
        self._automata = automata
        self._vocabularies = ResidentVocabularies(
            vocabularies, blobs, limit_bytes=resident_bytes, cache_directory=cache_directory
        )
        self._parallelism = parallelism
        self._clock = clock
        self._threads = ThreadPoolExecutor(parallelism, thread_name_prefix="maskfeed-compile")
        self._is_closed = False

    @property
    def parallelism(self) -> int:
        """See `Compiler`."""
        return self._parallelism

    @property
    def resident(self) -> tuple[str, ...]:
        """Fingerprints of the vocabularies in memory, least recently used first."""
        return self._vocabularies.fingerprints()

    async def warm(self, fingerprint: str) -> None:
        """See `Compiler`. Loads the kernels, too."""
        await self._run(warm_kernels)
        await self._with_vocabulary(fingerprint, lambda vocabulary: None)

    async def compile(self, job: CompileJob) -> CompileResult:
        """See `Compiler`. A job that no thread has begun is dropped when the call is cancelled."""
        return await self._with_vocabulary(job.fingerprint, lambda vocabulary: self._compile(vocabulary, job))

    async def clear(self) -> None:
        """See `Compiler`."""
        self._vocabularies.clear()

    def take(self, news: News) -> None:
        """Follow the news of the index of `automata`: a clear elsewhere reaches this process's memory, too."""
        if isinstance(news, Cleared):
            self._vocabularies.clear()

    async def usage(self) -> LayerUsage:
        """See `Compiler`."""
        return self._vocabularies.usage()

    async def close(self) -> None:
        """See `Compiler`. What waits inside is compiled, too, unless its caller cancels."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, work: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise CompileFailed("the compiler is closed", stage="compile")
        return await asyncio.wrap_future(self._threads.submit(_typed_failures, work))

    async def _with_vocabulary(self, fingerprint: str, work: Callable[[Vocabulary], _T]) -> _T:
        """Do `work` in a thread with a vocabulary, which is pinned.

        If it is not resident, its automaton is got from the other processes, or built for them.
        """
        # what is found or built from here on is of this generation, or is not kept
        began = self._vocabularies.generation
        shared = None
        async with contextlib.AsyncExitStack() as stack:
            if self._automata is not None and fingerprint not in self._vocabularies:
                build_automaton = self._building(fingerprint, began)
                # where the others have no room for it, it lives in this process only
                with contextlib.suppress(LimitExceeded, CapacityError):
                    found = await stack.enter_async_context(
                        self._automata.hold(fingerprint, build_automaton, pin_ms=_PIN_MS)
                    )
                    shared = found.entry.artifact_hash

            def pinned_work() -> _T:
                with self._vocabularies.pinned(fingerprint, shared=shared, began=began) as vocabulary:
                    return work(vocabulary)

            return await self._run(pinned_work)

    def _building(self, fingerprint: str, began: int) -> Compute:
        async def build_automaton(report: Report) -> IndexEntry:
            return await self._run(lambda: self._vocabularies.store_automaton(fingerprint, began=began))

        return build_automaton

    def _compile(self, vocabulary: Vocabulary, job: CompileJob) -> CompileResult:
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
