"""The line in front of the compilers: its order, its bounds, and what a cancellation leaves behind."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from manual_clock import settle
from maskfeed.queue.candidate_queue import PATIENCE, SMALL_BYTES, CandidateQueue
from maskfeed_automata.errors import CapacityError

SMALL, BIG = SMALL_BYTES, SMALL_BYTES + 1


class Crowd:
    """Tasks that each take a place, say so, and hold it until they are let go."""

    def __init__(self, queue):
        self.queue = queue
        self.order = []
        self.letting_go = {}
        self.tasks = {}

    async def add(self, name, size_bytes=SMALL, tenant="t"):
        self.letting_go[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, size_bytes, tenant))
        await settle()

    async def _hold(self, name, size_bytes, tenant):
        async with self.queue.place(size_bytes=size_bytes, tenant=tenant):
            self.order.append(name)
            await self.letting_go[name].wait()

    async def let_go(self, name):
        self.letting_go[name].set()
        await settle()

    async def cancel(self, name):
        self.tasks[name].cancel()
        await settle()

    async def finish(self):
        for event in self.letting_go.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.queue.taken, self.queue.waiting) == (0, 0)


async def test_places_go_out_first_in_first_out():
    crowd = Crowd(CandidateQueue(parallelism=2, limit=10))
    for name in "abcde":
        await crowd.add(name)
    assert crowd.order == ["a", "b"]
    assert (crowd.queue.taken, crowd.queue.waiting) == (2, 3)
    await crowd.let_go("b")
    await crowd.let_go("a")
    assert crowd.order == ["a", "b", "c", "d"]
    await crowd.finish()
    assert crowd.order == ["a", "b", "c", "d", "e"]


# -- sizes ---------------------------------------------------------------------------------------------------------


async def test_a_small_set_passes_big_ones_that_wait():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=10))
    await crowd.add("first", BIG)
    await crowd.add("big", BIG)
    await crowd.add("small", SMALL)
    await crowd.let_go("first")
    assert crowd.order == ["first", "small"]
    await crowd.finish()


async def test_a_big_set_is_passed_by_so_many_small_ones_and_no_more():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=100))
    await crowd.add("first")
    for number in range(2):
        await crowd.add(f"big{number}", BIG)
    for number in range(3 * PATIENCE):
        await crowd.add(number)
    await crowd.finish()
    assert crowd.order.index("big0") == 1 + PATIENCE
    assert crowd.order.index("big1") == 1 + 2 * PATIENCE + 1


async def test_small_sets_that_went_before_the_first_big_one_waited_are_not_held_against_it():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=100))
    for number in range(2 * PATIENCE):
        await crowd.add(number)
        await crowd.let_go(number)
    await crowd.add("first")
    await crowd.add("big", BIG)
    await crowd.add("small")
    await crowd.finish()
    assert crowd.order[-3:] == ["first", "small", "big"]


async def test_of_several_places_one_is_kept_from_big_sets():
    crowd = Crowd(CandidateQueue(parallelism=3, limit=10))
    for name in "ABC":
        await crowd.add(name, BIG)
    assert crowd.order == ["A", "B"]
    await crowd.add("small")
    assert crowd.order == ["A", "B", "small"]
    await crowd.let_go("A")
    assert crowd.order == ["A", "B", "small", "C"]
    await crowd.finish()


async def test_a_big_set_that_could_not_go_for_its_size_is_next_as_soon_as_it_may():
    crowd = Crowd(CandidateQueue(parallelism=2, limit=100))
    await crowd.add("running", BIG)
    await crowd.add("big", BIG)
    for number in range(2 * PATIENCE):
        await crowd.add(number)
        await crowd.let_go(number)
    await crowd.add("s0")
    await crowd.add("s1")
    await crowd.let_go("running")
    assert crowd.order[-2:] == ["s0", "big"]
    await crowd.finish()


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(8))
async def test_the_bounds_hold_under_any_traffic(parallelism, seed):
    """For each hand-over of a place: who was passed, and by how many."""
    drawn = random.Random(seed)
    crowd = Crowd(CandidateQueue(parallelism=parallelism, limit=1_000))
    sizes, in_line, running = {}, {SMALL: [], BIG: []}, []
    passed = 0
    for step in range(400):
        if drawn.random() < 0.55 or not running:
            size = BIG if drawn.random() < 0.3 else SMALL
            sizes[step] = size
            in_line[size].append(step)
            await crowd.add(step, size)
        else:
            leaving = drawn.choice(running)
            running.remove(leaving)
            await crowd.let_go(leaving)
        for name in crowd.order[len(sizes) - len(in_line[SMALL]) - len(in_line[BIG]) :]:
            size = sizes[name]
            # each lane is first in, first out
            assert in_line[size].pop(0) == name
            n_big = sum(sizes[other] is BIG for other in running)
            big_could_go = bool(in_line[BIG]) and n_big < max(1, parallelism - 1)
            passed = passed + 1 if size is SMALL and big_could_go else 0 if size is BIG else passed
            assert passed <= PATIENCE
            running.append(name)
        n_big = sum(sizes[name] is BIG for name in running)
        assert len(running) == crowd.queue.taken <= parallelism
        assert n_big <= max(1, parallelism - 1)
        # no place stays free that somebody may take
        if len(running) < parallelism:
            assert not in_line[SMALL]
            assert not in_line[BIG] or n_big == max(1, parallelism - 1)
    await crowd.finish()


# -- bounds --------------------------------------------------------------------------------------------------------


async def test_a_full_line_is_refused_with_its_numbers():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=1))
    await crowd.add("a")
    await crowd.add("b")
    await crowd.add("c")
    with pytest.raises(CapacityError) as caught:
        await crowd.tasks["c"]
    assert caught.value.context == {"limit": 1, "value": 1, "stage": "queue", "retry_after_s": 1}
    await crowd.finish()
    assert crowd.order == ["a", "b"]


async def test_a_line_of_length_zero_takes_whoever_finds_a_place():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=0))
    await crowd.add("a")
    await crowd.add("b")
    with pytest.raises(CapacityError):
        await crowd.tasks["b"]
    await crowd.let_go("a")
    await crowd.add("c")
    assert crowd.order == ["a", "c"]
    await crowd.finish()


async def test_a_tenant_that_fills_his_share_of_the_line_leaves_the_rest_to_others():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=4, tenant_limit=2))
    for name in ("a", "b", "c", "d"):
        await crowd.add(name, tenant="greedy")
    with pytest.raises(CapacityError, match="of this tenant") as caught:
        await crowd.tasks["d"]
    assert (caught.value.context["limit"], caught.value.context["value"]) == (2, 2)
    await crowd.add("e", tenant="modest")
    await crowd.let_go("a")
    await crowd.add("f", tenant="greedy")
    assert not crowd.tasks["f"].done()
    await crowd.finish()
    assert crowd.order == ["a", "b", "c", "e", "f"]


async def test_a_share_is_given_back_by_who_is_cancelled():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=4, tenant_limit=1))
    await crowd.add("a")
    await crowd.add("b")
    await crowd.cancel("b")
    await crowd.add("c")
    await crowd.finish()
    assert crowd.order == ["a", "c"]


# -- cancellation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [SMALL, BIG])
async def test_a_cancelled_waiter_leaves_the_line(size_bytes):
    crowd = Crowd(CandidateQueue(parallelism=1, limit=2))
    for name in "abc":
        await crowd.add(name, size_bytes)
    await crowd.cancel("b")
    assert crowd.queue.waiting == 1
    await crowd.let_go("a")
    assert crowd.order == ["a", "c"]
    await crowd.finish()


@pytest.mark.parametrize("size_bytes", [SMALL, BIG])
async def test_a_cancelled_holder_hands_its_place_on(size_bytes):
    crowd = Crowd(CandidateQueue(parallelism=1, limit=2))
    await crowd.add("a", size_bytes)
    await crowd.add("b", size_bytes)
    await crowd.cancel("a")
    assert crowd.order == ["a", "b"]
    await crowd.finish()


@pytest.mark.parametrize("first", ["release", "cancel"])
@pytest.mark.parametrize("size_bytes", [SMALL, BIG])
async def test_a_place_handed_to_a_waiter_that_is_cancelled_in_the_same_instant_is_not_lost(first, size_bytes):
    queue = CandidateQueue(parallelism=1, limit=5)
    crowd = Crowd(queue)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(queue.place(size_bytes=size_bytes))
        await crowd.add("b", size_bytes)
        await crowd.add("c", size_bytes)
        if first == "cancel":
            crowd.tasks["b"].cancel()
    if first == "release":
        crowd.tasks["b"].cancel()
    await settle()
    assert crowd.order == ["c"]
    await crowd.finish()


async def test_a_failure_inside_a_place_gives_it_back():
    queue = CandidateQueue(parallelism=1, limit=1)
    with pytest.raises(ZeroDivisionError):
        async with queue.place(size_bytes=SMALL):
            raise ZeroDivisionError
    assert queue.taken == 0
