"""How long until the first mask of a fresh list is there, beside xgrammar and llguidance; and where the time goes.

Every peer's root mask is compared with ours before anything is timed. Each peer runs in a process of its own, so that
a compile that takes minutes can be given up.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from names import candidate_names

from maskfeed_automata import Automaton, CandidateSet, Limits, Vocabulary, compile
from maskfeed_automata.builder import _masks
from maskfeed_automata.candidates import _flatten, _order
from maskfeed_automata.sort_kernels import merge_equal
from maskfeed_automata.trie import build_trie

__all__ = ["PEERS", "mask_hash", "measure_maskfeed", "measure_peer", "median_ms"]

PEERS = ("xgrammar", "llguidance-enum", "llguidance-terminal")
_GIVE_UP_S = 60.0
# Of which: importing the peer, reading the tokenizer.
_START_S = 40.0


def median_ms(call: Callable[[], object], n: int) -> float:
    """Median of `n` calls in milliseconds."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def mask_hash(token_ids: "np.ndarray[Any, np.dtype[np.int32]]") -> str:
    """What two root masks are compared by."""
    return hashlib.sha256(np.sort(token_ids).astype("<i4").tobytes()).hexdigest()


def measure_maskfeed(vocabulary: Vocabulary, k: int) -> dict[str, Any]:
    """Compile + first mask, the parts of it, and artifact figures, for `k` names. Milliseconds."""
    names = candidate_names(k)
    n = 25 if k <= 10_000 else 9
    automaton = compile(vocabulary, names)
    blob = automaton.to_bytes()
    assert Automaton.from_bytes(blob, vocabulary).to_bytes() == blob
    candidate_set = CandidateSet.from_strings(names)
    data, starts, lengths = _flatten(names, Limits())
    order = _order(data, starts, lengths)
    trie = build_trie(candidate_set, "never")
    all_live = np.empty(0, np.uint64)
    return {
        "k": k,
        "root_mask": mask_hash(automaton.cursor().allowed_token_ids()),
        "compile_and_first_mask": median_ms(lambda: compile(vocabulary, names).cursor().allowed_token_ids(), n),
        "encode": median_ms(lambda: _flatten(names, Limits()), n),
        "sort": median_ms(lambda: _order(data, starts, lengths), n),
        "merge": median_ms(lambda: merge_equal(data, starts, lengths, order), n),
        "candidate_set": median_ms(lambda: CandidateSet.from_strings(names), n),
        "trie": median_ms(lambda: build_trie(candidate_set, "never"), n),
        "masks": median_ms(lambda: _masks(vocabulary, trie, all_live), n),
        "to_bytes": median_ms(automaton.to_bytes, n),
        "from_bytes": median_ms(lambda: Automaton.from_bytes(blob, vocabulary), n),
        "artifact_bytes": len(blob),
        "candidate_bytes": int(candidate_set.data.size),
        "n_nodes": automaton.n_nodes,
        "n_mask_ids": int(automaton.arrays.mask_ids.size),
    }


def measure_peer(peer: str, k: int, root_mask: str) -> dict[str, Any]:
    """Compile + first mask of a peer in milliseconds, or a `gave_up` with the reason."""
    command = [sys.executable, str(Path(__file__).with_name("peers.py")), peer, str(k)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIVE_UP_S + _START_S, check=False)
    except subprocess.TimeoutExpired:
        return {"peer": peer, "k": k, "gave_up": f"more than {_GIVE_UP_S:.0f} s"}
    if done.returncode:
        return {"peer": peer, "k": k, "gave_up": done.stderr.strip().splitlines()[-1][:200]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "gave_up" not in result:
        assert result["root_mask"] == root_mask, f"{peer} has another root mask for {k} names"
    return {"peer": peer, "k": k, **result}
