"""The sets that one rank holds: who may use them, and what keeps them from being evicted.

The decode thread takes and gives back references of slots (`acquire`, `release`); the feed thread does the rest. It
knows no round, no socket and no Redis, and looks at an automaton only to hand it out.

A set is pinned while a *promise* for it is alive (made at READY to a request's nonce; it ends with the request, with
its life span, or with its gateway) or while a *slot* refers to it (from `acquire` to `release`, to the slot's reuse,
or to the end of its nonce, whichever is first). A set is an *orphan* when the cache has begun a newer generation than
the one it was announced in: it serves those to whom it is promised and goes with the last of them. Invariants: a
pinned set is never evicted; only `reserve` and `evict_orphans` evict, and only rank 0 calls them, so the other ranks
forget a set on nothing but its word.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from maskfeed_automata import Automaton
from maskfeed_automata.errors import CapacityError
from maskfeed_cache.feed_messages import HeldUsage
from maskfeed_cache.fence import Fence
from maskfeed_workers.pins import Pins, Promise
from maskfeed_workers.words import Words

__all__ = ["Evicted", "HeldSets", "Promise"]


@dataclass(frozen=True, slots=True)
class Evicted:
    """A set that was forgotten, and the round that had brought it."""

    artifact_hash: str
    round_number: int


@dataclass(slots=True)
class _Entry:
    automaton: Automaton
    round_number: int


class HeldSets:
    """Thread-safe; every method takes microseconds and none waits for anything but the lock.

    Args:
        limit_bytes: bytes of artifacts that may be held and reserved together; permanent sets don't count.
        max_sets: the same for their number.
        clock: seconds, monotonic.
    """

    def __init__(self, *, limit_bytes: int, max_sets: int, clock: Callable[[], float] = time.monotonic) -> None:
        # of rank 0 on these sets
        self.words = Words()
        self._limit_bytes = limit_bytes
        self._max_sets = max_sets
        self._clock = clock
        self._lock = threading.Lock()
        # least recently used first
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        # those of `_entries` that are of an older generation than `_fence`
        self._orphans: set[str] = set()
        self._permanent: dict[str, Automaton] = {}
        self._reserved: dict[str, int] = {}
        self._pins = Pins()
        # the generation of the cache as far as it was heard of; stays None on members, who are told what to forget
        self._fence: Fence | None = None
        self._closed = False

    # -- decode thread ---------------------------------------------------------------------------------------------

    def acquire(self, artifact_hash: str, nonce: str, slot: int) -> Automaton | None:
        """Take a set for a slot and pin it; whatever the slot referred to before is given back.

        Returns:
            The automaton, shared and never mutated; None when the set is not held: the caller refuses the request.
        """
        with self._lock:
            self._pins.release(slot)
            if self._closed:
                return None
            if (permanent := self._permanent.get(artifact_hash)) is not None:
                return permanent
            entry = self._entries.get(artifact_hash)
            if entry is None:
                return None
            self._entries.move_to_end(artifact_hash)
            self._pins.refer(artifact_hash, nonce, slot)
            return entry.automaton

    def release(self, slot: int) -> None:
        """Give the slot's reference back. One that has none changes nothing."""
        with self._lock:
            self._pins.release(slot)

    # -- feed thread -----------------------------------------------------------------------------------------------

    def hold_permanently(self, name: str, automaton: Automaton) -> None:
        """Hold a set that is made on this rank, needs no round, and is never evicted."""
        with self._lock:
            self._permanent[name] = automaton

    def begin(self, fence: Fence) -> bool:
        """The cache was heard to be in this generation; if that is news, every set that is held becomes an orphan.

        Within one epoch of the cache the higher generation is the newer one. Two epochs can't be compared: what was
        heard last is taken for the newer one. A latecomer of a lost epoch thus costs sets, which are fed again, and
        never an answer, because a set is known by its content.

        Returns:
            Whether it was news.
        """
        with self._lock:
            known = self._fence
            if known is not None and known.epoch == fence.epoch and known.generation >= fence.generation:
                return False
            self._fence = fence
            self._orphans.update(self._entries)
            return True

    def is_current(self, fence: Fence) -> bool:
        """Whether this is the newest generation that was heard of."""
        with self._lock:
            return fence == self._fence

    def evict_orphans(self) -> list[Evicted]:
        """Forget the orphans that nothing pins any more; the other ranks must forget them too."""
        with self._lock:
            if not self._orphans:
                return []
            self._pins.expire(self._clock())
            return [self._remove(orphan) for orphan in sorted(self._orphans) if orphan not in self._pins]

    def reserve(self, artifact_hash: str, size_bytes: int) -> list[Evicted]:
        """Make room for a set that will be entered, or whose reservation will be cancelled.

        Returns:
            The sets that were forgotten for it, least recently used first; the other ranks must forget them too.

        Raises:
            CapacityError: what is pinned leaves no room; nothing was forgotten. Context: `limit`, `value`, `stage`.
        """
        with self._lock:
            self._pins.expire(self._clock())
            evicted = [self._remove(victim) for victim in self._victims(size_bytes)]
            self._reserved[artifact_hash] = size_bytes
            return evicted

    def cancel(self, artifact_hash: str) -> None:
        """Give the reservation back, if there is one."""
        with self._lock:
            self._reserved.pop(artifact_hash, None)

    def enter(
        self,
        artifact_hash: str,
        automaton: Automaton,
        *,
        round_number: int,
        promises: Collection[Promise] = (),
        fence: Fence | None = None,
    ) -> None:
        """Hold a set from now on, and promise it in the same instant. Its reservation is used up.

        Args:
            artifact_hash: 64 hex digits.
            automaton: kept, never mutated; its `nbytes` count against the limit.
            round_number: of the round that brought it. A set that is held already keeps the later round's number.
            promises: of the requests that have waited for it.
            fence: generation in which it was announced last; in an older one than the present, it is an orphan.
        """
        with self._lock:
            self._reserved.pop(artifact_hash, None)
            entry = self._entries.get(artifact_hash)
            if entry is None:
                self._entries[artifact_hash] = entry = _Entry(automaton, round_number)
                self._orphans.add(artifact_hash)
            entry.round_number = max(entry.round_number, round_number)
            self._entries.move_to_end(artifact_hash)
            self._adopt(artifact_hash, fence)
            for promise in promises:
                self._pins.promise(artifact_hash, promise)

    def promise(self, artifact_hash: str, promise: Promise, fence: Fence | None = None) -> bool:
        """Promise a set that is held; announced in the present generation, an orphan is none any more.

        Returns:
            False when it is not held, and then nothing was promised.
        """
        with self._lock:
            if artifact_hash not in self._entries or self._closed:
                return False
            self._entries.move_to_end(artifact_hash)
            self._adopt(artifact_hash, fence)
            self._pins.promise(artifact_hash, promise)
            return True

    def is_promised(self, nonce: str) -> bool:
        """Whether a promise to this nonce is alive."""
        with self._lock:
            self._pins.expire(self._clock())
            return self._pins.is_promised(nonce)

    def forget(self, artifact_hash: str, round_number: int) -> bool:
        """Stop holding the set, pinned or not, on rank 0's word.

        Returns:
            False when it is not held, or a later round than `round_number` has brought it again.
        """
        with self._lock:
            entry = self._entries.get(artifact_hash)
            if entry is None or entry.round_number > round_number:
                return False
            self._remove(artifact_hash)
            return True

    def end(self, nonce: str) -> None:
        """The nonce's request is over: its promise and its slots' references end."""
        with self._lock:
            self._pins.end(nonce)

    def end_gateways(self, gateways: Collection[str]) -> None:
        """These gateways are gone: their promises end. A slot that still decodes keeps its reference."""
        with self._lock:
            self._pins.end_gateways(gateways)

    def gateways(self) -> set[str]:
        """Gateways to which something is promised."""
        with self._lock:
            return self._pins.gateways()

    def close(self) -> None:
        """Refuse every set from now on, permanent ones too. For ever: the epoch is over."""
        with self._lock:
            self._closed = True

    def pinned(self) -> frozenset[str]:
        """Sets that can't be evicted now, permanent ones left out."""
        with self._lock:
            self._pins.expire(self._clock())
            return frozenset(artifact_hash for artifact_hash in self._entries if artifact_hash in self._pins)

    def size_bytes(self) -> int:
        """Bytes of the sets that are held, permanent ones left out."""
        with self._lock:
            return self._size_of(self._entries)

    def usage(self) -> HeldUsage:
        """Figures for the engine's record, taken in one step, permanent sets left out."""
        with self._lock:
            return HeldUsage(
                cache_epoch="" if self._fence is None else self._fence.epoch,
                generation=0 if self._fence is None else self._fence.generation,
                entries=len(self._entries) - len(self._orphans),
                bytes=self._size_of(self._entries) - self._size_of(self._orphans),
                orphaned_entries=len(self._orphans),
                orphaned_bytes=self._size_of(self._orphans),
                limit_bytes=self._limit_bytes,
            )

    def hashes(self) -> list[str]:
        """Sets that are held, least recently used first, permanent ones left out."""
        with self._lock:
            return list(self._entries)

    def __contains__(self, artifact_hash: object) -> bool:
        with self._lock:
            return artifact_hash in self._entries

    # -- under the lock --------------------------------------------------------------------------------------------

    def _adopt(self, artifact_hash: str, fence: Fence | None) -> None:
        if fence == self._fence:
            self._orphans.discard(artifact_hash)

    def _victims(self, size_bytes: int) -> list[str]:
        """The least recently used sets that must go for `size_bytes` more; CapacityError if that can't be."""
        n_bytes = size_bytes + sum(self._reserved.values()) + self._size_of(self._entries)
        n_sets = 1 + len(self._reserved) + len(self._entries)
        victims = []
        for artifact_hash, entry in self._entries.items():
            if n_bytes <= self._limit_bytes and n_sets <= self._max_sets:
                break
            if artifact_hash not in self._pins:
                victims.append(artifact_hash)
                n_bytes -= entry.automaton.nbytes
                n_sets -= 1
        if n_bytes > self._limit_bytes:
            raise CapacityError(
                f"the engine would hold {n_bytes} bytes of sets in use, its limit is {self._limit_bytes}",
                limit=self._limit_bytes,
                value=n_bytes,
                stage="ready",
            )
        if n_sets > self._max_sets:
            raise CapacityError(
                f"the engine would hold {n_sets} sets in use, its limit is {self._max_sets}",
                limit=self._max_sets,
                value=n_sets,
                stage="ready",
            )
        return victims

    def _size_of(self, artifact_hashes: Collection[str]) -> int:
        return sum(self._entries[artifact_hash].automaton.nbytes for artifact_hash in artifact_hashes)

    def _remove(self, artifact_hash: str) -> Evicted:
        entry = self._entries.pop(artifact_hash)
        self._orphans.discard(artifact_hash)
        self._pins.drop(artifact_hash)
        return Evicted(artifact_hash, entry.round_number)
