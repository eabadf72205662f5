"""From a request's strings to a candidate set that the engine can answer with.

Pure: values in, values out, so that it can run in a thread. It knows limits of the engine, not whether the set is
compiled. Invariant: a set that passes has no candidate that is certain to be cut off by the engine's context length.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from maskfeed.service.candidate_lists import told_as
from maskfeed.service.engines import LiveGroup
from maskfeed.service.parameters import check_stop_token_ids
from maskfeed.service.requests import ConstrainedRequest
from maskfeed_automata import CandidateSet, Vocabulary, check_fits
from maskfeed_automata.errors import CandidateError

__all__ = ["PreparedSet", "in_the_callers_words", "prepare"]

_FIELD_OF_SOURCE = {
    "candidates": "candidates",
    "choice": "structured_outputs.choice",
    "named": "candidate_set",
    "ids": "ids",
}


@dataclass(frozen=True, slots=True)
class PreparedSet:
    """A candidate set and the name under which it is looked for."""

    candidate_set: CandidateSet
    digest: str


def prepare(request: ConstrainedRequest, live: LiveGroup) -> PreparedSet:
    """Canonicalise and check the candidates of a request.

    Raises:
        CandidateError: a candidate that is empty or that can't be produced within the engine's context. Context:
            `field`, `index`, and `limit` and `value` in tokens.
        LimitExceeded: too many, or too long. Context: `limit`, `value`, `unit`.
        ParameterError: a stop id of the client that would cut candidates.

    Cost: sorting, linear in the bytes; and for each candidate of more bytes than the context has tokens, linear in
        its bytes times the longest token.
    """
    vocabulary = live.vocabulary
    check_stop_token_ids(request.stop_token_ids, live.record, lambda token_id: _is_text(vocabulary, token_id))
    with in_the_callers_words(request):
        part = request.part
        candidate_set = CandidateSet.from_strings(request.values) if part is None else part.candidate_set
        check_fits(
            vocabulary,
            candidate_set,
            leading_space=request.leading_space,
            max_model_len=live.record.max_model_len,
        )
    return PreparedSet(candidate_set, candidate_set.digest(live.record.fingerprint, request.leading_space))


@contextmanager
def in_the_callers_words(request: ConstrainedRequest) -> Iterator[None]:
    """Name the list as the caller does, in whatever is wrong with a candidate.

    Raises:
        CandidateError: from the block, its message and context with the field that the request had, and the position
            in the caller's list.
    """
    with told_as(_FIELD_OF_SOURCE[request.source]):
        try:
            yield
        except CandidateError as error:
            index = error.context.get("index")
            if request.part is None or not isinstance(index, int):
                raise
            place = request.part.place_of(index)
            message = error.message.replace(f"[{index}]", f"[{place}]", 1)
            raise type(error)(message, **{**error.context, "index": place}) from error


def _is_text(vocabulary: Vocabulary, token_id: int) -> bool:
    return token_id < vocabulary.size and vocabulary.token_bytes(token_id) is not None
