"""All benchmarks beside the peers: `python benchmarks/run.py`.

Tables to standard output and, with all figures (results.json) and plots (compile.png, apply.png, memory.png), to a
folder of benchmarks/results. `--quick` is the same with small sets, in less than a minute; `--only` takes some of the
sections. Times of one run can be compared with each other, those of different runs or busy machines can not.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import tables
from apply_time import ask_xgrammar, measure_apply
from catalogue import measure_catalogue
from compile_time import ask_peers, measure_maskfeed
from forced_text import measure_forced_text
from generate_time import measure_generate
from made_up_sets import KINDS
from memory_use import measure_peak, measure_resident
from peer_process import AGES, PEERS, Peer, peers_of
from plots import draw
from start_time import measure_start
from step_time import measure_steps
from tokenizers import Tokenizer

from candidate_sets import CANDIDATE_SET_NAMES
from maskfeed_automata import Vocabulary, warm_kernels
from tokenizer_files import TOKENIZER_NAMES, tokenizer_directory

SECTIONS = ("start", "compile", "apply", "step", "catalogue", "forced_text", "generate", "memory")


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
    # names in the catalogue
    catalogue: int
    # sets of which forced text is counted
    forced_sets: Sequence[str]


FULL = Extent(
    sizes=(10, 100, 1_000, 10_000, 100_000, 1_000_000),
    kinds=tuple(KINDS),
    n_rows=(1, 8, 64, 256, 1024),
    tokenizers=TOKENIZER_NAMES,
    apply_candidates=100,
    apply_rows=8192,
    generate_codes=300,
    catalogue=1_000_000,
    forced_sets=CANDIDATE_SET_NAMES,
)
QUICK = Extent(
    sizes=(10, 100),
    kinds=tuple(KINDS),
    n_rows=(1, 8),
    tokenizers=("qwen3",),
    apply_candidates=20,
    apply_rows=64,
    generate_codes=10,
    catalogue=2_000,
    forced_sets=("emoji", "numeric_ids"),
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
    return {
        "compile": [measure_peak(directory, kind, k) for kind in extent.kinds for k in extent.sizes],
        "resident": [
            measure_resident(name, Vocabulary.from_tokenizer(tokenizer_directory(name))) for name in extent.tokenizers
        ],
    }


def measure(extent: Extent, peers: Sequence[Peer], names: Sequence[str]) -> dict[str, Any]:
    """The sections with these names."""
    warm_kernels()
    directory = tokenizer_directory("qwen3")
    vocabulary = Vocabulary.from_tokenizer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    sections: Mapping[str, Callable[[], Any]] = {
        "start": lambda: [measure_start(tokenizer_directory(name)) for name in extent.tokenizers],
        "compile": lambda: compile_section(vocabulary, extent, peers),
        "apply": lambda: apply_section(vocabulary, tokenizer, extent, peers),
        "step": lambda: measure_steps(vocabulary, tokenizer, list(extent.n_rows)),
        "catalogue": lambda: measure_catalogue(vocabulary, extent.catalogue),
        "forced_text": lambda: measure_forced_text(extent.forced_sets, extent.tokenizers),
        "generate": lambda: [measure_generate(vocabulary, extent.generate_codes, rows, 20) for rows in (1, 4, 32)],
        "memory": lambda: memory_section(extent),
    }
    results: dict[str, Any] = {
        "environment": {
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("numpy", "numba", "torch", "transformers")},
            "vocabulary": "qwen3",
            "began": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }
    }
    for name in names:
        _progress(name)
        results[name] = sections[name]()
    return results


def _progress(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sets, less than a minute")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these sections")
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
        catalogue = min(extent.catalogue, arguments.largest)
        extent = replace(extent, sizes=sizes, kinds=arguments.kinds, catalogue=catalogue)
        results = measure(extent, peers, arguments.only)
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
