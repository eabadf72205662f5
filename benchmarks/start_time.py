"""How long a second process takes until it has a mask: kernels and tokenizer automaton come from disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["measure_start"]

_PROGRAM = """
import time
marks = [time.perf_counter()]
import json, sys
from maskfeed_automata import Vocabulary, compile, load_tokenizer_automaton, warm_kernels
from maskfeed_automata.loader import read_tokenizer
marks.append(time.perf_counter())
warm_kernels()
marks.append(time.perf_counter())
tokens, stop_token_ids = read_tokenizer(sys.argv[1])
vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=stop_token_ids)
marks.append(time.perf_counter())
load_tokenizer_automaton(vocabulary)
marks.append(time.perf_counter())
assert compile(vocabulary, ["get_user", "get_users", "list_users"]).cursor().allowed_token_ids().size
marks.append(time.perf_counter())
parts = ["import_s", "kernels_s", "tokenizer_s", "automaton_s", "first_compile_s"]
print(json.dumps({part: b - a for part, a, b in zip(parts, marks, marks[1:])}))
"""


def measure_start(tokenizer_directory: Path, *, n_processes: int = 3) -> dict[str, Any]:
    """Seconds of each part, of the best process; a first one fills the caches.

    `tokenizer_s` is reading tokenizer.json, `automaton_s` the automaton from the cache on disk.
    """
    results = []
    for _ in range(n_processes + 1):
        command = [sys.executable, "-c", _PROGRAM, str(tokenizer_directory)]
        results.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    return {"tokenizer": tokenizer_directory.name, **min(results[1:], key=lambda result: sum(result.values()))}
