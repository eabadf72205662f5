"""Masks on a GPU: `python benchmarks/gpu.py`, less than eight minutes, no download, no argument needed.

First the kernels (advance and mask, 8, 64 and 256 rows, sets of 10,000 and 100,000) beside a bare fill of the same
rows; then engines with both of vLLM's model runners, with and without the plugin. Tables to standard output as they
come, all figures to gpu.json of the output folder. What does not fit into the time is left out and named. Where vLLM is
not installed, the engines are left out. `--quick` shows on a CPU, with TRITON_INTERPRET=1, that the first part works,
and with `--engines` that the second one does (some minutes); these figures mean nothing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_kernels import measure_kernels, measure_upload
from gpu_model import LOGITS_WIDTH, make_model, train_tokenizer

from maskfeed_automata import Vocabulary, warm_kernels

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 460
# What lets the CPU run vLLM's V2 model runner, in Triton's interpreter.
_V2_ON_CPU = _HERE.parent / "tests" / "v2_platform"
# The second runner's engines come last: on a GPU the V2 runner is what everybody gets.
_ENGINES = (("v2", "with"), ("v2", "without"), ("v1", "with"), ("v1", "without"))
_ENGINE_LIMIT_S = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, on whatever device there is")
    parser.add_argument("--engines", action="store_true", help="with --quick: small engines too")
    parser.add_argument("--output", type=Path, default=_HERE / "results" / "gpu")
    arguments = parser.parse_args()
    ends_at = time.monotonic() + _LIMIT_S
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.quick:
        parser.error("no GPU here; --quick shows that the kernels work")
    arguments.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"device": _device_name(device), "torch": torch.__version__}
    print(f"{results['device']}, torch {results['torch']}", flush=True)

    warm_kernels()
    tokenizer = train_tokenizer(600 if arguments.quick else 24_000)
    width = 1_000 if arguments.quick else LOGITS_WIDTH
    vocabulary = _vocabulary(tokenizer)
    sizes, n_rows = ([50], [1, 3]) if arguments.quick else ([10_000, 100_000], [8, 64, 256])
    results["upload"] = measure_upload(vocabulary, sizes, device)
    _show("set on the device", results["upload"])
    results["kernels"] = measure_kernels(vocabulary, tokenizer, sizes, n_rows, width, device)
    _show("microseconds a step", [_flat(row) for row in results["kernels"]])
    if arguments.engines or not arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), tokenizer, logits_width=width, n_layers=1 if arguments.quick else 4)
            results["engines"], results["left_out"] = _measure_engines(Path(folder), arguments.quick, ends_at)
        _show("tokens a second", results["engines"])
        for line in results["left_out"]:
            print(f"left out: {line}", flush=True)
    (arguments.output / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")


def _vocabulary(tokenizer: Any) -> Vocabulary:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(str(path))
        read = Vocabulary.from_tokenizer(path, cache_directory=folder)
    tokens = [read.token_bytes(token_id) for token_id in range(read.size)]
    return Vocabulary.from_token_bytes(tokens, stop_token_ids=[2])


def _measure_engines(model: Path, quick: bool, ends_at: float) -> tuple[list[dict[str, Any]], list[str]]:
    if find_spec("vllm") is None:
        return [], ["engines: vLLM is not installed"]
    figures: list[dict[str, Any]] = []
    left_out: list[str] = []
    for runner, processor in _ENGINES:
        what = f"{runner} {processor} the plugin"
        left_s = min(_ENGINE_LIMIT_S, ends_at - time.monotonic())
        if left_s < 40:
            left_out.append(f"{what}: no time")
            continue
        print(f"engine: {what}", flush=True)
        made, error = _run_engine([str(model), runner, processor, "quick" if quick else "full"], left_s)
        figures += made
        if error:
            left_out.append(f"{what}: {error}")
    return figures, left_out


def _run_engine(arguments: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """Figures of one engine as far as it came, and why it came no further."""
    roots = [str(_HERE.parent / room) for room in ("automata", "cache", "workers", "middleware")]
    if arguments[1] == "v2" and not torch.cuda.is_available():
        roots.insert(0, str(_V2_ON_CPU))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, str(_HERE / "gpu_engine.py"), *arguments]
        error = ""
        try:
            child = subprocess.run(command, stdout=said, stderr=log, env=environment, timeout=limit_s, check=False)
            if child.returncode:
                log.seek(0)
                error = f"exit code {child.returncode}: {log.read()[-600:]}"
        except subprocess.TimeoutExpired:
            error = f"more than {limit_s:.0f} s"
        said.seek(0)
        return [json.loads(line) for line in said if line.startswith("{")], error


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if not isinstance(value, dict) and value is not None}
    for runner in ("v1", "v2"):
        flat |= {f"{runner}_{key}": value for key, value in (row[runner] or {}).items()}
    return flat


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    cells = [list(rows[0])]
    cells += [[f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, interpreted ({platform.machine()})"


if __name__ == "__main__":
    main()
