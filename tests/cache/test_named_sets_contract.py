"""What every store of named candidate sets must do."""

import hashlib
from collections.abc import AsyncIterator, Callable

import pytest

from index_stores import INDEX_KINDS, IndexServers
from maskfeed_automata.errors import (
    CapacityError,
    CorruptArtifact,
    DeletedSet,
    LimitExceeded,
    StaleGeneration,
    UnknownSet,
)
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.memory_named_sets import MemoryNamedSets
from maskfeed_cache.named_sets import NamedSetLimits, NamedSetStore, NamedSetUsage, PackedList, pack, unpack
from maskfeed_cache.redis_named_sets import RedisNamedSets
from redis_cluster import RedisCluster

KEYS = Keyspace(namespace="contract")
TENANT, OTHER = "default", "b" * 64

MakeStore = Callable[..., NamedSetStore]


@pytest.fixture(params=INDEX_KINDS)
async def make_store(request: pytest.FixtureRequest, index_servers: IndexServers) -> AsyncIterator[MakeStore]:
    server = None if request.param == "memory" else index_servers.get(request.param)
    if isinstance(server, RedisCluster):
        server.flush()
    elif server is not None:
        server.client.flushall()
    made: list[NamedSetStore] = []

    def make(**limits: int) -> NamedSetStore:
        chosen = NamedSetLimits(**limits)
        made.append(
            MemoryNamedSets(limits=chosen) if server is None else RedisNamedSets(server.url, KEYS, limits=chosen)
        )
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
def store(make_store: MakeStore) -> NamedSetStore:
    return make_store()


def a_list(text: bytes = b'["a","b"]', count: int = 2) -> PackedList:
    return pack(text, count=count)


def of_size(n_bytes: int) -> PackedList:
    return PackedList("d" * 64, 1, b"x" * n_bytes)


async def test_what_was_put_is_there_with_its_numbers_and_its_list(store: NamedSetStore) -> None:
    listed = a_list()
    named, is_new = await store.put(TENANT, "tools", listed)
    assert (named.name, named.generation, named.count, is_new) == ("tools", 1, 2, True)
    assert named.digest == hashlib.sha256(b'["a","b"]').hexdigest()
    assert named.size_bytes == len(listed.packed)
    assert await store.get(TENANT, "tools") == named
    packed = await store.read(named)
    assert packed is not None
    assert unpack(packed, named) == b'["a","b"]'


async def test_each_change_has_a_generation_of_its_own_even_if_the_list_is_the_same(store: NamedSetStore) -> None:
    first, _ = await store.put(TENANT, "tools", a_list())
    second, is_new = await store.put(TENANT, "tools", a_list())
    assert (second.generation, is_new) == (2, False)
    assert second.digest == first.digest
    assert second.list_id != first.list_id


async def test_the_list_of_an_earlier_generation_is_gone_and_equal_lists_of_other_names_are_not(
    store: NamedSetStore,
) -> None:
    first, _ = await store.put(TENANT, "tools", a_list())
    same, _ = await store.put(TENANT, "same", a_list())
    await store.put(TENANT, "tools", a_list(b'["c"]', 1))
    assert await store.read(first) is None
    assert await store.read(same) is not None


async def test_of_two_changes_that_expect_the_same_generation_one_is_stale(store: NamedSetStore) -> None:
    await store.put(TENANT, "tools", a_list())
    winner, _ = await store.put(TENANT, "tools", a_list(b'["c"]', 1), expected=1)
    with pytest.raises(StaleGeneration) as caught:
        await store.put(TENANT, "tools", a_list(b'["d"]', 1), expected=1)
    assert caught.value.context == {"field": "candidate_set", "expected": 1, "generation": 2}
    assert await store.get(TENANT, "tools") == winner
    assert (await store.usage()).bytes == winner.size_bytes


async def test_expecting_no_generation_means_expecting_that_the_name_is_free(store: NamedSetStore) -> None:
    named, _ = await store.put(TENANT, "tools", a_list(), expected=0)
    with pytest.raises(StaleGeneration):
        await store.put(TENANT, "tools", a_list(), expected=0)
    await store.delete(TENANT, "tools", expected=named.generation)
    again, is_new = await store.put(TENANT, "tools", a_list(), expected=0)
    assert (again.generation, is_new) == (2, True)


async def test_a_name_that_never_was_is_unknown(store: NamedSetStore) -> None:
    for asking in (store.get(TENANT, "tools"), store.delete(TENANT, "tools")):
        with pytest.raises(UnknownSet):
            await asking


async def test_a_deleted_name_is_told_as_deleted_and_goes_on_counting(store: NamedSetStore) -> None:
    named, _ = await store.put(TENANT, "tools", a_list())
    await store.put(TENANT, "tools", a_list())
    await store.delete(TENANT, "tools")
    for asking in (store.get(TENANT, "tools"), store.delete(TENANT, "tools")):
        with pytest.raises(DeletedSet) as caught:
            await asking
        assert caught.value.context["generation"] == 2
    assert await store.read(named) is None
    again, _ = await store.put(TENANT, "tools", a_list())
    assert again.generation == 3
    assert await store.get(TENANT, "tools") == again


async def test_a_deletion_that_expects_another_generation_changes_nothing(store: NamedSetStore) -> None:
    named, _ = await store.put(TENANT, "tools", a_list())
    with pytest.raises(StaleGeneration) as caught:
        await store.delete(TENANT, "tools", expected=7)
    assert caught.value.context["generation"] == 1
    assert await store.get(TENANT, "tools") == named
    assert await store.read(named) is not None


