"""How the ranks of the played V2 platform gather tensors: vLLM's own way on a CPU, and torch's for whole numbers.

Sharing out the rows of a batch gathers token ids, which vLLM's shared memory does not take.
"""

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class V2CpuCommunicator(CpuCommunicator):
    """Gathers every type."""

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """See vLLM."""
        if input_.is_floating_point():
            return super().all_gather(input_, dim)
        shared, self.dist_module = self.dist_module, torch.distributed
        try:
            return super().all_gather(input_, dim)
        finally:
            self.dist_module = shared
