"""One offline engine with vLLM's V2 model runner, in its own process: a job as JSON in, its outcome as JSON out.

The job: `engine` (arguments of `LLM`) and `requests` (prompt, candidates or null, sampling parameters). The outcome:
tokens and reasons of each request, and what was observed around the processor, unless there are several ranks, which
have processes of their own. Start it with the folder `v2_platform` on the path; its docstring says which environment it
needs.
"""

import json
import os
import sys

os.environ.update(
    VLLM_CPU_OMP_THREADS_BIND="0|1",
    TORCHDYNAMO_DISABLE="1",  # with several ranks a part of the model is compiled, and that asks Triton for its device
)

import torch
from vllm import LLM, SamplingParams

from maskfeed_workers.v2_start import MadeUpStates
from maskfeed_workers.vllm_entry import MaskfeedLogitsProcessor

OBSERVED = {
    "apply_calls": 0,
    "draft_rows": 0,
    "resumed": 0,
    "stranger_rows": 0,
    "strangers_identical": True,
    # those of the batches are those with which the processor has tried itself, and compiled its kernels
    "types_known": True,
}
TYPES = ("expanded_idx_mapping", "expanded_local_pos", "input_ids")


class Watched(MaskfeedLogitsProcessor):
    """The real processor, with a look at the rows and at what is not its own."""

    _live = False

    def __init__(self, vllm_config, device_or_states, is_pin_memory=False):
        super().__init__(vllm_config, device_or_states, is_pin_memory)
        self._states = device_or_states
        self._live = True

    def add_request(self, req_idx, sampling_params):
        OBSERVED["resumed"] += int(self._states.prefill_len.np[req_idx] > self._states.prompt_len.np[req_idx])
        return super().add_request(req_idx, sampling_params)

    def apply(self, logits, ctx=None):
        ours = self._v2._slots._is_ours[ctx.expanded_idx_mapping.numpy()]
        before = logits[~ours].clone()
        result = super().apply(logits, ctx)
        OBSERVED["apply_calls"] += 1
        OBSERVED["draft_rows"] += int((ctx.expanded_local_pos.numpy()[ours] > 0).sum())
        OBSERVED["stranger_rows"] += len(before)
        tried = MadeUpStates(logits.device, 4)
        OBSERVED["types_known"] &= logits.dtype == torch.float32 and all(
            getattr(ctx, name).dtype == getattr(tried.context(0), name).dtype for name in TYPES
        )
        for name in ("all_token_ids", "total_len"):
            OBSERVED["types_known"] &= getattr(self._states, name).gpu.dtype == getattr(tried, name).gpu.dtype
        OBSERVED["strangers_identical"] &= torch.equal(before.view(torch.int32), result[~ours].view(torch.int32))
        return result


def _leave_early(llm: LLM, prompt: str, params: SamplingParams) -> None:
    """A request that is aborted in the middle of its answer; nobody tells the processor."""
    llm.llm_engine.add_request("leaves early", prompt, params)
    for _ in range(4):
        llm.llm_engine.step()
    llm.llm_engine.abort_request(["leaves early"])


def main() -> None:
    job = json.load(sys.stdin)
    alone = job["engine"].get("tensor_parallel_size", 1) == 1
    if alone:  # engine, worker and processor in this process: they can be watched
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="auto")
    name = f"{MaskfeedLogitsProcessor.__module__}:{MaskfeedLogitsProcessor.__qualname__}"
    llm = LLM(logits_processors=[Watched if alone else name], **job["engine"])
    sampling = []
    for request in job["requests"]:
        candidates = request["candidates"]
        extra_args = None if candidates is None else {"maskfeed": {"candidates": candidates}}
        sampling.append(SamplingParams(extra_args=extra_args, **request["sampling"]))
    _leave_early(llm, job["requests"][0]["prompt"], sampling[0])
    outputs = llm.generate([request["prompt"] for request in job["requests"]], sampling, use_tqdm=False)
    config = llm.llm_engine.vllm_config
    outcome = {
        "outputs": [
            [{"token_ids": list(c.token_ids), "finish": c.finish_reason, "stop": c.stop_reason} for c in o.outputs]
            for o in outputs
        ],
        "observed": OBSERVED,
        "metrics": {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")},
        "eos": llm.get_tokenizer().eos_token_id,
        "uses_v2": config.use_v2_model_runner,
        "async_scheduling": config.scheduler_config.async_scheduling,
    }
    print("\n" + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
