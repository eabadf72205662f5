"""Under which vLLM, and under which of its settings, a mask can be trusted.

Looks only at the configuration, before anything is built. It knows vLLM's names but imports nothing of it. Invariant:
what is not known to be right is refused at start; nothing is found out by a wrong answer.
"""

from collections.abc import Sequence
from typing import Any, Final

from maskfeed_automata.errors import EngineUnsupported

__all__ = ["TESTED_VERSIONS", "check_configuration", "check_version"]

# Release series against which the suite runs a real engine.
TESTED_VERSIONS: Final = ("0.32",)


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


def check_configuration(vllm_config: Any, cls: type, device: object) -> None:
    """Refuse a configuration under which the processor would be blind, or ranks could differ.

    Args:
        vllm_config: vLLM's VllmConfig.
        cls: the processor class, given to `--logits-processors` by its name or (offline) as it is.
        device: second argument of the processor's constructor. The V1 runner gives the device, the V2 runner its state.

    Raises:
        EngineUnsupported: names the setting in `field`.
    """
    if type(device).__name__ != "device":
        raise EngineUnsupported(
            "the V2 model runner is not supported; start with VLLM_USE_V2_MODEL_RUNNER=0", field="use_v2_model_runner"
        )
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    for field in ("pipeline_parallel_size", "tensor_parallel_size", "data_parallel_size"):
        size = getattr(parallel, field)
        if size != 1:
            raise EngineUnsupported(
                f"{field}={size}: this release masks on one rank only; start one engine per replica with {field}=1",
                field=field,
                limit=1,
                value=size,
            )
    if vllm_config.speculative_config is not None:
        raise EngineUnsupported(
            "speculative decoding drafts tokens past the mask; start without speculative_config",
            field="speculative_config",
        )
    if vllm_config.kv_transfer_config is not None:
        raise EngineUnsupported(
            "disaggregated prefill samples the first token in another engine; start without kv_transfer_config",
            field="kv_transfer_config",
        )
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
