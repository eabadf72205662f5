"""What a feed offers to the two sides of an engine group.

An engine has one thread that waits for many things at once, so its side is synchronous and gives a file descriptor to
poll. A gateway lives on an event loop, so its side is asynchronous. Neither knows what a set is.

Invariants: both sides start at the stream's end, so nobody acts on what was said before he lived; an entry that can't
be read is counted and skipped; after a loss of the carrier the same object goes on.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from maskfeed_cache.feed_messages import Announcement, EngineEvent, EngineRecord, Gap, GatewayMessage, HeldUsage
from maskfeed_cache.fence import Fence

__all__ = ["EngineFeed", "GatewayFeed"]


class EngineFeed(Protocol):
    """One engine's end. For one thread, except `publish` and `dead_gateways`, which any thread may call.

    The order of calls: `register`; then `arm`, poll `fileno`, `receive`, and again; `renew` every third of the lease;
    `retire` and `close` at the end. After StoreUnavailable from `arm` or `receive`: `reconnect`, until it succeeds.
    """

    @property
    def n_skipped(self) -> int:
        """Entries so far that could not be read."""
        ...

    def register(self, record: EngineRecord, vocabulary: bytes) -> None:
        """Take the stream's end as position, then store the vocabulary and publish the record, to live one lease.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time; nothing is promised, call it again.
        """
        ...

    def renew(self, held: HeldUsage | None = None) -> None:
        """Give the record another lease, with new figures; write the vocabulary again if the store has lost it.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time.
            InternalInvariant: not registered.
        """
        ...

    def retire(self) -> None:
        """Delete the record: a graceful stop. Idempotent.

        Raises:
            StoreUnavailable: no connection, or no answer in time; the record then ends with its lease.
        """
        ...

    def arm(self) -> None:
        """Ask for the entries after the position. Nothing happens if an answer is still to be received.

        Raises:
            StoreUnavailable: the connection is gone.
        """
        ...

    def fileno(self) -> int:
        """File descriptor that becomes readable when `receive` has something to say, its death included.

        Valid until the next `reconnect` or `close`.

        Raises:
            StoreUnavailable: the connection is gone.
        """
        ...

    def receive(self) -> list[GatewayMessage]:
        """Read the answer that `arm` asked for, in the stream's order, and move the position behind it.

        Waits for it, at most a little longer than the time for which the store holds an answer back.

        Returns:
            The messages; [] if nothing came in that time, or nothing that can be read.

        Raises:
            StoreUnavailable: the connection is gone.
            InternalInvariant: not armed.
        """
        ...

    def reconnect(self) -> None:
        """Open a new connection for `arm`; afterwards `fileno` may differ and the feed is not armed.

        The position stays, unless the store has lost the stream: then it is the beginning of what is new.

        Raises:
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    def publish(self, events: Sequence[EngineEvent]) -> None:
        """Tell all gateways, in this order.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time; some of the events may have gone out.
        """
        ...

    def dead_gateways(self, gateways: Collection[str]) -> set[str]:
        """Those of `gateways` whose lease has lapsed.

        Raises:
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    def close(self) -> None:
        """Give connections back. Idempotent; the record ends with its lease unless `retire` was called."""
        ...


class GatewayFeed(Protocol):
    """One gateway process's end, for one event loop."""

    @property
    def gateway(self) -> str:
        """Id of this gateway, fresh for each life."""
        ...

    @property
    def n_skipped(self) -> int:
        """Entries and records so far that could not be read."""
        ...

    async def start(self) -> None:
        """Take the stream's end as position, take the lease, start the tasks that renew it and read the events.

        Raises:
            CapacityError: the store is at its memory limit; nothing was started, call it again.
            StoreUnavailable: no connection, or no answer in time; nothing was started, call it again.
        """
        ...

    async def close(self) -> None:
        """Stop the tasks, give up the lease if the store answers, and end `events`. Idempotent."""
        ...

    async def engines(self) -> list[EngineRecord]:
        """Records of the group's live engines, ordered by epoch. A record that is missing has lapsed or was withdrawn.

        Raises:
            CapacityError: the store is at its memory limit. Engines can't renew then: a missing record means nothing.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    async def vocabulary(self, fingerprint: str) -> bytes:
        """The vocabulary's bytes, unread.

        Raises:
            UnknownArtifact: no engine has published this vocabulary.
            StoreUnavailable: no connection, or no answer in time.
        """
        ...

    async def announce(self, announcement: Announcement) -> None:
        """Tell all engines of the group; the lease is renewed in the same step.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time; the announcement may have gone out.
        """
        ...

    async def end(self, nonces: Sequence[str]) -> None:
        """Tell all engines that the requests of `nonces` are over.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time; some may have gone out.
        """
        ...

    async def clear(self, fence: Fence) -> None:
        """Tell all engines that the cache has begun the generation `fence`.

        Engines learn of it from the next announcement too, so a failure costs memory for a while and nothing else.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreUnavailable: no connection, or no answer in time; it may have gone out.
        """
        ...

    def events(self) -> AsyncIterator[EngineEvent | Gap]:
        """What the engines say from `start` on, in the stream's order; ends at `close`. For one consumer.

        A loss of the store is waited out, and a `Gap` says that it is over. Events of that time may be lost, and so may
        messages that were sent before it: what still matters of them has to be said again.
        """
        ...
