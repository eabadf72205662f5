"""The engine group as the gateway knows it: who lives, what they agree on, and whether the URL leads to them.

It follows records and events of the feed; it compiles nothing and forwards nothing. Invariant: `require` returns a
group only if its live engines are exactly those that answered a probe through the URL and agree on everything that a
mask depends on. For one event loop.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from maskfeed.service.exchange import Headers, Upstream
from maskfeed.service.promises import Promises
from maskfeed.service.proof import prove
from maskfeed_automata import FORMAT_VERSION, Vocabulary, warm_kernels
from maskfeed_automata.errors import (
    CapacityError,
    EngineNotReady,
    InternalInvariant,
    MaskfeedError,
    StoreUnavailable,
    VocabularyMismatch,
)
from maskfeed_cache.clock import Clock
from maskfeed_cache.feed import GatewayFeed
from maskfeed_cache.feed_messages import Dead, EngineEvent, EngineRecord, Gap, HeldUsage
from maskfeed_cache.fence import Fence
from maskfeed_cache.keys import LEASE_MS
from maskfeed_workers.compiler import Compiler

__all__ = ["EngineGroup", "LiveGroup"]

_POLL_S: Final = 1.0
# A store that was restarted without data, even unnoticed, shows no record until the engines have renewed them, which
# they do every third of a lease. A request that runs is not ended for that.
_LAPSE_GRACE_S: Final = LEASE_MS / 2000
_PROOF_TIMEOUT_S: Final = 60.0
# Replicas behind one URL must not differ in these, or a mask that is right for one is wrong for another.
_AGREED: Final = ("fingerprint", "logits_width", "reserved_id", "stop_token_ids", "model", "reasoning_parser")

_LOG = logging.getLogger("maskfeed.gateway")


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The proven engines of the group at one instant."""

    # sorted; at least one
    epochs: tuple[str, ...]
    # what they agree on; `max_model_len` is the smallest
    record: EngineRecord
    vocabulary: Vocabulary


