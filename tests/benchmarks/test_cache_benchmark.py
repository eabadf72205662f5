"""The cache's benchmark with few turns: it runs, checks what it measures, and keeps what it says it keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("automata", "cache", "workers", "middleware")


def test_the_cache_benchmark_measures_both_tiers_and_keeps_its_figures(tmp_path: Path):
    path = os.pathsep.join(str(_ROOT / room) for room in _ROOMS)
    sizes = ["--turns", "300", "--entries", "500", "--no-bounds"]
    finished = subprocess.run(
        [sys.executable, str(_ROOT / "benchmarks" / "cache.py"), *sizes, "--output", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-4_000:]
    assert (tmp_path / "cache.txt").read_text() in finished.stdout
    results = json.loads((tmp_path / "cache.json").read_text())
    for tier in ("process", "shared"):
        assert results[tier]["turns"]["turns"] == 300
        assert 0 < results[tier]["turns"]["bytes"] <= results[tier]["turns"]["limit_bytes"]
        assert results[tier]["clear"]["entries"] == 500
        assert 0 < results[tier]["hit"]["set_us"]["p50"] <= results[tier]["hit"]["set_us"]["p99"]
    assert 0 < results["shared"]["turns"]["redis_peak_bytes"] < results["shared"]["turns"]["redis_limit_bytes"]
