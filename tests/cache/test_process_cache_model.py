"""Random histories of a process cache beside a model that recomputes everything from its list of values."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from maskfeed_cache.fence import Layer
from maskfeed_cache.process_cache import ProcessCache, ProcessFence

KEYS = st.sampled_from("abcde")
SIZES = st.integers(0, 12)


@dataclass(eq=False)
class Value:
    """What the cache keeps, and what the model knows of it."""

    key: str
    size: int
    last_use: int = 0
    n_pins: int = 0
    is_live: bool = False


class ProcessCacheHistory(RuleBasedStateMachine):
    """Values are never equal, so that a stale one can't pass for the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Value] = []
        self.pins: list[tuple[Value, AbstractContextManager[Value]]] = []
        self.now = self.hits = self.misses = self.evictions = self.refusals = 0
        self.generation = 1

    @initialize(limit=st.sampled_from([None, 0, 7, 12, 30]))
    def begin(self, limit: int | None) -> None:
        self.limit = limit
        fence = ProcessFence()
        self.cache: ProcessCache[str, Value] = ProcessCache(
            Layer.SETS, fence, size_of=lambda value: value.size, limit_bytes=limit
        )
        self.other: ProcessCache[str, int] = ProcessCache(Layer.AUTOMATA, fence, size_of=lambda value: value)

    # -- the model -------------------------------------------------------------------------------------------------

    def live(self) -> list[Value]:
        return [value for value in self.values if value.is_live]

    def orphans(self) -> list[Value]:
        return [value for value in self.values if value.n_pins and not value.is_live]

    def find(self, key: str) -> Value | None:
        return next((value for value in self.live() if value.key == key), None)

    def use(self, value: Value) -> None:
        self.now += 1
        value.last_use = self.now

    def total(self) -> int:
        return sum(value.size for value in self.live() + self.orphans())

    def evict(self) -> None:
        while self.limit is not None and self.total() > self.limit:
            idle = [value for value in self.live() if not value.n_pins]
            if not idle:
                return
            min(idle, key=lambda value: value.last_use).is_live = False
            self.evictions += 1

    def keep(self, value: Value) -> None:
        fixed = [other for other in self.live() + self.orphans() if other.n_pins]
        if self.limit is not None and value.size + sum(other.size for other in fixed) > self.limit:
            self.refusals += 1
            return
        self.values.append(value)
        value.is_live = True
        self.use(value)
        self.evict()

    def expected(self, key: str, computed: Value, *, began: int) -> Value:
        found = self.find(key)
        if found is not None:
            self.hits += 1
            self.use(found)
            return found
        self.misses += 1
        if began == self.generation:
            self.keep(computed)
        return computed

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(key=KEYS, size=SIZES, age=st.integers(0, 1))
    def get(self, key: str, size: int, age: int) -> None:
        computed = Value(key, size)
        began = max(1, self.generation - age)
        got = self.cache.get(key, lambda: computed, began=began)
        assert got is self.expected(key, computed, began=began)

    @rule(key=KEYS)
    def fail(self, key: str) -> None:
        is_there = self.find(key) is not None

        def compute() -> Value:
            raise LookupError

        try:
            self.cache.get(key, compute)
        except LookupError:
            assert not is_there
            self.misses += 1
        else:
            self.expected(key, Value(key, 0), began=self.generation)
            assert is_there

    @rule(key=KEYS, size=SIZES, clears=st.booleans())
    def compute_while_others_do(self, key: str, size: int, clears: bool) -> None:
        """The computation itself gets another key, or clears."""
        computed, inner = Value(key, size), Value(key + "'", 3)
        began = self.generation

        def compute() -> Value:
            if clears:
                self.clear()
            else:
                assert self.cache.get(inner.key, lambda: inner) is self.expected(inner.key, inner, began=began)
            return computed

        found = self.find(key)
        if found is None:
            self.misses += 1
            assert self.cache.get(key, compute) is computed
            if began == self.generation:
                self.keep(computed)
        else:
            assert self.cache.get(key, compute) is self.expected(key, computed, began=began)

    @rule(key=KEYS, size=SIZES)
    def pin(self, key: str, size: int) -> None:
        computed = Value(key, size)
        pinned = self.cache.pinned(key, lambda: computed)
        value = pinned.__enter__()
        assert value is self.expected(key, computed, began=self.generation)
        if value not in self.values:
            self.values.append(value)
        value.n_pins += 1
        self.evict()
        self.pins.append((value, pinned))

    @rule(number=st.integers(0, 20))
    def unpin(self, number: int) -> None:
        if not self.pins:
            return
        value, pinned = self.pins.pop(number % len(self.pins))
        pinned.__exit__(None, None, None)
        value.n_pins -= 1
        if not value.n_pins:
            self.use(value)
        self.evict()

    @rule()
    def clear(self) -> None:
        self.generation += 1
        for value in self.values:
            value.is_live = False
        self.other.get("x", lambda: 5)
        assert self.cache.clear() == self.generation

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def every_figure_is_exact(self) -> None:
        usage = self.cache.usage()
        assert usage.bytes == self.cache.size_bytes() == sum(value.size for value in self.live())
        assert usage.entries == len(self.live())
        assert usage.orphaned_pinned_bytes == sum(value.size for value in self.orphans())
        assert (usage.hits, usage.misses) == (self.hits, self.misses)
        assert (usage.evictions, self.cache.refusals) == (self.evictions, self.refusals)
        assert self.cache.generation == self.generation
        assert self.other.size_bytes() == 0 or self.generation == 1

    @invariant()
    def what_is_there_is_what_should_be(self) -> None:
        assert all((key in self.cache) == (self.find(key) is not None) for key in "abcde")

    @invariant()
    def the_limit_holds_unless_all_is_pinned(self) -> None:
        idle = [value for value in self.live() if not value.n_pins]
        assert self.limit is None or self.total() <= self.limit or not idle


TestProcessCacheHistory = ProcessCacheHistory.TestCase
TestProcessCacheHistory.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
