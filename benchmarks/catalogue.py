"""A part of a catalogue by index, beside compiling the same strings.

Every part is asserted to be the compiled set, byte for byte, before anything is timed. The catalogue is a million
names; the parts are taken at random, and as a stretch of neighbours, which share long prefixes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from names import candidate_names

from maskfeed_automata import CandidateSet, Catalogue, Vocabulary, compile

__all__ = ["measure_catalogue"]

_PARTS = (100, 1_000, 10_000, 100_000)


def measure_catalogue(vocabulary: Vocabulary, k: int = 1_000_000) -> dict[str, Any]:
    """Time to make the catalogue, its size, and the times of parts, in milliseconds."""
    names = candidate_names(k)
    start = time.perf_counter()
    catalogue = Catalogue(vocabulary, names)
    made_ms = (time.perf_counter() - start) * 1e3
    choose = np.random.default_rng(3)
    in_order = np.argsort(catalogue.candidate_set.rank_of_input)
    parts = []
    for size in (size for size in _PARTS if size < k):
        first = int(choose.integers(k - size))
        for kind, indices in (("random", choose.choice(k, size, replace=False)), ("run", in_order[first:][:size])):
            parts.append({"kind": kind, "k": size, **_measure_part(catalogue, names, indices)})
    return {
        "k": k,
        "made_ms": made_ms,
        "bytes": catalogue.nbytes,
        "bytes_per_candidate": catalogue.nbytes / k,
        "utf8_bytes_per_candidate": catalogue.candidate_set.data.size / k,
        "parts": parts,
    }


def _measure_part(catalogue: Catalogue, names: list[str], indices: "np.ndarray[Any, Any]") -> dict[str, float]:
    vocabulary = catalogue.vocabulary
    listed = indices.tolist()
    strings = [names[index] for index in listed]
    part, whole = catalogue.subset(indices), compile(vocabulary, strings)
    assert (part.digest, part.to_bytes()) == (whole.digest, whole.to_bytes())
    n = 25 if len(strings) <= 10_000 else 7
    return _in_turn_ms(
        n,
        subset=lambda: catalogue.subset(indices),
        compile=lambda: compile(vocabulary, strings),
        # What a caller with indices would have to do without a catalogue.
        collect_and_compile=lambda: compile(vocabulary, [names[index] for index in listed]),
        # Subset and compile without trie and masks, which both have to make.
        pick=lambda: catalogue.candidate_set.subset(indices),
        encode_and_sort=lambda: CandidateSet.from_strings(strings),
    )


def _in_turn_ms(n: int, **calls: Callable[[], object]) -> dict[str, float]:
    """Medians of `n` calls each, in turn, so that whatever else the machine does slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(measured) * 1e3 for name, measured in times.items()}
