"""How long a second process takes until it has a mask: kernels and tokenizer automaton come from disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["measure_start"]

_PROGRAM = """
import time
began = time.perf_counter()
import json, sys
from maskfeed_automata import Batch, Vocabulary, compile
imported = time.perf_counter()
vocabulary = Vocabulary.from_tokenizer(sys.argv[1])
read = time.perf_counter()
automaton = compile(vocabulary, ["get_user", "get_users", "list_users"])
automaton.cursor().allowed_token_ids()
done = time.perf_counter()
print(json.dumps({"import_s": imported - began, "vocabulary_s": read - imported, "first_compile_s": done - read}))
"""


def measure_start(tokenizer_directory: Path) -> dict[str, Any]:
    """Seconds of each part, best of three processes; the caches are warm."""
    results = []
    for _ in range(4):
        command = [sys.executable, "-c", _PROGRAM, str(tokenizer_directory)]
        results.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    return min(results[1:], key=lambda result: sum(result.values()))
