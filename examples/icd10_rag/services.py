"""How the parts of a deployment on one machine are started: commands and environments, nothing else.

In production each of them is a service of its own; the flags that matter are the same.
"""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ENGINE_ENVIRONMENT", "PROCESSOR", "engine_command", "free_port", "gateway_command"]

PROCESSOR = "maskfeed_workers.vllm_entry:MaskfeedLogitsProcessor"

ENGINE_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "TOKENIZERS_PARALLELISM": "false",
}


def engine_command(
    model_dir: Path, port: int, *, maskfeed: Mapping[str, Any] | None, arguments: Sequence[str] = ()
) -> list[str]:
    """vLLM's OpenAI server on the CPU.

    Args:
        model_dir: a Hugging Face model directory.
        port: on 127.0.0.1.
        maskfeed: settings of the logits processor (`redis_url`, `group`); None starts vLLM without it.
        arguments: more flags; a later flag wins over an earlier one.
    """
    # The module and not `vllm serve`: that command looks for a distribution named vllm, and ours is vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model_dir), "--served-model-name", model_dir.name]
    command += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "32"]
    if maskfeed is not None:
        command += ["--logits-processors", PROCESSOR, "--additional-config", json.dumps({"maskfeed": dict(maskfeed)})]
    return [*command, *arguments]


def gateway_command(port: int, *, engine_url: str, redis_url: str) -> list[str]:
    """The maskfeed gateway in front of that engine."""
    command = [sys.executable, "-m", "maskfeed.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--upstream", engine_url, "--redis-url", redis_url]


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
