"""The verdict on a request at the moment it enters the batch: a set, a refusal, or none of our business.

Runs in the decode thread: no network, no waiting, microseconds (except for inline candidates, which are compiled here).
Knows handles, held sets and stop ids; knows no batch and no tensor. Invariant: a request that carries our key ends as a
constraint or as a refusal, never as an unconstrained row.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from maskfeed_automata import Automaton, Vocabulary
from maskfeed_automata.errors import HandleError, MaskfeedError, ParameterError, SetRefused
from maskfeed_cache.handle import HANDLE_KEY, Handle
from maskfeed_workers.inline_sets import InlineRequest, InlineSets
from maskfeed_workers.parameters import check_sampling_parameters
from maskfeed_workers.slots import Constraint, Refusal

__all__ = ["Admission", "HeldSetsView", "check_request"]

_log = logging.getLogger(__name__)


class HeldSetsView(Protocol):
    """What admission needs of the held sets."""

    def acquire(self, artifact_hash: str, nonce: str, slot: int) -> Automaton | None:
        """Take a reference under the number `slot`; None when the set is not held."""
        ...

    def release(self, slot: int) -> None:
        """End the reference of `slot`."""
        ...


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
        held: sets that every rank holds; None offline, when only inline candidates are taken.
    """

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        logits_width: int,
        max_model_len: int,
        reserved_id: int,
        epoch: str,
        held: HeldSetsView | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._logits_width = logits_width
        self._reserved_id = reserved_id
        self._epoch = epoch
        self._held = held
        self._inline = InlineSets(vocabulary, max_model_len)
        self._n_references = 0

    def decide(self, sampling_params: Any) -> Constraint | Refusal | None:
        """The verdict on a request; None when it carries nothing of ours.

        Args:
            sampling_params: vLLM's SamplingParams, stop ids of the model merged in.
        """
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

    def _constrain(self, given: object, stop_ids: set[int], refusal: Refusal) -> Constraint:
        ends = tuple(sorted(i for i in stop_ids if i != self._reserved_id and i < self._vocabulary.size))
        if not ends:
            raise ParameterError("no stop id could end the answer", field="stop_token_ids")
        text = [i for i in ends if self._vocabulary.token_bytes(i) is not None]
        if text:
            raise ParameterError(
                f"stop_token_ids: {text[0]} is text and would cut candidates", field="stop_token_ids", value=text[0]
            )
        if isinstance(given, Mapping):
            if self._held is not None:
                raise HandleError("an engine with a feed takes handles, not inline candidates", field=HANDLE_KEY)
            return Constraint(self._inline.get(InlineRequest.from_mapping(given)), ends, refusal, _release_nothing)
        return self._acquire(Handle.from_text(given), ends, refusal)

    def _acquire(self, handle: Handle, ends: tuple[int, ...], refusal: Refusal) -> Constraint:
        held = self._held
        if held is None:
            raise HandleError("an engine without a feed takes inline candidates, not handles", field=HANDLE_KEY)
        if self._epoch not in handle.epochs or handle.reserved_id != self._reserved_id:
            raise SetRefused(
                f"the handle was made for another life of this engine, not {self._epoch}", stage="admission"
            )
        self._n_references += 1
        reference = self._n_references
        automaton = held.acquire(handle.artifact_hash, handle.nonce, reference)
        if automaton is None:
            raise SetRefused(f"set {handle.artifact_hash[:12]} is not held", stage="admission")
        return Constraint(automaton, ends, refusal, lambda: held.release(reference))


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
