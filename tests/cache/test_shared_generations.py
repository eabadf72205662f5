"""An old computation that ends two clears too late, through the cache that processes share, over each index."""

import asyncio
from collections.abc import Callable

import pytest

from index_stores import INDEX_KINDS, IndexServers, IndexStore
from maskfeed_cache.fence import IndexEntry, Layer
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.scripts import Script
from maskfeed_cache.shared_cache import Report, SharedCache
from seed_interleaving import run_seed_interleaving

KEY = "7" * 64


class SharedDriver:
    """One key of one layer; a value is the size of its artifact."""

    def __init__(self, store: IndexStore, layer: Layer) -> None:
        self._store = store
        self._layer = layer
        loop = asyncio.get_running_loop()
        self._follower = IndexFollower(store.index, clock=loop)
        self.cache = SharedCache(self._follower, layer, clock=loop)

    def start(self) -> None:
        self._follower.start()

    async def close(self) -> None:
        await self.cache.close()
        await self._follower.close()

    async def get(self, compute: Callable[[], int]) -> int:
        async def make(report: Report) -> IndexEntry:
            size_bytes = await asyncio.to_thread(compute)
            blob = await asyncio.to_thread(self._store.blobs.put, bytes(size_bytes))
            return IndexEntry(blob, size_bytes)

        return (await self.cache.get(KEY, make)).entry.size_bytes

    async def clear(self) -> None:
        await self.cache.clear()

    async def size_bytes(self) -> int:
        return (await self._store.index.usage()).layers[self._layer].bytes


@pytest.mark.parametrize("fails", [False, True], ids=["value", "exception"])
@pytest.mark.parametrize("layer", Layer)
@pytest.mark.parametrize("kind", INDEX_KINDS)
async def test_a_computation_of_an_earlier_generation_answers_its_waiters_and_leaves_no_trace(
    index_servers: IndexServers, kind: str, layer: Layer, fails: bool
) -> None:
    store = index_servers.open(kind)
    driver = SharedDriver(store, layer)
    driver.start()
    try:
        await run_seed_interleaving(driver, fails=fails)
        usage = await store.index.usage()
        assert usage.fence.generation == 4
        assert sum(figures.bytes for figures in usage.layers.values()) == 51
    finally:
        await driver.close()
        await store.close()


# script, what stands there, what upstream's defect makes of it
CLEAR_KEEPS_THE_COUNT = ("clear", "':entries', 0, layer .. ':bytes', 0)", "':entries', 0)")
COUNTS_WITHOUT_ASKING = ("commit", "return refuse('stale')", "add(layer, 'bytes', size) return refuse('stale')")


@pytest.mark.parametrize(
    ("defect", "fails"), [(CLEAR_KEEPS_THE_COUNT, False), (CLEAR_KEEPS_THE_COUNT, True), (COUNTS_WITHOUT_ASKING, False)]
)
async def test_the_interleaving_finds_each_defect_that_is_put_back_into_a_script(
    index_servers: IndexServers, defect: tuple[str, str, str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, right, wrong = defect
    load = Script.load_with_ledger

    def load_with_defect(name: str) -> Script:
        source = load(name).source.decode()
        assert source.count(right) == (name == script)
        return Script._of(source.replace(right, wrong).encode())

    monkeypatch.setattr(Script, "load_with_ledger", load_with_defect)
    store = index_servers.open("redis-7")
    driver = SharedDriver(store, Layer.SETS)
    driver.start()
    try:
        with pytest.raises(AssertionError):
            await run_seed_interleaving(driver, fails=fails)
    finally:
        await driver.close()
        await store.close()
