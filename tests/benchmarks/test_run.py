"""The benchmark command with small sets: it runs, checks what it measures, and keeps what it says it keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("automata", "cache", "workers", "middleware")


def run_benchmark(output: Path, peers: str) -> dict:
    path = os.pathsep.join(str(_ROOT / room) for room in _ROOMS)
    finished = subprocess.run(
        [sys.executable, str(_ROOT / "benchmarks" / "run.py"), "--quick", "--peers", peers, "--output", str(output)],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr[-4_000:]
    tables = (output / "tables.txt").read_text()
    assert tables in finished.stdout
    for heading in ("first use", "compile + first mask", "whole apply()", "generate()", "memory of a tokenizer"):
        assert heading in tables
    return json.loads((output / "results.json").read_text())


def check_shape(results: dict) -> None:
    kinds_and_sizes = {(row["kind"], row["k"]) for row in results["compile"]}
    assert kinds_and_sizes == {(kind, k) for kind in ("codes", "names", "paths") for k in (10, 100)}
    parts = ("compile_and_first_mask", "encode", "sort", "merge", "trie", "masks", "to_bytes", "from_bytes")
    assert all(row[part] > 0 for row in results["compile"] for part in parts)
    assert {(row["n_rows"], row["n_sets"]) for row in results["apply"]} == {(1, 1), (8, 1), (8, 8)}
    assert all(len(row["ms"]) == len(row["bare_ms"]) == len(row["n_ids"]) == 4 for row in results["apply"])
    assert {row["n_rows"] for row in results["generate"]} == {1, 4, 32}
    assert {(row["kind"], row["k"]) for row in results["memory"]["compile"]} == kinds_and_sizes
    assert [row["tokenizer"] for row in results["memory"]["resident"]] == ["qwen3"]
    assert {"import_s", "kernels_s", "tokenizer_s", "automaton_s"} < set(results["start"][0])
    assert results["environment"]["versions"]["numba"]


def test_the_quick_benchmark_measures_every_section(tmp_path):
    results = run_benchmark(tmp_path, "none")
    check_shape(results)
    assert all(not row["peers"] for row in results["compile"])


@pytest.mark.full
def test_the_peers_that_vllm_pins_answer_every_question_with_equal_masks(tmp_path):
    results = run_benchmark(tmp_path, "pinned")
    check_shape(results)
    for row in results["compile"]:
        assert [answer["peer"] for answer in row["peers"]] == ["xgrammar", "llguidance-enum", "llguidance-terminal"]
        assert all(answer["compile_and_first_mask"] > 0 for answer in row["peers"])
    for row in results["apply"]:
        (answer,) = row["peers"]
        assert answer["n_ids"] == row["n_ids"]
