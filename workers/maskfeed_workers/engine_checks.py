"""Under which vLLM, and under which of its settings, a mask can be trusted.

Looks only at the configuration, before anything is built. It knows vLLM's names but imports nothing of it. Invariant:
what is not known to be right is refused at start; nothing is found out by a wrong answer.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from maskfeed_automata.errors import EngineUnsupported

__all__ = ["TESTED_VERSIONS", "Runner", "check_configuration", "check_version"]

Runner = Literal["v1", "v2"]

# Release series against which the suite runs a real engine.
TESTED_VERSIONS: Final = ("0.32",)
# How a model may not be spread over ranks, and why. Tensor and data parallelism are free.
_SIZES_OF_ONE: Final = {
    "pipeline_parallel_size": "stages work on different batches at one time, so ranks can't agree in step order",
    "prefill_context_parallel_size": "ranks outside the tensor-parallel group share requests, which has not been tried",
}
# What of a model's configuration samples tokens in another way than from masked logits.
_FORBIDDEN_FOR_MODELS: Final = {
    "is_diffusion": "a diffusion model fills in its tokens in no order, with a sampler that calls no processor",
    "enable_trace_replay": "tokens would come from the trace, whatever the mask; start without it",
}


def check_version(version: str) -> None:
    """Refuse a vLLM whose processor interface has not been tried.

    Raises:
        EngineUnsupported: the release series is not in TESTED_VERSIONS.
    """
    series = ".".join(version.split(".")[:2])
    if series not in TESTED_VERSIONS:
        raise EngineUnsupported(
            f"vLLM {version} is not one of the tested series {', '.join(TESTED_VERSIONS)}", field="vllm", value=version
        )


def check_configuration(vllm_config: Any, cls: type, runner: Runner) -> None:
    """Refuse a configuration under which the processor would be blind, or ranks could differ.

    Args:
        vllm_config: vLLM's VllmConfig.
        cls: the processor class, given to `--logits-processors` by its name or (offline) as it is.
        runner: the model runner that constructs the processor.

    Raises:
        EngineUnsupported: names the setting in `field`.
    """
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    for field, reason in _SIZES_OF_ONE.items():
        size = getattr(parallel, field)
        if size != 1:
            raise EngineUnsupported(f"{field}={size}: {reason}; start with {field}=1", field=field, limit=1, value=size)
    if parallel.distributed_executor_backend == "external_launcher":
        raise EngineUnsupported(
            "under external_launcher each rank has a scheduler of its own, which has not been tried; "
            "start with distributed_executor_backend mp or ray",
            field="distributed_executor_backend",
        )
    speculative = vllm_config.speculative_config
    if speculative is not None and runner == "v1":
        raise EngineUnsupported(
            "the V1 model runner drafts tokens past the mask; start without speculative_config",
            field="speculative_config",
        )
    if speculative is not None and speculative.enable_adaptive_verification:
        raise EngineUnsupported(
            "adaptive verification leaves out rows of drafts, which has not been tried; start without it",
            field="enable_adaptive_verification",
        )
    if speculative is not None and (method := speculative.rejection_sample_method) != "standard":
        raise EngineUnsupported(
            f"the rejection method {method} can accept a draft to which the mask leaves no probability; "
            "start with rejection_sample_method=standard",
            field="rejection_sample_method",
            value=method,
        )
    if vllm_config.kv_transfer_config is not None:
        raise EngineUnsupported(
            "disaggregated prefill samples the first token in another engine; start without kv_transfer_config",
            field="kv_transfer_config",
        )
    for field, reason in _FORBIDDEN_FOR_MODELS.items():
        if getattr(model, field):
            raise EngineUnsupported(f"{field}: {reason}", field=field)
    if model.skip_tokenizer_init:
        raise EngineUnsupported(
            "the tokenizer is needed; start without skip_tokenizer_init", field="skip_tokenizer_init"
        )
    # Found in any other way, the V1 runner would not repair the placeholders of async scheduling before it calls us.
    class_path = f"{cls.__module__}:{cls.__qualname__}"
    given: Sequence[Any] = model.logits_processors or ()
    times = sum(1 for processor in given if processor is cls or processor == class_path)
    if times != 1:
        raise EngineUnsupported(
            f"name the processor exactly once: --logits-processors {class_path} (it was named {times} times)",
            field="logits_processors",
            limit=1,
            value=times,
        )
