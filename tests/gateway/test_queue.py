"""The ticket's states and deadline, and the line in front of the compilers."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from manual_clock import ManualClock, settle
from maskfeed.queue.candidate_queue import CandidateQueue
from maskfeed.queue.ticket import END_STATES, Stage, State, Ticket
from maskfeed_automata.errors import (
    CapacityError,
    DeadlineExceeded,
    InternalInvariant,
    RankFailure,
)

MISS = [State.QUEUED, State.COMPILING, State.COMMITTED, State.READY, State.DISPATCHED, State.DONE]
HIT = [State.READY, State.DISPATCHED, State.DONE]


def a_ticket(clock=None, *, deadline_ms=1_000, observe=lambda ticket: None):
    clock = clock or ManualClock()
    return Ticket(clock, received_at=clock.time(), deadline_ms=deadline_ms, observe=observe)


class Crowd:
    """Tasks that each take a place, say so, and hold it until they are let go."""

    def __init__(self, queue):
        self.queue = queue
        self.order = []
        self.letting_go = {}
        self.tasks = {}
        self.tickets = {}

    async def add(self, name):
        self.letting_go[name] = asyncio.Event()
        self.tickets[name] = a_ticket()
        self.tasks[name] = asyncio.create_task(self._hold(name))
        await settle()

    async def _hold(self, name):
        async with self.queue.place(self.tickets[name]):
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


@pytest.mark.parametrize("road", [MISS, HIT], ids=["miss", "hit"])
def test_a_ticket_goes_the_whole_road_and_tells_each_state(road):
    seen = []
    ticket = a_ticket(observe=lambda moved: seen.append(moved.state))
    for state in road:
        ticket.move(state)
    assert seen == road


@pytest.mark.parametrize("depth", range(len(MISS)))
@pytest.mark.parametrize("end", sorted(END_STATES - {State.DONE}))
def test_a_ticket_can_end_early_from_every_state_before_the_end(depth, end):
    ticket = a_ticket()
    for state in MISS[:depth]:
        ticket.move(state)
    ticket.move(end)
    assert ticket.state is end


@pytest.mark.parametrize(
    ("road", "wrong"),
    [
        ([], State.COMPILING),
        ([], State.DISPATCHED),
        ([State.QUEUED], State.COMMITTED),
        (MISS[:-1], State.READY),
        (MISS, State.FAILED),
        ([State.CANCELLED], State.READY),
        ([State.EXPIRED], State.DONE),
    ],
)
def test_a_ticket_refuses_a_jump(road, wrong):
    ticket = a_ticket()
    for state in road:
        ticket.move(state)
    with pytest.raises(InternalInvariant):
        ticket.move(wrong)


@pytest.mark.parametrize(
    ("error", "state", "failure"),
    [
        (RankFailure("no", epoch="e", reason="r"), State.FAILED, "rank-failure"),
        (DeadlineExceeded("late", stage="ready", limit_ms=1), State.EXPIRED, "deadline-exceeded"),
        (asyncio.CancelledError(), State.CANCELLED, None),
        (ConnectionResetError(), State.CANCELLED, None),
        (ZeroDivisionError(), State.FAILED, "internal-invariant"),
    ],
)
def test_a_followed_ticket_ends_as_its_block_ends(error, state, failure):
    ticket = a_ticket()
    with pytest.raises(type(error)), ticket.followed_to_its_end():
        raise error
    assert (ticket.state, ticket.failure) == (state, failure)


def test_a_failure_told_inside_the_answer_stays_a_failure():
    ticket = a_ticket()
    with ticket.followed_to_its_end():
        for state in HIT[:-1]:
            ticket.move(state)
        ticket.fail("set-refused")
    assert (ticket.state, ticket.failure) == (State.FAILED, "set-refused")


def test_times_of_a_stage_add_up_and_can_be_booked_elsewhere():
    clock = ManualClock()
    ticket = a_ticket(clock)
    for _ in range(2):
        with ticket.measure(Stage.COMPILE):
            clock.advance(0.005)
    ticket.rebook(0.002, Stage.COMPILE, Stage.COMMIT)
    assert ticket.milliseconds(Stage.COMPILE) == pytest.approx(8)
    assert ticket.milliseconds(Stage.COMMIT) == pytest.approx(2)
    assert ticket.milliseconds(Stage.READY) == 0


@pytest.mark.parametrize("stage", [Stage.PARSE, Stage.LOOKUP, Stage.QUEUE, Stage.COMPILE, Stage.COMMIT, Stage.READY])
async def test_a_deadline_names_the_stage_in_which_it_passed(stage):
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=250)

    async def work():
        async with ticket.within_deadline():
            with ticket.measure(stage):
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(0.249)
    await settle()
    assert not task.done()
    clock.advance(0.001)
    with pytest.raises(DeadlineExceeded) as caught:
        await task
    assert caught.value.context == {"stage": stage, "limit_ms": 250}


async def test_a_deadline_counts_from_receipt_and_not_from_the_start_of_the_wait():
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=100)
    clock.advance(0.060)

    async def work():
        async with ticket.within_deadline():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(0.041)
    with pytest.raises(DeadlineExceeded):
        await task


async def test_a_deadline_that_is_met_leaves_no_timer_behind():
    clock = ManualClock()
    async with a_ticket(clock).within_deadline():
        await settle()
    assert clock.n_planned == 0
    assert asyncio.current_task().cancelling() == 0


async def test_a_client_that_leaves_is_no_deadline():
    ticket = a_ticket()

    async def work():
        async with ticket.within_deadline():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_client_that_leaves_as_the_deadline_passes_is_no_deadline_either():
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=10)

    async def work():
        async with ticket.within_deadline():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_places_go_out_first_in_first_out():
    crowd = Crowd(CandidateQueue(parallelism=2, limit=10))
    for name in "abcde":
        await crowd.add(name)
    assert crowd.order == ["a", "b"]
    assert (crowd.queue.taken, crowd.queue.waiting) == (2, 3)
    assert crowd.tickets["a"].state is State.COMPILING
    assert crowd.tickets["c"].state is State.QUEUED
    await crowd.let_go("b")
    await crowd.let_go("a")
    assert crowd.order == ["a", "b", "c", "d"]
    await crowd.finish()
    assert crowd.order == ["a", "b", "c", "d", "e"]
    assert (crowd.queue.taken, crowd.queue.waiting) == (0, 0)


async def test_a_full_line_is_refused_with_its_numbers_and_the_ticket_was_never_queued():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=1))
    await crowd.add("a")
    await crowd.add("b")
    await crowd.add("c")
    with pytest.raises(CapacityError) as caught:
        await crowd.tasks["c"]
    assert caught.value.context == {"limit": 1, "value": 1, "stage": "queue", "retry_after_s": 1}
    assert crowd.tickets["c"].state is State.RECEIVED
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


async def test_a_cancelled_waiter_leaves_the_line():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=2))
    for name in "abc":
        await crowd.add(name)
    await crowd.cancel("b")
    assert crowd.queue.waiting == 1
    await crowd.let_go("a")
    assert crowd.order == ["a", "c"]
    await crowd.finish()
    assert (crowd.queue.taken, crowd.queue.waiting) == (0, 0)


async def test_a_cancelled_holder_hands_its_place_on():
    crowd = Crowd(CandidateQueue(parallelism=1, limit=2))
    await crowd.add("a")
    await crowd.add("b")
    await crowd.cancel("a")
    assert crowd.order == ["a", "b"]
    await crowd.finish()
    assert crowd.queue.taken == 0


@pytest.mark.parametrize("first", ["release", "cancel"])
async def test_a_place_handed_to_a_waiter_that_is_cancelled_in_the_same_instant_is_not_lost(first):
    queue = CandidateQueue(parallelism=1, limit=5)
    crowd = Crowd(queue)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(queue.place(a_ticket()))
        await crowd.add("b")
        await crowd.add("c")
        if first == "cancel":
            crowd.tasks["b"].cancel()
    if first == "release":
        crowd.tasks["b"].cancel()
    await settle()
    assert crowd.order == ["c"]
    await crowd.finish()
    assert (queue.taken, queue.waiting) == (0, 0)


async def test_a_failure_inside_a_place_gives_it_back():
    queue = CandidateQueue(parallelism=1, limit=1)
    with pytest.raises(ZeroDivisionError):
        async with queue.place(a_ticket()):
            raise ZeroDivisionError
    assert queue.taken == 0
