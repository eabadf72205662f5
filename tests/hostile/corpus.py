"""The interesting mutations, kept as bytes: at least one for each way in which each method was answered.

    python tests/hostile/corpus.py N      chooses among the mutations of the seeds below N and writes the file

A corpus holds bytes and not seeds, so that it stays what it is when the generator learns something new.
"""

import base64
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile.mutations import Mutation
from hostile.targets import targets

__all__ = ["CORPUS", "read_corpus", "write_corpus"]

CORPUS = Path(__file__).with_name("corpus") / "mutations.jsonl.xz"


def read_corpus(path: Path) -> Iterator[Mutation]:
    """The mutations of a corpus file; those whose target is not there any more are a KeyError."""
    by_name = {target.name: target for target in targets()}
    for line in lzma.decompress(path.read_bytes()).splitlines():
        row = json.loads(line)
        blob = base64.b85decode(row["blob"])
        yield Mutation(row["seed"], by_name[row["target"]], row["method"], row["sealed"], blob)


def write_corpus(path: Path, attacks: list[Mutation]) -> None:
    """Keep mutations in this order."""
    rows = (
        {
            "seed": attack.seed,
            "target": attack.target.name,
            "method": attack.method,
            "sealed": attack.sealed,
            "blob": base64.b85encode(attack.blob).decode(),
        }
        for attack in attacks
    )
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), preset=9))


def main(n: int) -> None:
    """Choose by outcome, one for each (method, target kind, outcome), and three where another set was accepted."""
    from hostile.mutations import mutation
    from hostile.victim import _Memory, judge

    memory = _Memory()
    seen: dict[tuple[str, ...], int] = {}
    chosen = []
    for seed in range(n):
        attack = mutation(seed)
        outcome = judge(attack, memory)
        key = (attack.method, attack.target.name if outcome == "sound" else str(attack.target.kind), outcome)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= (3 if outcome == "sound" else 1):
            chosen.append(attack)
    write_corpus(CORPUS, chosen)
    print(f"{len(chosen)} mutations, {CORPUS.stat().st_size} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]))
