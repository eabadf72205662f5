"""Ranks on two hosts that share no memory: the feeds meet over TCP, and each host fetches for itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_server import EngineServer
from model_files import tiny_model_directory

pytestmark = [pytest.mark.engine, pytest.mark.full]

TESTS = Path(__file__).resolve().parents[1]
OWN_NAMESPACES = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


def test_an_engine_over_two_hosts_is_fed_over_tcp_and_masks_alike_on_both(tmp_path, capsys):
    path = [str(TESTS), str(TESTS / "engine"), str(TESTS.parent / "examples" / "icd10_rag"), EngineServer.python_path()]
    child = subprocess.run(
        [*OWN_NAMESPACES, sys.executable, str(TESTS / "faults" / "two_hosts.py"), tmp_path, tiny_model_directory()],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        timeout=500,
    )
    logs = "".join((tmp_path / name).read_text()[-3_000:] for name in ("a.log", "b.log") if (tmp_path / name).exists())
    assert child.returncode == 0, child.stderr[-3_000:] + logs
    observed = json.loads(child.stdout.splitlines()[-1])
    assert (observed["n_ranks"], observed["unknown_is_refused"]) == (2, True)
    assert observed["owners_on_host_a"] == 1, "the other rank has its memory elsewhere"
    assert between_hosts(observed["connections"]), "the feeds speak over the cable"
    (steps, rows, refused), other = observed["counts"]
    assert other == [steps, rows, refused]
    assert (rows > 60, refused > 0) == (True, True)
    waits_ms = observed["waits_ms"]
    with capsys.disabled():
        middle, worst = waits_ms[len(waits_ms) // 2], waits_ms[-1]
        print(
            f"\ntwo hosts: {rows} rows compared; announced to ready, idle: median {middle:.1f} ms, worst {worst:.1f} ms"
        )


def between_hosts(connections: list[list[str]]) -> list[list[str]]:
    """Those that lead from host A to host B and are not Redis."""
    return [pair for pair in connections if pair[1].startswith("10.97.0.2:") and not pair[0].endswith(":6379")]
