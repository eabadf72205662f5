"""A stream of server-sent events, taken apart and rewritten for the client.

Text deltas are built from the sampled tokens' bytes, not from the engine's text. It knows chunks of vLLM's two routes,
no network and no event loop. Invariants: the text that a choice has streamed is at every moment a beginning of its
final text, and at its end equal to it; the bytes of a stop id are never text; a stream that can't be finished as a
checked answer ends in an error event, never in silence.
"""

import codecs
import re
from typing import Any, Final

import msgspec

from maskfeed.service.answers import Answer, AnswerReader, Figures, sampled_ids, without_token_ids
from maskfeed.service.problems import error_object, refusal_object
from maskfeed.service.requests import ConstrainedRequest
from maskfeed_automata import CandidateSet, Vocabulary
from maskfeed_automata.errors import InternalInvariant, MaskfeedError, UpstreamError
from maskfeed_cache.feed_messages import EngineRecord

__all__ = ["DONE", "SseSplitter", "StreamRewriter", "frame"]

DONE: Final = b"[DONE]"
_MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def frame(payload: bytes) -> bytes:
    """One event; `payload` has no line breaks."""
    return b"data: " + payload + b"\n\n"


class SseSplitter:
    """Cuts a byte stream into the data of its events, wherever the chunks happen to end.

    Args:
        max_event_bytes: bound on what is kept of one unfinished event.
    """

    def __init__(self, *, max_event_bytes: int = _MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._n_bytes = 0
        self._ended_in_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes.

        Returns:
            The data of each event that is complete now. Comments and other fields are dropped.

        Raises:
            UpstreamError: an event is larger than the bound.
        """
        if self._ended_in_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._ended_in_cr = False
        if chunk:
            self._ended_in_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        events = []
        for line in lines:
            self._keep(line)
            if (event := self._end_line()) is not None:
                events.append(event)
        self._keep(rest)
        return events

    def _keep(self, piece: bytes) -> None:
        self._n_bytes += len(piece)
        if self._n_bytes > self._max_event_bytes:
            raise UpstreamError(
                f"the engine sent an event of more than {self._max_event_bytes} bytes", limit=self._max_event_bytes
            )
        self._line += piece

    def _end_line(self) -> bytes | None:
        line, self._line = bytes(self._line), bytearray()
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if line:
            return None
        data, self._data, self._n_bytes = self._data, [], 0
        return b"\n".join(data) if data else None


class _Choice:
    """The text of one choice while it grows."""

    def __init__(self, reader: AnswerReader) -> None:
        self.finished = False
        self._reader = reader
        self._token_ids: list[int] = []
        # bytes that wait until it is known whether they begin with a space of ours
        self._undecided = b""
        self._begun = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._n_sent = 0
        # characters that may be the beginning of a stop string, which is no text; vLLM holds back as many
        self._n_held = reader.longest_stop_string - 1

    def grow(self, token_ids: list[int]) -> str:
        """Take sampled tokens of an unfinished choice; return the text that is certain now."""
        self._token_ids += token_ids
        self._undecided += self._reader.text_bytes(token_ids)
        if not self._begun and self._undecided:
            n_skipped = self._reader.n_bytes_before_text(self._undecided)
            if n_skipped is None:
                return ""
            self._undecided = self._undecided[n_skipped:]
            self._begun = True
        self._text += self._decode(self._undecided)
        self._undecided = b""
        return self._send(len(self._text) - self._n_held)

    def finish(self, token_ids: list[int], finish_reason: str, stop_reason: int | str | None) -> tuple[str, Answer]:
        """Take the last tokens; return the rest of the text and the answer."""
        self._token_ids += token_ids
        answer = self._reader.read(self._token_ids, finish_reason, stop_reason)
        if answer.complete and not answer.text.startswith(self._text[: self._n_sent]):
            raise InternalInvariant("a stream's text is no beginning of its candidate", stage="answer")
        self._text = answer.text
        self.finished = True
        return self._send(len(self._text)), answer

    def _send(self, end: int) -> str:
        begin, self._n_sent = self._n_sent, max(self._n_sent, end)
        return self._text[begin : self._n_sent]


class StreamRewriter:
    """Rewrites the events of one response.

    Args:
        request: as parsed.
        candidate_set: built from the request's values.
        vocabulary: the engine's.
        record: the engine's.
        figures: merged into the object `maskfeed` of a chunk with a finish reason.
        request_id: repeated in error events.
    """

    def __init__(
        self,
        request: ConstrainedRequest,
        candidate_set: CandidateSet,
        vocabulary: Vocabulary,
        record: EngineRecord,
        figures: Figures,
        *,
        request_id: str | None = None,
    ) -> None:
        self._request = request
        self._reader = AnswerReader(request, candidate_set, vocabulary, record, figures)
        self._request_id = request_id
        self._choices = [_Choice(self._reader) for _ in range(request.n)]
        self._closed = False
        # what the stream ended with, None while all is well
        self.failure: MaskfeedError | None = None

    def feed(self, event: bytes) -> list[bytes]:
        """Take the data of one event.

        Returns:
            The data of the events for the client, in order. After an error event and `[DONE]` always empty. Raises
            nothing: a failure is an event, and `failure`.
        """
        if self._closed:
            return []
        if event == DONE:
            return self.end()
        try:
            chunk = _read_chunk(event)
            if "error" in chunk:
                return self._pass_failure(chunk["error"])
            return [msgspec.json.encode(self._rewrite(chunk))]
        except MaskfeedError as error:
            return self.fail(error)

    def end(self) -> list[bytes]:
        """The engine's stream is over, with `[DONE]` or without. Idempotent."""
        if self._closed:
            return []
        if not all(choice.finished for choice in self._choices):
            return self.fail(UpstreamError("the engine's stream ended before the answer did", stage="answer"))
        self._closed = True
        return [DONE]

    def fail(self, error: MaskfeedError) -> list[bytes]:
        """End the client's stream with an error event. After an end, empty."""
        if self._closed:
            return []
        self._closed = True
        self.failure = error
        return [msgspec.json.encode(error_object(error, self._request_id)), DONE]

    def _pass_failure(self, problem: object) -> list[bytes]:
        """The engine's own error event, whose code is an HTTP status."""
        status = problem.get("code") if isinstance(problem, dict) else None
        refusal = refusal_object(problem, status, self._request_id)
        self._closed = True
        self.failure = UpstreamError(refusal["error"]["message"], stage="answer")
        return [msgspec.json.encode(refusal), DONE]

    def _rewrite(self, chunk: dict[str, Any]) -> dict[str, Any]:
        choices = [self._rewrite_choice(choice) for choice in chunk["choices"]]
        result = {**chunk, "choices": [choice for choice, _ in choices]}
        answers = [answer for _, answer in choices if answer is not None]
        if answers:
            result["maskfeed"] = self._reader.summary(answers[0])
        return result if self._request.wants_token_ids else without_token_ids(result)

    def _rewrite_choice(self, choice: Any) -> tuple[dict[str, Any], Answer | None]:
        state = self._state_of(choice)
        delta, token_ids = choice.get("delta") or {}, choice.get("token_ids")
        finish_reason = choice.get("finish_reason")
        if token_ids is None and finish_reason is None and not choice.get("text") and not delta.get("content"):
            token_ids = []  # the first chunk of a chat only names the role
        token_ids = sampled_ids(token_ids)
        result = dict(choice)
        answer = None
        if finish_reason is None:
            text = state.grow(token_ids)
        else:
            text, answer = state.finish(token_ids, finish_reason, choice.get("stop_reason"))
            result["maskfeed"] = answer.as_member()
        if self._request.route == "/v1/completions":
            result["text"] = text
        else:
            kept = {name: value for name, value in delta.items() if name not in ("reasoning", "reasoning_content")}
            result["delta"] = {**kept, "content": text}
        return (result if self._request.wants_token_ids else without_token_ids(result)), answer

    def _state_of(self, choice: Any) -> _Choice:
        if not isinstance(choice, dict) or not isinstance(choice.get("delta") or {}, dict):
            raise UpstreamError("the engine sent a choice of an unknown shape", stage="answer")
        index = choice.get("index")
        if not isinstance(index, int) or not 0 <= index < len(self._choices) or self._choices[index].finished:
            raise UpstreamError("the engine sent a choice that was not asked for, or that was over", stage="answer")
        return self._choices[index]


def _read_chunk(event: bytes) -> dict[str, Any]:
    try:
        chunk = msgspec.json.decode(event, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamError("the engine sent an event that is no JSON object", stage="answer") from error
    if "error" not in chunk and not isinstance(chunk.get("choices"), list):
        raise UpstreamError("the engine sent a chunk without choices", stage="answer")
    return chunk
