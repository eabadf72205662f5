"""The CPU platform of vLLM without two of its limits: async scheduling is left as it was asked for (the CPU platform
turns it off), and the Ray executor works, as on a GPU.

On the path of an engine process (with the metadata folder beside this file) vLLM finds and uses it, in each of its
processes. Never installed.
"""

from typing import Any

from vllm.platforms.cpu import CpuPlatform


def platform() -> str:
    """Entry point of the group `vllm.platform_plugins`: the name of the platform's class."""
    return f"{__name__}.AsyncCpuPlatform"


class AsyncCpuPlatform(CpuPlatform):
    """CPU with async scheduling and the Ray executor."""

    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """All that the CPU platform changes, except for async scheduling."""
        asked_for = vllm_config.scheduler_config.async_scheduling
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked_for
