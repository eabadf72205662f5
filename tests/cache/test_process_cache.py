"""Layers in one process: the fence, one computation per key, exact bytes, eviction and pins."""

import asyncio
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from maskfeed_cache.counted_entries import CountedEntries, Entry
from maskfeed_cache.fence import Layer
from maskfeed_cache.process_cache import ProcessCache, ProcessFence
from seed_interleaving import GUARD_S, ThreadDriver, run_seed_interleaving

IntCache = ProcessCache[str, int]
LAYERS = list(Layer)


def layer_of(
    fence: ProcessFence,
    *,
    name: Layer = Layer.SETS,
    limit_bytes: int | None = None,
    kind: type[IntCache] = ProcessCache,
) -> IntCache:
    """A layer whose values count as their own number of bytes."""
    return kind(name, fence, size_of=lambda value: value, limit_bytes=limit_bytes)


def cache_of(limit_bytes: int | None = None) -> IntCache:
    return layer_of(ProcessFence(), limit_bytes=limit_bytes)


def driver_of(cache: IntCache) -> ThreadDriver:
    return ThreadDriver(get=lambda compute: cache.get("7", compute), clear=cache.clear, size_bytes=cache.size_bytes)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns every few bytecodes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def unexpected() -> int:
    raise AssertionError("computed again")


class Gate:
    """A computation that says when it runs, and ends when it is told."""

    def __init__(self, value: int | BaseException) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self._value = value

    def __call__(self) -> int:
        self.entered.set()
        assert self.open.wait(GUARD_S)
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value


@contextmanager
def threads(*gates: Gate, n: int = 4) -> Iterator[ThreadPoolExecutor]:
    """A pool that a failing assertion can't leave waiting for a gate."""
    with ThreadPoolExecutor(n) as pool:
        try:
            yield pool
        finally:
            for gate in gates:
                gate.open.set()


def started(pool: ThreadPoolExecutor, cache: IntCache, gate: Gate, key: str = "k") -> Future[int]:
    future = pool.submit(cache.get, key, gate)
    assert gate.entered.wait(GUARD_S)
    return future


class Waiters(dict[int, object]):
    """Stands in for the fence's record of who waits, and tells when one more does."""

    def __init__(self, fence: ProcessFence) -> None:
        super().__init__()
        self._more = threading.Semaphore(0)
        fence._awaited = self

    def __setitem__(self, thread: int, flight: object) -> None:
        super().__setitem__(thread, flight)
        self._more.release()

    def have_come(self, n: int) -> None:
        for _ in range(n):
            assert self._more.acquire(timeout=GUARD_S)


# -- the fence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["value", "exception"])
@pytest.mark.parametrize("name", LAYERS)
async def test_a_computation_of_an_earlier_generation_answers_its_waiters_and_leaves_no_trace(
    name: Layer, fails: bool
) -> None:
    fence = ProcessFence()
    layers = {layer: layer_of(fence, name=layer) for layer in LAYERS}
    await run_seed_interleaving(driver_of(layers[name]), fails=fails)
    usage = fence.usage()
    assert usage.fence.generation == 4
    assert usage.layers[name].bytes == 51
    assert sum(layer.bytes for layer in usage.layers.values()) == 51


class ClearKeepsTheCount(IntCache):
    """The first upstream defect: clear empties the index and not the count."""

    def _empty(self):
        n_bytes = self._entries.bytes
        emptied = super()._empty()
        self._entries.bytes = n_bytes
        return emptied


class CountsWithoutAsking(IntCache):
    """The second one: a computation that ends is counted whether its generation is over or not."""

    def _land(self, key, flight, entry, *, is_pinned):
        is_stale = self._flights.get(key) is not flight
        evicted = super()._land(key, flight, entry, is_pinned=is_pinned)
        self._entries.bytes += entry.size_bytes * is_stale
        return evicted


class IndexesWhatIsStale(IntCache):
    """Not only counted but found."""

    def _land(self, key, flight, entry, *, is_pinned):
        self._flights[key] = flight
        return super()._land(key, flight, entry, is_pinned=is_pinned)


