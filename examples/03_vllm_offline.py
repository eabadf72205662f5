"""vLLM without a server: each request brings its own candidates in `extra_args`; no Redis, no gateway.

`python examples/03_vllm_offline.py MODEL_DIR`
"""

import sys

from vllm import LLM, SamplingParams


def main(model: str) -> None:
    """Two requests with different lists in one batch."""
    llm = LLM(
        model=model,
        logits_processors=["maskfeed_workers.vllm_entry:MaskfeedLogitsProcessor"],
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
    )
    questions = {
        "Granite, apple or hammer: which one is a fruit?": ["granite", "apple", "hammer"],
        "Which planet is known as the red planet?": ["Venus", "Mars", "Saturn"],
    }
    outputs = llm.chat(
        [[{"role": "user", "content": question}] for question in questions],
        [
            SamplingParams(temperature=0, max_tokens=32, extra_args={"maskfeed": {"candidates": candidates}})
            for candidates in questions.values()
        ],
    )
    for question, output in zip(questions, outputs, strict=True):
        print(f"{question} answer: {output.outputs[0].text}")


if __name__ == "__main__":  # vLLM starts processes of its own, which import this file
    main(sys.argv[1])
