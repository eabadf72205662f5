"""One computation per key in the whole cluster, and its result for everybody who asked.

It stands between callers and a `CacheIndex`; what is computed it does not know. Callers of this process that ask for
one key share one flight; flights of several processes are kept apart by the index's leases. Invariants:

- a result goes to those who asked for it, whatever became of its generation; only the index decides whether it counts;
- who begins to ask after a `clear` that this process knows of never joins a flight of an earlier generation;
- no wait for another holder is longer than the rest of his lease, even if all news is lost;
- a lease or a pin that was taken is given back on every way out.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final

from maskfeed_automata.errors import RequestError
from maskfeed_cache.clock import Clock, wait_until
from maskfeed_cache.failures import error_of
from maskfeed_cache.fence import (
    Cleared,
    Commit,
    Fence,
    Granted,
    Held,
    Hit,
    IndexEntry,
    Layer,
    Lease,
    News,
    Remembered,
    Resync,
    Settled,
)
from maskfeed_cache.flight import Compute, Flight, Found, Passenger, Report, Source, Step
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.lease_keeping import release, remember, renewed
from maskfeed_cache.pin_returns import PinReturns

__all__ = ["Compute", "Found", "Outcome", "Report", "SharedCache", "Source", "Step"]

_LEASE_MS: Final = 5_000
_REMEMBER_MS: Final = 5_000


class Outcome(StrEnum):
    """What became of one computation."""

    INDEXED = Commit.INDEXED
    # the generation, or the lease, was over: its flight was answered, and nothing counted
    STALE = Commit.STALE
    LOST = Commit.LOST
    # of a key whose artifact had gone: nothing new to count
    REPAIRED = "repaired"
    # over the limit, or no room, or no store
    REFUSED = "refused"
    FAILED = "failed"
    # nobody waited for it any more
    DROPPED = "dropped"


class SharedCache:
    """The cache of one layer, seen from one event loop.

    Args:
        follower: of the index, shared by all layers; borrowed. Until it is started, what others do is not heard of.
        layer: of all keys.
        clock: for waits; an asyncio loop is one.
        lease_ms: life of a lease that nobody renews: after the death of a holder, others wait so long.
        remember_ms: how long a failure that lies in the key is told to others.
        observe: told what became of each computation; must not raise.
        new_token: 32 fresh hex digits at each call.
    """

    def __init__(
        self,
        follower: IndexFollower,
        layer: Layer,
        *,
        clock: Clock,
        lease_ms: int = _LEASE_MS,
        remember_ms: int = _REMEMBER_MS,
        observe: Callable[[Outcome], None] = lambda outcome: None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._follower = follower
        self._index = follower.index
        self._layer = layer
        self._clock = clock
        self._lease_ms = lease_ms
        self._remember_ms = remember_ms
        self._observe = observe
        self._new_token = new_token
        self._pins = PinReturns(follower.index)
        # what a new caller may join, by key and the artifact to be replaced
        self._joinable: dict[tuple[str, str | None], Flight] = {}
        # what is under way, whether it may be joined or not
        self._under_way: set[Flight] = set()
        # flights that have asked for a key, to be told of its news
        self._asking: defaultdict[str, set[Flight]] = defaultdict(set)
        self._background: set[asyncio.Task[Any]] = set()
        follower.subscribe(self._take)

    async def close(self) -> None:
        """Give up what is under way, and give back leases and pins if the index answers. Idempotent."""
        for flight in tuple(self._under_way):
            flight.abandon()
        while self._background:
            await asyncio.wait(self._background)
        await self._pins.close()

    async def get(self, key: str, compute: Compute) -> Found:
        """`hold` for a caller that needs no pin."""
        async with self.hold(key, compute, pin_ms=0) as found:
            return found

    @asynccontextmanager
    async def hold(
        self,
        key: str,
        compute: Compute,
        *,
        pin_ms: int,
        report: Report = lambda step, since_s=0.0: None,
        replaces: str | None = None,
    ) -> AsyncIterator[Found]:
        """Find the artifact of `key`, or compute it, and keep it from eviction for the length of the block.

        Args:
            key: digest or fingerprint.
            compute: makes the artifact and stores its blob. Called only if nobody has done so or is about to. Its
                RequestErrors are remembered and told to others, so they must name a candidate by its rank. Dropped,
                by cancellation, when no caller waits for it any more.
            pin_ms: life of the pin, should this process die; 0: no pin.
            report: told of the steps on the way.
            replaces: hash of an artifact that the index knows and that is lost or broken: it is made again.

        Raises:
            RequestError: from `compute`, here or, a moment ago, elsewhere.
            LimitExceeded: the artifact alone is over the layer's limit.
            CapacityError: no room for it, or the store is full.
            StoreUnavailable: the index does not answer.
            MaskfeedError: whatever else `compute` raises.
        """
        self._follower.check()
        passenger = Passenger(report, pin_ms)
        flight = self._joinable.get((key, replaces)) or self._begin(key, compute, replaces)
        flight.board(passenger)
        try:
            yield await flight.result_for(passenger)
        finally:
            flight.leave(passenger)
            if flight.is_empty:
                self._close_doors(flight)
                self._return_pin(flight)

    async def clear(self) -> Fence:
        """Begin a new generation in every layer. Waits for no computation.

        Raises:
            StoreUnavailable: the index does not answer.
        """
        fence = await self._index.clear()
        self._enter(fence)
        return fence

    def _begin(self, key: str, compute: Compute, replaces: str | None) -> Flight:
        flight = Flight(key, compute, replaces=replaces, pin_token=self._new_token())
        self._joinable[key, replaces] = flight
        self._under_way.add(flight)
        carrying = self._in_background(flight.depart(self._carry(flight)))
        # if nobody is on board any more, nobody is there to be told
        carrying.add_done_callback(lambda task: task.cancelled() or task.exception())
        return flight

    def _close_doors(self, flight: Flight) -> None:
        slot = flight.key, flight.replaces
        if self._joinable.get(slot) is flight:
            del self._joinable[slot]

    def _return_pin(self, flight: Flight) -> None:
        """When nobody is on board any more and the index won't hear of the pin again."""
        if flight.is_pinned and flight.is_empty and flight not in self._under_way:
            flight.is_pinned = False
            self._pins.give_back(flight.pin_token)

    async def _carry(self, flight: Flight) -> Found:
        self._asking[flight.key].add(flight)
        try:
            return await self._find(flight)
        finally:
            self._asking[flight.key].discard(flight)
            if not self._asking[flight.key]:
                del self._asking[flight.key]
            self._under_way.discard(flight)
            self._close_doors(flight)
            self._return_pin(flight)

    async def _find(self, flight: Flight) -> Found:
        token = self._new_token()
        source = Source.HIT
        flight.tell(Step.LOOKUP)
        while True:
            # from here on news counts: what is settled after the index has answered wakes the wait below
            flight.news.clear()
            acquired = await self._index.acquire(
                self._layer, flight.key, token=token, lease_ms=self._lease_ms, pin=flight.ask_for_pin()
            )
            match acquired:
                case Hit(entry, fence):
                    flight.fence = fence
                    if entry.artifact_hash == flight.replaces:
                        return await self._repair(flight, fence)
                    return Found(entry, fence, source)
                case Granted(lease):
                    flight.fence = lease.fence
                    return await self._compute(flight, lease)
                case Remembered(failure):
                    raise error_of(failure)
                case Held(remaining_ms, fence):
                    flight.fence = fence
                    source = Source.WAITED
                    flight.tell(Step.WAIT)
                    with flight.wait():
                        await wait_until(flight.news, self._clock, max(1, remaining_ms) / 1000)

    async def _compute(self, flight: Flight, lease: Lease) -> Found:
        # who comes after a loss asks for himself; those on board are answered all the same
        async with renewed(
            self._index,
            lease,
            lease_ms=self._lease_ms,
            clock=self._clock,
            on_loss=lambda: self._close_doors(flight),
        ):
            try:
                entry = await self._run(flight)
            except RequestError as error:
                await remember(self._index, lease, error, remember_ms=self._remember_ms)
                raise
            except BaseException:
                # nobody else's failure: whoever waits elsewhere takes over
                self._in_background(release(self._index, lease))
                raise
            flight.tell(Step.COMMIT)
            try:
                committed = await self._index.commit(lease, entry, pin=flight.ask_for_pin())
            except Exception:
                self._observe(Outcome.REFUSED)
                # the index may not have heard of it
                self._in_background(release(self._index, lease))
                raise
        self._observe(Outcome(committed))
        # it may have taken the place of others, whose blobs would fill the store long before the next sweep
        self._follower.want_sweep()
        return Found(entry, lease.fence, Source.COMPILED)

    async def _repair(self, flight: Flight, fence: Fence) -> Found:
        """Make a known artifact again: equal input gives equal bytes, so the index need not hear of it."""
        entry = await self._run(flight)
        self._observe(Outcome.REPAIRED)
        return Found(entry, fence, Source.COMPILED)

    async def _run(self, flight: Flight) -> IndexEntry:
        try:
            with flight.wait():
                return await flight.compute(flight.tell)
        except BaseException as error:
            self._observe(Outcome.FAILED if isinstance(error, Exception) else Outcome.DROPPED)
            raise

    def _take(self, news: News) -> None:
        match news:
            case Settled(layer, key):
                if layer is self._layer:
                    self._wake(key)
            case Cleared(fence):
                self._enter(fence)
            case Resync():
                self._enter(None)

    def _wake(self, key: str) -> None:
        for flight in self._asking.get(key, ()):
            flight.news.set()

    def _enter(self, fence: Fence | None) -> None:
        """Let nobody join a flight that may be of an earlier generation than `fence` (None: than one we don't know)."""
        for flight in tuple(self._joinable.values()):
            if fence is None or flight.fence is None or _is_earlier(flight.fence, fence):
                self._close_doors(flight)
        for key in self._asking:
            self._wake(key)
        self._follower.want_sweep()
        self._pins.flush()

    def _in_background(self, work: Coroutine[Any, Any, None] | asyncio.Task[Any]) -> asyncio.Task[Any]:
        task = work if isinstance(work, asyncio.Task) else asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _is_earlier(fence: Fence, than: Fence) -> bool:
    """Whether work under `fence` may be stale. Epochs have no order: another one is."""
    return fence.epoch != than.epoch or fence.generation < than.generation
