"""Which bytes of the arena are free. Arithmetic only: no memory, no device, no threads, no names.

Invariant: what was given out never overlaps, and what was given back is joined with its free neighbours, so the arena
is one hole again once everything was given back.
"""

from bisect import bisect_left

__all__ = ["Space"]


class Space:
    """Gives out ranges of [0, size_bytes), each in the smallest hole that takes it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        # ascending, disjoint, not adjacent: (start, end)
        self._holes = [(0, size_bytes)] if size_bytes else []

    @property
    def free_bytes(self) -> int:
        """Bytes that are not given out."""
        return sum(end - start for start, end in self._holes)

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest range that could be given out now."""
        return max((end - start for start, end in self._holes), default=0)

    def take(self, n_bytes: int) -> int | None:
        """The first byte of a range of `n_bytes` (above 0), or None if no hole is large enough."""
        fitting = [(end - start, start) for start, end in self._holes if end - start >= n_bytes]
        if not fitting:
            return None
        length, start = min(fitting)
        k = bisect_left(self._holes, (start, 0))
        self._holes[k : k + 1] = [(start + n_bytes, start + length)] if length > n_bytes else []
        return start

    def give_back(self, start: int, n_bytes: int) -> None:
        """Free a range that `take` gave out."""
        end = start + n_bytes
        k = bisect_left(self._holes, (start, 0))
        last = k
        if k < len(self._holes) and self._holes[k][0] == end:
            end = self._holes[k][1]
            last = k + 1
        if k and self._holes[k - 1][1] == start:
            k -= 1
            start = self._holes[k][0]
        self._holes[k:last] = [(start, end)]
