"""What every index of the cache must do, sentence by sentence of `CacheIndex`."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from index_stores import INDEX_KINDS, LEASE_MS, IndexServers, IndexStore, new_name
from maskfeed_automata.errors import CapacityError, LimitExceeded
from maskfeed_cache.fence import (
    Cleared,
    Commit,
    Failure,
    Granted,
    Held,
    Hit,
    IndexEntry,
    Layer,
    LayerUsage,
    Lease,
    News,
    Pin,
    Remembered,
    Resync,
    Settled,
)

Opener = Callable[..., IndexStore]

FAILURE = Failure("bad-candidate", "candidate 3 is empty", {"rank": 3, "field": "candidates", "share": 0.5, "x": None})
PIN_MS = 100_000
GRACE_MS = 15_000
SETS, AUTOMATA = Layer.SETS, Layer.AUTOMATA


@pytest.fixture(params=INDEX_KINDS)
async def open_store(request: pytest.FixtureRequest, index_servers: IndexServers) -> AsyncIterator[Opener]:
    opened: list[IndexStore] = []

    def open_one(**options: object) -> IndexStore:
        opened.append(index_servers.open(request.param, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_store: Opener) -> IndexStore:
    return open_store()


async def usage_of(store: IndexStore, layer: Layer = SETS) -> LayerUsage:
    return (await store.index.usage()).layers[layer]


async def sweep_all(store: IndexStore) -> int:
    """Sweep when everything is old enough for it."""
    total = await store.index.sweep()
    store.pass_ms(GRACE_MS)
    while n_deleted := await store.index.sweep():
        total += n_deleted
    return total


async def next_news(news: AsyncIterator[News]) -> News:
    async with asyncio.timeout(5):
        return await anext(news)


def new_pin(lifetime_ms: int = PIN_MS) -> Pin:
    return Pin(new_name(), lifetime_ms)


# --- acquire -------------------------------------------------------------------------------------------------------


async def test_of_many_who_ask_at_once_one_is_granted_and_the_others_are_told_how_long_it_is_held(store: IndexStore):
    answers = await asyncio.gather(*(store.ask("k") for _ in range(50)))
    (granted,) = (answer for answer in answers if isinstance(answer, Granted))
    held = [answer for answer in answers if isinstance(answer, Held)]
    assert len(held) == 49
    assert all(0 < answer.remaining_ms <= LEASE_MS and answer.fence == granted.lease.fence for answer in held)
    assert (granted.lease.layer, granted.lease.key, granted.lease.fence.generation) == (SETS, "k", 1)


async def test_the_holders_own_token_is_granted_again_and_its_lease_renewed(store: IndexStore):
    lease = await store.granted("k")
    store.pass_ms(LEASE_MS // 2)
    again = await store.index.acquire(SETS, "k", token=lease.token, lease_ms=LEASE_MS)
    assert again == Granted(lease)
    store.pass_ms(LEASE_MS * 3 // 4)
    assert isinstance(await store.ask("k"), Held)


async def test_what_was_committed_is_a_hit_with_its_size(store: IndexStore):
    entry = await store.fill("k", b"artifact")
    fence = (await store.index.usage()).fence
    assert await store.ask("k") == Hit(entry, fence)
    assert entry.size_bytes == 8


async def test_a_request_counts_once_as_hit_or_miss_however_often_it_was_held(store: IndexStore):
    lease = await store.granted("k")
    for _ in range(3):
        assert isinstance(await store.ask("k"), Held)
    await store.index.acquire(SETS, "k", token=lease.token, lease_ms=LEASE_MS)
    assert ((await usage_of(store)).hits, (await usage_of(store)).misses) == (0, 1)
    await store.index.commit(lease, store.entry(b"artifact"))
    await asyncio.gather(*(store.ask("k") for _ in range(3)))
    assert ((await usage_of(store)).hits, (await usage_of(store)).misses) == (3, 1)


async def test_an_entry_whose_blob_is_gone_is_dropped_with_its_pin_and_is_no_hit(store: IndexStore):
    entry = await store.fill("k", b"artifact")
    store.delete_blob(entry.artifact_hash)
    assert isinstance(await store.ask("k", pin=new_pin()), Granted)
    assert await usage_of(store) == LayerUsage(0, 0, 0, None, hits=0, misses=2, evictions=0, expirations=0)


async def test_a_pinned_entry_whose_blob_is_gone_is_an_orphan_until_its_pin_ends(store: IndexStore):
    pin = new_pin()
    entry = await store.fill("k", b"artifact", pin=pin)
    store.delete_blob(entry.artifact_hash)
    assert isinstance(await store.ask("k"), Granted)
    found = await usage_of(store)
    assert (found.bytes, found.orphaned_pinned_bytes) == (0, 8)
    await store.index.unpin([pin.token])
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_a_hit_renews_the_life_of_entry_and_blob(open_store: Opener):
    store = open_store(entry_ttl_s=3_600)
    entry = await store.fill("k", b"artifact")
    for _ in range(4):
        store.pass_ms(3_000_000)
        assert isinstance(await store.ask("k"), Hit)
    assert store.has_blob(entry.artifact_hash)
    store.pass_ms(3_601_000)
    assert isinstance(await store.ask("k"), Granted)


async def test_layers_have_keys_counts_and_leases_of_their_own(store: IndexStore):
    await store.fill("k", b"set", layer=SETS)
    assert isinstance(await store.ask("k", layer=AUTOMATA), Granted)
    await store.fill("other", b"automaton", layer=AUTOMATA)
    assert ((await usage_of(store, SETS)).bytes, (await usage_of(store, AUTOMATA)).bytes) == (3, 9)


@pytest.mark.parametrize("key", ["", "a|b", "sets|1|x|y", "{cache}", "}{", "a:b\nc", "%d", "ä" * 100], ids=repr)
async def test_a_key_may_hold_any_characters(store: IndexStore, key: str):
    news = store.index.news()
    await next_news(news)
    entry = await store.fill(key, b"artifact", pin=new_pin())
    assert await next_news(news) == Settled(SETS, key)
    assert isinstance(await store.ask(key), Hit)
    await store.index.clear()
    assert (await usage_of(store)).orphaned_pinned_bytes == entry.size_bytes
    store.pass_ms(PIN_MS)
    assert (await usage_of(store)).orphaned_pinned_bytes == 0
    await news.aclose()  # type: ignore[attr-defined]


# --- heartbeat, release --------------------------------------------------------------------------------------------


async def test_a_lease_lives_while_it_is_renewed_and_is_free_when_it_is_not(store: IndexStore):
    lease = await store.granted("k")
    for _ in range(3):
        store.pass_ms(LEASE_MS * 2 // 3)
        assert await store.index.heartbeat(lease, lease_ms=LEASE_MS)
    store.pass_ms(LEASE_MS)
    assert not await store.index.heartbeat(lease, lease_ms=LEASE_MS)
    assert isinstance(await store.ask("k"), Granted)


async def test_a_lost_holder_neither_renews_nor_releases_the_lease_of_its_successor(store: IndexStore):
    lost = await store.granted("k")
    store.pass_ms(LEASE_MS)
    successor = await store.granted("k")
    assert not await store.index.heartbeat(lost, lease_ms=LEASE_MS)
    await store.index.release(lost)
    assert not await store.index.fail(lost, FAILURE, remember_ms=10_000)
    assert await store.index.heartbeat(successor, lease_ms=LEASE_MS)


async def test_after_a_clear_a_lease_is_over_and_free_for_all(store: IndexStore):
    lease = await store.granted("k")
    await store.index.clear()
    assert not await store.index.heartbeat(lease, lease_ms=LEASE_MS)
    await store.index.release(lease)
    assert (await store.granted("k")).fence.generation == 2


async def test_a_released_lease_is_free_at_once(store: IndexStore):
    await store.index.release(await store.granted("k"))
    assert isinstance(await store.ask("k"), Granted)


# --- commit --------------------------------------------------------------------------------------------------------


async def test_committing_twice_is_indexed_twice_and_counted_once(store: IndexStore):
    lease, entry, pin = await store.granted("k"), store.entry(b"artifact"), new_pin()
    assert [await store.index.commit(lease, entry, pin=pin) for _ in range(3)] == [Commit.INDEXED] * 3
    assert (await usage_of(store)).bytes == 8
    await store.index.unpin([pin.token])
    await store.index.clear()
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_a_commit_of_an_earlier_generation_is_stale_and_neither_indexed_nor_counted(store: IndexStore):
    lease = await store.granted("k")
    await store.index.clear()
    assert await store.index.commit(lease, store.entry(b"artifact")) is Commit.STALE
    assert await usage_of(store) == LayerUsage(0, 0, 0, None, hits=0, misses=1, evictions=0, expirations=0)
    assert isinstance(await store.ask("k"), Granted)


async def test_a_commit_without_lease_is_lost_even_if_nobody_has_taken_over(store: IndexStore):
    lease = await store.granted("k")
    store.pass_ms(LEASE_MS)
    assert await store.index.commit(lease, store.entry(b"artifact")) is Commit.LOST
    assert (await usage_of(store)).entries == 0


async def test_a_late_commit_is_lost_even_with_the_same_artifact_as_the_successors(store: IndexStore):
    lost = await store.granted("k")
    store.pass_ms(LEASE_MS)
    entry = await store.fill("k", b"artifact")
    assert await store.index.commit(lost, entry) is Commit.LOST
    assert (await usage_of(store)).bytes == 8
    assert isinstance(await store.ask("k"), Hit)


@pytest.mark.parametrize("reason", [Commit.STALE, Commit.LOST])
async def test_a_refused_commit_is_pinned_as_orphaned_until_its_pin_ends(store: IndexStore, reason: Commit):
    lease, pin = await store.granted("k"), new_pin()
    if reason is Commit.STALE:
        await store.index.clear()
    else:
        store.pass_ms(LEASE_MS)
    entry = store.entry(b"artifact")
    assert await store.index.commit(lease, entry, pin=pin) is reason
    assert (await usage_of(store)).orphaned_pinned_bytes == 8
    assert await sweep_all(store) == 0
    await store.index.unpin([pin.token])
    assert (await usage_of(store)).orphaned_pinned_bytes == 0
    assert await sweep_all(store) == 1
    assert not store.has_blob(entry.artifact_hash)


async def test_a_refused_commit_of_what_is_indexed_by_now_is_no_orphan(store: IndexStore):
    lost = await store.granted("k")
    store.pass_ms(LEASE_MS)
    entry = await store.fill("k", b"artifact")
    assert await store.index.commit(lost, entry, pin=new_pin()) is Commit.LOST
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_an_orphan_that_is_committed_again_is_live_and_counted_once(open_store: Opener):
    # nor does it need room twice
    store = open_store(limit_bytes={SETS: 8})
    await store.fill("k", b"artifact", pin=new_pin())
    await store.index.clear()
    assert (await usage_of(store)).orphaned_pinned_bytes == 8
    await store.fill("k", b"artifact")
    found = await usage_of(store)
    assert (found.bytes, found.orphaned_pinned_bytes) == (8, 0)
    await store.index.clear()
    found = await usage_of(store)
    assert (found.bytes, found.orphaned_pinned_bytes) == (0, 8)


async def test_an_artifact_over_the_limit_is_refused_with_both_numbers_and_its_lease_ends(open_store: Opener):
    store = open_store(limit_bytes={SETS: 7})
    lease = await store.granted("k")
    with pytest.raises(LimitExceeded) as caught:
        await store.index.commit(lease, store.entry(b"artifact"), pin=new_pin())
    assert dict(caught.value.context) == {"limit": 7, "value": 8, "unit": "bytes"}
    assert isinstance(await store.ask("k"), Granted)
    assert ((await usage_of(store)).bytes, (await usage_of(store)).orphaned_pinned_bytes) == (0, 0)
    assert await sweep_all(store) == 1


async def test_an_artifact_as_large_as_the_limit_fits(open_store: Opener):
    store = open_store(limit_bytes={SETS: 8})
    await store.fill("k", b"artifact")
    await store.fill("l", b"ARTIFACT")
    found = await usage_of(store)
    assert (found.entries, found.bytes, found.limit_bytes, found.evictions) == (1, 8, 8, 1)


async def test_a_limit_evicts_what_was_not_used_for_longest(open_store: Opener):
    store = open_store(limit_bytes={SETS: 30})
    for key in "abc":
        await store.fill(key, key.encode() * 10)
        store.pass_ms(10)
    await store.ask("a")
    store.pass_ms(10)
    await store.fill("d", b"d" * 15)
    assert [key for key in "abcd" if isinstance(await store.ask(key), Hit)] == ["a", "d"]
    found = await usage_of(store)
    assert (found.entries, found.bytes, found.evictions) == (2, 25, 2)


async def test_a_limit_of_one_layer_leaves_the_other_alone(open_store: Opener):
    store = open_store(limit_bytes={SETS: 8, AUTOMATA: None})
    await store.fill("a", b"automaton" * 100, layer=AUTOMATA)
    await store.fill("k", b"artifact")
    await store.fill("l", b"ARTIFACT")
    assert (await usage_of(store, AUTOMATA)).bytes == 900
    assert (await usage_of(store, AUTOMATA)).limit_bytes is None


async def test_what_is_pinned_is_never_evicted_and_counts_as_used_until_its_pin_ends(open_store: Opener):
    store = open_store(limit_bytes={SETS: 30})
    pin = new_pin()
    await store.fill("a", b"a" * 10, pin=pin)
    for key in "bcde":
        store.pass_ms(10)
        await store.fill(key, key.encode() * 10)
    assert isinstance(await store.ask("a"), Hit)
    await store.index.unpin([pin.token])
    store.pass_ms(10)
    await store.fill("f", b"f" * 10)
    assert [key for key in "abcdef" if isinstance(await store.ask(key), Hit)] == ["a", "e", "f"]


async def test_one_commit_may_evict_any_number_of_entries(open_store: Opener):
    store = open_store(limit_bytes={SETS: 300})
    for number in range(300):
        await store.fill(f"k{number}", b"%d" % (number % 10))
    await store.fill("large", b"x" * 300)
    found = await usage_of(store)
    assert (found.entries, found.bytes, found.evictions) == (1, 300, 300)


async def test_when_all_is_pinned_a_commit_is_refused_with_the_numbers_and_its_lease_ends(open_store: Opener):
    store = open_store(limit_bytes={SETS: 20})
    await store.fill("orphan", b"o" * 8, pin=new_pin())
    await store.index.clear()
    await store.fill("live", b"l" * 8, pin=new_pin(600_000))
    lease, entry = await store.granted("k"), store.entry(b"artifact")
    with pytest.raises(CapacityError) as caught:
        await store.index.commit(lease, entry, pin=new_pin())
    context = dict(caught.value.context)
    assert (context["limit"], context["value"]) == (20, 24)
    assert 90 <= int(context["retry_after_s"] or 0) <= 100
    found = await usage_of(store)
    assert (found.bytes, found.orphaned_pinned_bytes, found.evictions) == (8, 8, 0)
    store.pass_ms(PIN_MS)
    assert await store.index.commit(await store.granted("k"), entry) is Commit.INDEXED


async def test_orphans_count_against_the_limit(open_store: Opener):
    store = open_store(limit_bytes={SETS: 20})
    await store.fill("orphan", b"o" * 10, pin=new_pin())
    await store.index.clear()
    await store.fill("a", b"a" * 10)
    await store.fill("b", b"b" * 10)
    found = await usage_of(store)
    assert (found.entries, found.bytes, found.orphaned_pinned_bytes, found.evictions) == (1, 10, 10, 1)


async def test_many_ended_pins_make_room_at_once(open_store: Opener):
    store = open_store(limit_bytes={SETS: 200})
    for number in range(200):
        await store.fill(f"k{number}", b"%d" % (number % 10), pin=new_pin())
    store.pass_ms(PIN_MS)
    await store.fill("large", b"x" * 200)
    assert (await usage_of(store)).entries == 1


# --- fail ----------------------------------------------------------------------------------------------------------


async def test_a_failure_is_remembered_with_its_context_for_as_long_as_was_said(store: IndexStore):
    assert await store.index.fail(await store.granted("k"), FAILURE, remember_ms=5_000)
    store.pass_ms(4_000)
    assert await store.ask("k") == Remembered(FAILURE)
    assert isinstance(await store.ask("k", layer=AUTOMATA), Granted)
    store.pass_ms(1_000)
    assert isinstance(await store.ask("k"), Granted)


async def test_a_failure_of_an_earlier_generation_is_not_remembered(store: IndexStore):
    early, late = await store.granted("early"), await store.granted("late")
    assert await store.index.fail(early, FAILURE, remember_ms=60_000)
    await store.index.clear()
    assert not await store.index.fail(late, FAILURE, remember_ms=60_000)
    assert isinstance(await store.ask("early"), Granted)
    assert isinstance(await store.ask("late"), Granted)


# --- pins ----------------------------------------------------------------------------------------------------------


async def test_a_hit_pins_and_each_pin_holds_by_itself(store: IndexStore):
    first, second = new_pin(), new_pin()
    await store.fill("k", b"artifact", pin=first)
    await store.ask("k", pin=second)
    await store.index.clear()
    await store.index.unpin([first.token])
    assert (await usage_of(store)).orphaned_pinned_bytes == 8
    await store.index.unpin([second.token])
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_asking_again_with_the_same_pin_renews_it_and_it_is_given_back_once(store: IndexStore):
    pin = new_pin()
    await store.fill("k", b"artifact", pin=pin)
    store.pass_ms(PIN_MS // 2)
    await store.ask("k", pin=pin)
    store.pass_ms(PIN_MS // 2)
    await store.index.clear()
    assert (await usage_of(store)).orphaned_pinned_bytes == 8
    await store.index.unpin([pin.token])
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_a_pin_that_is_used_for_another_artifact_lets_go_of_the_first(store: IndexStore):
    pin = new_pin()
    await store.fill("k", b"artifact", pin=pin)
    await store.fill("l", b"x", pin=pin)
    await store.index.clear()
    assert (await usage_of(store)).orphaned_pinned_bytes == 1


async def test_pins_end_by_themselves_and_unknown_ones_are_ignored(store: IndexStore):
    await store.fill("k", b"artifact", pin=new_pin())
    await store.index.unpin([new_name(), "", "no such pin"])
    await store.index.unpin([])
    await store.index.clear()
    store.pass_ms(PIN_MS - 1_000)
    assert (await usage_of(store)).orphaned_pinned_bytes == 8
    store.pass_ms(1_000)
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


async def test_hundreds_of_pins_are_given_back_in_one_call(store: IndexStore):
    pins = [new_pin() for _ in range(300)]
    await store.fill("k", b"artifact", pin=pins[0])
    for pin in pins:
        await store.ask("k", pin=pin)
    await store.index.clear()
    await store.index.unpin([pin.token for pin in pins])
    assert (await usage_of(store)).orphaned_pinned_bytes == 0


# --- clear, usage --------------------------------------------------------------------------------------------------


async def test_a_clear_begins_a_new_generation_with_nothing_in_it_in_every_layer(store: IndexStore):
    before = (await store.index.usage()).fence
    for layer in Layer:
        await store.fill("k", b"artifact", layer=layer)
    fence = await store.index.clear()
    usage = await store.index.usage()
    assert usage.fence == fence
    assert (fence.epoch, fence.generation) == (before.epoch, before.generation + 1)
    assert all((layer.entries, layer.bytes) == (0, 0) for layer in usage.layers.values())
    for layer in Layer:
        assert isinstance(await store.ask("k", layer=layer), Granted)


async def test_a_commit_after_the_clear_counts_from_zero(store: IndexStore):
    await store.fill("k", b"artifact")
    await store.index.clear()
    await store.fill("k", b"another artifact")
    await store.fill("l", b"x")
    assert ((await usage_of(store)).entries, (await usage_of(store)).bytes) == (2, 17)


async def test_an_entry_that_nobody_uses_is_gone_from_the_figures_when_its_time_is_over(open_store: Opener):
    store = open_store(entry_ttl_s=100)
    await store.fill("old", b"old")
    store.pass_ms(60_000)
    await store.fill("young", b"young")
    store.pass_ms(60_000)
    assert await usage_of(store) == LayerUsage(1, 5, 0, None, hits=0, misses=2, evictions=0, expirations=1)


async def test_a_pinned_entry_does_not_expire_and_its_idle_time_begins_when_the_pin_ends(open_store: Opener):
    store = open_store(entry_ttl_s=100)
    await store.fill("k", b"artifact", pin=new_pin(150_000))
    store.pass_ms(140_000)
    assert (await usage_of(store)).entries == 1
    store.pass_ms(100_000)
    assert (await usage_of(store)).entries == 1
    store.pass_ms(20_000)
    assert ((await usage_of(store)).entries, (await usage_of(store)).expirations) == (0, 1)


async def test_any_number_of_entries_and_pins_may_end_at_once(open_store: Opener):
    store = open_store(entry_ttl_s=100)
    for number in range(200):
        await store.fill(f"k{number}", b"%d" % number, pin=new_pin() if number % 2 else None)
    store.pass_ms(200_000)
    found = await usage_of(store)
    assert (found.entries, found.bytes, found.expirations) == (0, 0, 200)


# --- sweep ---------------------------------------------------------------------------------------------------------


async def test_a_sweep_deletes_what_was_evicted_cleared_expired_or_refused_and_nothing_else(open_store: Opener):
    store = open_store(limit_bytes={SETS: 20}, entry_ttl_s=100)
    expired = await store.fill("expired", b"expired")
    store.pass_ms(100_000)
    cleared = await store.fill("cleared", b"cleared")
    stale = await store.granted("stale")
    await store.index.clear()
    refused = store.entry(b"refused")
    await store.index.commit(stale, refused)
    evicted = await store.fill("evicted", b"e" * 20)
    store.pass_ms(10)
    live = await store.fill("live", b"l" * 5)
    pinned = await store.fill("pinned", b"p" * 5, pin=new_pin())
    gone = [expired, cleared, refused, evicted]
    assert await sweep_all(store) == 4
    assert [store.has_blob(entry.artifact_hash) for entry in gone] == [False] * 4
    assert [store.has_blob(entry.artifact_hash) for entry in (live, pinned)] == [True] * 2
    assert await store.index.sweep() == 0


async def test_a_blob_that_another_key_or_layer_names_is_kept(open_store: Opener):
    store = open_store(limit_bytes={SETS: 20})
    entry = await store.fill("k", b"artifact")
    await store.fill("k", b"artifact", layer=AUTOMATA)
    await store.fill("l", b"artifact")
    await store.fill("evicts both", b"x" * 20)
    assert ((await usage_of(store)).entries, (await usage_of(store)).evictions) == (1, 2)
    assert await sweep_all(store) == 0
    assert store.has_blob(entry.artifact_hash)


async def test_a_pinned_orphan_of_a_clear_is_swept_when_its_pin_ends(store: IndexStore):
    entry = await store.fill("k", b"artifact", pin=new_pin())
    await store.index.clear()
    assert await sweep_all(store) == 0
    assert store.has_blob(entry.artifact_hash)
    store.pass_ms(PIN_MS)
    assert await sweep_all(store) == 1


async def test_a_sweep_is_bounded_and_says_when_nothing_is_left(store: IndexStore):
    for number in range(300):
        await store.fill(f"k{number}", b"%d" % number)
    await store.index.clear()
    assert await store.index.sweep() == 0
    store.pass_ms(GRACE_MS)
    first = await store.index.sweep()
    assert 0 < first < 300
    assert first + await sweep_all(store) == 300
    assert await store.index.sweep() == 0


async def test_a_blob_that_is_stored_again_while_it_is_garbage_is_there_for_its_commit(store: IndexStore):
    entry = await store.fill("k", b"artifact")
    await store.index.clear()
    assert await store.index.sweep() == 0
    store.pass_ms(10 * GRACE_MS)
    lease = await store.granted("k")
    # the compiler has stored the same bytes, and its commit is on its way
    assert store.entry(b"artifact") == entry
    for _ in range(3):
        assert await store.index.sweep() == 0
        store.pass_ms(GRACE_MS // 5)
    assert await store.index.commit(lease, entry) is Commit.INDEXED
    assert await sweep_all(store) == 0
    assert isinstance(await store.ask("k"), Hit)


async def test_what_is_committed_again_after_a_clear_is_not_swept(store: IndexStore):
    entries = [await store.fill(f"k{number}", b"%d" % number) for number in range(100)]
    await store.index.clear()
    for number in range(0, 100, 2):
        await store.fill(f"k{number}", b"%d" % number)
    assert await sweep_all(store) == 50
    assert [store.has_blob(entry.artifact_hash) for entry in entries] == [True, False] * 50


# --- news, ping, close ---------------------------------------------------------------------------------------------


async def commits(store: IndexStore, lease: Lease) -> None:
    await store.index.commit(lease, store.entry(b"x"))


async def fails(store: IndexStore, lease: Lease) -> None:
    await store.index.fail(lease, FAILURE, remember_ms=1_000)


async def releases(store: IndexStore, lease: Lease) -> None:
    await store.index.release(lease)


async def is_too_large(store: IndexStore, lease: Lease) -> None:
    with pytest.raises(LimitExceeded):
        await store.index.commit(lease, store.entry(b"x" * 101))


@pytest.mark.parametrize("ends", [commits, fails, releases, is_too_large])
async def test_every_end_of_a_lease_is_told_to_all_who_listen(open_store: Opener, ends: Callable[..., object]):
    store = open_store(limit_bytes={SETS: 100})
    listeners = [store.index.news() for _ in range(2)]
    assert [await next_news(news) for news in listeners] == [Resync()] * 2
    lease = await store.granted("k")
    await ends(store, lease)  # type: ignore[misc]
    assert [await next_news(news) for news in listeners] == [Settled(SETS, "k")] * 2
    for news in listeners:
        await news.aclose()  # type: ignore[attr-defined]


async def test_after_its_first_step_the_news_misses_nothing_and_keeps_the_order(store: IndexStore):
    news = store.index.news()
    assert await next_news(news) == Resync()
    lost = await store.granted("lost")
    await store.index.release(await store.granted("a"))
    fence = await store.index.clear()
    await store.index.commit(lost, store.entry(b"x"))
    await store.index.release(lost)
    await store.fill("b", b"x", layer=AUTOMATA)
    assert [await next_news(news) for _ in range(3)] == [
        Settled(SETS, "a"),
        Cleared(fence),
        Settled(AUTOMATA, "b"),
    ]
    await news.aclose()  # type: ignore[attr-defined]


async def test_ping_answers_and_closing_twice_is_harmless(store: IndexStore):
    await store.index.ping()
    await store.index.close()
    await store.index.close()


# --- a store that lost everything ----------------------------------------------------------------------------------


async def test_a_cache_that_begins_anew_has_another_epoch_and_knows_nothing_of_the_old_one(store: IndexStore):
    await store.fill("k", b"artifact", pin=new_pin())
    lease = await store.granted("l")
    before = (await store.index.usage()).fence
    store.lose_everything()
    usage = await store.index.usage()
    assert usage.fence.epoch != before.epoch
    assert usage.fence.generation == 1
    assert usage.layers[SETS] == LayerUsage(0, 0, 0, None, hits=0, misses=0, evictions=0, expirations=0)
    assert not await store.index.heartbeat(lease, lease_ms=LEASE_MS)
    assert await store.index.commit(lease, store.entry(b"x"), pin=new_pin()) is Commit.STALE
    assert isinstance(await store.ask("k"), Granted)
    assert (await usage_of(store)).orphaned_pinned_bytes == 1


async def test_a_lease_of_the_old_epoch_is_free_in_the_new_one(store: IndexStore):
    await store.granted("k")
    store.lose_everything()
    assert isinstance(await store.ask("k"), Granted)


async def test_an_entry_is_what_was_committed_byte_for_byte(store: IndexStore):
    entry = IndexEntry(store.entry(b"artifact").artifact_hash, 2**40)
    assert await store.index.commit(await store.granted("k"), entry) is Commit.INDEXED
    answer = await store.ask("k")
    assert isinstance(answer, Hit)
    assert answer.entry == entry
    assert (await usage_of(store)).bytes == 2**40
