"""Which request parameters can go with a candidate set: one table.

It knows names and values, neither HTTP nor vLLM, so that the gateway and the engine read the same rows. A name is that
of the HTTP field and, where vLLM passes it on, of the attribute of its `SamplingParams`. Invariant: each parameter of
vLLM 0.32's chat and completion requests and of its `SamplingParams` has exactly one row, allowed or not; a test
compares the table with vLLM's own sources, so that a parameter that a new release adds is noticed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal

from maskfeed_automata.errors import ParameterError

__all__ = ["RULES", "ParameterRule", "Place", "check_sampling_parameters", "rule_broken_by"]


class Place(StrEnum):
    """Where a parameter is seen."""

    GATEWAY = "gateway"
    # the processor's hook in vLLM's API server, before the engine sees the request
    VALIDATE_PARAMS = "validate-params"
    # the moment the request enters the batch, when vLLM has merged the model's own stop ids in
    REFUSED_SLOT = "refused-slot"


@dataclass(frozen=True, slots=True)
class ParameterRule:
    """One row."""

    name: str
    verdict: Literal["allow", "reject"]
    # where a rejected value is caught, first place first; empty for allowed parameters
    seen_at: tuple[Place, ...]
    reason: str
    # values of a rejected parameter that leave masks alone; None (absent) is always among them
    harmless: tuple[object, ...] = (None,)
    # whether the value can only be judged against the vocabulary
    needs_vocabulary: bool = False

    def is_broken_by(self, value: object) -> bool:
        """Whether `value` can't go with a candidate set, as far as that can be told without a vocabulary."""
        return self.verdict == "reject" and not self.needs_vocabulary and value not in self.harmless

    def refusal(self) -> ParameterError:
        """The error that names this parameter."""
        return ParameterError(f"`{self.name}` can't go with a candidate set: {self.reason}", field=self.name)


def _reject(
    name: str, reason: str, *harmless: object, seen_at: tuple[Place, ...], needs_vocabulary: bool = False
) -> ParameterRule:
    return ParameterRule(name, "reject", seen_at, reason, (None, *harmless), needs_vocabulary)


def _allow(reason: str, *names: str) -> tuple[ParameterRule, ...]:
    return tuple(ParameterRule(name, "allow", (), reason) for name in names)


_BOTH: Final = (Place.GATEWAY, Place.VALIDATE_PARAMS)
_HTTP: Final = (Place.GATEWAY,)

_ROWS: Final[tuple[ParameterRule, ...]] = (
    _reject("min_tokens", "it forbids stop ids where nothing else is permitted", 0, seen_at=_BOTH),
    _reject("ignore_eos", "a finished candidate would not end the answer", False, seen_at=_BOTH),
    _reject("allowed_token_ids", "it may forbid every token that the set permits", [], seen_at=_BOTH),
    _reject("bad_words", "it may forbid every token that the set permits", [], seen_at=_BOTH),
    _reject("logit_bias", "it may forbid every token that the set permits", {}, seen_at=_BOTH),
    _reject("structured_outputs", "it is a second constraint on the same tokens", seen_at=_BOTH),
    _reject("thinking_token_budget", "it forces tokens past the mask", -1, seen_at=_BOTH),
    _reject("trace_decode_token_ids", "it forces tokens past the mask", [], seen_at=_BOTH),
    _reject("use_beam_search", "beams are scored without the mask", False, seen_at=_HTTP),
    _reject("best_of", "vLLM ignores it; use `n`", 1, seen_at=_HTTP),
    _reject("echo", "the answer would begin with the prompt", False, seen_at=_HTTP),
    _reject(
        "response_format", "it is a second constraint on the same tokens", {"type": "text"}, seen_at=_HTTP
    ),  # the engine sees it as structured_outputs
    _reject("tools", "an answer is a candidate, never a tool call", [], seen_at=_HTTP),
    _reject("tool_choice", "an answer is a candidate, never a tool call", "none", seen_at=_HTTP),
    _reject("functions", "an answer is a candidate, never a function call", [], seen_at=_HTTP),
    _reject("function_call", "an answer is a candidate, never a function call", "none", seen_at=_HTTP),
    _reject(
        "stop_token_ids",
        "a token of text among them would cut candidates, and the reserved id marks refusals",
        seen_at=(Place.GATEWAY, Place.REFUSED_SLOT),
        needs_vocabulary=True,
    ),
    *_allow(
        "shapes the prompt only",
        *("messages", "prompt", "prompt_embeds", "suffix", "documents", "chat_template", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message", "add_special_tokens", "reasoning_effort"),
        *("truncate_prompt_tokens", "truncation_side", "media_io_kwargs", "mm_processor_kwargs"),
    ),
    *_allow(
        "weighs permitted tokens; one that is forbidden stays forbidden",
        *("temperature", "top_p", "top_k", "min_p", "seed", "watermarking"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    ),
    *_allow("each answer has its own mask", "n"),
    *_allow(
        "may cut the answer, which then says that it is not complete",
        *("max_tokens", "max_completion_tokens", "stop", "repetition_detection"),
    ),
    *_allow(
        "changes the engine's text only; the answer's text is built from token ids",
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "detokenize"),
        *("include_reasoning", "output_kind", "output_text_buffer_length"),
    ),
    *_allow(
        "reports figures of the tokens and changes none",
        *("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs", "prompt_logprob_token_ids"),
        *("prompt_logprob_start", "flat_logprobs", "return_tokens_as_token_ids", "return_token_ids"),
        *("return_token_offsets", "return_prompt_text", "routed_experts_prompt_start"),
    ),
    *_allow(
        "says how the answer travels, not what it is",
        *("stream", "stream_options", "stream_interval", "mm_payload", "return_mm_kwargs"),
    ),
    *_allow(
        "says for whom, where and when the request runs",
        *("model", "user", "priority", "request_id", "session_id", "cache_salt", "skip_reading_prefix_cache"),
        *("kv_transfer_params", "ec_transfer_params", "skip_clone"),
    ),
    *_allow("carries the handle", "vllm_xargs", "extra_args"),
    *_allow("has no effect without tools or beams", "parallel_tool_calls", "length_penalty"),
)

# by name, rejected ones first
RULES: Final[Mapping[str, ParameterRule]] = MappingProxyType({rule.name: rule for rule in _ROWS})
_CHECKED_AT: Final[Mapping[Place, tuple[ParameterRule, ...]]] = {
    place: tuple(rule for rule in _ROWS if place in rule.seen_at and not rule.needs_vocabulary) for place in Place
}


def rule_broken_by(get: Callable[[str], Any], place: Place) -> ParameterRule | None:
    """The first rule of `place` that a request breaks, or None.

    Args:
        get: name of a parameter -> its value, None when the request does not have it.
        place: where the request is looked at.
    """
    for rule in _CHECKED_AT[place]:
        if rule.is_broken_by(get(rule.name)):
            return rule
    return None


def check_sampling_parameters(get: Callable[[str], Any]) -> None:
    """Refuse sampling parameters of vLLM that can't go with a candidate set.

    Microseconds; called for each constrained request in vLLM's API server and again when it enters the batch.

    Args:
        get: name of an attribute of `SamplingParams` -> its value, None when this vLLM does not have it.

    Raises:
        ParameterError: a parameter that would make masks wrong. Context: `field`.
    """
    broken = rule_broken_by(get, Place.VALIDATE_PARAMS)
    if broken is not None:
        raise broken.refusal()
