"""Any history of the cache's index against a model of it: bytes are those of the live entries, no read is stale.

The model counts nothing as it goes: each figure is a sum over what is there.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from index_stores import KEYS, IndexServers, IndexStore, RedisIndexStore, new_name
from maskfeed_automata.errors import CapacityError, LimitExceeded
from maskfeed_cache.fence import (
    Commit,
    Failure,
    Fence,
    Granted,
    Held,
    Hit,
    IndexEntry,
    Layer,
    LayerUsage,
    Lease,
    Pin,
    Remembered,
)

# Time moves in steps of 30 s. What ends is never within seconds of a step, so the run's own time does not matter.
STEP_MS, LEASE_MS, REMEMBER_MS, PIN_MS, ENTRY_TTL_MS = 30_000, 45_000, 45_000, 70_000, 105_000
LIMIT_BYTES = {Layer.SETS: 25, Layer.AUTOMATA: None}
FAILURE = Failure("bad-candidate", "empty", {"rank": 0})
BLOBS = [bytes([number]) * size for number, size in enumerate((1, 7, 10, 11, 25, 26))]

LAYERS = st.sampled_from(Layer)
KEY = st.sampled_from("abcd")
BLOB = st.sampled_from(BLOBS)

Moment = tuple[int, int]
Place = tuple[Layer, str]
Item = tuple[Layer, str, IndexEntry]


@dataclass(frozen=True)
class Committed:
    entry: IndexEntry
    token: str
    used: Moment


@dataclass
class Model:
    now_ms: int = 0
    n_steps: int = 0
    generation: int = 1
    entries: dict[Place, Committed] = field(default_factory=dict)
    leases: dict[Place, tuple[Lease, int]] = field(default_factory=dict)
    failures: dict[Place, int] = field(default_factory=dict)
    pins: dict[str, tuple[Item, Moment]] = field(default_factory=dict)
    counts: dict[Layer, dict[str, int]] = field(
        default_factory=lambda: {layer: {"hits": 0, "misses": 0, "evictions": 0, "expirations": 0} for layer in Layer}
    )

    def moment(self) -> Moment:
        self.n_steps += 1
        return self.now_ms, self.n_steps

    def is_live(self, item: Item) -> bool:
        found = self.entries.get(item[:2])
        return found is not None and found.entry == item[2]

    def is_pinned(self, place: Place) -> bool:
        return any(item == (*place, self.entries[place].entry) for item, _ in self.pins.values())

    def orphans(self, layer: Layer) -> set[Item]:
        return {item for item, _ in self.pins.values() if item[0] is layer and not self.is_live(item)}

    def usage(self, layer: Layer) -> LayerUsage:
        sizes = [held.entry.size_bytes for place, held in self.entries.items() if place[0] is layer]
        orphaned = sum(item[2].size_bytes for item in self.orphans(layer))
        return LayerUsage(len(sizes), sum(sizes), orphaned, LIMIT_BYTES[layer], **self.counts[layer])

    def advance(self) -> None:
        self.now_ms += STEP_MS
        self.leases = {place: lease for place, lease in self.leases.items() if lease[1] > self.now_ms}
        self.failures = {place: end for place, end in self.failures.items() if end > self.now_ms}
        for token, (_, end) in sorted(self.pins.items(), key=lambda pin: pin[1][1]):
            if end[0] <= self.now_ms:
                self.unpin(token, end)
        for place, held in list(self.entries.items()):
            if not self.is_pinned(place) and held.used[0] + ENTRY_TTL_MS <= self.now_ms:
                del self.entries[place]
                self.counts[place[0]]["expirations"] += 1

    def pin(self, pin: Pin | None, item: Item) -> None:
        if pin is None:
            return
        if pin.token in self.pins and self.pins[pin.token][0] != item:
            self.unpin(pin.token, self.moment())
        self.pins[pin.token] = (item, (self.now_ms + PIN_MS, self.moment()[1]))

    def unpin(self, token: str, ended: Moment) -> None:
        if token not in self.pins:
            return
        item, _ = self.pins.pop(token)
        if self.is_live(item) and not self.is_pinned(item[:2]):
            self.entries[item[:2]] = replace(self.entries[item[:2]], used=ended)

    def room(self, item: Item) -> list[Place] | None:
        """What must go for `item`; None: there is no room for it."""
        layer, _, entry = item
        limit = LIMIT_BYTES[layer]
        if limit is None:
            return []
        orphaned = sum(orphan[2].size_bytes for orphan in self.orphans(layer) - {item})
        mine = [place for place in self.entries if place[0] is layer]
        movable = sorted((p for p in mine if not self.is_pinned(p)), key=lambda place: self.entries[place].used)
        total = orphaned + sum(self.entries[place].entry.size_bytes for place in mine) + entry.size_bytes
        going: list[Place] = []
        for place in movable:
            if total > limit:
                going.append(place)
                total -= self.entries[place].entry.size_bytes
        return going if total <= limit else None


class IndexMachine(RuleBasedStateMachine):
    leases = Bundle("leases")
    pins = Bundle("pins")

    def __init__(self, open_store: Callable[[], IndexStore]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = open_store()
        self.model = Model()
        self.fence: Fence = self.run(self.store.index.usage()).fence
        self.blobs: set[str] = set()

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    @rule(target=leases, layer=LAYERS, key=KEY, pins=st.booleans())
    def acquire(self, layer: Layer, key: str, pins: bool) -> Any:
        return self._acquire(layer, key, new_name(), Pin(new_name(), PIN_MS) if pins else None)

    @rule(target=leases, lease=leases)
    def acquire_again_with_the_same_token(self, lease: Lease) -> Any:
        return self._acquire(lease.layer, lease.key, lease.token, None)

    @rule(layer=LAYERS, key=KEY, pin=pins)
    def acquire_again_with_the_same_pin(self, layer: Layer, key: str, pin: Pin) -> None:
        self._acquire(layer, key, new_name(), pin)

    def _acquire(self, layer: Layer, key: str, token: str, pin: Pin | None) -> Any:
        model, place = self.model, (layer, key)
        answer = self.run(self.store.index.acquire(layer, key, token=token, lease_ms=LEASE_MS, pin=pin))
        held = model.entries.get(place)
        if held is not None and held.entry.artifact_hash not in self.blobs:
            if pin is not None and pin.token in model.pins:
                # the hit that turned out to be none took the pin with it
                model.unpin(pin.token, model.moment())
            del model.entries[place]
            held = None
        if held is not None:
            assert answer == Hit(held.entry, self.fence)
            model.counts[layer]["hits"] += 1
            model.entries[place] = replace(held, used=model.moment())
            model.pin(pin, (layer, key, held.entry))
        elif place in model.failures:
            assert answer == Remembered(FAILURE)
        elif place in model.leases and model.leases[place][0].token != token:
            assert isinstance(answer, Held)
            assert answer.fence == self.fence
        else:
            lease = Lease(layer, key, token, self.fence)
            assert answer == Granted(lease)
            model.counts[layer]["misses"] += place not in model.leases
            model.leases[place] = (lease, model.now_ms + LEASE_MS)
            return lease
        return multiple()

    @rule(target=pins, lease=leases, blob=BLOB, pins=st.booleans())
    def commit(self, lease: Lease, blob: bytes, pins: bool) -> Any:
        model, place = self.model, (lease.layer, lease.key)
        entry = self.store.entry(blob)
        self.blobs.add(entry.artifact_hash)
        item = (*place, entry)
        pin = Pin(new_name(), PIN_MS) if pins else None
        try:
            outcome: object = self.run(self.store.index.commit(lease, entry, pin=pin))
        except (LimitExceeded, CapacityError) as error:
            outcome = type(error)
        mine = place in model.leases and model.leases[place][0] == lease
        held = model.entries.get(place)
        if lease.fence != self.fence:
            expected: object = Commit.STALE
        elif not mine:
            expected = Commit.INDEXED if held and (held.entry, held.token) == (entry, lease.token) else Commit.LOST
        elif LIMIT_BYTES[lease.layer] is not None and entry.size_bytes > (LIMIT_BYTES[lease.layer] or 0):
            expected = LimitExceeded
        else:
            expected = CapacityError if model.room(item) is None else Commit.INDEXED
        assert outcome == expected
        if mine:
            del model.leases[place]
            if expected is Commit.INDEXED:
                for going in model.room(item) or ():
                    del model.entries[going]
                    model.counts[lease.layer]["evictions"] += 1
                model.entries[place] = Committed(entry, lease.token, model.moment())
        if isinstance(expected, Commit):
            model.pin(pin, item)
            return pin or multiple()
        return multiple()

    @rule(layer=LAYERS, key=KEY, blob=BLOB)
    def a_holder_pauses_beyond_its_lease_and_commits_after_its_successor(self, layer: Layer, key: str, blob: bytes):
        late = self._acquire(layer, key, new_name(), None)
        self.time_passes_and_holders_that_do_nothing_lose_their_leases(2)
        successor = self._acquire(layer, key, new_name(), None)
        for lease in (successor, late):
            if isinstance(lease, Lease):
                self.commit(lease, blob, pins=False)

    @rule(lease=leases)
    def heartbeat(self, lease: Lease) -> None:
        mine = self._is_mine(lease)
        assert self.run(self.store.index.heartbeat(lease, lease_ms=LEASE_MS)) is mine
        if mine:
            self.model.leases[lease.layer, lease.key] = (lease, self.model.now_ms + LEASE_MS)

    @rule(lease=leases)
    def fail(self, lease: Lease) -> None:
        mine = self._is_mine(lease)
        assert self.run(self.store.index.fail(lease, FAILURE, remember_ms=REMEMBER_MS)) is mine
        if mine:
            del self.model.leases[lease.layer, lease.key]
            self.model.failures[lease.layer, lease.key] = self.model.now_ms + REMEMBER_MS

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        self.run(self.store.index.release(lease))
        if self._is_mine(lease):
            del self.model.leases[lease.layer, lease.key]

    def _is_mine(self, lease: Lease) -> bool:
        return self.model.leases.get((lease.layer, lease.key), (None, 0))[0] == lease

    @rule(some=st.lists(pins, min_size=1, max_size=3))
    def unpin(self, some: list[Pin]) -> None:
        self.run(self.store.index.unpin([pin.token for pin in some]))
        for pin in some:
            self.model.unpin(pin.token, self.model.moment())

    @rule()
    def clear(self) -> None:
        self.model.generation += 1
        fence = self.run(self.store.index.clear())
        assert fence == Fence(self.fence.epoch, self.model.generation)
        self.fence = fence
        self.model.entries, self.model.leases, self.model.failures = {}, {}, {}

    @rule(n_steps=st.integers(1, 4))
    def time_passes_and_holders_that_do_nothing_lose_their_leases(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.store.pass_ms(STEP_MS)
            self.model.advance()

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), is_asked_for=st.booleans())
    def a_blob_is_lost(self, data: st.DataObject, is_asked_for: bool) -> None:
        place = data.draw(st.sampled_from(sorted(self.model.entries)))
        artifact_hash = self.model.entries[place].entry.artifact_hash
        self.store.delete_blob(artifact_hash)
        self.blobs.discard(artifact_hash)
        if is_asked_for:
            self._acquire(*place, new_name(), None)

    @rule()
    def the_store_is_restarted_empty(self) -> None:
        assume(self.model.entries or self.model.pins or self.model.leases)
        self.store.lose_everything()
        epoch = self.fence.epoch
        self.fence = self.run(self.store.index.usage()).fence
        assert self.fence.generation == 1
        assert self.fence.epoch != epoch
        self.model, self.blobs = Model(self.model.now_ms, self.model.n_steps), set()

    @rule()
    def sweep(self) -> None:
        self.run(self.store.index.sweep())
        needed_before = self._needed()
        # what is garbage by now is old enough a step later; what ends in that step need not be
        self.time_passes_and_holders_that_do_nothing_lose_their_leases(1)
        while self.run(self.store.index.sweep()):
            pass
        left = {artifact_hash for artifact_hash in self.blobs if self.store.has_blob(artifact_hash)}
        assert self.blobs & self._needed() <= left <= self.blobs & needed_before
        self.blobs = left

    def _needed(self) -> set[str]:
        live = {held.entry.artifact_hash for held in self.model.entries.values()}
        return live | {item[2].artifact_hash for item, _ in self.model.pins.values()}

    @invariant()
    def figures_are_those_of_what_is_there(self) -> None:
        usage = self.run(self.store.index.usage())
        assert usage.fence == self.fence
        assert usage.layers == {layer: self.model.usage(layer) for layer in Layer}

    @precondition(lambda self: isinstance(self.store, RedisIndexStore))
    @invariant()
    def redis_holds_what_its_figures_say(self) -> None:
        check_ledger(self.store, self.fence)


def check_ledger(store: RedisIndexStore, fence: Fence) -> None:
    """Redis holds what the header of ledger.lua says, and its figures are sums over that."""
    state, _, pins, pin_ends, pinned, references, _, *layers = KEYS.cache
    client = store.client_of(state)
    figures = decoded(client.hgetall(state))
    items = decoded(client.hgetall(pinned))
    assert items == {item: str(n) for item, n in Counter(decoded(client.hgetall(pins)).values()).items()}
    assert {name.decode() for name in client.zrange(pin_ends, 0, -1)} == set(decoded(client.hgetall(pins)))
    named = Counter(item.split("|")[2] for item in items)
    for layer, index, order in zip(Layer, layers[::2], layers[1::2], strict=True):
        live_items, free, live_sizes = set(), set(), []
        for key, record in decoded(client.hgetall(index)).items():
            generation, size, _, artifact_hash = record.split("|")
            named[artifact_hash] += 1
            item = f"{layer}|{size}|{artifact_hash}|{key}"
            if item not in items:
                free.add(key)
            if generation == str(fence.generation):
                live_items.add(item)
                live_sizes.append(int(size))
                stale = client.zscore(order, key) is not None and client.zscore(order, key) <= float(figures["cleared"])
                assert not stale
        assert {key.decode() for key in client.zrange(order, 0, -1)} == free
        mine = {item for item in items if item.startswith(f"{layer}|")}
        assert (int(figures[f"{layer}:entries"]), int(figures[f"{layer}:bytes"])) == (len(live_sizes), sum(live_sizes))
        assert int(figures[f"{layer}:pinned"]) == sum(int(item.split("|")[1]) for item in mine & live_items)
        assert int(figures[f"{layer}:orphaned"]) == sum(int(item.split("|")[1]) for item in mine - live_items)
    assert decoded(client.hgetall(references)) == {name: str(n) for name, n in named.items()}


def decoded(fields: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


@pytest.mark.parametrize(("kind", "n_examples"), [("memory", 100), ("redis-6.2", 30), ("redis-7", 30)])
def test_after_any_history_the_figures_are_exact_and_no_read_is_stale(
    index_servers: IndexServers, kind: str, n_examples: int
):
    def machine() -> IndexMachine:
        return IndexMachine(lambda: index_servers.open(kind, limit_bytes=LIMIT_BYTES, entry_ttl_s=ENTRY_TTL_MS / 1_000))

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
