"""The sets that one rank holds: who may use them, and what keeps them from being evicted.

The decode thread takes and gives back references of slots (`acquire`, `release`); the feed thread does the rest. It
knows no round, no socket and no Redis, and looks at an automaton only to hand it out.

A set is pinned while a *promise* for it is alive (made at READY to a request's nonce; it ends with the request, with
its life span, or with its gateway) or while a *slot* refers to it (from `acquire` to `release`, to the slot's reuse,
or to the end of its nonce, whichever is first). Invariants: a pinned set is never evicted; only `reserve` evicts, and
only rank 0 calls it, so the other ranks forget a set on nothing but its word.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from maskfeed_automata import Automaton
from maskfeed_automata.errors import CapacityError

__all__ = ["Evicted", "HeldSets", "Promise"]

# Nonces whose end is remembered, so that a request that enters the batch after its client has gone pins nothing.
_MAX_ENDED: Final = 4_096


@dataclass(frozen=True, slots=True)
class Promise:
    """To whom a set is promised, and until when (on the clock of `HeldSets`)."""

    nonce: str
    gateway: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """A set that was forgotten to make room, and the round that had brought it."""

    artifact_hash: str
    round_number: int


@dataclass(slots=True)
class _Entry:
    automaton: Automaton
    round_number: int
    nonces: set[str] = field(default_factory=set)
    slots: set[int] = field(default_factory=set)


class HeldSets:
    """Thread-safe; every method takes microseconds and none waits for anything but the lock.

    Args:
        limit_bytes: bytes of artifacts that may be held and reserved together; permanent sets don't count.
        max_sets: the same for their number.
        clock: seconds, monotonic.
    """

    def __init__(self, *, limit_bytes: int, max_sets: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._max_sets = max_sets
        self._clock = clock
        self._lock = threading.Lock()
        # least recently used first
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._permanent: dict[str, Automaton] = {}
        self._reserved: dict[str, int] = {}
        self._promises: dict[str, tuple[str, Promise]] = {}
        self._slots: dict[int, tuple[str, str]] = {}
        self._slots_of: dict[str, set[int]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._closed = False

    # -- decode thread ---------------------------------------------------------------------------------------------

    def acquire(self, artifact_hash: str, nonce: str, slot: int) -> Automaton | None:
        """Take a set for a slot and pin it; whatever the slot referred to before is given back.

        Returns:
            The automaton, shared and never mutated; None when the set is not held: the caller refuses the request.
        """
        with self._lock:
            self._release(slot)
            if self._closed:
                return None
            if (permanent := self._permanent.get(artifact_hash)) is not None:
                return permanent
            entry = self._entries.get(artifact_hash)
            if entry is None:
                return None
            self._entries.move_to_end(artifact_hash)
            if nonce not in self._ended:
                entry.slots.add(slot)
                self._slots[slot] = (artifact_hash, nonce)
                self._slots_of.setdefault(nonce, set()).add(slot)
            return entry.automaton

    def release(self, slot: int) -> None:
        """Give the slot's reference back. One that has none changes nothing."""
        with self._lock:
            self._release(slot)

    # -- feed thread -----------------------------------------------------------------------------------------------

    def hold_permanently(self, name: str, automaton: Automaton) -> None:
        """Hold a set that is made on this rank, needs no round, and is never evicted."""
        with self._lock:
            self._permanent[name] = automaton

    def reserve(self, artifact_hash: str, size_bytes: int) -> list[Evicted]:
        """Make room for a set that will be entered, or whose reservation will be cancelled.

        Returns:
            The sets that were forgotten for it, least recently used first; the other ranks must forget them too.

        Raises:
            CapacityError: what is pinned leaves no room; nothing was forgotten. Context: `limit`, `value`, `stage`.
        """
        with self._lock:
            self._drop_expired()
            victims = self._victims(size_bytes)
            evicted = [Evicted(victim, self._entries[victim].round_number) for victim in victims]
            for victim in victims:
                self._remove(victim)
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
    ) -> None:
        """Hold a set from now on, and promise it in the same instant. Its reservation is used up.

        Args:
            artifact_hash: 64 hex digits.
            automaton: kept, never mutated; its `nbytes` count against the limit.
            round_number: of the round that brought it. A set that is held already keeps the later round's number.
            promises: of the requests that have waited for it.
        """
        with self._lock:
            self._reserved.pop(artifact_hash, None)
            entry = self._entries.get(artifact_hash)
            if entry is None:
                self._entries[artifact_hash] = entry = _Entry(automaton, round_number)
            entry.round_number = max(entry.round_number, round_number)
            self._entries.move_to_end(artifact_hash)
            for promise in promises:
                self._promise(artifact_hash, entry, promise)

    def promise(self, artifact_hash: str, promise: Promise) -> bool:
        """Promise a set that is held. False when it is not held, and then nothing was promised."""
        with self._lock:
            entry = self._entries.get(artifact_hash)
            if entry is None or self._closed:
                return False
            self._entries.move_to_end(artifact_hash)
            self._promise(artifact_hash, entry, promise)
            return True

    def is_promised(self, nonce: str) -> bool:
        """Whether a promise to this nonce is alive."""
        with self._lock:
            self._drop_expired()
            return nonce in self._promises

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
            self._end_promise(nonce)
            for slot in tuple(self._slots_of.get(nonce, ())):
                self._release(slot)
            self._ended[nonce] = None
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)

    def end_gateways(self, gateways: Collection[str]) -> None:
        """These gateways are gone: their promises end. A slot that still decodes keeps its reference."""
        with self._lock:
            for nonce in [n for n, (_, promise) in self._promises.items() if promise.gateway in gateways]:
                self._end_promise(nonce)

    def gateways(self) -> set[str]:
        """Gateways to which something is promised."""
        with self._lock:
            return {promise.gateway for _, promise in self._promises.values()}

    def close(self) -> None:
        """Refuse every set from now on, permanent ones too. For ever: the epoch is over."""
        with self._lock:
            self._closed = True

    def pinned(self) -> frozenset[str]:
        """Sets that can't be evicted now, permanent ones left out."""
        with self._lock:
            self._drop_expired()
            return frozenset(h for h, entry in self._entries.items() if entry.nonces or entry.slots)

    def size_bytes(self) -> int:
        """Bytes of the sets that are held, permanent ones left out."""
        with self._lock:
            return sum(entry.automaton.nbytes for entry in self._entries.values())

    def hashes(self) -> list[str]:
        """Sets that are held, least recently used first, permanent ones left out."""
        with self._lock:
            return list(self._entries)

    def __contains__(self, artifact_hash: object) -> bool:
        with self._lock:
            return artifact_hash in self._entries

    # -- under the lock --------------------------------------------------------------------------------------------

    def _victims(self, size_bytes: int) -> list[str]:
        """The least recently used sets that must go for `size_bytes` more; CapacityError if that can't be."""
        n_bytes = size_bytes + sum(self._reserved.values()) + sum(e.automaton.nbytes for e in self._entries.values())
        n_sets = 1 + len(self._reserved) + len(self._entries)
        victims = []
        for artifact_hash, entry in self._entries.items():
            if n_bytes <= self._limit_bytes and n_sets <= self._max_sets:
                break
            if not (entry.nonces or entry.slots):
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

    def _promise(self, artifact_hash: str, entry: _Entry, promise: Promise) -> None:
        self._end_promise(promise.nonce)
        entry.nonces.add(promise.nonce)
        self._promises[promise.nonce] = (artifact_hash, promise)

    def _end_promise(self, nonce: str) -> None:
        artifact_hash, _ = self._promises.pop(nonce, (None, None))
        if artifact_hash is not None:
            self._entries[artifact_hash].nonces.discard(nonce)

    def _drop_expired(self) -> None:
        now = self._clock()
        for nonce in [n for n, (_, promise) in self._promises.items() if promise.ends_at <= now]:
            self._end_promise(nonce)

    def _release(self, slot: int) -> None:
        artifact_hash, nonce = self._slots.pop(slot, (None, None))
        if artifact_hash is None or nonce is None:
            return
        self._entries[artifact_hash].slots.discard(slot)
        slots = self._slots_of[nonce]
        slots.discard(slot)
        if not slots:
            del self._slots_of[nonce]

    def _remove(self, artifact_hash: str) -> None:
        entry = self._entries.pop(artifact_hash)
        for nonce in tuple(entry.nonces):
            self._promises.pop(nonce, None)
        for slot in tuple(entry.slots):
            _, nonce = self._slots.pop(slot)
            self._slots_of[nonce].discard(slot)
            if not self._slots_of[nonce]:
                del self._slots_of[nonce]