async def test_tenants_do_not_see_each_others_names(store: NamedSetStore) -> None:
    mine, _ = await store.put(TENANT, "tools", a_list())
    with pytest.raises(UnknownSet):
        await store.get(OTHER, "tools")
    with pytest.raises(UnknownSet):
        await store.delete(OTHER, "tools")
    theirs, is_new = await store.put(OTHER, "tools", a_list(b'["z"]', 1))
    assert (theirs.generation, is_new) == (1, True)
    assert await store.names(TENANT) == [mine]
    assert await store.names(OTHER) == [theirs]


async def test_names_are_listed_in_order_without_the_deleted_ones(store: NamedSetStore) -> None:
    assert list(await store.names(TENANT)) == []
    for name in ("b", "A", "a.1", "c"):
        await store.put(TENANT, name, a_list())
    await store.delete(TENANT, "c")
    assert [named.name for named in await store.names(TENANT)] == ["A", "a.1", "b"]


async def test_entries_and_bytes_are_those_of_the_live_names_after_every_step(store: NamedSetStore) -> None:
    async def figures() -> tuple[int, int]:
        usage = await store.usage()
        return usage.entries, usage.bytes

    assert await figures() == (0, 0)
    await store.put(TENANT, "a", of_size(100))
    await store.put(OTHER, "a", of_size(10))
    assert await figures() == (2, 110)
    await store.put(TENANT, "a", of_size(70))
    assert await figures() == (2, 80)
    with pytest.raises(StaleGeneration):
        await store.put(TENANT, "a", of_size(1_000), expected=1)
    assert await figures() == (2, 80)
    await store.delete(TENANT, "a")
    assert await figures() == (1, 10)
    with pytest.raises(DeletedSet):
        await store.delete(TENANT, "a")
    assert await figures() == (1, 10)
    await store.delete(OTHER, "a")
    assert await figures() == (0, 0)


async def test_a_list_over_the_limit_alone_is_refused_with_both_numbers(make_store: MakeStore) -> None:
    store = make_store(total_bytes=100)
    with pytest.raises(LimitExceeded) as caught:
        await store.put(TENANT, "a", of_size(101))
    assert caught.value.context == {"field": "candidates", "limit": 100, "value": 101, "unit": "bytes"}
    assert await store.usage() == NamedSetUsage(0, 0, 100_000, 100)


async def test_a_list_without_room_beside_the_others_is_refused_and_evicts_nothing(make_store: MakeStore) -> None:
    store = make_store(total_bytes=100)
    kept, _ = await store.put(TENANT, "a", of_size(60))
    with pytest.raises(CapacityError) as caught:
        await store.put(OTHER, "b", of_size(41))
    assert (caught.value.context["limit"], caught.value.context["value"]) == (100, 101)
    assert caught.value.context["retry_after_s"] == 60
    assert await store.read(kept) is not None
    assert (await store.usage()).bytes == 60
    with pytest.raises(UnknownSet):
        await store.get(OTHER, "b")
    await store.put(OTHER, "b", of_size(40))
    assert (await store.usage()).bytes == 100


async def test_a_replacement_counts_without_the_list_that_it_replaces(make_store: MakeStore) -> None:
    store = make_store(total_bytes=100)
    await store.put(TENANT, "a", of_size(60))
    await store.put(TENANT, "a", of_size(100))
    assert (await store.usage()).bytes == 100


async def test_there_are_at_most_so_many_names_and_a_full_table_still_takes_replacements(make_store: MakeStore) -> None:
    store = make_store(names=2)
    await store.put(TENANT, "a", a_list())
    await store.put(OTHER, "a", a_list())
    with pytest.raises(CapacityError) as caught:
        await store.put(TENANT, "b", a_list())
    assert (caught.value.context["limit"], caught.value.context["value"]) == (2, 3)
    assert (await store.put(TENANT, "a", a_list()))[0].generation == 2
    await store.delete(OTHER, "a")
    await store.put(TENANT, "b", a_list())


async def test_a_forgotten_name_begins_above_every_generation_that_it_had(make_store: MakeStore) -> None:
    store = make_store(deleted_names=1)
    for _ in range(3):
        await store.put(TENANT, "a", a_list())
    await store.delete(TENANT, "a")
    for _ in range(5):
        await store.put(TENANT, "b", a_list())
    # of the two, the one with the lower generation is forgotten
    await store.delete(TENANT, "b")
    with pytest.raises(UnknownSet):
        await store.get(TENANT, "a")
    with pytest.raises(DeletedSet):
        await store.get(TENANT, "b")
    assert (await store.put(TENANT, "a", a_list()))[0].generation == 4
    assert (await store.put(TENANT, "b", a_list()))[0].generation == 6
    assert (await store.put(TENANT, "new", a_list()))[0].generation == 4


async def test_closing_twice_is_harmless(store: NamedSetStore) -> None:
    await store.close()
    await store.close()


@pytest.mark.parametrize("damage", [b"no zstd", pack(b'["c"]', count=1).packed], ids=["no zstd", "another list"])
async def test_bytes_that_are_not_the_list_are_detected(store: NamedSetStore, damage: bytes) -> None:
    named, _ = await store.put(TENANT, "tools", a_list())
    with pytest.raises(CorruptArtifact):
        unpack(damage, named)
