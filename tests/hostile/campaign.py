"""Applies mutations in processes of their own and says how each kind was taken: `make hostile`.

    python tests/hostile/campaign.py [--mutations N] [--processes N] [--corpus]

A process that dies or hangs is a failure, and the seed that it was at is printed: `mutation(seed)` is the buffer.
Exit code 1 if anything but a typed error, an equal set or a sound one was seen.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile.corpus import CORPUS

__all__ = ["Report", "attack", "main"]

_VICTIM = Path(__file__).with_name("victim.py")
_PER_PROCESS = 25_000
# A thousand mutations take a second at most; the victim itself gives up where one never ends.
_TIMEOUT_S = 600


@dataclass
class Report:
    """What became of the mutations."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def n_mutations(self) -> int:
        """Those that were judged."""
        return self.counts.total()

    def outcomes(self) -> Counter[str]:
        """Counts by outcome: equal, refused, sound, wrong."""
        totals: Counter[str] = Counter()
        for key, n in self.counts.items():
            totals[key.split("\t")[1].partition(":")[0]] += n
        return totals


def attack(*what: str | int | Path) -> Report:
    """One process over a corpus file, or over seeds from the first to before the second."""
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(struct.pack("<q", -1))
        progress.flush()
        command = [sys.executable, str(_VICTIM), progress.name, *map(str, what)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Report(failures=[f"no end within {_TIMEOUT_S} s of {what}"])
        (seed,) = struct.unpack("<q", Path(progress.name).read_bytes())
    if done.returncode:
        return Report(failures=[f"exit code {done.returncode} at seed {seed}: {done.stderr.strip()[-2000:]}"])
    result = json.loads(done.stdout)
    return Report(Counter(result["counts"]), result["failures"])


def main(arguments: list[str]) -> int:
    """Attack, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description="Mutated buffers against what reads them.")
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--corpus", action="store_true", help="the kept ones only")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    total = Report()
    if options.corpus:
        jobs: list[tuple[str | int | Path, ...]] = [(CORPUS,)]
    else:
        n = options.mutations
        jobs = [(first, min(first + _PER_PROCESS, n)) for first in range(0, n, _PER_PROCESS)]
    with ThreadPoolExecutor(options.processes) as pool:
        for report in pool.map(lambda job: attack(*job), jobs):
            total.counts += report.counts
            total.failures += report.failures
            print(f"\r{total.n_mutations:,} mutations", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _print(total, time.perf_counter() - start)
    return 1 if total.failures else 0


def _print(report: Report, elapsed_s: float) -> None:
    methods = sorted({key.split("\t")[0] for key in report.counts})
    print(f"{'':22}{'refused':>10}{'equal':>10}{'sound':>10}{'wrong':>10}   refused by")
    for method in methods:
        outcomes: Counter[str] = Counter()
        sections: Counter[str] = Counter()
        for key, n in report.counts.items():
            if key.split("\t")[0] == method:
                kind, _, detail = key.split("\t")[1].partition(": ")
                outcomes[kind] += n
                if detail:
                    sections[detail.partition(", ")[2]] += n
        figures = "".join(f"{outcomes[kind]:10,}" for kind in ("refused", "equal", "sound", "wrong"))
        print(f"{method:22}{figures}   {', '.join(name for name, _ in sections.most_common(8))}")
    totals = report.outcomes()
    print(
        f"{report.n_mutations:,} mutations in {elapsed_s:.0f} s: {totals['refused']:,} refused with a typed error, "
        f"{totals['equal']:,} equal to the original, {totals['sound']:,} another sound set under another hash, "
        f"{len(report.failures)} failures"
    )
    for failure in report.failures[:20]:
        print(failure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
