"""From a started engine to a V2 processor that has proven itself.

It runs one request, one refusal and one stranger through a processor of the same parts, over made-up request states,
and compares each mask with brute force over the whole vocabulary. That also makes both kernels compile before the first
request needs them. Invariant: an engine whose masks are wrong for any reason (another vLLM, another Triton, a tokenizer
read wrongly) does not start.
"""

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from maskfeed_workers.device_slots import DeviceSlots
from maskfeed_workers.device_vocabulary import DeviceVocabulary
from maskfeed_workers.engine_start import Engine
from maskfeed_workers.mask_trial import MaskTrial, expect
from maskfeed_workers.v2_processor import V2Processor

__all__ = ["MadeUpStates", "start_v2"]

_STRANGER: Final = 0
_OURS: Final = 1
_REFUSED: Final = 2
_N_SLOTS: Final = 3
_N_ROWS: Final = 4


def start_v2(engine: Engine, req_states: Any) -> V2Processor:
    """The processor of this engine.

    Args:
        engine: with sets on the device; its probe set is held.
        req_states: the runner's LogitsProcRequestState; kept, only read.

    Raises:
        EngineUnsupported: a mask differed from brute force, a row that is not ours was touched, or the runner's logits
            have another width.
    """
    expect(
        req_states.vocab_size == engine.logits_width, "the runner's logits are not as wide as the model's vocabulary"
    )
    vocabulary = DeviceVocabulary.of(engine.vocabulary, req_states.device)
    _prove(engine, vocabulary, req_states.device)
    return _processor(engine, vocabulary, req_states)


def _processor(engine: Engine, vocabulary: DeviceVocabulary, req_states: Any) -> V2Processor:
    sets = engine.device_sets
    assert sets is not None
    slots = DeviceSlots(
        n_slots=req_states.max_num_reqs,
        logits_width=engine.logits_width,
        sets=sets,
        vocabulary=vocabulary,
        device=req_states.device,
    )
    return V2Processor(admission=engine.admission, sets=sets, slots=slots, req_states=req_states)


def _prove(engine: Engine, vocabulary: DeviceVocabulary, device: torch.device) -> None:
    """Walk the engine's own epoch, token by token, each token first as a draft and then as one that was accepted."""
    trial = MaskTrial.of(engine)
    states = MadeUpStates(device, len(trial.text) + 2)
    processor = _processor(engine, vocabulary, states)
    for slot, parameters in ((_STRANGER, trial.stranger), (_OURS, trial.ours), (_REFUSED, trial.refused)):
        processor.add_request(slot, parameters)
    processor.apply_staged_writes()
    logits = torch.randn((_N_ROWS, engine.logits_width), generator=torch.Generator().manual_seed(0)).to(device)
    answer: list[int] = []
    while not trial.is_complete(answer):
        draft = min(trial.allowed(answer))
        masked = processor.apply(logits.clone(), states.context(draft))
        trial.check_stranger(masked[0], logits[0])
        trial.check_ours(masked[1], logits[1], answer)
        trial.check_ours(masked[2], logits[2], [*answer, draft])
        trial.check_refused(masked[3])
        answer.append(draft)
        states.accept(_OURS, draft)
    for slot in range(_N_SLOTS):  # give back what the requests refer to
        processor.add_request(slot, trial.stranger)


class MadeUpStates:
    """Request states of three slots with one prompt token each, and batches over them.

    Their tensors have the runner's own types, so that the kernels are compiled as the first request needs them.
    """

    def __init__(self, device: torch.device, max_len: int) -> None:
        self.device = device
        self.max_num_reqs = _N_SLOTS
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros((_N_SLOTS, max_len), dtype=torch.int32, device=device))
        self.total_len = SimpleNamespace(gpu=torch.ones(_N_SLOTS, dtype=torch.int32, device=device))
        self.prompt_len = SimpleNamespace(np=np.ones(_N_SLOTS, np.int32))

    def accept(self, slot: int, token: int) -> None:
        """The slot's history gains a token."""
        self.all_token_ids.gpu[slot, int(self.total_len.gpu[slot])] = token
        self.total_len.gpu[slot] += 1

    def context(self, draft: int) -> SimpleNamespace:
        """Four rows: the stranger's, ours, ours after a draft, and the refused one."""

        def column(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        return SimpleNamespace(
            idx_mapping_np=np.arange(_N_SLOTS, dtype=np.intp),
            expanded_idx_mapping=column(_STRANGER, _OURS, _OURS, _REFUSED, dtype=torch.int64),
            expanded_local_pos=column(0, 0, 1, 0),
            input_ids=column(0, 0, draft, 0),
        )
