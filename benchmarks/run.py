"""All benchmarks beside the peers: `python benchmarks/run.py`.

Tables to standard output and, with all figures (results.json) and plots (compile.png, apply.png, memory.png), to a
folder of benchmarks/results. `--quick` is the same with small sets, in less than a minute. Times of one run can be
compared with each other, those of different runs or busy machines can not.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import tables
from apply_time import ask_xgrammar, measure_apply
from compile_time import ask_peers, measure_maskfeed
from generate_time import measure_generate
from made_up_sets import KINDS
from memory_use import measure_peak, measure_resident
from peer_process import AGES, PEERS, Peer, peers_of
from plots import draw
from start_time import measure_start
from step_time import measure_steps
from tokenizers import Tokenizer

from maskfeed_automata import Vocabulary, warm_kernels
from tokenizer_files import TOKENIZER_NAMES, tokenizer_directory


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    sizes: Sequence[int]
    kinds: Sequence[str]
    n_rows: Sequence[int]
    tokenizers: Sequence[str]
    # names in each set of the batch; more take xgrammar minutes with a set for each of a thousand rows
    apply_candidates: int
    # logits rows to fill in all walks of a batch size: more rows, fewer walks
    apply_rows: int
    generate_codes: int


FULL = Extent(
    sizes=(10, 100, 1_000, 10_000, 100_000, 1_000_000),
    kinds=tuple(KINDS),
    n_rows=(1, 8, 64, 256, 1024),
    tokenizers=TOKENIZER_NAMES,
    apply_candidates=100,
    apply_rows=8192,
    generate_codes=300,
)
QUICK = Extent(
    sizes=(10, 100),
    kinds=tuple(KINDS),
    n_rows=(1, 8),
    tokenizers=("qwen3",),
    apply_candidates=20,
    apply_rows=64,
    generate_codes=10,
)


def compile_section(vocabulary: Vocabulary, extent: Extent, peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Compile + first mask for every kind and size; a peer that gave up is not asked for more of the same kind."""
    results = []
    given_up: set[tuple[str, str, str]] = set()
    for kind in extent.kinds:
        for k in extent.sizes:
            _progress(f"compile: {k:,} {kind}")
            ours = measure_maskfeed(vocabulary, kind, k)
            ours["peers"] = ask_peers(peers, ours, given_up)
            results.append(ours)
    return results


def apply_section(
    vocabulary: Vocabulary, tokenizer: Tokenizer, extent: Extent, peers: Sequence[Peer]
) -> list[dict[str, Any]]:
    """The whole batched mask path for every batch size, with one set and with a set for each row."""
    results = []
    for n_rows in extent.n_rows:
        for n_sets in sorted({1, n_rows}):
            _progress(f"apply: {n_rows} rows, {n_sets} sets")
            n_rounds = max(5, min(300, extent.apply_rows // n_rows))
            ours = measure_apply(vocabulary, tokenizer, n_rows, n_sets, extent.apply_candidates, n_rounds)
            ours["peers"] = [ask_xgrammar(peer, ours) for peer in peers if peer.name == "xgrammar"]
            del ours["walk"]
            results.append(ours)
    return results


def memory_section(extent: Extent) -> dict[str, Any]:
    """Artifact and peak for every kind and size; what each tokenizer takes."""
    directory = tokenizer_directory("qwen3")
    _progress("memory")
    return {
        "compile": [measure_peak(directory, kind, k) for kind in extent.kinds for k in extent.sizes],
        "resident": [
            measure_resident(name, Vocabulary.from_tokenizer(tokenizer_directory(name))) for name in extent.tokenizers
        ],
    }


def measure(extent: Extent, peers: Sequence[Peer]) -> dict[str, Any]:
    """All sections."""
    warm_kernels()
    directory = tokenizer_directory("qwen3")
    vocabulary = Vocabulary.from_tokenizer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    _progress("first use")
    return {
        "environment": {
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("numpy", "numba", "torch", "transformers")},
            "vocabulary": "qwen3",
            "began": time.strftime("%Y-%m-%dT%H:%M:%S"),
        },
        "start": [measure_start(tokenizer_directory(name)) for name in extent.tokenizers],
        "compile": compile_section(vocabulary, extent, peers),
        "apply": apply_section(vocabulary, tokenizer, extent, peers),
        "step": measure_steps(vocabulary, tokenizer, list(extent.n_rows)),
        "generate": [measure_generate(vocabulary, extent.generate_codes, n_rows, 20) for n_rows in (1, 4, 32)],
        "memory": memory_section(extent),
    }


def _progress(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sets, less than a minute")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS), help="kinds of set")
    parser.add_argument("--largest", type=int, default=100_000, help="most candidates; up to 1000000")
    parser.add_argument("--peers", choices=("none", *AGES, "all"), default="pinned", help="versions of the peers")
    parser.add_argument("--upgrade-peers", action="store_true", help="bring .cache/peers up to date first")
    parser.add_argument("--output", type=Path, help="folder for the results")
    arguments = parser.parse_args()
    ages = {"none": (), "all": AGES}.get(arguments.peers, (arguments.peers,))
    peers = peers_of(PEERS, ages, upgrade=arguments.upgrade_peers)
    try:
        extent = QUICK if arguments.quick else FULL
        sizes = [k for k in extent.sizes if k <= arguments.largest]
        results = measure(replace(extent, sizes=sizes, kinds=arguments.kinds), peers)
    finally:
        for peer in peers:
            peer.close()
    directory = arguments.output or Path(__file__).with_name("results") / time.strftime("%Y%m%dT%H%M%S")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    rendered = tables.render(results)
    (directory / "tables.txt").write_text(rendered)
    print(rendered)
    if find_spec("matplotlib") is None:
        print("no plots: pip install -e '.[bench]' brings matplotlib")
    else:
        draw(results, directory)
    print(f"figures: {directory}")


if __name__ == "__main__":
    main()
