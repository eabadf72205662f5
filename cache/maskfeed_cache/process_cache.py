"""What one process keeps in memory: layers of computed values under one fence, shared by its threads.

It knows neither what a value is nor how it is computed. Invariants, each kept in one critical section of the fence's
lock: a value is indexed and counted only in the generation in which its computation began; one thread computes a key
while the others wait for it. No value is computed, measured or freed under the lock, so `clear` waits for nothing.
"""

import _thread
import secrets
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from maskfeed_cache.counted_entries import CountedEntries, Entry
from maskfeed_cache.fence import Fence, Layer, LayerUsage, Usage

__all__ = ["ProcessCache", "ProcessFence"]

K = TypeVar("K")
V = TypeVar("V")

# Entries that are freed in one go, some microseconds each, and how long other threads run before the next ones.
_FREED_AT_ONCE: Final = 64
_FREE_PAUSE_S: Final = 0.00005


class _Flight(Generic[V]):
    """One computation: the thread that does it, and what it comes to; cancelled if that thread gave it up."""

    __slots__ = ("leader", "outcome")

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.outcome: Future[Entry[V]] = Future()


class ProcessFence:
    """One lock and one generation for all layers that are made with it."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(16)
        self._generation = 1
        self._lock = threading.Lock()
        self._layers: dict[Layer, ProcessCache[Any, Any]] = {}
        # which flight a thread waits for now
        self._awaited: dict[int, _Flight[Any]] = {}

    @property
    def generation(self) -> int:
        """From 1; each clear adds 1."""
        return self._generation

    def clear(self) -> int:
        """Begin a new generation: no entry and 0 bytes in every layer. Waits for no computation.

        Computations in flight still answer those who wait for them now. The memory is given back by a thread of its
        own.

        Returns:
            The new generation.

        Cost: O(1) in the entries.
        """
        with self._lock:
            self._generation += 1
            generation = self._generation
            emptied = [entries for layer in self._layers.values() for entries in layer._empty()]
        if any(emptied):
            # Not `threading.Thread`, whose start waits until the thread runs. None to be had: freed here and now.
            with suppress(RuntimeError):
                _thread.start_new_thread(_free, (emptied,))
        return generation

    def usage(self) -> Usage:
        """Figures of all layers, taken in one step."""
        with self._lock:
            layers = {name: layer._usage() for name, layer in self._layers.items()}
            return Usage(Fence(self._epoch, self._generation), layers)

    def _register(self, name: Layer, layer: "ProcessCache[Any, Any]") -> None:
        with self._lock:
            if name in self._layers:
                raise ValueError(f"the fence has a layer {name} already")
            self._layers[name] = layer

    def _waits_for(self, flight: _Flight[Any] | None, thread: int) -> bool:
        """Whether `flight` can't end before `thread` goes on: it leads it, or its leader waits for such a flight."""
        while flight is not None and not flight.outcome.done():
            if flight.leader == thread:
                return True
            flight = self._awaited.get(flight.leader)
        return False


