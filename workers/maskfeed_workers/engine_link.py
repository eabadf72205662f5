"""Rank 0's line to the gateways, which may break and comes back.

It knows when the store is lost, when to try again, and what has to be said once it is back. It does not know what is
said. Invariants: no loss of the store reaches the feed's loop as an exception; attempts are bounded in time and in
number per second; an event that could not be published is published later if it is still true, or not at all; a gateway
counts as gone only when its lease was missing for so long that a living one would have renewed it, whatever the store
has been through.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from maskfeed_automata.errors import CapacityError, StoreUnavailable
from maskfeed_cache.feed import EngineFeed
from maskfeed_cache.feed_messages import EngineEvent, GatewayMessage, HeldUsage

__all__ = ["EngineLink"]

_log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.05
_MAX_UNSENT: Final = 10_000


class EngineLink:
    """For one thread.

    Args:
        engine_feed: registered already.
        still_true: whether an event that could not be published may be published now.
        usage: figures that go out with each renewal.
        renew_interval_s: time between renewals of the lease.
        gateway_grace_s: for how long a gateway's lease must be missing; a store that came back empty has none.
        longest_retry_s: time between attempts to reconnect doubles up to this.
    """

    def __init__(
        self,
        engine_feed: EngineFeed,
        *,
        still_true: Callable[[EngineEvent], bool],
        usage: Callable[[], HeldUsage],
        renew_interval_s: float,
        gateway_grace_s: float,
        longest_retry_s: float,
    ) -> None:
        self._feed = engine_feed
        self._still_true = still_true
        self._usage = usage
        self._renew_interval_s = renew_interval_s
        self._gateway_grace_s = gateway_grace_s
        self._longest_retry_s = longest_retry_s
        self._lost = False
        self._retry_s = _FIRST_RETRY_S
        # on the caller's clock; the first turn does what is due
        self._next_at = 0.0
        self._unsent: deque[EngineEvent] = deque(maxlen=_MAX_UNSENT)
        # gateway -> since when its lease is missing
        self._missing_since: dict[str, float] = {}

    @property
    def next_at(self) -> float:
        """When `keep` has something to do."""
        return self._next_at

    def fileno(self) -> int | None:
        """Descriptor to poll; None while the store is lost."""
        if self._lost:
            return None
        try:
            self._feed.arm()
            return self._feed.fileno()
        except StoreUnavailable as error:
            self._lose(error)
            return None

    def receive(self) -> list[GatewayMessage]:
        """Messages of the gateways; to be called when the descriptor is readable."""
        try:
            return self._feed.receive()
        except StoreUnavailable as error:
            self._lose(error)
            return []

    def publish(self, events: Collection[EngineEvent]) -> None:
        """Tell the gateways, now or, if the store is lost, when it is back."""
        if not self._lost:
            try:
                self._feed.publish(tuple(events))
            except (StoreUnavailable, CapacityError) as error:
                self._lose(error)
            else:
                return
        self._unsent.extend(events)

    def renew_soon(self) -> None:
        """Have the next `keep` renew, because the figures have changed at a stroke."""
        if not self._lost:
            self._next_at = 0.0

    def keep(self, now: float, gateways: Collection[str]) -> set[str]:
        """Renew the lease, or get the store back; nothing before `next_at`.

        Args:
            now: on the caller's clock.
            gateways: those to which something is promised.

        Returns:
            Those of `gateways` that are gone.
        """
        if now < self._next_at:
            return set()
        was_lost = self._lost
        try:
            if was_lost:
                self._feed.reconnect()
            self._feed.renew(self._usage())
            missing = self._feed.dead_gateways(gateways) if gateways else set()
            self._publish_unsent()
        except (StoreUnavailable, CapacityError) as error:
            self._lose(error)
            self._next_at = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, self._longest_retry_s)
            return set()
        if was_lost:
            _log.warning("store is back")
        self._lost = False
        self._retry_s = _FIRST_RETRY_S
        self._next_at = now + self._renew_interval_s
        self._missing_since = {gateway: self._missing_since.get(gateway, now) for gateway in missing}
        return {gateway for gateway, since in self._missing_since.items() if now - since >= self._gateway_grace_s}

    def leave(self, last_words: Collection[EngineEvent]) -> None:
        """Say the last words and take the record back, if the store answers; its lease ends by itself otherwise."""
        try:
            if last_words:
                self._feed.publish(tuple(last_words))
            self._feed.retire()
        except (StoreUnavailable, CapacityError) as error:
            _log.warning("store was not there for the feed's end: %s", error)
        self._feed.close()

    def _publish_unsent(self) -> None:
        # One by one, so that at most one is said twice.
        while self._unsent:
            if self._still_true(self._unsent[0]):
                self._feed.publish((self._unsent[0],))
            self._unsent.popleft()

    def _lose(self, error: StoreUnavailable | CapacityError) -> None:
        if not self._lost:
            _log.warning("store is lost: %s", error)
            self._lost = True
            self._next_at = 0.0
            self._missing_since.clear()
