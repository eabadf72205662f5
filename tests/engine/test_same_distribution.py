"""The same prompts, seeds and candidates through vLLM's own `choice` and through the processor: the same tokens.

On sets where xgrammar, which `choice` runs on, is right: ASCII, no control characters. One request at a time, because
logits depend on the shape of a batch in their last bits, and grammars that are not compiled yet change that shape.
"""

import random

import pytest

from answer_check import PROMPTS
from candidate_sets import candidate_set

pytestmark = [pytest.mark.engine, pytest.mark.full]

SET_NAMES = ("mcp_tools", "trove_classifiers", "github_operations", "icd10cm_codes", "bfcl_functions", "numeric_ids")
SIZES = (1, 2, 5, 12, 30)
# Greedy; plain sampling; sampling with everything that vLLM applies after masks.
SAMPLING = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_p": 0.95, "top_k": 20, "min_p": 0.01},
)


def questions(n: int) -> list[dict]:
    choose = random.Random(5)
    pools = {
        name: [text for text in candidate_set(name) if text.isascii() and text.isprintable() and len(text) <= 24]
        for name in SET_NAMES
    }
    return [
        {
            "prompt": choose.choice(PROMPTS),
            "members": choose.sample(pools[SET_NAMES[i % len(SET_NAMES)]], choose.choice(SIZES)),
            "sampling": {**SAMPLING[i % len(SAMPLING)], "seed": i, "max_tokens": 64},
        }
        for i in range(n)
    ]


def test_greedy_and_seeded_sampling_give_the_tokens_that_native_choice_gives(run_offline):
    made = questions(60)

    def answers(field: str, processor: str | None) -> list:
        jobs = [{"prompt": q["prompt"], "sampling": q["sampling"], field: q["members"]} for q in made]
        return run_offline(jobs, processor=processor, max_num_seqs=1, enable_prefix_caching=False)["outputs"]

    ours = answers("candidates", "maskfeed")
    native = answers("choice", None)
    for question, (mine,), (theirs,) in zip(made, ours, native, strict=True):
        assert mine["token_ids"] == theirs["token_ids"], question
    assert all(theirs["finish"] == "stop" for (theirs,) in native)
    assert len({tuple(mine["token_ids"]) for (mine,) in ours}) > 40, "they do not all say the same"
