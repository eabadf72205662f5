"""vLLM's V2 model runner: requests to slots on the device, and its batches to their masking.

The runner recycles slots without saying so, adds a preempted request again under another slot, calls `apply` for parts
of a batch, and has a row for each draft. None of this needs code here: a slot is overwritten when it is added, and a
row's mask is a function of the slot, its history and its drafts, computed on the device.

Which request gets which set is decided once in a step that adds one of ours, for all of them together, in the order in
which they were added: every rank does the same. Invariants: nothing waits for the device or copies to it in a step that
gives no slot to a request of ours and takes none from one (but for a set of inline candidates that had to leave the
device while its request waited); a row that can't be served as asked is refused, never left free.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from maskfeed_automata.errors import CapacityError
from maskfeed_cache.handle import HANDLE_KEY
from maskfeed_workers.device_layout import MAX_IDS
from maskfeed_workers.device_sets import DeviceSets, Place
from maskfeed_workers.device_slots import BatchRows, DeviceSlots, Histories
from maskfeed_workers.slots import Constraint, Refusal

__all__ = ["AdmissionView", "V2Processor"]

_log = logging.getLogger(__name__)


class AdmissionView(Protocol):
    """What decides on requests that enter the batch."""

    def decide(self, entering: Sequence[Any]) -> list[Constraint | Refusal | None]:
        """The verdict on each, called on every rank with the same requests."""
        ...


class V2Processor:
    """For the decode thread of one rank.

    Args:
        admission: of the engine.
        sets: on the device; what a feed brought is there already, other sets are brought when a request needs them.
        slots: as many as the runner has.
        req_states: vLLM's LogitsProcRequestState; only read.
    """

    def __init__(self, *, admission: AdmissionView, sets: DeviceSets, slots: DeviceSlots, req_states: Any) -> None:
        self._admission = admission
        self._sets = sets
        self._slots = slots
        self._states = req_states
        self._entering: dict[int, Any] = {}
        # what each slot is bound to, until it is added again
        self._bound: dict[int, Constraint] = {}
        # sets that no feed brought, and that may therefore be evicted here; least recently used first
        self._own: dict[str, None] = {}
        # slots of the last batch, whose sets stay; a batch can come in parts
        self._batch: NDArray[np.integer[Any]] = np.empty(0, np.int32)
        self._batch_is_over = True
        # slots whose set was evicted because they were not in the last batch
        self._displaced: set[int] = set()

    def add_request(self, slot: int, sampling_params: Any) -> bool:
        """Note a request; whatever the slot was bound to is over. Returns whether its rows will be masked."""
        self._displaced.discard(slot)
        if HANDLE_KEY in (sampling_params.extra_args or {}):
            self._entering[slot] = sampling_params
            return True
        self._entering.pop(slot, None)
        self._let_go(slot)
        self._slots.free(slot)
        return False

    def apply_staged_writes(self) -> None:
        """Decide on the requests that were added, and bring the outcome to the device."""
        if self._entering:
            verdicts = self._admission.decide(list(self._entering.values()))
            active = {*self._batch.tolist(), *self._entering}
            for slot, verdict in zip(self._entering, verdicts, strict=True):
                # The new reference was taken before the old one is given back: the same set stays.
                self._let_go(slot)
                self._enter(slot, verdict, active)
            self._entering.clear()
        self._slots.flush()
        self._batch_is_over = True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mask the rows of our requests, in place.

        Args:
            logits: float32 [n_rows, width]; returned.
            ctx: vLLM's LogitsContext of these rows.
        """
        slots = ctx.idx_mapping_np
        self._batch = slots if self._batch_is_over else np.concatenate((self._batch, slots))
        self._batch_is_over = False
        if not self._slots.any_ours(slots):
            return logits
        if self._displaced:
            self._bring_back(set(slots.tolist()))
        self._slots.mask_rows(
            logits,
            Histories(self._states.all_token_ids.gpu, self._states.total_len.gpu),
            BatchRows(ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids),
        )
        return logits

    def _enter(self, slot: int, verdict: Constraint | Refusal | None, active: set[int]) -> None:
        if isinstance(verdict, Constraint):
            self._bound[slot] = verdict
            self._bind(slot, verdict, active)
        elif verdict is not None:
            self._slots.refuse(slot, verdict.token_ids[:MAX_IDS])
        else:
            self._slots.free(slot)

    def _bind(self, slot: int, constraint: Constraint, active: set[int]) -> None:
        place = None
        if len(constraint.stop_token_ids) > MAX_IDS:
            _log.error("request refused: %d stop ids, at most %d", len(constraint.stop_token_ids), MAX_IDS)
        else:
            place = self._place(constraint, active)
        refusal_ids = constraint.refusal.token_ids[:MAX_IDS]
        if place is None:
            self._slots.refuse(slot, refusal_ids)
            return
        self._slots.bind(
            slot,
            place,
            start=int(self._states.prompt_len.np[slot]),
            stop_ids=constraint.stop_token_ids,
            refusal_ids=refusal_ids,
        )

    def _place(self, constraint: Constraint, active: set[int]) -> Place | None:
        """The set on the device, brought there if no feed has; None when those of `active` slots leave no room."""
        name = constraint.name
        if name in self._own:
            self._own[name] = self._own.pop(name)
        if (place := self._sets.find(name)) is not None:
            return place
        while True:
            try:
                place = self._sets.place(name, constraint.automaton)
            except CapacityError as error:
                if not self._evict_one(name, active):
                    _log.error("request refused: %s", error.message)
                    return None
            else:
                self._own[name] = None
                return place

    def _evict_one(self, for_name: str, active: set[int]) -> bool:
        """Evict a set of our own that no `active` slot uses; False if there is none."""
        in_use = {bound.name for slot, bound in self._bound.items() if slot in active} | {for_name}
        victim = next((name for name in self._own if name not in in_use), None)
        if victim is None:
            return False
        del self._own[victim]
        self._sets.evict(victim)
        self._displaced |= {slot for slot, bound in self._bound.items() if bound.name == victim}
        return True

    def _bring_back(self, present: set[int]) -> None:
        """Bind slots again that were thought idle, and are not: their position follows from their history."""
        for slot in sorted(self._displaced & present):
            self._displaced.discard(slot)
            self._bind(slot, self._bound[slot], present)
        self._slots.flush()

    def _let_go(self, slot: int) -> None:
        constraint = self._bound.pop(slot, None)
        if constraint is not None:
            constraint.release()
