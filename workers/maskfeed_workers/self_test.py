"""One request, one refusal and one stranger through the real processor, before the engine goes live.

It runs the very methods that vLLM calls, with vLLM's own batch updates and sampling parameters and with this model's
vocabulary, and compares each mask with brute force over the whole vocabulary. It also makes every kernel compile before
the first request needs it. Invariant: an engine whose masks are wrong for any reason (another vLLM, another numba, a
tokenizer read wrongly) does not start.
"""

from typing import Any, Final

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import EngineUnsupported
from maskfeed_cache.handle import HANDLE_KEY, PROBE, Handle
from maskfeed_workers.engine_start import Engine

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
    text = engine.epoch.encode()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((_N_ROWS, engine.logits_width), generator=generator).to(device)
    answer: list[int] = []
    added = [
        (0, _parameters(engine, None), [0], []),
        (1, _parameters(engine, _extra_args(engine, engine.epoch)), [0], answer),
        (2, _parameters(engine, _extra_args(engine, "0" * len(engine.epoch))), [0], []),
    ]
    processor.update_state(BatchUpdate(batch_size=_N_ROWS, removed=[], added=added, moved=[]))
    ours = 1
    for _ in range(len(text) + 1):
        masked = processor.apply(logits.clone())
        spelled = engine.vocabulary.text_bytes(answer)
        expected = _allowed(engine.vocabulary, text, spelled, engine.stop_token_ids)
        _compare(masked[ours], logits[ours], expected, "a mask differs from brute force")
        _compare(masked[0], logits[0], set(range(engine.logits_width)), "a row without a set was touched")
        if spelled == text:
            break
        answer.append(int(masked[ours].argmax()))
        if ours == 1:  # from here on in the refused row's place, as the engine moves rows when others end
            ours = 2
            processor.update_state(BatchUpdate(_N_ROWS, [], [], [(1, 2, MoveDirectionality.SWAP)]))
            refused = set(torch.nonzero(torch.isfinite(processor.apply(logits.clone())[1])).flatten().tolist())
            _expect(len(refused) == 1 or engine.feed is None, "a refused row permits more than the reserved id")
            _expect(refused <= {engine.reserved_id, *engine.stop_token_ids}, "a refused row permits text")
    _expect(engine.vocabulary.text_bytes(answer) == text, "the walk did not end at the candidate")
    processor.update_state(BatchUpdate(batch_size=0, removed=[0, 1, 2], added=[], moved=[]))


def _parameters(engine: Engine, extra_args: dict[str, Any] | None) -> SamplingParams:
    return SamplingParams(stop_token_ids=[*engine.stop_token_ids, engine.reserved_id], extra_args=extra_args)


def _extra_args(engine: Engine, epoch: str) -> dict[str, Any]:
    if engine.feed is None:  # offline there are no handles; an empty list is what gets refused
        return {HANDLE_KEY: {"candidates": [epoch] if epoch == engine.epoch else []}}
    return {HANDLE_KEY: Handle(PROBE, (epoch,), engine.reserved_id, "0" * 32).to_text()}


def _allowed(vocabulary: Vocabulary, text: bytes, spelled: bytes, stop_ids: tuple[int, ...]) -> set[int]:
    if spelled == text:
        return set(stop_ids)
    rest = text[len(spelled) :]
    return {i for i in range(vocabulary.size) if (token := vocabulary.token_bytes(i)) and rest.startswith(token)}


def _compare(masked: torch.Tensor, before: torch.Tensor, expected: set[int], complaint: str) -> None:
    finite = torch.isfinite(masked)
    _expect(set(torch.nonzero(finite).flatten().tolist()) == expected, complaint)
    _expect(torch.equal(masked[finite], before[finite]), complaint)


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise EngineUnsupported(f"self-test: {complaint}", stage="self-test")
