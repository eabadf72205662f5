"""The ticket: each state and transition, each deadline, each time."""

import asyncio

import pytest

from manual_clock import ManualClock, settle
from maskfeed.queue.ticket import END_STATES, Stage, State, Ticket
from maskfeed_automata.errors import (
    DeadlineExceeded,
    InternalInvariant,
    RankFailure,
)

HIT = [State.READY, State.DISPATCHED, State.DONE]
MISS = [State.QUEUED, State.COMPILING, State.COMMITTED, *HIT]
WAITED = [State.WAITING, State.COMMITTED, *HIT]
TAKEN_OVER = [State.WAITING, *MISS]
JOINED_LATE = [State.COMPILING, State.COMMITTED, *HIT]
JOINED_LAST = [State.COMMITTED, *HIT]
LOST_ONCE = [State.QUEUED, State.COMPILING, State.COMMITTED, *MISS]
ROADS = {
    "hit": HIT,
    "miss": MISS,
    "waited": WAITED,
    "taken-over": TAKEN_OVER,
    "joined-late": JOINED_LATE,
    "joined-last": JOINED_LAST,
    "lost-once": LOST_ONCE,
}
BEFORE_READY = [Stage.PARSE, Stage.LOOKUP, Stage.WAIT, Stage.QUEUE, Stage.COMPILE, Stage.COMMIT, Stage.READY]


def a_ticket(clock=None, *, deadline_ms=1_000, **more):
    clock = clock or ManualClock()
    return Ticket(clock, received_at=clock.time(), deadline_ms=deadline_ms, **more)


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())
def test_a_ticket_goes_the_whole_road_and_tells_each_state(road):
    seen = []
    ticket = a_ticket(observe=lambda moved: seen.append(moved.state))
    for state in road:
        ticket.move(state)
    assert seen == road


@pytest.mark.parametrize("depth", range(len(TAKEN_OVER)))
@pytest.mark.parametrize("end", sorted(END_STATES - {State.DONE}))
def test_a_ticket_can_end_early_from_every_state_before_the_end(depth, end):
    ticket = a_ticket()
    for state in TAKEN_OVER[:depth]:
        ticket.move(state)
    ticket.move(end)
    assert ticket.state is end


def test_a_ticket_refuses_every_jump():
    allowed = {
        State.RECEIVED: {State.WAITING, State.QUEUED, State.COMPILING, State.COMMITTED, State.READY},
        State.WAITING: {State.QUEUED, State.COMMITTED},
        State.QUEUED: {State.COMPILING},
        State.COMPILING: {State.COMMITTED},
        State.COMMITTED: {State.WAITING, State.QUEUED, State.COMPILING, State.READY},
        State.READY: {State.DISPATCHED},
        State.DISPATCHED: {State.DONE},
    }
    for state in State:
        ends = END_STATES - {State.DONE} if state not in END_STATES else set()
        for target in set(State) - allowed.get(state, set()) - ends:
            ticket = a_ticket()
            ticket.state = state
            with pytest.raises(InternalInvariant):
                ticket.move(target)
            assert ticket.state is state


@pytest.mark.parametrize(
    ("stage", "state"),
    [(Stage.WAIT, State.WAITING), (Stage.QUEUE, State.QUEUED), (Stage.COMPILE, State.COMPILING)],
)
def test_a_stage_that_is_a_state_is_entered_with_it(stage, state):
    ticket = a_ticket()
    ticket.enter(stage)
    ticket.enter(stage)
    assert (ticket.stage, ticket.state) == (stage, state)


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


def test_the_times_of_the_stages_add_up_to_the_time_since_receipt():
    clock = ManualClock()
    ticket = a_ticket(clock)
    for stage, milliseconds in ((Stage.LOOKUP, 1), (Stage.QUEUE, 2), (Stage.COMPILE, 4), (Stage.COMMIT, 8)):
        ticket.enter(stage)
        clock.advance(milliseconds / 1000)
    ticket.enter(Stage.READY)
    assert ticket.milliseconds(Stage.PARSE) == 0
    assert [ticket.milliseconds(stage) for stage in (Stage.LOOKUP, Stage.QUEUE, Stage.COMPILE, Stage.COMMIT)] == (
        pytest.approx([1, 2, 4, 8])
    )
    clock.advance(0.016)
    ticket.fail("x")
    clock.advance(1)
    assert sum(ticket.seconds_by_stage().values()) == pytest.approx(0.031)


def test_a_stage_that_was_entered_twice_has_the_time_of_both():
    clock = ManualClock()
    ticket = a_ticket(clock)
    for _ in range(2):
        ticket.enter(Stage.LOOKUP)
        clock.advance(0.005)
        ticket.enter(Stage.READY)
    assert ticket.milliseconds(Stage.LOOKUP) == pytest.approx(10)


@pytest.mark.parametrize(("since_ms", "compile_ms", "commit_ms"), [(2, 3, 2), (50, 0, 5)])
def test_a_stage_may_have_begun_before_it_is_told_but_not_before_the_last_one(since_ms, compile_ms, commit_ms):
    clock = ManualClock()
    ticket = a_ticket(clock)
    clock.advance(1)
    ticket.enter(Stage.COMPILE)
    clock.advance(0.005)
    ticket.enter(Stage.COMMIT, since_ms / 1000)
    ticket.enter(Stage.READY)
    assert ticket.milliseconds(Stage.COMPILE) == pytest.approx(compile_ms)
    assert ticket.milliseconds(Stage.COMMIT) == pytest.approx(commit_ms)


async def what_ends(ticket, clock, stage, *, after_ms):
    """What a request that stays in `stage` ends with; not a millisecond before `after_ms`."""

    async def work():
        async with ticket.within_deadline():
            ticket.enter(stage)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance((after_ms - 1) / 1000)
    await settle()
    assert not task.done()
    clock.advance(0.001)
    with pytest.raises(DeadlineExceeded) as caught:
        await task
    return caught.value


@pytest.mark.parametrize("stage", BEFORE_READY)
async def test_a_deadline_names_the_stage_in_which_it_passed(stage):
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=250)

    error = await what_ends(ticket, clock, stage, after_ms=250)
    assert error.context == {"stage": stage, "limit_ms": 250}


@pytest.mark.parametrize("stage", BEFORE_READY)
async def test_a_stage_with_a_limit_of_its_own_expires_at_it_and_says_so(stage):
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=10_000, stage_limits_ms={stage: 100})

    error = await what_ends(ticket, clock, stage, after_ms=100)
    assert "was not over within 100 ms" in error.message
    assert error.context == {"stage": stage, "limit_ms": 100}
    assert clock.n_planned == 0


async def test_a_stage_that_was_left_in_time_expires_nobody():
    clock = ManualClock()
    ticket = a_ticket(clock, deadline_ms=10_000, stage_limits_ms={Stage.QUEUE: 100})
    leave = asyncio.Event()

    async def work():
        async with ticket.within_deadline():
            ticket.enter(Stage.QUEUE)
            await leave.wait()
            ticket.enter(Stage.COMPILE)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await settle()
    clock.advance(0.099)
    leave.set()
    await settle()
    clock.advance(5)
    await settle()
    assert not task.done()
    clock.advance(5)
    with pytest.raises(DeadlineExceeded) as caught:
        await task
    assert caught.value.context == {"stage": Stage.COMPILE, "limit_ms": 10_000}


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
