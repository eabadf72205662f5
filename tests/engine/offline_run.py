"""One offline vLLM engine in its own process: a job as JSON on standard input, its outcome as JSON on the last line.

Run as a program, because vLLM belongs in a process of its own. The job: `engine` (arguments of `LLM`), `requests`
(prompt, candidates or null, sampling parameters), `processor` ("maskfeed", "permissive" or null for no plugin).
The outcome: for each request its outputs as token ids and reasons; and what was observed around the processor.
"""

import json
import os
import sys

# engine, worker and processor in this process: they can be watched
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from maskfeed_workers.vllm_entry import MaskfeedLogitsProcessor

OBSERVED = {
    "apply_calls": 0,
    "mixed_calls": 0,
    "stranger_rows": 0,
    "strangers_identical": True,
    "resumed": 0,
    "empty_steps": 0,
}


class Watched(MaskfeedLogitsProcessor):
    """The real processor, with a look at the rows that are not its own."""

    def update_state(self, batch_update):
        for _, _, _, output_ids in batch_update.added if batch_update else ():
            OBSERVED["resumed"] += bool(output_ids)
        super().update_state(batch_update)

    def apply(self, logits):
        ours = set(self._table._rows)
        strangers = [row for row in range(logits.shape[0]) if row not in ours]
        before = logits[strangers].clone()
        result = super().apply(logits)
        OBSERVED["apply_calls"] += 1
        OBSERVED["mixed_calls"] += bool(strangers and ours)
        OBSERVED["stranger_rows"] += len(strangers)
        # as integers: NaN payloads and the sign of zero count too
        OBSERVED["strangers_identical"] &= torch.equal(before.view(torch.int32), result[strangers].view(torch.int32))
        if ours:
            OBSERVED["empty_steps"] += int((~torch.isfinite(result[sorted(ours)]).any(dim=1)).sum())
        return result


class Permissive(MaskfeedLogitsProcessor):
    """The real processor with its mask taken away once it is live."""

    _live = False

    def __init__(self, *args):
        super().__init__(*args)
        self._live = True

    def apply(self, logits):
        return logits if self._live else super().apply(logits)


def _sampling(request: dict) -> SamplingParams:
    fields = dict(request.get("sampling", {}))
    if request.get("candidates") is not None:
        fields["extra_args"] = {"maskfeed": {"candidates": request["candidates"], **request.get("options", {})}}
    if request.get("choice") is not None:
        fields["structured_outputs"] = StructuredOutputsParams(choice=request["choice"])
    return SamplingParams(**fields)


def main() -> None:
    job = json.load(sys.stdin)
    classes = {"maskfeed": [Watched], "permissive": [Permissive], None: None}
    llm = LLM(logits_processors=classes[job["processor"]], **job["engine"])
    requests = job["requests"]
    outputs = llm.generate([r["prompt"] for r in requests], [_sampling(r) for r in requests], use_tqdm=False)
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")} if job.get("metrics") else {}
    tokenizer = llm.get_tokenizer()
    outcome = {
        "outputs": [
            [{"token_ids": list(c.token_ids), "finish": c.finish_reason, "stop": c.stop_reason} for c in o.outputs]
            for o in outputs
        ],
        "prompt_lengths": [len(o.prompt_token_ids) for o in outputs],
        "observed": OBSERVED,
        "metrics": metrics,
        "eos": tokenizer.eos_token_id,
        "async_scheduling": llm.llm_engine.vllm_config.scheduler_config.async_scheduling,
    }
    print("\n" + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
