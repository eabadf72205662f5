"""The GPU benchmark, small and in Triton's interpreter: it runs, and checks what it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("automata", "cache", "workers", "middleware")


def run(*arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(_ROOT / room) for room in _ROOMS)
    return subprocess.run(
        [sys.executable, str(_ROOT / "benchmarks" / "gpu.py"), *arguments],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_the_gpu_benchmark_measures_its_kernels_and_keeps_its_figures(tmp_path: Path):
    finished = run("--quick", "--output", str(tmp_path))
    assert finished.returncode == 0, finished.stderr[-4_000:]
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["n_rows"] for row in results["kernels"]} == {1, 3}
    assert all(row[key] > 0 for row in results["kernels"] for key in ("mask_us", "fill_us", "launch_us"))
    assert all(0 < row["device_bytes"] < 2 * row["artifact_bytes"] for row in results["upload"])


@pytest.mark.engine
@pytest.mark.full
def test_its_engines_of_both_runners_answer_from_their_sets_and_give_a_figure_for_every_case(tmp_path: Path):
    finished = run("--quick", "--engines", "--output", str(tmp_path), timeout_s=500)
    assert finished.returncode == 0, finished.stderr[-4_000:]
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["left_out"] == []
    answers = {"with": ["free", "set of 50", "set of 200"], "without": ["free", "choice of 20"]}
    expected = {
        (runner, plugin, n_rows, kind)
        for runner in ("v1", "v2")
        for plugin, kinds in answers.items()
        for n_rows in (1, 3)
        for kind in kinds
    }
    figures = results["engines"]
    assert {(row["runner"], row["plugin"], row["n_rows"], row["answers"]) for row in figures} == expected
    assert all(row["uses_v2"] == (row["runner"] == "v2") for row in figures)
    assert all(row["tokens_per_s"] > 0 for row in figures)


def test_without_a_gpu_it_says_so_instead_of_measuring_an_interpreter(tmp_path: Path):
    finished = run("--output", str(tmp_path))
    assert finished.returncode == 2
    assert "no GPU here" in finished.stderr
