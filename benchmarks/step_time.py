"""How long one step of a batch takes: rows over 16 different sets of 10,000 names, each along a name of its own."""

import random
import statistics
import time
from typing import Any

import numpy as np
from names import candidate_names
from tokenizers import Tokenizer

from maskfeed_automata import Automaton, Batch, Vocabulary, compile

__all__ = ["measure_steps"]

_N_SETS = 16
_N_NAMES = 10_000
_N_ROUNDS = 30
_N_STEPS = 5


def measure_steps(vocabulary: Vocabulary, tokenizer: Tokenizer, n_rows: list[int]) -> list[dict[str, Any]]:
    """Per batch size and step: microseconds of `Batch.step`, for all rows and for one, and ids in a row."""
    sets = [candidate_names(_N_NAMES, seed=seed) for seed in range(_N_SETS)]
    automata = [compile(vocabulary, names) for names in sets]
    return [result for n in n_rows for result in _measure(vocabulary, tokenizer, sets, automata, n)]


def _measure(
    vocabulary: Vocabulary, tokenizer: Tokenizer, sets: list[list[str]], automata: list[Automaton], n_rows: int
) -> list[dict[str, Any]]:
    """Each text twice: first from memory that nothing touched lately, then from warm caches."""
    choose = random.Random(n_rows)
    batch = Batch(vocabulary, n_rows)
    cold: dict[int, list[float]] = {}
    warm: dict[int, list[float]] = {}
    ids_per_row: dict[int, float] = {}
    for _ in range(_N_ROUNDS):
        chosen = [choose.randrange(_N_SETS) for _ in range(n_rows)]
        texts = [choose.choice(sets[k]) for k in chosen]
        end = [*vocabulary.stop_token_ids[:1]] * _N_STEPS
        encoded = [[*tokenizer.encode(text, add_special_tokens=False).ids, *end] for text in texts]
        for times in (cold, warm):
            for slot, k in enumerate(chosen):
                batch.start(slot, automata[k], vocabulary.stop_token_ids)
            _walk(batch, encoded, times, ids_per_row)
    return [
        {
            "n_rows": n_rows,
            "step": step,
            "us": statistics.median(cold[step]) * 1e6,
            "us_per_row": statistics.median(cold[step]) * 1e6 / n_rows,
            "warm_us_per_row": statistics.median(warm[step]) * 1e6 / n_rows,
            "ids_per_row": ids_per_row[step],
        }
        for step in range(_N_STEPS)
    ]


def _walk(batch: Batch, encoded: list[list[int]], times: dict[int, list[float]], ids_per_row: dict[int, float]) -> None:
    n_rows = len(encoded)
    slots = np.arange(n_rows, dtype=np.int32)
    pointers, tokens = np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32)
    for step in range(_N_STEPS):
        start = time.perf_counter()
        rows = batch.step(slots, pointers, tokens)
        times.setdefault(step, []).append(time.perf_counter() - start)
        ids_per_row[step] = rows.token_ids.size / n_rows
        assert not rows.failed.any()
        tokens = np.array([ids[step] for ids in encoded], np.int32)
        for i, token in enumerate(tokens[:8]):
            assert token in rows.token_ids[rows.row_ptr[i] : rows.row_ptr[i + 1]]
        pointers = np.arange(n_rows + 1, dtype=np.int64)
