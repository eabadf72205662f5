"""A running request ends with the last engine that may serve it, and for no lesser reason."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from fake_engine import engine_record
from gateway_stack import gateway_stack
from manual_clock import settle
from maskfeed.service.lifeline import Lifeline
from maskfeed_automata.errors import EngineNotReady

COMPLETIONS = "/v1/completions"


async def ask(stack, **more):
    """Status and body of the answer."""
    raw = json.dumps({"model": "fake", "prompt": "x", "candidates": ["a" * 8], **more}).encode()
    async with stack.core.answer(COMPLETIONS, raw, headers=(), request_id="r-1") as reply:
        return reply.status, reply.body if isinstance(reply.body, bytes) else [chunk async for chunk in reply.body]


async def begin(stack, **more):
    """A request that an engine has and does not answer."""
    for engine in stack.engines:
        engine.faults.hangs = True
    n_before = sum(len(engine.seen.requests) for engine in stack.engines)
    task = asyncio.create_task(ask(stack, **more))
    while sum(len(engine.seen.requests) for engine in stack.engines) == n_before:
        await settle()
    return task


async def read_again(stack, *, after_s=1.0):
    """Let the records be read once more."""
    stack.clock.advance(after_s)
    await settle()


async def ends(task, stack, reason):
    with pytest.raises(EngineNotReady, match=f"went away while it answered: {reason}") as caught:
        await asyncio.wait_for(task, 10)
    assert caught.value.context["stage"] == "generate"
    assert caught.value.retryable
    await stack.engine.until(lambda _: sum(engine.seen.aborted for engine in stack.engines) == 1)
    assert stack.parts.promises.held == 0
    assert stack.metric('maskfeed_requests_total{outcome="failed"}') == 1


async def answers(task, stack):
    for engine in stack.engines:
        engine.let_go.set()
    assert (await task)[0] == 200


async def test_a_request_ends_at_once_when_its_engine_says_that_it_dies():
    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.engine.die("killed")
        await ends(task, stack, "killed")


async def test_a_request_ends_when_the_record_of_its_engine_stays_away():
    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.engine.fall_silent()
        await read_again(stack)
        await read_again(stack)
        assert not task.done()
        await read_again(stack)
        await read_again(stack)
        await ends(task, stack, "its record lapsed")


async def test_a_request_goes_on_while_any_replica_that_may_serve_it_lives():
    async with gateway_stack(records=[engine_record(), engine_record()]) as stack:
        task = await begin(stack)
        stack.engines[0].die()
        await settle()
        await read_again(stack, after_s=9)
        assert not task.done()
        await answers(task, stack)


async def test_a_request_ends_with_the_last_of_its_replicas():
    async with gateway_stack(records=[engine_record(), engine_record()]) as stack:
        task = await begin(stack)
        stack.engines[0].die()
        await settle()
        assert not task.done()
        stack.engines[1].die("the last")
        await ends(task, stack, "the last")


async def test_a_new_life_of_the_engine_does_not_keep_a_request_of_the_old_one():
    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.engine.fall_silent()
        stack.broker.write_record(engine_record(), 60_000)
        for _ in range(4):
            await read_again(stack)
            await stack.parts.engines.refresh()
        await ends(task, stack, "its record lapsed")


async def test_a_request_ends_with_its_engine_while_another_one_is_being_proven():
    class Silent:
        @asynccontextmanager
        async def open(self, *_, **__):
            await asyncio.Event().wait()
            yield

    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.parts.upstream.servers = [Silent()]
        stack.broker.write_record(engine_record(), 60_000)
        await read_again(stack)
        assert stack.parts.engines.live is None
        stack.engine.fall_silent()
        for _ in range(4):
            await read_again(stack)
        await ends(task, stack, "its record lapsed")


async def test_a_record_that_can_not_be_looked_for_ends_nothing():
    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.broker.faults.fail_next("engines", times=20)
        stack.engine.fall_silent()
        for _ in range(20):
            await read_again(stack)
        assert not task.done()
        # the store is back without its data, and the engine has not renewed yet
        await read_again(stack)
        stack.broker.write_record(stack.engine.record, 60_000)
        for _ in range(5):
            await read_again(stack)
        await answers(task, stack)


async def test_a_store_that_was_restarted_unnoticed_ends_nothing():
    async with gateway_stack() as stack:
        task = await begin(stack)
        stack.broker.delete_record(stack.engine.record.epoch)
        await read_again(stack)
        stack.broker.write_record(stack.engine.record, 60_000)
        for _ in range(5):
            await read_again(stack)
        await answers(task, stack)


async def test_a_stream_ends_with_an_error_event():
    async with gateway_stack() as stack:
        stack.engine.faults.hangs_after_events = 2
        raw = json.dumps({"model": "fake", "prompt": "x", "candidates": ["a" * 8], "stream": True}).encode()
        async with stack.core.answer(COMPLETIONS, raw, headers=(), request_id="r-1") as reply:
            await anext(reply.body)
            stack.engine.die("killed")
            rest = b"".join([chunk async for chunk in reply.body])
        *_, error, done = [line.removeprefix(b"data: ") for line in rest.split(b"\n\n") if line]
        assert done == b"[DONE]"
        error = json.loads(error)["error"]
        assert (error["code"], error["type"], error["request_id"]) == ("engine-not-ready", "server_error", "r-1")
        await stack.engine.until(lambda seen: seen.aborted == 1)
        assert stack.parts.promises.held == 0
        assert stack.metric('maskfeed_requests_total{outcome="failed"}') == 1


async def test_a_request_whose_engine_went_before_it_was_sent_is_not_sent():
    lifeline = Lifeline()
    lifeline.cut("killed")
    lifeline.cut("again")
    with pytest.raises(EngineNotReady, match="killed"):
        async with lifeline.holding():
            raise AssertionError("the block is not entered")


async def test_a_time_out_inside_a_wait_stays_what_it_is():
    with pytest.raises(TimeoutError):
        async with Lifeline().holding():
            raise TimeoutError


async def test_a_client_that_leaves_in_the_instant_of_the_cut_has_left():
    lifeline = Lifeline()

    async def wait():
        async with lifeline.holding():
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await settle()
    task.cancel()
    lifeline.cut("killed")
    with pytest.raises(asyncio.CancelledError):
        await task
