"""All benchmarks: `python benchmarks/run.py`. Tables to stdout, figures to benchmarks/results/<time>.json.

`--no-peers` leaves xgrammar and llguidance out.
"""

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from compile_time import PEERS, measure_maskfeed, measure_peer
from start_time import measure_start
from step_time import measure_steps
from tokenizers import Tokenizer

from maskfeed_automata import Vocabulary
from tokenizer_files import tokenizer_directory

SIZES = (10, 100, 1_000, 10_000, 100_000)
PARTS = ("encode", "sort", "merge", "candidate_set", "trie", "masks", "to_bytes", "from_bytes")


def compile_table(vocabulary: Vocabulary, peers: tuple[str, ...]) -> list[dict[str, Any]]:
    """Measure and print compile + first mask."""
    print("\ncompile + first mask of a fresh list, ms (root masks equal)")
    print(f"{'names':>8} {'maskfeed':>10}" + "".join(f"{peer:>22}" for peer in peers))
    results = []
    given_up: set[str] = set()
    for k in SIZES:
        ours = measure_maskfeed(vocabulary, k)
        line = f"{k:8,} {ours['compile_and_first_mask']:10.3f}"
        ours["peers"] = []
        for peer in peers:
            if peer in given_up:
                line += f"{'-':>22}"
                continue
            theirs = measure_peer(peer, k, ours["root_mask"])
            ours["peers"].append(theirs)
            if "gave_up" in theirs:
                given_up.add(peer)
                line += f"{'gave up':>22}"
            else:
                ratio = theirs["compile_and_first_mask"] / ours["compile_and_first_mask"]
                line += f"{theirs['compile_and_first_mask']:13.1f} ({ratio:5.1f}x)"
        print(line, flush=True)
        results.append(ours)
    for result in results:
        for theirs in result["peers"]:
            if "gave_up" in theirs:
                print(f"  {theirs['peer']} gave up at {theirs['k']:,}: {theirs['gave_up']}")
    print("\nthe parts, ms; candidate_set = encode + sort + merge + hash")
    print(f"{'names':>8}" + "".join(f"{part:>14}" for part in PARTS) + f"{'artifact':>12}{'nodes':>10}{'mask ids':>10}")
    for result in results:
        parts = "".join(f"{result[part]:14.3f}" for part in PARTS)
        size = f"{result['artifact_bytes'] / 1e6:9.2f} MB"
        print(f"{result['k']:8,}{parts}{size}{result['n_nodes']:10,}{result['n_mask_ids']:10,}")
    return results


def step_table(vocabulary: Vocabulary, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Measure and print the time of a step."""
    results = measure_steps(vocabulary, tokenizer, [1, 8, 64, 256, 1024])
    print("\none step of a batch over 16 sets of 10,000 names")
    print(f"{'rows':>8}{'step':>6}{'us':>10}{'us/row':>10}{'warm':>10}{'ids/row':>10}")
    for row in results:
        figures = f"{row['us']:10.1f}{row['us_per_row']:10.3f}{row['warm_us_per_row']:10.3f}{row['ids_per_row']:10.1f}"
        print(f"{row['n_rows']:8}{row['step']:6}{figures}")
    return results


def main(arguments: list[str]) -> None:
    """Run everything and keep the figures."""
    directory = tokenizer_directory("qwen3")
    vocabulary = Vocabulary.from_tokenizer(directory)
    tokens = vocabulary.tokenizer_automaton
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, Qwen3 vocabulary")
    print(f"tokenizer automaton: {vocabulary.size:,} ids, {tokens.n_nodes:,} nodes, {tokens.nbytes / 1e6:.1f} MB")
    start = measure_start(directory)
    print("a second process: " + ", ".join(f"{name[:-2].replace('_', ' ')} {s:.2f} s" for name, s in start.items()))
    results = {
        "start": start,
        "compile": compile_table(vocabulary, () if "--no-peers" in arguments else PEERS),
        "step": step_table(vocabulary, Tokenizer.from_file(str(directory / "tokenizer.json"))),
    }
    path = Path(__file__).with_name("results") / time.strftime("%Y%m%dT%H%M%S.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1))
    print(f"\nfigures: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
