"""A store for tests of compilers, in which `put` can be held up and made to fail, and jobs for them."""

import asyncio
import threading

from maskfeed_automata import CandidateSet, LeadingSpace, Vocabulary
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_workers.compiler import CompileJob

__all__ = ["VOCABULARY", "GatedBlobStore", "job_for"]

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


def job_for(
    candidates: list[str], *, vocabulary: Vocabulary = VOCABULARY, leading_space: LeadingSpace = "never"
) -> CompileJob:
    candidate_set = CandidateSet.from_strings(candidates)
    digest = candidate_set.digest(vocabulary.fingerprint, leading_space)
    return CompileJob(digest, vocabulary.fingerprint, candidate_set, leading_space)
