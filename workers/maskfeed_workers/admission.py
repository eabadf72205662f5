"""The verdict on requests at the moment they enter the batch: a set, a refusal, or none of our business.

Runs in the decode thread: no network, no waiting, microseconds (except for inline candidates, which are compiled here).
Knows handles, stop ids and how ranks agree on sets; knows no batch and no tensor. Invariants: a request that carries
our key ends as a constraint or as a refusal, never as an unconstrained row; and the verdict is the same on all ranks,
because all of it but the sets' being held follows from the request alone.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maskfeed_automata import Automaton, Vocabulary
from maskfeed_automata.errors import HandleError, MaskfeedError, ParameterError, SetRefused
from maskfeed_cache.handle import HANDLE_KEY, Handle
from maskfeed_workers.agreement import Agreement, Wish
from maskfeed_workers.inline_sets import InlineRequest, InlineSets
from maskfeed_workers.parameters import check_sampling_parameters
from maskfeed_workers.slots import Constraint, Refusal

__all__ = ["Admission", "check_request"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanting:
    """A request of which all is right but that its set may not be held."""

    wish: Wish
    stop_token_ids: tuple[int, ...]
    refusal: Refusal


def check_request(extra_args: Mapping[str, Any] | None, sampling_params: Any) -> None:
    """What can be said of a request before any engine sees it (the API server calls this for each request).

    Raises:
        HandleError: the handle can't be read, or its reserved id is not among the request's stop_token_ids.
        ParameterError, CandidateError, LimitExceeded: a parameter or an inline candidate that can't be used.
    """
    for key in extra_args or ():
        if key != HANDLE_KEY and _is_near_miss(key):
            raise ParameterError(f"extra_args.{key} is not read; candidates go into extra_args.{HANDLE_KEY}", field=key)
    if not extra_args or HANDLE_KEY not in extra_args:
        return
    given = extra_args[HANDLE_KEY]
    check_sampling_parameters(lambda name: getattr(sampling_params, name, None))
    if isinstance(given, Mapping):
        InlineRequest.from_mapping(given)
        return
    handle = Handle.from_text(given)
    if handle.reserved_id not in (sampling_params.stop_token_ids or ()):
        raise HandleError(
            f"stop_token_ids must hold the handle's reserved id {handle.reserved_id}", field="stop_token_ids"
        )


class Admission:
    """Decides for one engine.

    Args:
        vocabulary: as the masks use it.
        logits_width: ids at or above it can't be sampled.
        max_model_len: the engine's context in tokens.
        reserved_id: this engine's.
        epoch: this life of the engine.
        agreement: which sets all ranks hold; None offline, when only inline candidates are taken.
    """

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        logits_width: int,
        max_model_len: int,
        reserved_id: int,
        epoch: str,
        agreement: Agreement | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._logits_width = logits_width
        self._reserved_id = reserved_id
        self._epoch = epoch
        self._agreement = agreement
        self._inline = InlineSets(vocabulary, max_model_len)
        self._n_references = 0

    def decide(self, entering: Sequence[Any]) -> list[Constraint | Refusal | None]:
        """The verdict on each request that enters in this step; None for one that carries nothing of ours.

        The ranks talk to each other if, and only if, one of the requests waits for their word.

        Args:
            entering: vLLM's SamplingParams of each, stop ids of the model merged in; the same on all ranks.
        """
        read = [self._read(sampling_params) for sampling_params in entering]
        wanting = [verdict for verdict in read if isinstance(verdict, _Wanting)]
        if not wanting:
            return [verdict for verdict in read if not isinstance(verdict, _Wanting)]
        assert self._agreement is not None
        found = iter(self._agreement.settle([verdict.wish for verdict in wanting]))
        return [self._bind(verdict, next(found)) if isinstance(verdict, _Wanting) else verdict for verdict in read]

    def _read(self, sampling_params: Any) -> Constraint | Refusal | _Wanting | None:
        extra_args = sampling_params.extra_args or {}
        if HANDLE_KEY not in extra_args:
            return None
        # present but null is a request that wanted a set: it is refused like any other thing that is no handle
        given = extra_args[HANDLE_KEY]
        # an id that can't be sampled can't end anything
        stop_ids = {int(i) for i in sampling_params.all_stop_token_ids if 0 <= i < self._logits_width}
        refusal = self._refusal(given, stop_ids)
        try:
            check_sampling_parameters(lambda name: getattr(sampling_params, name, None))
            return self._constrain(given, stop_ids, refusal)
        except MaskfeedError as error:
            _log.error("request refused: %s (%s), %s", error.code, error.message, _name_of(given))
            return refusal

    def _refusal(self, given: object, stop_ids: Collection[int]) -> Refusal:
        try:
            reserved = Handle.from_text(given).reserved_id
        except HandleError:
            reserved = self._reserved_id
        if reserved in stop_ids:
            return Refusal((reserved,))
        # Inline candidates carry no reserved id. An end without a single token of text is no candidate either.
        return Refusal(tuple(sorted(stop_ids)) or (self._reserved_id,))

    def _constrain(self, given: object, stop_ids: set[int], refusal: Refusal) -> Constraint | _Wanting:
        ends = tuple(sorted(i for i in stop_ids if i != self._reserved_id and i < self._vocabulary.size))
        if not ends:
            raise ParameterError("no stop id could end the answer", field="stop_token_ids")
        text = [i for i in ends if self._vocabulary.token_bytes(i) is not None]
        if text:
            raise ParameterError(
                f"stop_token_ids: {text[0]} is text and would cut candidates", field="stop_token_ids", value=text[0]
            )
        if isinstance(given, Mapping):
            if self._agreement is not None:
                raise HandleError("an engine with a feed takes handles, not inline candidates", field=HANDLE_KEY)
            automaton = self._inline.get(InlineRequest.from_mapping(given))
            return Constraint(automaton, automaton.digest, ends, refusal, _release_nothing)
        return self._want(Handle.from_text(given), ends, refusal)

    def _want(self, handle: Handle, ends: tuple[int, ...], refusal: Refusal) -> _Wanting:
        if self._agreement is None:
            raise HandleError("an engine without a feed takes inline candidates, not handles", field=HANDLE_KEY)
        if self._epoch not in handle.epochs or handle.reserved_id != self._reserved_id:
            raise SetRefused(
                f"the handle was made for another life of this engine, not {self._epoch}", stage="admission"
            )
        self._n_references += 1
        return _Wanting(Wish(handle.artifact_hash, handle.nonce, self._n_references), ends, refusal)

    def _bind(self, wanting: _Wanting, automaton: Automaton | None) -> Constraint | Refusal:
        wish, agreement = wanting.wish, self._agreement
        if automaton is None or agreement is None:
            _log.error("request refused: set %s is not held, nonce %s", wish.artifact_hash[:12], wish.nonce)
            return wanting.refusal
        return Constraint(
            automaton,
            wish.artifact_hash,
            wanting.stop_token_ids,
            wanting.refusal,
            lambda: agreement.release(wish.reference),
        )


def _name_of(given: object) -> str:
    """How the gateway's log and the engine's can be laid side by side; never a candidate."""
    try:
        return f"nonce {Handle.from_text(given).nonce}"
    except HandleError:
        return "no handle"


def _is_near_miss(key: str) -> bool:
    """Whether somebody who wrote `key` meant ours: it would be ignored, and the answer free."""
    return key.replace("_", "").replace("-", "").lower() in (HANDLE_KEY, "candidates", "candidate")


def _release_nothing() -> None:
    """Inline sets are owned by their cache, not by rows."""
