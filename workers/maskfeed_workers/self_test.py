"""One request, one refusal and one stranger through the real processor, before the engine goes live.

It runs the very methods that vLLM calls, with vLLM's own batch updates and sampling parameters and with this model's
vocabulary, and compares each mask with brute force over the whole vocabulary. It also makes every kernel compile before
the first request needs it. Invariant: an engine whose masks are wrong for any reason (another vLLM, another numba, a
tokenizer read wrongly) does not start.
"""

from typing import Final

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from maskfeed_workers.engine_start import Engine
from maskfeed_workers.mask_trial import MaskTrial, expect

__all__ = ["self_test"]

_N_ROWS: Final = 3


def self_test(processor: LogitsProcessor, engine: Engine, device: torch.device) -> None:
    """Walk the engine's own epoch, token by token, as a constrained answer.

    Args:
        processor: newly built; its table is empty again afterwards.
        engine: of the processor; its probe set is held.
        device: where logits will live.

    Raises:
        EngineUnsupported: a mask differed from brute force, or a row that is not ours was touched.
    """
    trial = MaskTrial.of(engine)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((_N_ROWS, engine.logits_width), generator=generator).to(device)
    answer: list[int] = []
    added = [(0, trial.stranger, [0], []), (1, trial.ours, [0], answer), (2, trial.refused, [0], [])]
    processor.update_state(BatchUpdate(batch_size=_N_ROWS, removed=[], added=added, moved=[]))
    ours = 1
    for _ in range(len(trial.text) + 1):
        masked = processor.apply(logits.clone())
        trial.check_ours(masked[ours], logits[ours], answer)
        trial.check_stranger(masked[0], logits[0])
        if trial.is_complete(answer):
            break
        answer.append(int(masked[ours].argmax()))
        if ours == 1:  # from here on in the refused row's place, as the engine moves rows when others end
            ours = 2
            processor.update_state(BatchUpdate(_N_ROWS, [], [], [(1, 2, MoveDirectionality.SWAP)]))
            trial.check_refused(processor.apply(logits.clone())[1])
    expect(trial.is_complete(answer), "the walk did not end at the candidate")
    processor.update_state(BatchUpdate(batch_size=0, removed=[0, 1, 2], added=[], moved=[]))