class ClearKeepsFlights(IntCache):
    """Who asks after a clear gets what began before it; shown by the guard, not by a hanging test."""

    def _empty(self):
        flights = self._flights
        emptied = super()._empty()
        self._flights = flights
        return emptied


DEFECTS = [
    (ClearKeepsTheCount, False),
    (ClearKeepsTheCount, True),
    (CountsWithoutAsking, False),
    (IndexesWhatIsStale, False),
    (ClearKeepsFlights, False),
    (ClearKeepsFlights, True),
]


@pytest.mark.parametrize(("defect", "fails"), DEFECTS)
async def test_the_interleaving_finds_each_defect_that_is_put_back(
    defect: type[IntCache], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seed_interleaving.GUARD_S", 0.3)
    with pytest.raises(AssertionError):
        await run_seed_interleaving(driver_of(layer_of(ProcessFence(), kind=defect)), fails=fails)


class PausingKey(str):
    """A key at whose next hashing, once armed, the thread stops until it is told to go on."""

    __slots__ = ("gate",)
    gate: Gate | None

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        gate, self.gate = getattr(self, "gate", None), None
        if gate is not None:
            gate()
        return str.__hash__(self)


def test_a_clear_cannot_come_between_the_comparison_and_the_count():
    fence = ProcessFence()
    cache = layer_of(fence)
    pause = Gate(0)
    key = PausingKey("k")

    def compute() -> int:
        key.gate = pause  # the next hashing is the comparison itself
        return 17

    with threads(pause) as pool:
        first = pool.submit(cache.get, key, compute)
        assert pause.entered.wait(GUARD_S)
        assert fence._lock.locked()
        clearing = pool.submit(cache.clear)
        assert not clearing.done()
        pause.open.set()
        assert first.result(GUARD_S) == 17
        assert clearing.result(GUARD_S) == 2
    assert (cache.size_bytes(), "k" in cache) == (0, False)


def test_of_three_generations_alive_at_once_only_the_newest_is_counted():
    cache = cache_of()
    gates = [Gate(value) for value in (1, 20, 300)]
    with threads(*gates) as pool:
        futures = []
        for gate in gates:
            futures.append(started(pool, cache, gate))
            cache.clear() if gate is not gates[-1] else None
        for index in (1, 2, 0):
            gates[index].open.set()
            futures[index].result(GUARD_S)
    assert [future.result() for future in futures] == [1, 20, 300]
    assert (cache.size_bytes(), cache.generation) == (300, 3)
    assert cache.get("k", unexpected) == 300


def test_a_clear_empties_every_layer_of_the_fence_in_one_step():
    fence = ProcessFence()
    sets, automata = (layer_of(fence, name=name) for name in LAYERS)
    sets.get("a", lambda: 3)
    automata.get("a", lambda: 5)
    assert [layer.bytes for layer in fence.usage().layers.values()] == [3, 5]
    assert sets.clear() == 2
    assert [layer.bytes for layer in fence.usage().layers.values()] == [0, 0]
    assert automata.generation == 2
    assert automata.get("a", lambda: 7) == 7


def test_a_name_stands_for_one_layer():
    fence = ProcessFence()
    layer_of(fence)
    with pytest.raises(ValueError, match="sets"):
        layer_of(fence)


def test_work_that_began_in_an_earlier_generation_is_not_kept():
    cache = cache_of()
    began = cache.generation
    assert cache.get("kept", lambda: 2, began=began) == 2
    cache.clear()
    assert cache.get("late", lambda: 3, began=began) == 3
    assert cache.size_bytes() == 0
    assert cache.get("late", lambda: 5, began=cache.generation) == 5
    assert cache.get("late", unexpected, began=began) == 5


def test_work_of_an_earlier_generation_is_not_joined_by_those_who_ask_later():
    cache = cache_of()
    began = cache.generation
    cache.clear()
    gate = Gate(3)
    with threads(gate) as pool:
        old = pool.submit(cache.get, "k", gate, began=began)
        assert gate.entered.wait(GUARD_S)
        assert pool.submit(cache.get, "k", lambda: 5).result(GUARD_S) == 5
        gate.open.set()
        assert old.result(GUARD_S) == 3
    assert cache.size_bytes() == 5


def test_a_clear_touches_no_entry_and_their_memory_is_given_back_by_another_thread():
    class Key:
        """Counts whenever an entry is looked at."""

        n_looks = 0

        def __hash__(self) -> int:
            Key.n_looks += 1
            return id(self) >> 4

    class Value:
        def __del__(self) -> None:
            freed_by.append(threading.get_ident())
            if len(freed_by) == 1_000:
                all_freed.set()

    freed_by: list[int] = []
    all_freed = threading.Event()
    cache: ProcessCache[Key, Value] = ProcessCache(Layer.SETS, ProcessFence(), size_of=lambda value: 100)
    for _ in range(1_000):
        cache.get(Key(), Value)
    assert cache.size_bytes() == 100_000
    looks_before = Key.n_looks
    cache.clear()
    assert Key.n_looks == looks_before
    assert cache.size_bytes() == 0
    assert all_freed.wait(GUARD_S)
    assert threading.get_ident() not in freed_by


# -- one computation per key ---------------------------------------------------------------------------------------


def test_all_who_ask_at_the_same_time_wait_for_one_computation():
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    gate = Gate(17)
    with threads(gate, n=17) as pool:
        first = started(pool, cache, gate)
        others = [pool.submit(cache.get, "k", unexpected) for _ in range(16)]
        waiters.have_come(16)
        assert not any(future.done() for future in (first, *others))
        gate.open.set()
        assert [future.result(GUARD_S) for future in (first, *others)] == [17] * 17
    usage = cache.usage()
    assert (usage.entries, usage.bytes, usage.hits, usage.misses) == (1, 17, 0, 17)
    assert not waiters


def test_a_failure_is_raised_to_all_who_waited_and_is_not_remembered():
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    gate = Gate(LookupError("no"))
    with threads(gate) as pool:
        futures = [started(pool, cache, gate), pool.submit(cache.get, "k", unexpected)]
        waiters.have_come(1)
        gate.open.set()
        for future in futures:
            with pytest.raises(LookupError):
                future.result(GUARD_S)
    assert cache.size_bytes() == 0
    assert cache.get("k", lambda: 4) == 4


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_when_the_computing_thread_is_ended_one_of_the_others_computes(end: BaseException):
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    gate = Gate(end)
    calls = []
    with threads(gate) as pool:
        first = started(pool, cache, gate)
        others = [pool.submit(cache.get, "k", lambda: calls.append(1) or 9) for _ in range(3)]
        waiters.have_come(3)
        gate.open.set()
        with pytest.raises(type(end)):
            first.result(GUARD_S)
        assert [future.result(GUARD_S) for future in others] == [9] * 3
    assert (len(calls), cache.size_bytes()) == (1, 9)


def test_a_waiter_that_is_interrupted_leaves_the_computation_and_the_others_alone(monkeypatch: pytest.MonkeyPatch):
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    gate = Gate(6)
    result = Future.result

    def interrupted(self: Future[object], timeout: float | None = None) -> object:
        if threading.current_thread() is threading.main_thread() and timeout is None:
            raise KeyboardInterrupt
        return result(self, timeout)

    with threads(gate) as pool:
        first = started(pool, cache, gate)
        other = pool.submit(cache.get, "k", unexpected)
        waiters.have_come(1)
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.get("k", unexpected)
        assert threading.get_ident() not in waiters
        gate.open.set()
        assert first.result(GUARD_S) == other.result(GUARD_S) == 6
    assert cache.size_bytes() == 6


def test_a_size_that_cannot_be_told_is_a_failure_of_the_computation():
    cache: ProcessCache[str, object] = ProcessCache(Layer.SETS, ProcessFence(), size_of=len)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.get("k", lambda: 1)
    assert cache.get("k", lambda: "four") == "four"
    assert cache.size_bytes() == 4


def test_a_computation_may_ask_for_other_keys_and_clear():
    fence = ProcessFence()
    sets, automata = (layer_of(fence, name=name) for name in LAYERS)

    def compute() -> int:
        return automata.get("b", lambda: sets.get("c", lambda: 1) + 1) + 1

    assert sets.get("a", compute) == 3
    assert (sets.size_bytes(), automata.size_bytes()) == (4, 2)
    assert sets.get("d", lambda: sets.clear()) == 2
    assert sets.size_bytes() == 0


def test_a_computation_that_asks_for_its_own_key_computes_it_again_and_the_outer_value_is_kept():
    cache = cache_of()
    assert cache.get("k", lambda: cache.get("k", lambda: 5) + 1) == 6
    assert (cache.size_bytes(), cache.get("k", unexpected)) == (6, 6)


def test_two_computations_that_ask_for_each_others_keys_both_end():
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    both_run = threading.Barrier(2)

    def first() -> int:
        both_run.wait(GUARD_S)
        return cache.get("b", unexpected) + 1

    def second() -> int:
        both_run.wait(GUARD_S)
        waiters.have_come(1)  # the first one waits for this one now
        return cache.get("a", lambda: 10) + 1

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(cache.get, "a", first), pool.submit(cache.get, "b", second)]
        assert [future.result(GUARD_S) for future in futures] == [12, 11]
    assert cache.size_bytes() == 23


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_threads_and_random_clears_leave_exactly_what_is_there(seed: int, frequent_switches: None):
    cache = cache_of()
    choose = random.Random(seed)
    counter = itertools.count(1)
    clears = [[choose.randrange(100) < 10 for _ in range(20)] for _ in range(100)]
    begin = threading.Barrier(100)

    def work(thread: int) -> None:
        begin.wait(GUARD_S)
        for is_clear in clears[thread]:
            assert cache.get("k", lambda: 17 * next(counter)) % 17 == 0
            if is_clear:
                cache.clear()

    with ThreadPoolExecutor(100) as pool:
        for future in [pool.submit(work, thread) for thread in range(100)]:
            future.result(60)
    usage = cache.usage()
    assert usage.hits + usage.misses == 2_000
    assert cache.generation == 1 + sum(map(sum, clears))
    assert cache.size_bytes() == (cache.get("k", unexpected) if "k" in cache else 0)


