"""How long a whole `apply()` takes: rows advanced, permitted ids listed, logits masked; from the root step on.

Beside it the least that any mask costs, a bare fill of the same logits and a scatter of the same ids with indices that
lie ready; and xgrammar's batch fill with its bitmask applied. Ours and the bare fill are timed in turn, so that a busy
machine slows both. Every row's mask is asserted before anything is timed. One thread of torch: where cores are busy,
two that wait for each other make any figure possible.
"""

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from made_up_sets import made_up_set
from peer_process import Peer
from tokenizers import Tokenizer

from maskfeed_automata import Automaton, Vocabulary, compile
from maskfeed_workers.masking import mask_rows
from maskfeed_workers.slots import Constraint, Refusal, SlotTable

__all__ = ["ask_xgrammar", "measure_apply"]

_FORBIDDEN = float("-inf")
_N_STEPS = 4


def measure_apply(
    vocabulary: Vocabulary, tokenizer: Tokenizer, n_rows: int, n_sets: int, n_candidates: int, n_rounds: int
) -> dict[str, Any]:
    """Medians in milliseconds of each step, ours and bare; tokens taken after each step, for the peers.

    Args:
        vocabulary: of the masks.
        tokenizer: splits the texts that the rows walk along.
        n_rows: rows of the batch.
        n_sets: different sets; row r uses set r % n_sets.
        n_candidates: names in each set.
        n_rounds: walks to measure.
    """
    torch.set_num_threads(1)
    sets = [made_up_set("names", n_candidates, seed=seed) for seed in range(n_sets)]
    automata = [compile(vocabulary, names) for names in sets]
    texts = _texts(tokenizer, sets, n_rows)
    logits = torch.randn(n_rows, vocabulary.size)
    _check(vocabulary, automata, texts, logits)
    ours: list[list[float]] = [[] for _ in range(_N_STEPS)]
    bare: list[list[float]] = [[] for _ in range(_N_STEPS)]
    n_ids = [0] * _N_STEPS
    for _ in range(n_rounds):
        table, outputs = _bind(vocabulary, automata, n_rows)
        for step in range(_N_STEPS):
            start = time.perf_counter()
            made = table.step()
            mask_rows(logits, made.rows, made.row_ptr, made.token_ids)
            ours[step].append(time.perf_counter() - start)
            n_ids[step] = int(made.row_ptr[-1])
            entries = np.stack((np.repeat(made.rows, np.diff(made.row_ptr)), made.token_ids.astype(np.int64)))
            rows, columns = torch.from_numpy(entries)
            values = torch.zeros(len(rows))
            start = time.perf_counter()
            logits.fill_(_FORBIDDEN)
            logits[rows, columns] = values
            bare[step].append(time.perf_counter() - start)
            for output, ids in zip(outputs, texts, strict=True):
                output.append(ids[step])
    ms = [statistics.median(times) * 1e3 for times in ours]
    bare_ms = [statistics.median(times) * 1e3 for times in bare]
    return {
        "n_rows": n_rows,
        "n_sets": n_sets,
        "n_candidates": n_candidates,
        "ms": ms,
        "bare_ms": bare_ms,
        "ratio": sum(ms) / sum(bare_ms),
        "root_ratio": ms[0] / bare_ms[0],
        "n_ids": n_ids,
        "walk": [[ids[step] for ids in texts] for step in range(_N_STEPS - 1)],
    }


def ask_xgrammar(peer: Peer, ours: dict[str, Any]) -> dict[str, Any]:
    """xgrammar along the same tokens; its masks leave as many entries as ours at each step."""
    question = {key: ours[key] for key in ("n_rows", "n_sets", "n_candidates", "walk")}
    answer = peer.ask("apply", **question)
    if "gave_up" not in answer:
        assert answer["n_ids"] == ours["n_ids"], f"{peer.name}: {answer['n_ids']} entries, ours {ours['n_ids']}"
    return answer


def _texts(tokenizer: Tokenizer, sets: Sequence[Sequence[str]], n_rows: int) -> list[list[int]]:
    """Tokens of one candidate for each row, long enough for every step."""
    choose = random.Random(n_rows)
    texts = []
    for row in range(n_rows):
        ids: list[int] = []
        while len(ids) < _N_STEPS:
            ids = tokenizer.encode(choose.choice(sets[row % len(sets)]), add_special_tokens=False).ids
        texts.append(ids)
    return texts


def _bind(vocabulary: Vocabulary, automata: Sequence[Automaton], n_rows: int) -> tuple[SlotTable, list[list[int]]]:
    table = SlotTable(vocabulary, n_rows)
    outputs: list[list[int]] = [[] for _ in range(n_rows)]
    stop_ids = vocabulary.stop_token_ids
    for row, output in enumerate(outputs):
        automaton = automata[row % len(automata)]
        table.add(row, Constraint(automaton, automaton.digest, stop_ids, Refusal(stop_ids), lambda: None), output)
    return table, outputs


def _check(
    vocabulary: Vocabulary, automata: Sequence[Automaton], texts: Sequence[Sequence[int]], logits: torch.Tensor
) -> None:
    """Each row is masked as a cursor of its own says, at every step."""
    n_rows = len(texts)
    table, outputs = _bind(vocabulary, automata, n_rows)
    cursors = [automata[row % len(automata)].cursor() for row in range(n_rows)]
    for step in range(_N_STEPS):
        before = logits[0].clone()
        made = table.step()
        mask_rows(logits, made.rows, made.row_ptr, made.token_ids)
        assert torch.equal(logits[0][torch.isfinite(logits[0])], before[torch.isfinite(logits[0])])
        for row, (cursor, output, ids) in enumerate(zip(cursors, outputs, texts, strict=True)):
            left = torch.isfinite(logits[row]).nonzero().flatten().numpy()
            assert np.array_equal(left, cursor.allowed_token_ids()), f"row {row}, step {step}"
            output.append(ids[step])
            cursor.advance(ids[step])
        logits.zero_()
