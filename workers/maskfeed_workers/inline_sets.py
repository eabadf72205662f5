"""Candidates given inline with an offline request, compiled where the request is added.

For `LLM(...)` without a server: `extra_args={"maskfeed": {"candidates": [...], "leading_space": "never"}}`. Knows no
vLLM type and no feed. Invariant: compiling is deterministic, so every process that sees the request gets the same
automaton; the most recent ones are kept, because an engine adds a request again after each preemption.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from maskfeed_automata import Automaton, CandidateSet, LeadingSpace, Vocabulary, build, check_fits
from maskfeed_automata.errors import ParameterError
from maskfeed_cache.fence import Layer
from maskfeed_cache.process_cache import ProcessCache, ProcessFence

__all__ = ["InlineRequest", "InlineSets"]

_KEPT_BYTES: Final = 256 * 2**20


class _Fields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    candidates: Sequence[str]
    leading_space: LeadingSpace = "never"


@dataclass(frozen=True, slots=True)
class InlineRequest:
    """Candidates and options as the caller gave them, checked."""

    candidate_set: CandidateSet
    leading_space: LeadingSpace

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Check what stands under "maskfeed" in `extra_args`.

        Raises:
            ParameterError: an unknown key, or a value of another type.
            CandidateError, LimitExceeded: an unusable candidate; `index` names it.
        """
        try:
            parsed = msgspec.convert(given, _Fields)
        except msgspec.ValidationError as error:
            raise ParameterError(f"extra_args.maskfeed: {error}", field="maskfeed") from error
        return cls(CandidateSet.from_strings(parsed.candidates), parsed.leading_space)


class InlineSets:
    """The most recently used inline sets of one engine.

    Args:
        vocabulary: of the engine.
        max_model_len: the engine's context in tokens.
    """

    def __init__(self, vocabulary: Vocabulary, max_model_len: int) -> None:
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len
        self._sets: ProcessCache[str, Automaton] = ProcessCache(
            Layer.SETS, ProcessFence(), size_of=lambda automaton: automaton.nbytes, limit_bytes=_KEPT_BYTES
        )

    def get(self, request: InlineRequest) -> Automaton:
        """The automaton of the request's candidates; compiled when it is not among the kept ones.

        Raises:
            CandidateError: a candidate that the vocabulary can't produce, or that exceeds the context.
        """
        digest = request.candidate_set.digest(self._vocabulary.fingerprint, request.leading_space)
        return self._sets.get(digest, lambda: self._compile(request))

    def _compile(self, request: InlineRequest) -> Automaton:
        check_fits(
            self._vocabulary,
            request.candidate_set,
            leading_space=request.leading_space,
            max_model_len=self._max_model_len,
        )
        return build(self._vocabulary, request.candidate_set, leading_space=request.leading_space)