# -- the limit -----------------------------------------------------------------------------------------------------


def test_the_least_recently_used_values_make_room():
    cache = cache_of(limit_bytes=10)
    for key, value in [("a", 4), ("b", 3), ("c", 3)]:
        cache.get(key, lambda value=value: value)
    cache.get("a", unexpected)
    cache.get("d", lambda: 5)
    assert [key for key in "abcd" if key in cache] == ["a", "d"]
    usage = cache.usage()
    assert (usage.bytes, usage.entries, usage.evictions, usage.limit_bytes) == (9, 2, 2, 10)


def test_a_value_larger_than_the_limit_is_handed_out_not_kept_and_evicts_nothing():
    cache = cache_of(limit_bytes=10)
    cache.get("a", lambda: 10)
    assert [cache.get("b", lambda: 11) for _ in range(2)] == [11, 11]
    assert cache.get("a", unexpected) == 10
    assert (cache.size_bytes(), cache.refusals, cache.usage().evictions) == (10, 2, 0)


def test_a_value_may_take_the_whole_limit_and_none_at_all():
    cache = cache_of(limit_bytes=0)
    assert cache.get("empty", lambda: 0) == 0
    assert cache.get("empty", unexpected) == 0
    assert cache.get("one", lambda: 1) == 1
    assert "one" not in cache


