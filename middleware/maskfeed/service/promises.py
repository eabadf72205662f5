"""Requests that wait for every live engine to hold their set, and the promises that must be ended afterwards.

It knows the feed's messages; it knows neither HTTP nor how an engine holds a set. Invariants: a nonce that was
announced is ended, whatever becomes of its request; no request passes before every engine that it was announced to
has answered, died, or lost its record; a request whose engines are all gone learns of it while it runs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from maskfeed.service.lifeline import Lifeline
from maskfeed_automata.errors import (
    CapacityError,
    CorruptArtifact,
    EngineNotReady,
    RankFailure,
    StoreUnavailable,
    UnknownArtifact,
)
from maskfeed_cache.feed import GatewayFeed
from maskfeed_cache.feed_messages import Announcement, Dead, EngineEvent, Failed, Ready
from maskfeed_cache.shared_cache import Found

__all__ = ["Promise", "Promises", "blob_is_lost"]

# Ends that are said again after the store was away: many more than can be between a gateway and an engine at one time.
_REMEMBERED_ENDS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Promise:
    """A set is held for `nonce` by every rank of every engine in `epochs`."""

    artifact_hash: str
    nonce: str
    # sorted; at least one
    epochs: tuple[str, ...]
    # cut when none of them lives any more
    lifeline: Lifeline


class _Wait:
    """The engines that one nonce waits for or counts on."""

    def __init__(self, announcement: Announcement, epochs: Collection[str]) -> None:
        self.announcement = announcement
        self.missing = set(epochs)
        self.ready: set[str] = set()
        self.lifeline = Lifeline()
        self.outcome: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()

    def take_ready(self, epoch: str) -> None:
        if epoch in self.missing:
            self.missing.discard(epoch)
            self.ready.add(epoch)
            self._settle()

    def take_lost(self, epoch: str, reason: str) -> None:
        if epoch in self.missing or epoch in self.ready:
            self.missing.discard(epoch)
            self.ready.discard(epoch)
            self._settle(reason)
            if not self.missing and not self.ready:
                self.lifeline.cut(reason)

    def fail(self, error: RankFailure) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def abandon(self) -> None:
        # an error that nobody waits for any more counts as seen
        if not self.outcome.cancel() and not self.outcome.cancelled():
            self.outcome.exception()

    def _settle(self, reason: str = "") -> None:
        if self.missing or self.outcome.done():
            return
        if self.ready:
            self.outcome.set_result(tuple(sorted(self.ready)))
        else:
            self.outcome.set_exception(EngineNotReady(f"the engine is gone: {reason}", stage="ready"))


class Promises:
    """All promises of one gateway. For one event loop.

    Args:
        feed: how engines are told.
        lifetime_ms: longest life of a promise, for engines that are never told of its end.
        new_nonce: 32 fresh hex digits at each call.
    """

    def __init__(self, feed: GatewayFeed, *, lifetime_ms: int, new_nonce: Callable[[], str]) -> None:
        self._feed = feed
        self._lifetime_ms = lifetime_ms
        self._new_nonce = new_nonce
        # of every promise, until its end
        self._waits: dict[str, _Wait] = {}
        self._held: set[str] = set()
        self._ended: list[str] = []
        # those of whose end the store has been told last
        self._told: deque[str] = deque(maxlen=_REMEMBERED_ENDS)
        # to be announced once more, if they still wait; in order, without values
        self._unanswered: dict[str, None] = {}
        self._telling: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Nonces that are announced and not ended."""
        return len(self._held)

    @asynccontextmanager
    async def hold(self, found: Found, epochs: Collection[str]) -> AsyncIterator[Promise]:
        """Announce the set, wait until every engine of `epochs` holds it, and end the promise with the block.

        Raises:
            RankFailure: a rank could not take the set. Context: `epoch`, `reason`.
            EngineNotReady: no engine of `epochs` is left.
            StoreUnavailable: the announcement could not be sent.
        """
        nonce = self._new_nonce()
        announcement = Announcement(
            artifact_hash=found.entry.artifact_hash,
            size_bytes=found.entry.size_bytes,
            nonce=nonce,
            lifetime_ms=self._lifetime_ms,
            gateway=self._feed.gateway,
            cache_epoch=found.fence.epoch,
            generation=found.fence.generation,
        )
        wait = self._waits[nonce] = _Wait(announcement, epochs)
        self._held.add(nonce)
        try:
            await self._feed.announce(announcement)
            ready = await wait.outcome
            yield Promise(found.entry.artifact_hash, nonce, ready, wait.lifeline)
        finally:
            del self._waits[nonce]
            wait.abandon()
            self.end(nonce)

    def end(self, nonce: str) -> None:
        """Tell the engines, in the background, that `nonce` is over. Does not fail and does not wait."""
        self._held.discard(nonce)
        self._ended.append(nonce)
        self.tell_ended()

    def receive(self, event: EngineEvent) -> None:
        """Take what an engine said."""
        match event:
            case Ready(epoch=epoch, nonce=nonce):
                if nonce in self._waits:
                    self._waits[nonce].take_ready(epoch)
            case Failed(epoch=epoch, nonce=nonce, reason=reason):
                if nonce in self._waits:
                    self._waits[nonce].fail(
                        RankFailure(f"engine {epoch} could not take the set: {reason}", epoch=epoch, reason=reason)
                    )
            case Dead(epoch=epoch, reason=reason):
                self._lose(epoch, reason)

    def retain(self, live_epochs: Collection[str]) -> None:
        """Neither wait for engines outside `live_epochs` nor count on them: their records are gone."""
        gone = {epoch for wait in self._waits.values() for epoch in wait.missing | wait.ready} - set(live_epochs)
        for epoch in gone:
            self._lose(epoch, "its record lapsed")

    def say_again(self) -> None:
        """Send, in the background, what a store that was away may have lost: the last ends, and what is unanswered.

        An engine that had heard it answers once more, or knows the nonce no longer.
        """
        self._ended += self._told
        self._told.clear()
        self._unanswered = dict.fromkeys(self._waits)
        self.tell_ended()

    def tell_ended(self) -> None:
        """Send, in the background, what has ended and could not be sent yet."""
        if (self._ended or self._unanswered) and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Send what has ended, if the store answers."""
        self.tell_ended()
        if self._telling is not None:
            await self._telling

    async def _tell(self) -> None:
        try:
            while self._ended or self._unanswered:
                # ends last: an announcement must not come after the end of its own nonce
                if self._unanswered:
                    await self._announce_again(next(iter(self._unanswered)))
                    continue
                sending = tuple(self._ended)
                await self._feed.end(sending)
                del self._ended[: len(sending)]
                self._told += sending
        except (StoreUnavailable, CapacityError):
            # kept for the next call; an engine that never hears of it drops the promise when its lifetime passes
            return
        finally:
            self._telling = None

    async def _announce_again(self, nonce: str) -> None:
        wait = self._waits.get(nonce)
        if wait is not None and not wait.outcome.done():
            await self._feed.announce(wait.announcement)
        self._unanswered.pop(nonce, None)

    def _lose(self, epoch: str, reason: str) -> None:
        for wait in self._waits.values():
            wait.take_lost(epoch, reason)


def blob_is_lost(error: RankFailure) -> bool:
    """Whether a rank found no artifact under the hash, or a broken one, so that compiling again can help."""
    reason = str(error.context.get("reason"))
    return UnknownArtifact.code in reason or CorruptArtifact.code in reason
