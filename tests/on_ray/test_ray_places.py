"""Who gets which actor: order, load, residency, and leaving in the wrong moment. No Ray is needed."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from maskfeed_automata.errors import CompileFailed
from maskfeed_workers.ray_places import Places


@dataclass(eq=False)
class Actor:
    is_warm: bool = True
    failure: CompileFailed | None = None
    resident: set[str] = field(default_factory=set)
    in_flight: int = 0

    def holds(self, fingerprint: str) -> bool:
        return fingerprint in self.resident


async def take(places: Places[Actor], stack: AsyncExitStack, fingerprint: str = "v") -> Actor:
    return await stack.enter_async_context(places.take(fingerprint))


async def test_the_least_loaded_actor_is_taken() -> None:
    actors = [Actor(), Actor()]
    places = Places(actors, 2)
    async with AsyncExitStack() as stack:
        taken = [await take(places, stack) for _ in range(4)]
        assert [actor.in_flight for actor in actors] == [2, 2]
        assert taken[0] is not taken[1]
    assert [actor.in_flight for actor in actors] == [0, 0]


async def test_an_actor_that_has_the_vocabulary_is_preferred_and_a_cold_one_gets_nothing() -> None:
    cold, loaded, empty = Actor(is_warm=False, resident={"v"}), Actor(resident={"v"}), Actor()
    places = Places([cold, empty, loaded], 1)
    async with AsyncExitStack() as stack:
        assert await take(places, stack) is loaded
        assert await take(places, stack) is empty
        assert cold.in_flight == 0


async def test_those_who_wait_are_served_in_order_of_asking() -> None:
    actor = Actor()
    places = Places([actor], 1)
    served: list[int] = []

    async def work(number: int) -> None:
        async with places.take("v"):
            served.append(number)

    async with AsyncExitStack() as stack:
        await take(places, stack)
        waiting = [asyncio.create_task(work(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert served == []
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]
    assert actor.in_flight == 0


async def test_work_waits_for_an_actor_to_become_warm() -> None:
    actor = Actor(is_warm=False)
    places = Places([actor], 1)
    async with AsyncExitStack() as stack:
        waiting = asyncio.create_task(take(places, stack))
        await asyncio.sleep(0)
        actor.is_warm = True
        places.hand_out()
        assert await waiting is actor


async def test_a_waiter_that_leaves_is_passed_over_even_if_it_has_not_come_round_yet() -> None:
    actor = Actor()
    places = Places([actor], 1)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await take(places, first)
        leaver = asyncio.create_task(take(places, stack))
        stayer = asyncio.create_task(take(places, stack))
        await asyncio.sleep(0)
        leaver.cancel()
        # before the one who leaves has run again
        await first.aclose()
        assert await stayer is actor
        assert actor.in_flight == 1
        with pytest.raises(asyncio.CancelledError):
            await leaver
    assert actor.in_flight == 0


async def test_a_thread_given_to_one_who_leaves_in_the_same_moment_goes_to_the_next() -> None:
    actor = Actor()
    places = Places([actor], 1)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await take(places, first)
        leaver = asyncio.create_task(take(places, stack))
        stayer = asyncio.create_task(take(places, stack))
        await asyncio.sleep(0)
        await first.aclose()
        assert actor.in_flight == 1
        leaver.cancel()
        assert await stayer is actor
        with pytest.raises(asyncio.CancelledError):
            await leaver
    assert actor.in_flight == 0


async def test_if_no_actor_will_ever_take_work_its_reason_is_told() -> None:
    failed, starting = Actor(is_warm=False, failure=CompileFailed("no CPU", stage="actor")), Actor(is_warm=False)
    places = Places([failed, starting], 1)
    async with AsyncExitStack() as stack:
        waiting = asyncio.create_task(take(places, stack))
        await asyncio.sleep(0)
        assert not waiting.done()
        starting.failure = CompileFailed("no store", stage="actor")
        places.hand_out()
        with pytest.raises(CompileFailed, match="no CPU"):
            await waiting
