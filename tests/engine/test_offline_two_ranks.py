"""Two ranks offline: each compiles inline candidates for itself; the comparison of their masks sees a single bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from answer_check import check_answer, requests
from divergence import FOLDER_VARIABLE, read_counts
from engine_server import EngineServer
from model_files import tiny_model_directory
from services import ENGINE_ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.full]

HERE = Path(__file__).resolve().parent


def test_inline_candidates_are_masked_alike_on_two_ranks_and_one_flipped_bit_ends_the_engine(tmp_path, vocabulary):
    made = requests(26, seed=21)
    sampling = {"temperature": 1.0, "max_tokens": 200}
    job = {
        "model": str(tiny_model_directory()),
        "folder": str(tmp_path),
        "requests": [{"prompt": r.prompt, "candidates": r.candidates, "sampling": sampling} for r in made],
    }
    child = subprocess.run(
        [sys.executable, str(HERE / "offline_two_ranks.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=os.environ
        | ENGINE_ENVIRONMENT
        | {FOLDER_VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join([str(HERE), EngineServer.python_path()])},
        timeout=400,
    )
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-6000:]
    outcome = json.loads(child.stdout.splitlines()[-1])
    for request, token_ids in zip(made, outcome["outputs"], strict=True):
        check_answer(request, vocabulary, token_ids, vocabulary.stop_token_ids)
    (steps, rows, refused), *others = read_counts(tmp_path)
    assert others == [(steps, rows, refused)]
    assert (rows > 26, refused) == (True, 0)
    assert outcome["after_flip"] == "EngineDeadError"
    log = child.stdout + child.stderr
    assert all(f"MASKS DIFFER on rank {rank}" in log for rank in (0, 1)), log[-4000:]
