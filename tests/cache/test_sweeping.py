"""When blobs are swept."""

import asyncio

from manual_clock import ManualClock, settle
from maskfeed_cache.sweeping import keep_sweeping


class CountingIndex:
    """Deletes one blob in each of its first `n_steps` steps of a sweep."""

    def __init__(self, n_steps=0):
        self.n_steps = n_steps
        self.n_calls = 0

    async def sweep(self):
        self.n_calls += 1
        self.n_steps -= 1
        return int(self.n_steps >= 0)


async def test_what_many_want_in_one_moment_is_one_sweep_and_not_on_their_way():
    clock, index, wanted = ManualClock(), CountingIndex(), asyncio.Event()
    sweeping = asyncio.create_task(keep_sweeping(index, clock, wanted=wanted, every_s=30.0))
    await settle()
    assert index.n_calls == 1
    for _ in range(5):
        wanted.set()
        await settle()
    assert index.n_calls == 1
    clock.advance(1.0)
    await settle()
    assert index.n_calls == 2
    sweeping.cancel()


async def test_a_sweep_goes_on_until_nothing_is_left_and_comes_again_by_itself():
    clock, index, wanted = ManualClock(), CountingIndex(n_steps=3), asyncio.Event()
    sweeping = asyncio.create_task(keep_sweeping(index, clock, wanted=wanted, every_s=30.0))
    await settle()
    assert index.n_calls == 4
    for _ in range(2):
        clock.advance(30.0)
        await settle()
        clock.advance(1.0)
        await settle()
    assert index.n_calls == 6
    sweeping.cancel()
