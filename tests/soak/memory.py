"""Memory of the soak's processes over its requests: samples, and the growth that is in them."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Growth", "Sample", "growth", "open_files", "resident_bytes"]

# of each life: a process that has just begun is not yet as large as its work, and what its allocator keeps, make it
_WARM_UP = 0.5
# Over fewer requests of one life the size goes up and down by more than a leak would add.
_FEWEST_REQUESTS = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The resident set of one process when so many requests had ended."""

    part: str
    pid: int
    n_ended: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one part; its processes come one after the other, or side by side."""

    n_lives: int
    first_mb: float
    last_mb: float
    largest_mb: float
    # None: no life was long enough
    mb_per_1000_requests: float | None


def resident_bytes(pid: int) -> int | None:
    """Resident set size; None if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def open_files(pid: int) -> int:
    """Descriptors that the process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def growth(samples: Iterable[Sample]) -> Growth:
    """Growth of one part: one slope for all of its lives, each with a size of its own; least squares.

    The first half of each life is left out, and so is a life that then has fewer than 2,000 requests.
    """
    lives: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.pid].append(sample)
    sizes = [sample.rss_bytes / 1e6 for life in lives.values() for sample in life]
    return Growth(len(lives), sizes[0], sizes[-1], max(sizes), _common_slope(tuple(lives.values())))


def _common_slope(lives: Sequence[Sequence[Sample]]) -> float | None:
    covariance = variance = 0.0
    for life in lives:
        first, last = life[0].n_ended, life[-1].n_ended
        kept = [sample for sample in life if sample.n_ended >= first + _WARM_UP * (last - first)]
        if last - kept[0].n_ended < _FEWEST_REQUESTS:
            continue
        requests, sizes = np.array([(sample.n_ended, sample.rss_bytes) for sample in kept], float).T
        centred = requests - requests.mean()
        covariance += float(centred @ sizes)
        variance += float(centred @ centred)
    return covariance / variance * 1_000 / 1e6 if variance else None
