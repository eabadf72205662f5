"""How long until the first mask of a fresh list is there, beside xgrammar and llguidance; and where the time goes.

Every peer's root mask is compared with ours before a figure of it is kept: equal, or different in the one known way.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from made_up_sets import made_up_set
from peer_process import Peer

from maskfeed_automata import Automaton, CandidateSet, Limits, Vocabulary, compile
from maskfeed_automata.builder import _masks
from maskfeed_automata.candidates import _flatten, _sorted
from maskfeed_automata.sort_kernels import merge_equal
from maskfeed_automata.trie import build_trie

__all__ = ["ask_peers", "measure_maskfeed", "median_ms"]


def median_ms(call: Callable[[], object], n: int) -> float:
    """Median of `n` calls in milliseconds."""
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure_maskfeed(vocabulary: Vocabulary, kind: str, k: int) -> dict[str, Any]:
    """Compile + first mask, the parts of it, and artifact figures, for `k` candidates. Milliseconds."""
    candidates = made_up_set(kind, k)
    n = 25 if k <= 10_000 else 9 if k <= 100_000 else 3
    automaton = compile(vocabulary, candidates)
    blob = automaton.to_bytes()
    assert Automaton.from_bytes(blob, vocabulary).to_bytes() == blob
    candidate_set = CandidateSet.from_strings(candidates)
    data, starts, lengths = _flatten(candidates, Limits())
    in_order = _sorted(data, starts, lengths)
    merged = np.empty_like(in_order[0])
    trie = build_trie(candidate_set, "never")
    all_live = np.empty(0, np.uint64)
    return {
        "kind": kind,
        "k": k,
        "root_ids": automaton.cursor().allowed_token_ids().tolist(),
        "forced_bytes": len(automaton.cursor().forced_text),
        "compile_and_first_mask": median_ms(lambda: compile(vocabulary, candidates).cursor().allowed_token_ids(), n),
        "encode": median_ms(lambda: _flatten(candidates, Limits()), n),
        "sort": median_ms(lambda: _sorted(data, starts, lengths), n),
        "merge": median_ms(lambda: merge_equal(*in_order, merged), n),
        "candidate_set": median_ms(lambda: CandidateSet.from_strings(candidates), n),
        "trie": median_ms(lambda: build_trie(candidate_set, "never"), n),
        "masks": median_ms(lambda: _masks(vocabulary, trie, all_live), n),
        "to_bytes": median_ms(automaton.to_bytes, n),
        "from_bytes": median_ms(lambda: Automaton.from_bytes(blob, vocabulary), n),
        "artifact_bytes": len(blob),
        "candidate_bytes": int(candidate_set.data.size),
        "n_nodes": automaton.n_nodes,
        "n_mask_ids": int(automaton.arrays.mask_ids.size),
    }


def ask_peers(peers: Sequence[Peer], ours: dict[str, Any], given_up: set[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Compile + first mask of every peer that has not given up this kind of set before.

    Args:
        peers: who is asked.
        ours: a result of `measure_maskfeed`; what the peers' masks must equal.
        given_up: (peer, age, kind) of those that are not asked again; those that give up now are added.
    """
    answers = []
    # Written once: a million candidates take longer to make up than a peer may take.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(made_up_set(ours["kind"], ours["k"]), file)
        file.flush()
        for peer in peers:
            key = (peer.name, peer.age, ours["kind"])
            if key in given_up:
                continue
            answer = peer.ask("compile", path=file.name)
            if "gave_up" in answer:
                given_up.add(key)
            else:
                answer["difference"] = _difference(ours, peer.name, answer.pop("root_ids"))
            answers.append(answer)
    return answers


def _difference(ours: dict[str, Any], peer: str, root_ids: list[int]) -> str:
    """What explains a peer's other root mask, "" for an equal one; AssertionError if nothing does.

    Where all candidates begin alike, llguidance permits only the token with which the tokenizer itself would go on.
    """
    if root_ids == ours["root_ids"]:
        return ""
    is_forced = ours["forced_bytes"] > 0 and len(root_ids) == 1 and set(root_ids) <= set(ours["root_ids"])
    assert peer.startswith("llguidance"), f"{peer}: another root mask for {ours['k']:,} {ours['kind']}"
    assert is_forced, f"{peer}: another root mask for {ours['k']:,} {ours['kind']}"
    return "canonical token only"
