"""The processor for `generate()` of transformers beside its own prefix function over a token trie: one step's cost.

The trie holds every tokenisation, so both permit the same; the masked scores are asserted equal at every step.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from made_up_sets import made_up_set
from transformers import PrefixConstrainedLogitsProcessor

from maskfeed_automata import Vocabulary, compile
from maskfeed_workers.hf_processor import CandidateLogitsProcessor
from token_trie import prefix_function, token_trie

__all__ = ["measure_generate"]


def measure_generate(vocabulary: Vocabulary, k: int, n_rows: int, n_rounds: int) -> dict[str, Any]:
    """Milliseconds to make each, and of a step of `n_rows` beams, for `k` codes.

    The codes are short: the number of tokenisations, and with it the trie, grows exponentially with their length.
    """
    codes = made_up_set("codes", k)
    start = time.perf_counter()
    automaton = compile(vocabulary, codes)
    made_ms = (time.perf_counter() - start) * 1e3
    start = time.perf_counter()
    trie = token_trie(vocabulary, codes)
    trie_ms = (time.perf_counter() - start) * 1e3
    # `rows` begin with one token of padding; the beams of one prompt share one trie
    permitted_after = prefix_function([trie], 1, vocabulary.stop_token_ids[0])
    walks = [_tokens_of(automaton, row) for row in range(n_rows)]
    n_steps = min(map(len, walks))
    rows = torch.tensor([walk[:n_steps] for walk in walks])
    scores = torch.randn(n_rows, vocabulary.size)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(n_rounds):
        processor = CandidateLogitsProcessor(automaton)
        prefix = PrefixConstrainedLogitsProcessor(permitted_after, num_beams=n_rows)
        for step in range(n_steps):
            prompt_and_text = torch.nn.functional.pad(rows[:, :step], (1, 0))
            start = time.perf_counter()
            mine = processor(prompt_and_text, scores)
            middle = time.perf_counter()
            other = prefix(prompt_and_text, scores)
            theirs.append(time.perf_counter() - middle)
            ours.append(middle - start)
            assert torch.equal(mine, other)
    return {
        "k": k,
        "n_rows": n_rows,
        "made_ms": made_ms,
        "trie_ms": trie_ms,
        "step_ms": statistics.median(ours) * 1e3,
        "prefix_function_step_ms": statistics.median(theirs) * 1e3,
    }


def _tokens_of(automaton: Any, seed: int) -> list[int]:
    """A walk to the end of some candidate, by permitted tokens of the smallest and the largest ids in turn."""
    cursor = automaton.cursor()
    tokens: list[int] = []
    while not cursor.is_finished:
        permitted = cursor.allowed_token_ids()
        tokens.append(int(permitted[(seed * 31) % len(permitted)]))
        cursor.advance(tokens[-1])
    return tokens