class ProcessCache(Generic[K, V]):
    """One layer. Thread-safe; `get` blocks while the key is computed.

    Args:
        name: of the layer; each once for a fence. The layer lives as long as the fence.
        fence: shared with the other layers.
        size_of: bytes that a value counts as, at least 0; called once for each computed value.
        limit_bytes: for live and orphaned pinned values together; None: unlimited. Least recently used values make
            room, pinned ones never do; a value that there is no room for is handed out and not kept.
    """

    def __init__(
        self, name: Layer, fence: ProcessFence, *, size_of: Callable[[V], int], limit_bytes: int | None = None
    ) -> None:
        self._fence = fence
        self._size_of = size_of
        self._entries: CountedEntries[K, V] = CountedEntries(limit_bytes)
        # computations of this generation
        self._flights: dict[K, _Flight[V]] = {}
        self._hits = self._misses = 0
        fence._register(name, self)

    def get(self, key: K, compute: Callable[[], V], *, began: int | None = None) -> V:
        """The value of `key`, computed if it is not there.

        Args:
            key: hashable; its `__hash__` and `__eq__` must not use the cache.
            compute: called without a lock, in the thread of the first of those who ask at the same time; may use the
                cache, even for `key` (which is then computed again, and not kept).
            began: generation in which the work behind `compute` began, if that was before this call. When it is over,
                the value is not kept.

        Raises:
            Exception: what `compute` raised, to all who waited for it; it is not remembered. Anything else that ends
                `compute` (KeyboardInterrupt) is raised to its own thread only, and one of the others computes.
        """
        return self._obtain(key, compute, began, is_pinned=False).value

    @contextmanager
    def pinned(self, key: K, compute: Callable[[], V], *, began: int | None = None) -> Iterator[V]:
        """Like `get`; the value is not evicted inside the block, and its bytes count until the end of the block.

        A value that is cleared away meanwhile, or was not kept, counts as orphaned.
        """
        entry = self._obtain(key, compute, began, is_pinned=True)
        try:
            yield entry.value
        finally:
            with self._fence._lock:
                evicted = self._entries.unpin(key, entry)
            del evicted

    def clear(self) -> int:
        """Clear all layers of the fence; see `ProcessFence.clear`."""
        return self._fence.clear()

    @property
    def generation(self) -> int:
        """The fence's."""
        return self._fence.generation

    @property
    def refusals(self) -> int:
        """Computed values that were not kept because there was no room."""
        return self._entries.refusals

    def size_bytes(self) -> int:
        """Bytes of the live entries, exactly."""
        return self._entries.bytes

    def usage(self) -> LayerUsage:
        """Figures, taken in one step. A call that waits for another's computation is a miss, too."""
        with self._fence._lock:
            return self._usage()

    def keys(self) -> tuple[K, ...]:
        """Of the live entries, least recently used first, the pinned ones last. Cost: O(entries)."""
        with self._fence._lock:
            return self._entries.keys()

    def __contains__(self, key: object) -> bool:
        """Whether the key would be a hit; counts as no use."""
        with self._fence._lock:
            return key in self._entries

    def _obtain(self, key: K, compute: Callable[[], V], began: int | None, *, is_pinned: bool) -> Entry[V]:
        is_first_try = True
        flight: _Flight[V] | None = None
        try:
            while True:
                with self._fence._lock:
                    entry = self._entries.use(key)
                    if is_first_try:
                        self._hits += entry is not None
                        self._misses += entry is None
                    if entry is not None:
                        if is_pinned:
                            self._entries.pin(key, entry)
                        return entry
                    flight = self._join(key, began)
                is_first_try = False
                if flight.leader == threading.get_ident():
                    return self._lead(key, flight, compute, is_pinned=is_pinned)
                entry = self._follow(key, flight, is_pinned=is_pinned)
                if entry is not None:
                    return entry
        finally:
            # a failure's traceback holds this frame, and the flight holds the failure
            flight = None

    def _lead(self, key: K, flight: _Flight[V], compute: Callable[[], V], *, is_pinned: bool) -> Entry[V]:
        try:
            value = compute()
            entry = Entry(value, self._size_of(value))
            with self._fence._lock:
                evicted = self._land(key, flight, entry, is_pinned=is_pinned)
            del evicted
            flight.outcome.set_result(entry)
            return entry
        except BaseException as error:
            with self._fence._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            if isinstance(error, Exception):
                flight.outcome.set_exception(error)
            else:
                flight.outcome.cancel()
            raise
        finally:
            del flight

    def _follow(self, key: K, flight: _Flight[V], *, is_pinned: bool) -> Entry[V] | None:
        """What another thread's computation comes to; None if that thread gave it up."""
        try:
            entry = flight.outcome.result()
        except CancelledError:
            if flight.outcome.cancelled():
                return None
            raise
        finally:
            self._fence._awaited.pop(threading.get_ident(), None)
            del flight
        if is_pinned:
            with self._fence._lock:
                evicted = self._entries.pin(key, entry)
            del evicted
        return entry

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _join(self, key: K, began: int | None) -> _Flight[V]:
        """A flight to follow, or a new one, led by this thread. Only what is in `_flights` when it lands is kept."""
        thread = threading.get_ident()
        flight = self._flights.get(key)
        if flight is not None and not self._fence._waits_for(flight, thread):
            self._fence._awaited[thread] = flight
            return flight
        own = _Flight[V](thread)
        if flight is None and began in (None, self._fence._generation):
            self._flights[key] = own
        return own

    def _land(self, key: K, flight: _Flight[V], entry: Entry[V], *, is_pinned: bool) -> list[Entry[V]]:
        """Index and count an entry if its flight is one of this generation: a clear has emptied `_flights`.

        Returns:
            What was evicted, to be freed without the lock.
        """
        evicted = []
        if self._flights.get(key) is flight:
            del self._flights[key]
            evicted = self._entries.add(key, entry)
        if is_pinned:
            evicted += self._entries.pin(key, entry)
        return evicted

    def _empty(self) -> tuple[MutableMapping[K, Any], ...]:
        self._flights = {}
        return self._entries.empty()

    def _usage(self) -> LayerUsage:
        entries = self._entries
        return LayerUsage(
            entries=len(entries),
            bytes=entries.bytes,
            orphaned_pinned_bytes=entries.orphaned_pinned_bytes,
            limit_bytes=entries.limit_bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=entries.evictions,
            expirations=0,
        )


def _free(emptied: list[MutableMapping[Any, Any]]) -> None:
    """A few at a time: left alone, the interpreter would turn to other threads only every 5 ms."""
    for entries in emptied:
        while entries:
            time.sleep(_FREE_PAUSE_S)
            for _ in range(min(_FREED_AT_ONCE, len(entries))):
                entries.popitem()