def test_a_pinned_value_is_not_evicted_and_what_it_leaves_no_room_for_is_not_kept():
    cache = cache_of(limit_bytes=10)
    with cache.pinned("a", lambda: 6) as value:
        assert value == 6
        cache.get("b", lambda: 4)
        cache.get("c", lambda: 4)
        assert [key for key in "abc" if key in cache] == ["a", "c"]
        assert cache.get("d", lambda: 5) == 5
        assert ("d" in cache, cache.refusals) == (False, 1)
    cache.get("e", lambda: 7)
    assert [key for key in "ace" if key in cache] == ["e"]


def test_a_cleared_value_counts_as_orphaned_while_it_is_pinned():
    cache = cache_of(limit_bytes=10)
    with cache.pinned("a", lambda: 6), cache.pinned("a", unexpected):
        cache.clear()
        usage = cache.usage()
        assert (usage.bytes, usage.entries, usage.orphaned_pinned_bytes) == (0, 0, 6)
        cache.get("b", lambda: 5)
        assert "b" not in cache
        cache.get("a", lambda: 4)
        assert (cache.size_bytes(), cache.usage().orphaned_pinned_bytes) == (4, 6)
    assert (cache.size_bytes(), cache.usage().orphaned_pinned_bytes) == (4, 0)


