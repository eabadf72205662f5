"""The real V2 model runner, in Triton's interpreter, against the V1 runner and against the sets."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from engine_server import EngineServer
from maskfeed_automata import Vocabulary
from model_files import tiny_model_directory
from services import ENGINE_ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.full]

HERE = Path(__file__).resolve().parent
WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima".split()
N_REQUESTS = 24
SAMPLED = 2
ENGINE = {
    "enforce_eager": True,
    "max_model_len": 160,
    "max_num_seqs": 6,
    "seed": 0,
    "disable_log_stats": False,
    # so few blocks that requests must be preempted
    "num_gpu_blocks_override": 12,
    "block_size": 32,
    "enable_prefix_caching": False,
}
N_GRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def jobs() -> list[dict]:
    """Requests whose answers repeat their prompts, so that drafts are made and some are right; every sixth is free.

    One has three answers, drawn at random; all other answers are the most likely ones.
    """
    rng = random.Random(6)
    made = []
    for n in range(N_REQUESTS + N_REQUESTS // 5):
        candidates = [" ".join(rng.choices(WORDS, k=9)) for _ in range(rng.choice((1, 3, 40)))]
        prompt = f"Spell {n}: {candidates[0]}"
        is_free = n % 6 == 5
        sampling = {"temperature": 0.0, "max_tokens": 8 if is_free else 60, "ignore_eos": is_free}
        made.append({"prompt": prompt, "candidates": None if is_free else candidates, "sampling": sampling})
    made[SAMPLED]["sampling"] |= {"temperature": 1.0, "n": 3, "seed": 0}
    return made


def run(program: Path, job: dict, *, path: str, environment: dict[str, str]) -> dict:
    child = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env={**os.environ, **ENGINE_ENVIRONMENT, **environment, "PYTHONPATH": path},
        timeout=580,
    )
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-6000:]
    # The last one, but for what other ranks' processes have to say.
    return json.loads([line for line in child.stdout.splitlines() if line.startswith('{"outputs"')][-1])


def run_v2(requests: list[dict], **engine) -> dict:
    job = {"engine": {"model": str(tiny_model_directory()), **ENGINE, **engine}, "requests": requests}
    path = os.pathsep.join([str(HERE.parent / "v2_platform"), EngineServer.python_path()])
    environment = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    outcome = run(HERE / "v2_engine_run.py", job, path=path, environment=environment)
    assert outcome["uses_v2"]
    return outcome


def run_v1(requests: list[dict]) -> dict:
    # No preemption here: that its outcome is the same is what is shown.
    engine = {"model": str(tiny_model_directory()), **ENGINE, "num_gpu_blocks_override": 64}
    job = {"engine": engine, "requests": requests, "processor": "maskfeed"}
    return run(HERE.parent / "engine" / "offline_run.py", job, path=EngineServer.python_path(), environment={})


@pytest.fixture(scope="module")
def requests() -> list[dict]:
    return jobs()


@pytest.fixture(scope="module")
def from_v1(requests) -> list:
    return run_v1(requests)["outputs"]


def check_members(requests: list[dict], outcome: dict) -> int:
    vocabulary = Vocabulary.from_tokenizer(tiny_model_directory())
    n_members = 0
    for request, answers in zip(requests, outcome["outputs"], strict=True):
        assert len(answers) == request["sampling"].get("n", 1)
        if request["candidates"] is not None:
            for answer in answers:
                assert answer["token_ids"][-1] == outcome["eos"]
                assert vocabulary.text_bytes(answer["token_ids"][:-1]).decode() in request["candidates"]
            n_members += 1
    return n_members


def most_likely(outputs: list) -> list:
    """The answers of which there is one; the others were drawn with another generator on each runner."""
    return [answers for answers in outputs if len(answers) == 1]


def test_with_preemption_and_drafts_every_answer_is_a_candidate_and_the_one_of_the_v1_runner(requests, from_v1):
    outcome = run_v2(requests, speculative_config=N_GRAM)
    assert check_members(requests, outcome) == N_REQUESTS
    assert most_likely(outcome["outputs"]) == most_likely(from_v1)
    observed, metrics = outcome["observed"], outcome["metrics"]
    assert metrics["vllm:num_preemptions"] > 0
    assert observed["resumed"] > 0
    assert observed["draft_rows"] > 0
    assert metrics["vllm:spec_decode_num_accepted_tokens"] > 0
    assert metrics["vllm:spec_decode_num_draft_tokens"] > metrics["vllm:spec_decode_num_accepted_tokens"]
    assert observed["stranger_rows"] > 0
    assert observed["strangers_identical"]
    assert observed["types_known"]


def test_with_asynchronous_scheduling_every_answer_is_a_candidate_and_the_one_of_the_v1_runner(requests, from_v1):
    outcome = run_v2(requests, async_scheduling=True, num_gpu_blocks_override=8)
    assert outcome["async_scheduling"]
    assert check_members(requests, outcome) == N_REQUESTS
    assert most_likely(outcome["outputs"]) == most_likely(from_v1)
    assert outcome["metrics"]["vllm:num_preemptions"] > 0
    assert outcome["observed"]["resumed"] > 0


@pytest.mark.parametrize("options", [{}, {"enable_batch_sharded_sampling": True}], ids=["all rows", "rows shared out"])
def test_two_ranks_give_candidates_and_the_same_ones(options, requests, from_v1):
    few = requests[:8]
    outcome = run_v2(few, tensor_parallel_size=2, num_gpu_blocks_override=64, **options)
    assert check_members(few, outcome) == 7
    of_two, of_one = most_likely(outcome["outputs"]), most_likely(from_v1[:8])
    assert len(of_two) == 7
    assert sum(one == other for one, other in zip(of_two, of_one, strict=True)) >= 5, (
        "sums over two ranks are rounded otherwise, so the odd token may differ"
    )
