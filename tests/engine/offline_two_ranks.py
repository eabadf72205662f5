"""One offline engine of two ranks in its own process: a job as JSON on standard input, its outcome on the last line.

The job: `model`, `folder` (of the comparison), `requests` (prompt, candidates, sampling parameters). The requests are
answered once; then rank 1 is told to flip a bit, and they are asked again.
"""

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"

from vllm import LLM, SamplingParams


def main() -> None:
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    llm = LLM(
        model=job["model"],
        tensor_parallel_size=2,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=16,
        logits_processors=["divergence:CheckedProcessor"],
    )
    prompts = [r["prompt"] for r in job["requests"]]
    sampling = [
        SamplingParams(**r["sampling"], extra_args={"maskfeed": {"candidates": r["candidates"]}})
        for r in job["requests"]
    ]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    (folder / "flip").touch()
    try:
        llm.generate(prompts, sampling, use_tqdm=False)
    except Exception as error:
        after_flip = type(error).__name__
    else:
        after_flip = "answers"
    print("\n" + json.dumps({"outputs": [list(o.outputs[0].token_ids) for o in outputs], "after_flip": after_flip}))
    sys.stdout.flush()
    os._exit(0)  # the engine is dead, and its clean-up would wait for it


if __name__ == "__main__":
    main()
