"""An engine's answer, checked and turned into the client's.

The engine's text is not believed: the bytes of the sampled tokens are, and they must be a candidate. It knows shapes of
vLLM's responses, no network. Invariants: what is returned as a candidate is the caller's own string at the caller's own
index; an answer that was cut says so; a refusal of the engine, or bytes that should be a candidate and are none, raise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maskfeed.service.requests import ConstrainedRequest
from maskfeed_automata import CandidateSet, Vocabulary
from maskfeed_automata.errors import InternalInvariant, SetRefused, UpstreamError, VocabularyError
from maskfeed_cache.feed_messages import EngineRecord

__all__ = ["Answer", "AnswerReader", "Figures", "finish", "sampled_ids", "without_token_ids"]

# What the caller is told of the way that the set took: "cache", "queue_ms", "compile_ms", ...
Figures = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, read."""

    # the candidate, or what there is of it, without an optional leading space
    text: str
    complete: bool
    candidate: str | None
    # position in the list that the caller sent; the first one of duplicates
    index: int | None
    id: str | int | None
    # why it is not complete: "length", "stop-string", or the engine's finish reason
    reason: str | None

    def as_member(self) -> dict[str, Any]:
        """The object `choices[i].maskfeed`."""
        return {
            "complete": self.complete,
            "candidate": self.candidate,
            "index": self.index,
            "id": self.id,
            "reason": self.reason,
        }


class AnswerReader:
    """Reads the choices of one request.

    Args:
        request: as parsed.
        candidate_set: built from the request's values.
        vocabulary: the engine's.
        record: the engine's.
        figures: repeated in the answer.
    """

    def __init__(
        self,
        request: ConstrainedRequest,
        candidate_set: CandidateSet,
        vocabulary: Vocabulary,
        record: EngineRecord,
        figures: Figures,
    ) -> None:
        self.request = request
        self.vocabulary = vocabulary
        self._set = candidate_set
        self._record = record
        self._figures = figures
        self._stop_ids = frozenset((*record.stop_token_ids, *request.stop_token_ids))
        self._include_stop_string = bool(request.body.get("include_stop_str_in_output"))
        self._may_begin_with_space = request.leading_space == "optional" and _begins_with_space(candidate_set)

    def read(self, token_ids: Sequence[int], finish_reason: str, stop_reason: int | str | None) -> Answer:
        """Read one finished choice.

        Args:
            token_ids: all that were sampled, the stop id included.
            finish_reason: of the engine.
            stop_reason: the stop id or stop string, None for the model's own end.

        Raises:
            SetRefused: the engine did not apply the set (it restarted, or no longer holds it).
            InternalInvariant: it ended where no candidate ends, or sampled a token without bytes.
        """
        if stop_reason == self._record.reserved_id:
            raise SetRefused("the engine no longer holds the candidate set; nothing was answered", stage="admission")
        at_stop_id = finish_reason == "stop" and not isinstance(stop_reason, str)
        if at_stop_id and token_ids and (token_ids[-1] in self._stop_ids or token_ids[-1] == stop_reason):
            token_ids = token_ids[:-1]
        data = self.text_bytes(token_ids)
        if not at_stop_id:
            stop_string = stop_reason if finish_reason == "stop" and isinstance(stop_reason, str) else None
            reason = finish_reason if stop_string is None else "stop-string"
            return Answer(self._cut_text(data, stop_string), False, None, None, None, reason)
        rank = self._set.rank_of_answer(data, self.request.leading_space)
        if rank is None:
            raise InternalInvariant(
                f"the engine ended an answer of {len(token_ids)} tokens and {len(data)} bytes that is no candidate",
                stage="answer",
                n_tokens=len(token_ids),
                n_bytes=len(data),
            )
        index, candidate, candidate_id = self.request.candidate_at(int(self._set.first_input_of_rank[rank]))
        return Answer(candidate, True, candidate, index, candidate_id, None)

    @property
    def longest_stop_string(self) -> int:
        """Characters of the longest stop string that is to be cut off; 1 if there is none."""
        stops = () if self._include_stop_string else self.request.stop_strings
        return max((1, *map(len, stops)))

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of sampled tokens.

        Raises:
            InternalInvariant: one of them has none, so that no mask permitted it.
        """
        try:
            return self.vocabulary.text_bytes(token_ids)
        except VocabularyError as error:
            raise InternalInvariant("the engine sampled a token that no candidate has", stage="answer") from error

    def n_bytes_before_text(self, data: bytes) -> int | None:
        """How many of the first bytes of an answer are not text of the candidate; None: only its end will tell.

        Args:
            data: a beginning of the answer; not empty.
        """
        if self.request.leading_space == "never" or not data.startswith(b" "):
            return 0
        return None if self._may_begin_with_space else 1

    def summary(self, answer: Answer | None) -> dict[str, Any]:
        """The object `maskfeed` of a response or chunk; with the members of `answer` where it is the only choice."""
        return {
            "enforced": True,
            "digest": self._set.digest(self._record.fingerprint, self.request.leading_space),
            "candidates": self._set.n_inputs,
            "duplicates": self._set.n_duplicates,
            **self._named(),
            **self._figures,
            **(answer.as_member() if answer is not None and self.request.n == 1 else {}),
        }

    def _named(self) -> dict[str, Any]:
        """The member that says which set the caller's name stood for."""
        reference = self.request.reference
        if reference is None:
            return {}
        return {"candidate_set": {"name": reference.name, "generation": reference.generation}}

    def _cut_text(self, data: bytes, stop_string: str | None) -> str:
        begin = self.n_bytes_before_text(data) if data else 0
        # a cut answer that could be two candidates stays as it was generated
        text = data[begin or 0 :].decode("utf-8", errors="replace")
        if stop_string is None:
            return text
        end = text.find(stop_string)
        if end < 0:
            return text
        return text[: end + len(stop_string)] if self._include_stop_string else text[:end]


