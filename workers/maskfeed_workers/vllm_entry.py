"""The logits processor of vLLM's V1 model runner.

    vllm serve MODEL --logits-processors maskfeed_workers.vllm_entry:MaskfeedLogitsProcessor --additional-config
        '{"maskfeed": {"redis_url": "unix:///run/maskfeed/redis.sock"}}'

The class only translates: batch updates to the slot table, the slot table's step to logits. It is named by
`--logits-processors` and by nothing else; an entry point would find it too, but then the runner would show it
placeholders instead of tokens under async scheduling.

Everything but torch, vLLM and the masking of tensors is imported inside the methods. vLLM imports this module in its
API server, which needs none of the rest, and in the engine before the worker exists; at that time numba must not be
loaded yet, because vLLM's CPU platform looks into every object of every loaded module and llvmlite's library object
can't stand that.

Invariants: nothing in `update_state` and `apply` waits for anything; rows without our key are not touched; state is
advanced in `apply`, from the token history, never in `update_state`, where the newest token can still be a placeholder.
"""

import atexit
import os
from typing import TYPE_CHECKING

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from maskfeed_workers.masking import mask_rows, write_whole

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["MaskfeedLogitsProcessor"]


class MaskfeedLogitsProcessor(LogitsProcessor):
    """Masks the rows of requests that carry a handle or inline candidates.

    Args:
        vllm_config: of the engine.
        device: where logits live.
        is_pin_memory: not used; the ids of a step are too few to gain from pinned memory.

    Raises:
        EngineUnsupported: a vLLM version or configuration under which a mask could be wrong.
        VocabularyError: a tokenizer whose token bytes can't be told exactly.
        StoreUnavailable: Redis does not answer at start.
    """

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool) -> None:
        from maskfeed_workers.engine_start import start_engine
        from maskfeed_workers.self_test import self_test

        self._engine = start_engine(vllm_config, type(self), device, os.environ)
        self._admission = self._engine.admission
        self._table = self._engine.new_table()
        self_test(self, self._engine, device)
        self._engine.go_live()
        atexit.register(self._engine.stop)

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
        for row in batch_update.removed:
            self._table.remove(row)
        for row, sampling_params, _, output_ids in batch_update.added:
            verdict = self._admission.decide(sampling_params)
            if verdict is None:
                self._table.remove(row)
            else:
                self._table.add(row, verdict, output_ids)
        for source, target, direction in batch_update.moved:
            self._table.move(source, target, swap=direction is MoveDirectionality.SWAP)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask our rows, in place.

        Args:
            logits: [n_requests, width]; returned.
        """
        if len(self._table):
            step = self._table.step()
            mask_rows(logits, step.rows, step.row_ptr, step.token_ids)
            for row, refusal in step.refused:
                write_whole(logits, row, refusal.token_ids)
        return logits
