"""What a soak was to do, what it found, whether that is as it must be, and how it is told."""

from dataclasses import asdict, dataclass, field

from soak.memory import Growth, Sample
from soak.remains import AtRest

__all__ = ["Plan", "Result", "broken_promises", "render"]

# MB for 1,000 requests, of a process that has lived long enough to tell
_MAX_GROWTH_MB = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen."""

    requests: int
    at_once: int
    seed: int
    fault_every_s: float
    rank_every: int
    at_most_minutes: float


@dataclass(slots=True)
class Result:
    """What has happened."""

    plan: Plan
    took_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    answers_checked: int = 0
    hangs: int = 0
    engines: int = 0
    failed_engine_starts: int = 0
    unplanned_engine_ends: int = 0
    rows_compared: int = 0
    disagreements: int = 0
    gateway: dict[str, float] = field(default_factory=dict)
    growth: dict[str, Growth] = field(default_factory=dict)
    at_start: AtRest | None = None
    at_end: AtRest | None = None
    violations: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def n_ended(self) -> int:
        """Requests that were made, and ended."""
        return sum(self.outcomes.values())


def broken_promises(result: Result) -> list[str]:
    """Which of the promises were broken, beside those to single clients."""
    assert result.at_start is not None
    assert result.at_end is not None
    left = result.at_end.above(result.at_start, at_once=result.plan.at_once)
    broken = [f"left behind: {what}" for what in left]
    if result.disagreements:
        broken.append(f"the ranks' masks differed in {result.disagreements} engines")
    if not result.rows_compared:
        broken.append("no rows were compared")
    broken += [
        f"{part} grows by {of.mb_per_1000_requests:.1f} MB for 1,000 requests"
        for part, of in result.growth.items()
        if of.mb_per_1000_requests is not None and of.mb_per_1000_requests > _MAX_GROWTH_MB
    ]
    return broken


def render(result: Result) -> str:
    """The figures as text."""
    rows: list[tuple[str, object]] = [
        ("requests", f"{result.n_ended:,} in {result.took_s:.0f} s, {result.plan.at_once} at once"),
        *((f"  {outcome}", f"{n:,}") for outcome, n in sorted(result.outcomes.items())),
        ("answers checked on their tokens", f"{result.answers_checked:,}"),
        ("requests that did not end", result.hangs),
        *((f"fault: {fault}", n) for fault, n in sorted(result.faults.items())),
        ("engines, of them ended by themselves", f"{result.engines}, {result.unplanned_engine_ends}"),
        ("engine starts that had to be repeated", result.failed_engine_starts),
        ("rows compared on both ranks", f"{result.rows_compared:,}"),
        ("engines whose ranks disagreed", result.disagreements),
        *((f"RSS of {part}", _growth_cell(of)) for part, of in result.growth.items()),
    ]
    if result.at_start is not None and result.at_end is not None:
        first, last = asdict(result.at_start), asdict(result.at_end)
        rows += [(f"at rest: {name.replace('_', ' ')}", f"{first[name]} -> {last[name]}") for name in first]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([*lines, *(f"VIOLATION: {text}" for text in result.violations[:50])])


def _growth_cell(of: Growth) -> str:
    slope = "-" if of.mb_per_1000_requests is None else f"{of.mb_per_1000_requests:+.2f}"
    sizes = f"{of.first_mb:.0f} MB first, {of.last_mb:.0f} last, {of.largest_mb:.0f} at most"
    return f"{slope} MB per 1,000 requests ({sizes}, {of.n_lives} processes)"
