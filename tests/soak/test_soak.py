"""The soak, cut down to two minutes: each kind of fault at least once, and nothing broken at the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_server import EngineServer

pytestmark = [pytest.mark.engine, pytest.mark.full]

CAMPAIGN = Path(__file__).with_name("campaign.py")
N_REQUESTS = 600


def test_of_hundreds_of_requests_under_faults_none_hangs_or_leaves_its_set_and_nothing_stays_behind(tmp_path, capsys):
    arguments = ["--requests", str(N_REQUESTS), "--rank-every", str(N_REQUESTS), "--output", str(tmp_path)]
    finished = subprocess.run(
        [sys.executable, str(CAMPAIGN), *arguments],
        env=os.environ | {"PYTHONPATH": EngineServer.python_path()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr[-5000:]
    result = json.loads((tmp_path / "soak.json").read_text())
    assert sum(result["outcomes"].values()) >= N_REQUESTS
    assert result["answers_checked"] > N_REQUESTS / 2
    assert result["rows_compared"] > N_REQUESTS
    assert result["engines"] == 2
    assert {fault.split()[0] for fault in result["faults"]} >= {"compile", "Redis", "rank"}
    with capsys.disabled():
        print(f"\n{(tmp_path / 'soak.txt').read_text()}")