class EngineGroup:
    """Keeps `LiveGroup` current.

    Args:
        feed: the group's feed.
        promises: told of every event and of every record that lapses.
        compiler: warmed with the group's vocabulary before the group counts as ready.
        upstream: the URL that is proven to lead to the group.
        probe_headers: sent with each probe.
        clock: decides when records are read again.
        new_nonce: 32 fresh hex digits at each call.
    """

    def __init__(
        self,
        feed: GatewayFeed,
        promises: Promises,
        compiler: Compiler,
        upstream: Upstream,
        *,
        probe_headers: Headers,
        clock: Clock,
        new_nonce: Callable[[], str],
    ) -> None:
        self._feed = feed
        self._promises = promises
        self._compiler = compiler
        self._upstream = upstream
        self._probe_headers = probe_headers
        self._clock = clock
        self._new_nonce = new_nonce
        self._records: tuple[EngineRecord, ...] = ()
        self._live: LiveGroup | None = None
        self._vocabulary: Vocabulary | None = None
        self._dead: set[str] = set()
        # epoch -> when its record was last there, or could not be looked for
        self._last_seen: dict[str, float] = {}
        self._unready: MaskfeedError = EngineNotReady("the engines' records have not been read yet", stage="start")
        self._store_lost: StoreUnavailable | CapacityError | None = None
        self._defect: BaseException | None = None
        self._refreshing = asyncio.Lock()
        self._started = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to follow the group, and start the feed as soon as the store answers. Call once."""
        loop = asyncio.get_running_loop()
        for work in (self._listen(), self._watch(), self._watch_during_proof()):
            task = loop.create_task(work)
            task.add_done_callback(self._stopped)
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop following. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def require(self) -> LiveGroup:
        """The group, if constrained requests can be sent to it.

        Raises:
            EngineNotReady: no live engine, or none that has proven itself.
            StoreUnavailable: the same, because the store does not answer.
            CapacityError: the same, because it is full.
            InternalInvariant: the gateway's own follower broke.
        """
        if self._defect is not None:
            raise InternalInvariant("the gateway no longer follows its engines") from self._defect
        if self._live is not None:
            return self._live
        cause = self._store_lost or self._unready
        # an error of a background task is not raised twice as one object: its traceback would grow
        raise type(cause)(cause.message, **cause.context)

    @property
    def live(self) -> LiveGroup | None:
        """The group, or None where `require` would raise."""
        return None if self._defect is not None else self._live

    def reasons(self) -> tuple[str, ...]:
        """Why constrained requests can't be served; empty if they can."""
        found: list[str] = []
        if self._defect is not None:
            found.append("the gateway no longer follows its engines; its log says why")
        if self._store_lost is not None:
            found.append(self._store_lost.message)
        if self._live is None:
            found.append(self._unready.message)
        return tuple(found)

    async def held(self) -> Mapping[str, HeldUsage | None]:
        """What each engine of the group holds, by epoch, as of its last renewal; None: it has not said.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return {record.epoch: record.held for record in await self._feed.engines()}

    async def clear(self, fence: Fence) -> bool:
        """Tell the engines that the cache has begun the generation `fence`. False: the store does not take it now.

        They learn of it with the next set, too; until then they hold what nobody asks for any more.
        """
        try:
            await self._feed.clear(fence)
        except (StoreUnavailable, CapacityError) as error:
            _LOG.warning("event=clear-not-told reason=%r", error.message)
            return False
        return True

    def receive(self, event: EngineEvent | Gap) -> None:
        """Take what an engine said, or that something may have been lost."""
        if isinstance(event, Gap):
            self._promises.say_again()
            return
        self._promises.receive(event)
        if isinstance(event, Dead):
            _LOG.warning("event=engine-dead epoch=%s reason=%r", event.epoch, event.reason)
            self._dead.add(event.epoch)
            self._last_seen.pop(event.epoch, None)
            if self._live is not None and event.epoch in self._live.epochs:
                self._live = None
                self._unready = EngineNotReady(f"engine {event.epoch} died: {event.reason}", stage="proof")
            self._wake.set()

    async def refresh(self) -> None:
        """Read the records; if the live engines have changed, load, warm and prove. A failure becomes the reason.

        One at a time: a slow proof must not overwrite what a later one has found.
        """
        async with self._refreshing:
            await self._refresh()

    async def _refresh(self) -> None:
        records = await self._read()
        if records is None or (self._live is not None and records == self._records):
            return
        self._records = records
        self._live = None
        try:
            live = await self._assemble(records)
            if self._dead.intersection(live.epochs):
                raise EngineNotReady("an engine died while it was proven", stage="proof")
        except MaskfeedError as error:
            if error.message != self._unready.message:
                _LOG.warning("event=group-not-ready reason=%r", error.message)
            self._unready = error
        else:
            self._live = live
            _LOG.info("event=group-ready epochs=%s model=%r", ",".join(live.epochs), live.record.model)

    async def _read(self) -> tuple[EngineRecord, ...] | None:
        """The live records, None if the store does not tell; promises learn of those that are gone."""
        try:
            if not self._started.is_set():
                await self._feed.start()
                self._started.set()
            published = await self._feed.engines()
        except (StoreUnavailable, CapacityError) as error:
            # what is known stays: sets that are ready go on being served
            if self._store_lost is None:
                _LOG.warning("event=store-lost reason=%r cause=%r", error.message, str(error.__cause__))
            self._store_lost = error
            self._last_seen = dict.fromkeys(self._last_seen, self._clock.time())
            return None
        if self._store_lost is not None:
            _LOG.info("event=store-back")
            self._store_lost = None
        self._dead &= {record.epoch for record in published}
        records = tuple(sorted((r for r in published if r.epoch not in self._dead), key=lambda record: record.epoch))
        self._promises.retain(self._remember(records))
        return records

    def _remember(self, records: Sequence[EngineRecord]) -> Collection[str]:
        """The epochs that running requests may count on: those of `records` and those that are not missing for long."""
        now = self._clock.time()
        seen = {**self._last_seen, **{record.epoch: now for record in records}}
        self._last_seen = {epoch: at for epoch, at in seen.items() if now - at < _LAPSE_GRACE_S}
        return self._last_seen.keys()

    async def _assemble(self, records: Sequence[EngineRecord]) -> LiveGroup:
        record = _common_record(records)
        vocabulary = await self._load(record.fingerprint)
        await self._compiler.warm(record.fingerprint)
        await asyncio.to_thread(warm_kernels)
        try:
            async with asyncio.timeout(_PROOF_TIMEOUT_S):
                await prove(self._upstream, records, vocabulary, headers=self._probe_headers, new_nonce=self._new_nonce)
        except TimeoutError as error:
            raise EngineNotReady(f"no answer to a probe within {_PROOF_TIMEOUT_S:.0f} s", stage="proof") from error
        return LiveGroup(epochs=tuple(r.epoch for r in records), record=record, vocabulary=vocabulary)

    async def _load(self, fingerprint: str) -> Vocabulary:
        if self._vocabulary is None or self._vocabulary.fingerprint != fingerprint:
            published = await self._feed.vocabulary(fingerprint)
            loaded = await asyncio.to_thread(Vocabulary.from_bytes, published)
            if loaded.fingerprint != fingerprint:
                raise VocabularyMismatch(
                    "the published vocabulary is not the one that the engine names",
                    expected=fingerprint,
                    found=loaded.fingerprint,
                )
            self._vocabulary = loaded
        return self._vocabulary

    async def _listen(self) -> None:
        await self._started.wait()
        async for event in self._feed.events():
            self.receive(event)

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            await self.refresh()
            self._promises.tell_ended()
            await self._next_poll(self._wake)

    async def _watch_during_proof(self) -> None:
        """A proof may take a minute; who dies meanwhile must not go unnoticed by the requests that count on him."""
        await self._started.wait()
        while True:
            await self._next_poll(asyncio.Event())
            if self._refreshing.locked():
                await self._read()

    async def _next_poll(self, wake: asyncio.Event) -> None:
        timer = self._clock.call_at(self._clock.time() + _POLL_S, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self._defect = task.exception() or InternalInvariant("the feed's events ended")
        _LOG.error("event=group-follower-stopped", exc_info=self._defect)


def _common_record(records: Sequence[EngineRecord]) -> EngineRecord:
    if not records:
        raise EngineNotReady("no engine of the group is registered", stage="proof")
    first = records[0]
    for name in _AGREED:
        values: set[Any] = {getattr(record, name) for record in records}
        if len(values) > 1:
            raise EngineNotReady(f"the engines of the group differ in {name}", stage="proof", field=name)
    for record in records:
        if FORMAT_VERSION not in record.format_versions:
            raise EngineNotReady(
                f"engine {record.epoch} does not read artifacts of format {FORMAT_VERSION}", stage="proof"
            )
    return dataclasses.replace(first, max_model_len=min(record.max_model_len for record in records))
