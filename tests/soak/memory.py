"""Memory of the soak's processes over its requests: samples, and the growth that is in them."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Growth", "Sample", "growth", "open_files", "resident_bytes"]

# A process that has just begun is not yet as large as its work makes it. Then its size goes up and down with the sets
# at work: over fewer requests of one life that is more than a leak would add.
_FEWEST_REQUESTS = 8_000


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
    """Growth of one part, from the third to the last quarter of a life, by medians; the largest of its long lives."""
    lives: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.pid].append(sample)
    sizes = [sample.rss_bytes / 1e6 for life in lives.values() for sample in life]
    slopes = [_late_growth(life) for life in lives.values() if life[-1].n_ended - life[0].n_ended >= _FEWEST_REQUESTS]
    return Growth(len(lives), sizes[0], sizes[-1], max(sizes), max(slopes, default=None))


def _late_growth(life: Sequence[Sample]) -> float:
    """MB for 1,000 requests."""
    first, last = life[0].n_ended, life[-1].n_ended
    quarter = (last - first) / 4
    late = [sample for sample in life if sample.n_ended >= last - 2 * quarter]
    sizes = [
        median(sample.rss_bytes for sample in late if (sample.n_ended >= last - quarter) is is_last)
        for is_last in (False, True)
    ]
    return (sizes[1] - sizes[0]) / 1e6 / (quarter / 1_000)