def test_a_stale_value_that_is_pinned_counts_as_orphaned_and_makes_room_for_itself():
    cache = cache_of(limit_bytes=10)
    began = cache.generation
    cache.clear()
    for key in "abc":
        cache.get(key, lambda: 3)
    with cache.pinned("late", lambda: 4, began=began):
        usage = cache.usage()
        assert (usage.bytes, usage.orphaned_pinned_bytes, usage.evictions) == (6, 4, 1)
    assert cache.usage().orphaned_pinned_bytes == 0


def test_those_who_wait_for_one_computation_each_have_a_pin():
    fence = ProcessFence()
    cache = layer_of(fence)
    waiters = Waiters(fence)
    gate, done = Gate(8), threading.Event()

    def hold() -> int:
        with cache.pinned("k", gate) as value:
            assert done.wait(GUARD_S)
            return value

    with threads(gate, n=2) as pool:
        futures = [pool.submit(hold) for _ in range(2)]
        waiters.have_come(1)
        cache.clear()
        gate.open.set()
        done.set()
        assert [future.result(GUARD_S) for future in futures] == [8, 8]
    assert (cache.size_bytes(), cache.usage().orphaned_pinned_bytes) == (0, 0)


def test_a_pin_ends_with_its_block_however_the_block_ends():
    cache = cache_of(limit_bytes=5)
    with pytest.raises(KeyboardInterrupt), cache.pinned("a", lambda: 5):
        raise KeyboardInterrupt
    cache.get("b", lambda: 5)
    assert "a" not in cache


def test_a_value_that_is_evicted_is_freed_without_the_lock():
    class Value:
        def __init__(self, on_free: Callable[[], None]) -> None:
            self._on_free = on_free

        def __del__(self) -> None:
            self._on_free()

    fence = ProcessFence()
    cache: ProcessCache[str, Value] = ProcessCache(Layer.SETS, fence, size_of=lambda value: 1, limit_bytes=1)
    was_locked: list[bool] = []
    freed = threading.Semaphore(0)

    def on_free() -> None:
        was_locked.append(fence._lock.locked())
        freed.release()

    for key in "ab":
        cache.get(key, lambda: Value(on_free))
    cache.clear()
    with cache.pinned("c", lambda: Value(on_free)):
        cache.clear()
    for _ in range(3):
        assert freed.acquire(timeout=GUARD_S)
    assert was_locked == [False] * 3


def test_an_entry_is_live_only_while_the_index_points_to_it():
    entries: CountedEntries[str, int] = CountedEntries(None)
    old, new = Entry(1, 1), Entry(2, 2)
    entries.add("k", old)
    entries.pin("k", old)
    entries.empty()
    entries.add("k", new)
    entries.pin("k", new)
    entries.unpin("k", old)
    assert (entries.bytes, entries.orphaned_pinned_bytes, entries.use("k")) == (2, 0, new)
