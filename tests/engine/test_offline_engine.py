"""The processor in a real engine, offline: `LLM(...)` with candidates given inline."""

import pytest

from answer_check import Request, check_answer, requests

pytestmark = pytest.mark.engine

FREE = {"prompt": "The capital of France is", "sampling": {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}}


def job(request: Request, **sampling) -> dict:
    fields = {"temperature": request.temperature, "seed": request.seed, "max_tokens": 200} | sampling
    return {"prompt": request.prompt, "candidates": request.candidates, "sampling": fields}


def check_all(made: list[Request], outcome: dict, vocabulary) -> int:
    eos = (outcome["eos"],)
    for request, (answer,) in zip(made, outcome["outputs"], strict=True):
        check_answer(request, vocabulary, answer["token_ids"], eos)
    return len(made)


@pytest.mark.full
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_every_answer_is_a_candidate_with_async_scheduling_off_and_on(run_offline, vocabulary, async_scheduling):
    made = requests(78, seed=1)
    outcome = run_offline([job(r) for r in made], async_scheduling=async_scheduling)
    assert outcome["async_scheduling"] is async_scheduling, "the flag of the live engine"
    assert check_all(made, outcome, vocabulary) == 78
    assert outcome["observed"]["empty_steps"] == 0


@pytest.mark.full
def test_the_same_check_fails_once_the_mask_lets_everything_through(run_offline, vocabulary):
    made = requests(26, seed=2)
    outcome = run_offline([job(r, max_tokens=32) for r in made], processor="permissive")
    with pytest.raises(AssertionError):
        check_all(made, outcome, vocabulary)


def test_rows_of_other_requests_are_bit_identical_and_their_tokens_those_of_an_engine_without_the_plugin(
    run_offline, vocabulary
):
    made = requests(6, seed=3)
    strangers = [
        FREE,
        {
            "prompt": "Once upon a time",
            "sampling": {"max_tokens": 24, "temperature": 1.0, "seed": 7, "ignore_eos": True},
        },
        {
            "prompt": "def main():",
            "sampling": {"max_tokens": 24, "temperature": 0.8, "seed": 8, "presence_penalty": 0.5},
        },
    ]
    mixed = [entry for pair in zip([job(r) for r in made], strangers * 2, strict=True) for entry in pair]
    with_plugin = run_offline(mixed)
    observed = with_plugin["observed"]
    assert observed["strangers_identical"]
    assert observed["mixed_calls"] > 10
    check_all(made, {"eos": with_plugin["eos"], "outputs": with_plugin["outputs"][::2]}, vocabulary)
    # The same batch shape without the plugin: each constrained row is replaced by a free one of the same length.
    twins = [
        {
            "prompt": entry["prompt"],
            "sampling": {**entry["sampling"], "max_tokens": len(output[0]["token_ids"]), "ignore_eos": True},
        }
        if "candidates" in entry
        else entry
        for entry, output in zip(mixed, with_plugin["outputs"], strict=True)
    ]
    without_plugin = run_offline(twins, processor=None)
    assert with_plugin["outputs"][1::2] == without_plugin["outputs"][1::2]


@pytest.mark.full
def test_chunked_prefill_prefix_caching_and_n_leave_every_answer_right(run_offline, vocabulary):
    made = requests(26, seed=4)
    long_prompt = "The patient was seen again after two weeks and reported less pain in the left knee. " * 20
    # Without seeds: on the CPU vLLM 0.32 can't rewind a request's own generator after a partial prefill.
    jobs = [{**job(r, seed=None), "prompt": long_prompt + r.prompt} for r in made]
    for entry in jobs[:8]:
        entry["sampling"] |= {"n": 3, "temperature": 1.0}
    outcome = run_offline(
        jobs, max_num_batched_tokens=64, max_num_seqs=8, enable_chunked_prefill=True, enable_prefix_caching=True
    )
    assert min(outcome["prompt_lengths"]) > 64 * 4, "each prompt takes several partial prefills"
    assert outcome["metrics"]["vllm:prefix_cache_hits"] > 0
    for request, entry, outputs in zip(made, jobs, outcome["outputs"], strict=True):
        assert len(outputs) == entry["sampling"].get("n", 1)
        for answer in outputs:
            check_answer(request, vocabulary, answer["token_ids"], (outcome["eos"],))


@pytest.mark.full
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_preemption_under_a_tiny_cache_leaves_every_answer_right(run_offline, vocabulary, async_scheduling):
    # Long answers, so that the cache runs out while they are being written.
    words = "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima".split()
    candidates = [" ".join([word, *words[i:], *words[:i]] * 3) for i, word in enumerate(words)]
    made = [Request("made here", f"Spell number {i}:", candidates, 1.0, seed=i) for i in range(6)]
    outcome = run_offline(
        [job(r, max_tokens=400, seed=None) for r in made],
        async_scheduling=async_scheduling,
        num_gpu_blocks_override=12,
        block_size=32,
        max_model_len=320,
        max_num_seqs=12,
        enable_prefix_caching=False,
    )
    assert outcome["metrics"]["vllm:num_preemptions"] > 0
    assert outcome["observed"]["resumed"] > 0, "a row came back with a history"
    assert check_all(made, outcome, vocabulary) == 6
