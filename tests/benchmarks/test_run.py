"""The benchmark command with small sets: it runs, checks what it measures, and keeps what it says it keeps."""

import json
import os
import runpy
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
    for heading in (
        "first use",
        "compile + first mask",
        "whole apply()",
        "catalogue",
        "forced text",
        "memory of a tokenizer",
    ):
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
    assert [(row["k"], row["kind"]) for row in results["catalogue"]["parts"]] == [
        (k, kind) for k in (100, 1_000) for kind in ("random", "run")
    ]
    assert {(row["set"], row["tokenizer"]) for row in results["forced_text"]} == {
        ("emoji", "qwen3"),
        ("numeric_ids", "qwen3"),
    }


@pytest.mark.full
def test_the_quick_benchmark_measures_every_section(tmp_path):
    results = run_benchmark(tmp_path, "none")
    check_shape(results)
    assert all(not row["peers"] for row in results["compile"])
    assert (tmp_path / "tables.txt").read_text().splitlines()[-1].startswith("no word on ten times")


def compiled(kind: str, k: int, ours: float, **peers: float | None) -> dict:
    answers = [
        {"peer": name, "age": "pinned", "version": "1"}
        | ({"gave_up": "too many"} if ms is None else {"compile_and_first_mask": ms})
        for name, ms in peers.items()
    ]
    return {"kind": kind, "k": k, "compile_and_first_mask": ours, "peers": answers}


def test_the_verdict_is_that_of_the_least_ratio_to_the_best_peer_that_answered():
    rows = [
        compiled("codes", 1_000, 1.0, slow=2.0),
        compiled("codes", 10_000, 2.0, slow=90.0, fast=24.0),
        compiled("names", 10_000, 2.0, slow=90.0, fast=30.0),
        compiled("codes", 100_000, 20.0, slow=None, fast=260.0),
    ]
    verdict = runpy.run_path(str(_ROOT / "benchmarks" / "tables.py"))["verdict"]
    assert verdict({"compile": rows}) == (
        "ten times faster than the best of them: 12.0 times at 10,000 codes (fast 1), 13.0 times at 100,000 codes "
        "(fast 1); compile + first mask, the least of codes, names"
    )
    rows.append(compiled("names", 100_000, 30.0, fast=298.0))
    assert verdict({"compile": rows}).startswith("not ten times faster than the best of them: 12.0 times")
    assert verdict({"compile": rows[:3]}).startswith("no word on ten times")


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
