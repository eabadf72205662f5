"""The GPU benchmark, small and in Triton's interpreter: it runs, and checks what it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("automata", "cache", "workers", "middleware")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(_ROOT / room) for room in _ROOMS)
    return subprocess.run(
        [sys.executable, str(_ROOT / "benchmarks" / "gpu.py"), *arguments],
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_the_gpu_benchmark_measures_its_kernels_and_keeps_its_figures(tmp_path: Path):
    finished = run("--quick", "--output", str(tmp_path))
    assert finished.returncode == 0, finished.stderr[-4_000:]
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["n_rows"] for row in results["kernels"]} == {1, 3}
    assert all(row[key] > 0 for row in results["kernels"] for key in ("mask_us", "fill_us", "launch_us"))
    assert all(0 < row["device_bytes"] < 2 * row["artifact_bytes"] for row in results["upload"])


def test_without_a_gpu_it_says_so_instead_of_measuring_an_interpreter(tmp_path: Path):
    finished = run("--output", str(tmp_path))
    assert finished.returncode == 2
    assert "no GPU here" in finished.stderr
