"""What keeps a held set from being evicted: promises to requests, and slots that refer to it.

Bookkeeping by artifact hash, without a lock and without a clock of its own; it holds no set and does not know whether a
set is held. Invariants: a nonce has at most one promise and a slot at most one reference; the end of a nonce ends both,
and a nonce that has ended pins nothing any more.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["Pins", "Promise"]

# Nonces whose end is remembered, so that a request that enters the batch after its client has gone pins nothing.
_MAX_ENDED: Final = 4_096


@dataclass(frozen=True, slots=True)
class Promise:
    """To whom a set is promised, and until when (seconds, on the clock of `HeldSets`)."""

    nonce: str
    gateway: str
    ends_at: float


class Pins:
    """Not thread-safe: `HeldSets` calls it under its lock."""

    def __init__(self) -> None:
        self._promises: dict[str, tuple[str, Promise]] = {}
        self._slots: dict[int, tuple[str, str]] = {}
        self._slots_of: dict[str, set[int]] = {}
        # artifact hash -> how many promises and slots pin it; never 0
        self._counts: dict[str, int] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, artifact_hash: object) -> bool:
        """Whether the set is pinned; promises whose time has passed count until `expire`."""
        return artifact_hash in self._counts

    def promise(self, artifact_hash: str, promise: Promise) -> None:
        """Make a promise in place of the nonce's present one; without effect once the nonce has ended."""
        self.end_promise(promise.nonce)
        if promise.nonce in self._ended:
            return
        self._promises[promise.nonce] = (artifact_hash, promise)
        self._count(artifact_hash, 1)

    def is_promised(self, nonce: str) -> bool:
        """Whether the nonce has a promise."""
        return nonce in self._promises

    def gateways(self) -> set[str]:
        """Gateways to which something is promised."""
        return {promise.gateway for _, promise in self._promises.values()}

    def refer(self, artifact_hash: str, nonce: str, slot: int) -> None:
        """Let the slot, which refers to nothing, refer to the set; without effect once the nonce has ended."""
        if nonce in self._ended:
            return
        self._slots[slot] = (artifact_hash, nonce)
        self._slots_of.setdefault(nonce, set()).add(slot)
        self._count(artifact_hash, 1)

    def release(self, slot: int) -> None:
        """End the slot's reference, if it has one."""
        artifact_hash, nonce = self._slots.pop(slot, (None, None))
        if artifact_hash is None or nonce is None:
            return
        self._count(artifact_hash, -1)
        slots = self._slots_of[nonce]
        slots.discard(slot)
        if not slots:
            del self._slots_of[nonce]

    def end(self, nonce: str) -> None:
        """The nonce's request is over."""
        self.end_promise(nonce)
        for slot in tuple(self._slots_of.get(nonce, ())):
            self.release(slot)
        self._ended[nonce] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def end_promise(self, nonce: str) -> None:
        """End the nonce's promise, if it has one; slots keep their references."""
        artifact_hash, _ = self._promises.pop(nonce, (None, None))
        if artifact_hash is not None:
            self._count(artifact_hash, -1)

    def end_gateways(self, gateways: Collection[str]) -> None:
        """End the promises made to these gateways; slots keep their references."""
        for nonce in [n for n, (_, promise) in self._promises.items() if promise.gateway in gateways]:
            self.end_promise(nonce)

    def expire(self, now: float) -> None:
        """End the promises whose time has passed."""
        for nonce in [n for n, (_, promise) in self._promises.items() if promise.ends_at <= now]:
            self.end_promise(nonce)

    def drop(self, artifact_hash: str) -> None:
        """The set is gone, and with it whatever pinned it."""
        if artifact_hash not in self._counts:
            return
        for nonce in [n for n, (pinned, _) in self._promises.items() if pinned == artifact_hash]:
            self.end_promise(nonce)
        for slot in [s for s, (pinned, _) in self._slots.items() if pinned == artifact_hash]:
            self.release(slot)

    def _count(self, artifact_hash: str, change: int) -> None:
        count = self._counts.get(artifact_hash, 0) + change
        if count:
            self._counts[artifact_hash] = count
        else:
            del self._counts[artifact_hash]
