"""Compiled sets kept in this process: compile through it, and a set that was asked for before is there.

It knows one vocabulary, and that sets are the same whatever the order and the duplicates of their lists. It knows no
Redis and no engine. Invariants: stop ids and list indices belong to what is handed out, never to what is kept; size and
clear are exact, whatever is compiled meanwhile.
"""

from collections.abc import Iterable, Sequence

from maskfeed_automata import Automaton, CandidateSet, LeadingSpace, Limits, Vocabulary, build
from maskfeed_automata.builder import check_producible
from maskfeed_automata.errors import CandidateError, ParameterError
from maskfeed_cache.fence import Layer, LayerUsage
from maskfeed_cache.process_cache import ProcessCache, ProcessFence

__all__ = ["SetCache"]


class SetCache:
    """`compile` with a memory, for all threads of a process.

        cache = SetCache(vocabulary, limit_bytes=256 * 2**20)
        automaton = cache.get(["get_user", "get_users"])

    Threads that ask for the same set at the same time wait for one compile.

    Args:
        vocabulary: the model's.
        limit_bytes: of the artifacts that are kept, at least 0; the least recently used ones make room. None keeps all
            until `clear`.

    Raises:
        ParameterError: a limit below 0.
    """

    def __init__(self, vocabulary: Vocabulary, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ParameterError(f"limit_bytes must be at least 0, not {limit_bytes}", field="limit_bytes")
        self._vocabulary = vocabulary
        self._sets: ProcessCache[str, Automaton] = ProcessCache(
            Layer.SETS, ProcessFence(), size_of=lambda automaton: automaton.nbytes, limit_bytes=limit_bytes
        )

    def get(
        self,
        candidates: Sequence[str | bytes] | CandidateSet,
        *,
        leading_space: LeadingSpace = "never",
        stop_token_ids: Iterable[int] | None = None,
        limits: Limits | None = None,
    ) -> Automaton:
        """What `compile` returns for the same arguments; compiled only if it is not kept.

        A set whose artifact alone exceeds the limit is compiled each time and not kept.

        Raises:
            CandidateError: see `CandidateSet.from_strings`; or the vocabulary can't produce a candidate. Not kept.
            LimitExceeded: more than one of `limits`.
            ParameterError: an unknown `leading_space`, or a stop id outside of the vocabulary.

        Cost: sorting and hashing the candidates, even if the set is kept; nothing for a `CandidateSet`.
        """
        if not isinstance(candidates, CandidateSet):
            candidates = CandidateSet.from_strings(candidates, limits=limits)
        automaton = self._shared(candidates, leading_space)
        stop_ids = self._vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        return automaton.with_stop_token_ids(stop_ids).with_input_indices(candidates.first_input_of_rank)

    def size_bytes(self) -> int:
        """Bytes of the artifacts that are kept, exactly."""
        return self._sets.size_bytes()

    def clear(self) -> int:
        """Forget all sets and begin a new generation, whose number is returned. O(1); waits for no compile.

        A compile that runs now still answers those who wait for it, and is not kept.
        """
        return self._sets.clear()

    @property
    def generation(self) -> int:
        """From 1; each clear adds 1."""
        return self._sets.generation

    def usage(self) -> LayerUsage:
        """Entries, bytes, hits, misses and evictions, taken in one step."""
        return self._sets.usage()

    def _shared(self, candidate_set: CandidateSet, leading_space: LeadingSpace) -> Automaton:
        digest = candidate_set.digest(self._vocabulary.fingerprint, leading_space)
        try:
            return self._sets.get(digest, lambda: build(self._vocabulary, candidate_set, leading_space=leading_space))
        except CandidateError:
            # its index may be that of a list in another order, whose thread compiled for both
            check_producible(self._vocabulary, candidate_set, leading_space)
            raise
