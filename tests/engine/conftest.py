"""Real engines for the tests of this folder: offline runs in a process of their own, and one served stack."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_server import EngineServer
from maskfeed_automata import Vocabulary
from model_files import smollm2_directory
from services import ENGINE_ENVIRONMENT

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def model() -> Path:
    return smollm2_directory()


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary.from_tokenizer(model)


@pytest.fixture(scope="session")
def run_offline(model: Path) -> Callable[..., dict]:
    """Run one job in `offline_run.py`; the outcome is its last line."""

    def run(
        requests: list[dict], *, processor: str | None = "maskfeed", async_scheduling: bool = False, **engine
    ) -> dict:
        arguments = {
            "model": str(model),
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "seed": 0,
            "disable_log_stats": False,
            **engine,
        }
        path = EngineServer.python_path(async_scheduling=async_scheduling)
        environment = {**os.environ, **ENGINE_ENVIRONMENT, "PYTHONPATH": path}
        if async_scheduling:
            arguments["async_scheduling"] = True
        job = {"engine": arguments, "requests": requests, "processor": processor, "metrics": True}
        child = subprocess.run(
            [sys.executable, str(HERE / "offline_run.py")],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            env=environment,
            timeout=400,
        )
        assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-6000:]
        return json.loads(child.stdout.splitlines()[-1])

    return run
