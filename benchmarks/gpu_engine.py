"""One engine on the GPU, in its own process: tokens a second, free, from sets, and through vLLM's own `choice`.

Run by `gpu.py`: `python gpu_engine.py MODEL_DIRECTORY RUNNER PROCESSOR EXTENT`, RUNNER "v1" or "v2", PROCESSOR "with"
or "without", EXTENT "full" or "quick". Prints one JSON object for each figure as soon as it has it. A quick one needs
no GPU: it shows that the code works, and its figures mean nothing.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    TOKENIZERS_PARALLELISM="false",
    VLLM_USE_V2_MODEL_RUNNER="1" if sys.argv[2] == "v2" else "0",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
)

from made_up_sets import made_up_set
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

QUICK = sys.argv[4] == "quick"
N_ROWS = (1, 3) if QUICK else (8, 64, 256)
SIZES = (50, 200) if QUICK else (10_000, 100_000)
# What vLLM's own choice compiles in seconds rather than minutes.
CHOICE_SIZE = 20 if QUICK else 1_000
KIND = "paths"  # the longest answers
PROCESSOR = "maskfeed_workers.vllm_entry:MaskfeedLogitsProcessor"


def main(model: str, runner: str, processor: str) -> None:
    llm = LLM(
        model,
        logits_processors=[PROCESSOR] if processor == "with" else None,
        max_model_len=512,
        max_num_seqs=max(N_ROWS),
        seed=0,
        gpu_memory_utilization=0.5,
        **({"enforce_eager": True, "num_gpu_blocks_override": 64} if QUICK else {}),
    )
    says = {"runner": runner, "plugin": processor, "uses_v2": llm.llm_engine.vllm_config.use_v2_model_runner}
    for n in N_ROWS:
        n_free = 4 if QUICK else 24
        free = [SamplingParams(temperature=1.0, seed=k, max_tokens=n_free, ignore_eos=True) for k in range(n)]
        _report(llm, free, None, {**says, "answers": "free", "n_rows": n})
        if processor == "with":
            for size in SIZES:
                candidates = made_up_set(KIND, size)
                extra_args = {"maskfeed": {"candidates": candidates}}
                ours = [
                    SamplingParams(temperature=1.0, seed=k, max_tokens=200, extra_args=extra_args) for k in range(n)
                ]
                # Each request brings its candidates, which takes a tenth of a second for the largest set.
                n_runs = 1 if size == max(SIZES) else 2
                _report(llm, ours, set(candidates), {**says, "answers": f"set of {size}", "n_rows": n}, n_runs)
        else:
            candidates = made_up_set(KIND, CHOICE_SIZE)
            native = StructuredOutputsParams(choice=candidates)
            theirs = [
                SamplingParams(temperature=1.0, seed=k, max_tokens=200, structured_outputs=native) for k in range(n)
            ]
            _report(llm, theirs, set(candidates), {**says, "answers": f"choice of {CHOICE_SIZE}", "n_rows": n})


def _report(
    llm: LLM, sampling: list[SamplingParams], members: set[str] | None, says: dict[str, Any], n_runs: int = 2
) -> None:
    """The figure is the last run's: a first one compiles kernels."""
    for run in range(n_runs):
        n_tokens, took_s, texts = _decode(llm, sampling, run)
    if members is not None:
        assert set(texts) <= members, "an answer is no member"
    print(json.dumps({**says, "n_tokens": n_tokens, "tokens_per_s": n_tokens / took_s}), flush=True)


def _decode(llm: LLM, sampling: list[SamplingParams], run: int) -> tuple[int, float, list[str]]:
    """Tokens and seconds from the step after which every request has its first token; and the answers.

    What comes before is the reading of prompts and of inline candidates, which a server does not do in its engine.
    """
    engine = llm.llm_engine
    for k, params in enumerate(sampling):
        engine.add_request(f"{run}-{k}", "The path is ", params)
    n_tokens: dict[str, int] = {}
    texts: dict[str, str] = {}
    started_at, n_before = 0.0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            n_tokens[output.request_id] = len(output.outputs[0].token_ids)
            texts[output.request_id] = output.outputs[0].text
        if not started_at and len(n_tokens) == len(sampling):
            started_at, n_before = time.perf_counter(), sum(n_tokens.values())
    return sum(n_tokens.values()) - n_before, time.perf_counter() - started_at, list(texts.values())


if __name__ == "__main__":
    main(*sys.argv[1:4])