def finish(
    request: ConstrainedRequest,
    candidate_set: CandidateSet,
    vocabulary: Vocabulary,
    record: EngineRecord,
    response: dict[str, Any],
    figures: Figures,
) -> dict[str, Any]:
    """Check a response that was not streamed and write the client's.

    Args:
        request: as parsed.
        candidate_set: built from the request's values.
        vocabulary: the engine's.
        record: the engine's.
        response: the engine's body; not changed.
        figures: merged into the object `maskfeed` as they are.

    Returns:
        The response with texts built from token ids and the objects `maskfeed` and `choices[i].maskfeed`. Token ids
        are gone unless the client asked for them.

    Raises:
        SetRefused: the engine refused; no choice is returned.
        UpstreamError: something that is no answer to this request, or one without token ids.
        InternalInvariant: a finished answer that is no candidate.
    """
    reader = AnswerReader(request, candidate_set, vocabulary, record, figures)
    choices = response.get("choices")
    if not isinstance(choices, list) or len(choices) != request.n:
        raise UpstreamError(f"the engine's answer has not the {request.n} choices that were asked for")
    finished = [_finish_choice(reader, choice) for choice in choices]
    result = {
        **response,
        "choices": [choice for choice, _ in finished],
        "maskfeed": reader.summary(finished[0][1]),
    }
    return result if request.wants_token_ids else without_token_ids(result)


def without_token_ids(member: dict[str, Any]) -> dict[str, Any]:
    """A response, chunk or choice without the ids that only the gateway asked for."""
    return {name: value for name, value in member.items() if name not in ("token_ids", "prompt_token_ids")}


def sampled_ids(value: object) -> list[int]:
    """The ids of a choice.

    Raises:
        UpstreamError: they are no list of integers.
    """
    if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
        raise UpstreamError("the engine sent token ids that are no list of integers", stage="answer")
    return value


def _finish_choice(reader: AnswerReader, choice: Any) -> tuple[dict[str, Any], Answer]:
    match choice:
        case {"token_ids": token_ids, "finish_reason": str(finish_reason)}:
            answer = reader.read(sampled_ids(token_ids), finish_reason, choice.get("stop_reason"))
        case _:
            raise UpstreamError("the engine's answer has a choice without token ids or finish reason")
    result = {**choice, "maskfeed": answer.as_member()}
    if reader.request.route == "/v1/completions":
        result["text"] = answer.text
    elif isinstance(choice.get("message"), dict):
        result["message"] = {**choice["message"], "content": answer.text}
        for name in ("reasoning", "reasoning_content"):
            if name in result["message"]:
                result["message"][name] = None
    else:
        raise UpstreamError("the engine's answer has a choice without message")
    return (result if reader.request.wants_token_ids else without_token_ids(result)), answer


def _begins_with_space(candidate_set: CandidateSet) -> bool:
    return bool((candidate_set.data[candidate_set.offsets[:-1]] == ord(" ")).any())
