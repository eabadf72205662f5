"""What an engine's self-test asks of a processor, whatever the runner: three requests, and what their masks must be.

The candidate is the engine's own epoch, which the engine holds before any gateway knows of it. It knows no batch and
no runner. Invariant: what it expects comes from brute force over the whole vocabulary, not from an automaton.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from vllm.sampling_params import SamplingParams

from maskfeed_automata.errors import EngineUnsupported
from maskfeed_cache.handle import HANDLE_KEY, PROBE, Handle
from maskfeed_workers.engine_start import Engine

__all__ = ["MaskTrial", "expect"]


@dataclass(frozen=True, slots=True)
class MaskTrial:
    """Sampling parameters of the three requests, and checks of their rows; a failed one raises EngineUnsupported."""

    engine: Engine
    # the one candidate of `ours`
    text: bytes
    ours: SamplingParams
    refused: SamplingParams
    stranger: SamplingParams

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """The trial of an engine that is not live yet."""

        def parameters(extra_args: dict[str, Any] | None) -> SamplingParams:
            return SamplingParams(stop_token_ids=[*engine.stop_token_ids, engine.reserved_id], extra_args=extra_args)

        return cls(
            engine,
            engine.epoch.encode(),
            parameters(_extra_args(engine, engine.epoch)),
            parameters(_extra_args(engine, "0" * len(engine.epoch))),
            parameters(None),
        )

    def is_complete(self, answer: list[int]) -> bool:
        """Whether the tokens spell the candidate."""
        return self.engine.vocabulary.text_bytes(answer) == self.text

    def allowed(self, answer: list[int]) -> set[int]:
        """Ids that may follow these tokens."""
        vocabulary = self.engine.vocabulary
        spelled = vocabulary.text_bytes(answer)
        if spelled == self.text:
            return set(self.engine.stop_token_ids)
        rest = self.text[len(spelled) :]
        return {i for i in range(vocabulary.size) if (token := vocabulary.token_bytes(i)) and rest.startswith(token)}

    def check_ours(self, masked: torch.Tensor, before: torch.Tensor, answer: list[int]) -> None:
        """A row of `ours` after these tokens: exactly the allowed entries are left, with their bits."""
        self._check(masked, before, self.allowed(answer), "a mask differs from brute force")

    def check_stranger(self, masked: torch.Tensor, before: torch.Tensor) -> None:
        """A row of `stranger`: as it was."""
        self._check(masked, before, set(range(self.engine.logits_width)), "a row without a set was touched")

    def check_refused(self, masked: torch.Tensor) -> None:
        """A row of `refused`: no text, and with a feed nothing but the reserved id."""
        ids = _finite(masked)
        expect(len(ids) == 1 or self.engine.feed is None, "a refused row permits more than the reserved id")
        expect(len(ids) > 0 and ids <= {self.engine.reserved_id, *self.engine.stop_token_ids}, "a refused row has text")

    def _check(self, masked: torch.Tensor, before: torch.Tensor, expected: set[int], complaint: str) -> None:
        finite = torch.isfinite(masked)
        expect(_finite(masked) == expected, complaint)
        expect(torch.equal(masked[finite], before[finite]), complaint)


def expect(holds: bool, complaint: str) -> None:
    """Raise EngineUnsupported if something does not hold."""
    if not holds:
        raise EngineUnsupported(f"self-test: {complaint}", stage="self-test")


def _finite(row: torch.Tensor) -> set[int]:
    return set(torch.nonzero(torch.isfinite(row)).flatten().tolist())


def _extra_args(engine: Engine, epoch: str) -> dict[str, Any]:
    if engine.feed is None:  # offline there are no handles; an empty list is what gets refused
        return {HANDLE_KEY: {"candidates": [epoch] if epoch == engine.epoch else []}}
    return {HANDLE_KEY: Handle(PROBE, (epoch,), engine.reserved_id, "0" * 32).to_text()}
