"""How many words rank 0 has given on its sets: one count for decode thread and feed thread of a rank.

A word may name a set whose eviction overtakes it, because no slot's reference outlasts its nonce. So an eviction
carries rank 0's count, read after the set was forgotten there, and the other ranks forget it once theirs has come as
far. Invariant: rank 0 counts a word before it looks at its sets, the others after they have followed it; so a set that
a word can have named is not forgotten on its way.
"""

import threading
from collections.abc import Callable

__all__ = ["Words"]


class Words:
    """Thread-safe; one thread counts and one follows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = 0
        self._awaited: tuple[int, Callable[[], None]] | None = None

    @property
    def given(self) -> int:
        """How many were counted."""
        with self._lock:
            return self._given

    def count(self) -> None:
        """Count one more, and tell whoever waits for it."""
        with self._lock:
            self._given += 1
            if self._awaited is None or self._given < self._awaited[0]:
                return
            _, then = self._awaited
            self._awaited = None
        then()

    def has_come_to(self, given: int, *, then: Callable[[], None]) -> bool:
        """Whether so many were counted; if not, the counting thread calls `then` once they were (the last given)."""
        with self._lock:
            if self._given >= given:
                return True
            self._awaited = (given, then)
            return False
