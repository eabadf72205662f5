"""The CPU platform of vLLM with its V2 model runner, whose kernels Triton's interpreter runs: slow, and the real code.

On the path of an engine process (with the metadata folder beside this file) vLLM finds it in each of its processes,
before it looks for Triton. The process must be started with `TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1`. Never
installed.
"""

import types
from typing import Any

import numpy as np
from vllm.platforms.cpu import CpuPlatform


def platform() -> str:
    """Entry point of the group `vllm.platform_plugins`: the name of the platform's class."""
    _pretend_a_backend()
    _mend_masks()
    return f"{__name__}.V2CpuPlatform"


class V2CpuPlatform(CpuPlatform):
    """CPU with async scheduling left as it was asked for (the CPU platform turns it off)."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """All that the CPU platform changes, except for async scheduling."""
        asked_for = vllm_config.scheduler_config.async_scheduling
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked_for

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Of the module beside this one."""
        return "maskfeed_test_v2_communicator.V2CpuCommunicator"


def _pretend_a_backend() -> None:
    """vLLM believes in Triton on a CPU only if Triton has a backend of that name; the interpreter needs none."""
    from triton.backends import backends

    driver = type("Driver", (), {"is_active": staticmethod(lambda: True)})
    backends.setdefault("cpu", types.SimpleNamespace(driver=driver, compiler=None))


def _mend_masks() -> None:
    """Triton 3.9's interpreter leaves some boolean masks in an integer type, and then refuses them."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def as_bool(mask: Any) -> Any:
        return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(np.bool_), mask.dtype)

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    InterpreterBuilder.create_masked_load = lambda self, p, mask, *rest: load(self, p, as_bool(mask), *rest)
    InterpreterBuilder.create_masked_store = lambda self, p, v, mask, *rest: store(self, p, v, as_bool(mask), *rest)
