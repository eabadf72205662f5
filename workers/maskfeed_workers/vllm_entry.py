"""The logits processor of vLLM, for both of its model runners.

    vllm serve MODEL --logits-processors maskfeed_workers.vllm_entry:MaskfeedLogitsProcessor --additional-config
        '{"maskfeed": {"redis_url": "unix:///run/maskfeed/redis.sock"}}'

The class only translates. On the V1 runner: batch updates to the slot table, the slot table's step to logits. On the V2
runner, which has another interface: its calls to `V2Processor`, which walks on the device. It is named by
`--logits-processors` and by nothing else; an entry point would find it too, but then the V1 runner would show it
placeholders instead of tokens under async scheduling.

Everything but torch, vLLM and the masking of tensors is imported inside the methods. vLLM imports this module in its
API server, which needs none of the rest, and in the engine before the worker exists; at that time numba must not be
loaded yet, because vLLM's CPU platform looks into every object of every loaded module and llvmlite's library object
can't stand that.

Invariants: nothing in `update_state` and `apply` waits for anything but, in a step that brings a constrained request,
a rank for rank 0's word on its set; rows without our key are not touched; state is
advanced in `apply`, from the token history, never in `update_state`, where the newest token can still be a placeholder.
"""

import atexit
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState

from maskfeed_workers.masking import mask_rows, write_whole

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

    from maskfeed_workers.v2_processor import V2Processor

__all__ = ["MaskfeedLogitsProcessor"]


class MaskfeedLogitsProcessor(LogitsProcessor, V2LogitsProcessor):
    """Masks the rows of requests that carry a handle or inline candidates.

    Args:
        vllm_config: of the engine.
        device_or_states: from the V1 runner the device where logits live, from the V2 runner its request states.
        is_pin_memory: not used; the ids of a step are too few to gain from pinned memory.

    Raises:
        EngineUnsupported: a vLLM version or configuration under which a mask could be wrong.
        VocabularyError: a tokenizer whose token bytes can't be told exactly.
        StoreUnavailable: Redis does not answer at start.
        RankFailure: the engine's ranks could not connect to each other.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        device_or_states: torch.device | LogitsProcRequestState,
        is_pin_memory: bool = False,
    ) -> None:
        from maskfeed_workers.engine_start import start_engine

        self._guard: AbstractContextManager[None] = nullcontext()
        if isinstance(device_or_states, torch.device):
            from maskfeed_workers.self_test import self_test

            engine = start_engine(vllm_config, type(self), os.environ)
            self._admission = engine.admission
            self._table = engine.new_table()
            self_test(self, engine, device_or_states)
        else:
            from maskfeed_workers.v2_start import start_v2

            engine = start_engine(vllm_config, type(self), os.environ, v2_device=device_or_states.device)
            self._v2: V2Processor = start_v2(engine, device_or_states)
        self._engine = engine
        engine.go_live()
        self._guard = engine.guard
        atexit.register(engine.stop)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what can be refused before the engine sees the request.

        Raises:
            ValueError: with the reason; vLLM answers it with HTTP 400.
        """
        if not sampling_params.extra_args:
            return
        from maskfeed_automata.errors import RequestError
        from maskfeed_workers.admission import check_request

        try:
            check_request(sampling_params.extra_args, sampling_params)
        except RequestError as error:
            raise ValueError(error.message) from error

    def is_argmax_invariant(self) -> bool:
        """False: a mask changes which token is the most likely one."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch. The order removed, added, moved is vLLM's."""
        if batch_update is None:
            return
        with self._guard:
            for row in batch_update.removed:
                self._table.remove(row)
            verdicts = self._admission.decide([sampling_params for _, sampling_params, _, _ in batch_update.added])
            for (row, _, _, output_ids), verdict in zip(batch_update.added, verdicts, strict=True):
                if verdict is None:
                    self._table.remove(row)
                else:
                    self._table.add(row, verdict, output_ids)
            for source, target, direction in batch_update.moved:
                self._table.move(source, target, swap=direction is MoveDirectionality.SWAP)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """V2 only: note a request that enters the batch in this slot. Returns whether its logits will change."""
        with self._guard:
            return self._v2.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """V2 only: decide on the requests that were added since the last step."""
        with self._guard:
            self._v2.apply_staged_writes()

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext | None" = None) -> torch.Tensor:
        """Mask our rows, in place.

        Args:
            logits: [n_rows, width]; returned.
            ctx: which row is whose, on the V2 runner; None on V1, where row i is batch index i.
        """
        with self._guard:
            if ctx is not None:
                return self._v2.apply(logits, ctx)
            if len(self._table):
                step = self._table.step()
                mask_rows(logits, step.rows, step.row_ptr, step.token_ids)
                for row, refusal in step.refused:
                    write_whole(logits, row, refusal.token_ids)
        return logits
