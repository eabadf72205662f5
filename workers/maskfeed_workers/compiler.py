"""What a compiler offers: candidates in, a stored artifact's hash out.

A compiler knows vocabularies and the blob store; it knows nothing of the index, of engines or of requests, so that
it can run in a thread here and in an actor on another machine alike. Invariant: when `compile` returns, the blob
is in the store under the returned hash; compiling the same job twice gives the same hash.
"""

from dataclasses import dataclass
from typing import Protocol

from maskfeed_automata import CandidateSet, LeadingSpace
from maskfeed_cache.fence import LayerUsage

__all__ = ["CompileJob", "CompileResult", "Compiler"]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """What is asked for. `digest` follows from the other fields and is repeated in the artifact."""

    digest: str
    fingerprint: str
    candidate_set: CandidateSet
    leading_space: LeadingSpace


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What was stored, and how long it took (milliseconds)."""

    artifact_hash: str
    size_bytes: int
    n_nodes: int
    compile_ms: float
    store_ms: float


class Compiler(Protocol):
    """Turns jobs into stored artifacts, `parallelism` at a time."""

    @property
    def parallelism(self) -> int:
        """How many jobs run at once; more than that wait inside."""
        ...

    async def warm(self, fingerprint: str) -> None:
        """Make the vocabulary's automaton resident before work needs it. Idempotent.

        Raises:
            UnknownArtifact: no engine has published this vocabulary.
            StoreUnavailable: the store does not answer.
        """
        ...

    async def compile(self, job: CompileJob) -> CompileResult:
        """Compile and store.

        Cancelling the call gives the slot up; a kernel that runs already ends first, and its result is dropped.

        Raises:
            CandidateError: a candidate that the vocabulary can't produce; `index` is the caller's.
            UnknownArtifact: no engine has published this vocabulary.
            CompileFailed: the compiler broke.
            StoreUnavailable: the blob could not be stored.
        """
        ...

    async def clear(self) -> None:
        """Forget the automata in memory: a new generation of the cache has begun. Waits for no job.

        What is loaded now serves the jobs that wait for it, and is not kept.
        """
        ...

    async def usage(self) -> LayerUsage:
        """Figures of the automata in memory."""
        ...

    async def close(self) -> None:
        """Stop taking work and wait for what runs. Idempotent."""
        ...
