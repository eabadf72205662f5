"""How much memory a set and a tokenizer take: artifacts, resident automata, and the peak while compiling.

The peak is the kernel's own high-water mark of the resident set (`VmHWM`; Linux with glibc), reset after the candidates
lie in memory, in a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from made_up_sets import made_up_set

from maskfeed_automata import Vocabulary

__all__ = ["measure_peak", "measure_resident"]

_PROGRAM = """
import ctypes, gc, json, sys
from pathlib import Path
from maskfeed_automata import Vocabulary, compile, warm_kernels

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

warm_kernels()
vocabulary = Vocabulary.from_tokenizer(sys.argv[1])
candidates = json.loads(sys.stdin.read())
compile(vocabulary, candidates[:10])
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # or the compile lives in what reading the tokenizer has left free
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS:")
automaton = compile(vocabulary, candidates)
print(json.dumps({"peak_bytes": status("VmHWM:") - before, "artifact_bytes": automaton.nbytes}))
"""


def measure_resident(name: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Bytes that a tokenizer takes for as long as the process lives."""
    tokens = vocabulary.tokenizer_automaton
    return {
        "tokenizer": name,
        "n_ids": vocabulary.size,
        "n_nodes": tokens.n_nodes,
        "automaton_bytes": tokens.nbytes,
        "vocabulary_bytes": vocabulary.data.nbytes + vocabulary.offsets.nbytes,
    }


def measure_peak(tokenizer_directory: Path, kind: str, k: int) -> dict[str, Any]:
    """Bytes of one compile beyond what the process had with the candidates in hand, and of its result."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tokenizer_directory)],
        input=json.dumps(made_up_set(kind, k)),
        capture_output=True,
        check=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return {"kind": kind, "k": k, **result}
