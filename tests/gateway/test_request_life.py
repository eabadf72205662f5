"""The life of a constrained request: each state, each failure, and what each of them undoes."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from fake_engine import EOS, RESERVED, VOCABULARY, engine_record
from gateway_stack import gateway_stack
from manual_clock import settle
from maskfeed.config import GatewaySettings, QueueSettings
from maskfeed_automata import compile as compile_set
from maskfeed_automata.errors import (
    CandidateError,
    CapacityError,
    CompileFailed,
    DeadlineExceeded,
    EngineNotReady,
    LimitExceeded,
    ParameterError,
    RankFailure,
    SetRefused,
    StoreUnavailable,
    UpstreamError,
)
from maskfeed_cache.fence import IndexEntry, Layer
from maskfeed_cache.handle import PROBE, Handle

NAMES = ["get_user", "get_users", "Paris", "東京"]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def a_body(candidates=NAMES, **more):
    return {"model": "fake", "prompt": "x", "candidates": list(candidates), **more}


async def ask(stack, body, route=COMPLETIONS, headers=()):
    """Status, headers and whole body of the reply."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with stack.core.answer(route, raw, headers=headers, request_id="r-1") as reply:
        data = reply.body if isinstance(reply.body, bytes) else b"".join([chunk async for chunk in reply.body])
    return reply.status, dict(reply.headers), data


async def answer_of(stack, body, route=COMPLETIONS):
    status, _, data = await ask(stack, body, route)
    assert status == 200, data
    return json.loads(data)


def begin(stack, body):
    return asyncio.create_task(ask(stack, body))


def handles(engine):
    texts = [request.get("vllm_xargs", {}).get("maskfeed") for request in engine.seen.requests]
    found = [Handle.from_text(text) for text in texts if text]
    return [handle for handle in found if handle.artifact_hash != PROBE]


async def all_ended(stack):
    """Every announced nonce has been reported as ended."""
    await stack.engine.until(lambda seen: {each.nonce for each in seen.announced} <= set(seen.ended))
    assert stack.parts.promises.held == 0


@asynccontextmanager
async def expected(error_type, stack, **context):
    with pytest.raises(error_type) as caught:
        yield
    for name, value in context.items():
        assert caught.value.context[name] == value
    await all_ended(stack)
    assert stack.parts.queue.taken == stack.parts.queue.waiting == 0


@pytest.fixture
async def stack():
    async with gateway_stack() as opened:
        yield opened


async def test_a_fresh_set_is_compiled_made_ready_and_answered_with_one_of_its_candidates(stack):
    answer = await answer_of(stack, a_body())
    ours = answer["maskfeed"]
    assert answer["choices"][0]["text"] == ours["candidate"] == NAMES[ours["index"]]
    assert ours["cache"] == "miss"
    assert {"queue_ms", "compile_ms", "commit_ms", "ready_ms"} <= ours.keys()
    assert "token_ids" not in answer["choices"][0]
    (handle,) = handles(stack.engine)
    (announcement,) = stack.engine.seen.announced
    assert handle.epochs == (stack.engine.record.epoch,)
    assert (handle.artifact_hash, handle.nonce) == (announcement.artifact_hash, announcement.nonce)
    await all_ended(stack)
    assert stack.metric('maskfeed_requests_total{outcome="done"}') == 1
    assert stack.metric("maskfeed_requests_in_flight") == 0


async def test_a_set_that_is_known_is_not_compiled_again(stack):
    await answer_of(stack, a_body())
    answer = await answer_of(stack, a_body(reversed(NAMES)))
    assert answer["maskfeed"]["cache"] == "hit"
    assert answer["maskfeed"]["compile_ms"] == 0
    assert stack.compiler.started == 1
    assert stack.metric('maskfeed_set_lookups_total{result="hit"}') == 1


async def test_a_chat_with_objects_as_candidates_returns_the_id(stack):
    candidates = [{"value": "Paris", "id": "fr-75"}]
    body = {"model": "fake", "messages": [], "candidates": candidates}
    answer = await answer_of(stack, body, CHAT)
    assert answer["choices"][0]["message"]["content"] == "Paris"
    assert answer["maskfeed"]["id"] == "fr-75"
    assert stack.engine.seen.requests[-1]["include_reasoning"] is True
    assert "candidates" not in stack.engine.seen.requests[-1]


async def test_a_choice_is_taken_over(stack):
    body = {"model": "fake", "prompt": "x", "structured_outputs": {"choice": NAMES}}
    answer = await answer_of(stack, body)
    assert answer["maskfeed"]["candidate"] in NAMES
    assert "structured_outputs" not in stack.engine.seen.requests[-1]


async def test_three_answers_to_one_request_are_each_checked(stack):
    answer = await answer_of(stack, a_body(n=3))
    assert len(answer["choices"]) == 3
    assert all(choice["maskfeed"]["candidate"] in NAMES for choice in answer["choices"])


async def test_an_untouched_choice_goes_on_as_the_very_bytes_and_the_reply_says_why(stack):
    raw = b'{"model": "fake", "prompt": "x",  "max_tokens": 4, "structured_outputs": {"choice": ["a", ""]}}'
    _, headers, _ = await ask(stack, raw)
    assert stack.engine.seen.bodies[-1] == raw
    assert headers["x-maskfeed"] == "native; reason=structured_outputs.choice"
    assert not stack.engine.seen.announced


async def test_a_choice_stays_native_where_the_engine_reasons_first():
    async with gateway_stack(records=[engine_record(reasoning_parser="qwen3")]) as stack:
        body = {"model": "fake", "messages": [], "structured_outputs": {"choice": NAMES}}
        _, headers, _ = await ask(stack, body, CHAT)
    assert headers["x-maskfeed"] == "native; reason=reasoning_parser"


async def test_a_plain_request_goes_on_without_a_mark(stack):
    _, headers, data = await ask(stack, {"model": "fake", "prompt": "x", "max_tokens": 3})
    assert "x-maskfeed" not in headers
    assert json.loads(data)["choices"][0]["text"] == "free text"


async def test_the_token_ids_are_returned_to_a_client_that_asks_for_them(stack):
    answer = await answer_of(stack, a_body(["Paris"], return_token_ids=True))
    assert answer["choices"][0]["token_ids"][-1] == EOS


async def test_an_answer_that_was_cut_is_not_reported_as_a_candidate(stack):
    answer = await answer_of(stack, a_body(["aaaaaaaaaaaa"], max_tokens=3))
    assert answer["maskfeed"]["complete"] is False
    assert answer["maskfeed"]["candidate"] is None
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_default_of_max_tokens_is_enough_for_the_longest_candidate(stack):
    await answer_of(stack, a_body(["zz", "zzzzzzzzzz"]))
    assert stack.engine.seen.requests[-1]["max_tokens"] == 11


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "context"),
    [
        (a_body([]), CandidateError, {"field": "candidates"}),
        (a_body(["a", ""]), CandidateError, {"field": "candidates", "index": 1}),
        (a_body(["a", 7]), CandidateError, {"field": "candidates", "index": 1}),
        (b'{"prompt": "x", "candidates": ["a", "\\ud800"]}', CandidateError, {"field": "candidates", "index": 1}),
        (a_body(["a", "b" * 70_000]), LimitExceeded, {"index": 1, "limit": 65_536, "value": 70_000}),
        (a_body(["a", "b" * 64]), CandidateError, {"index": 1, "limit": 63, "value": 64}),
        (a_body(guided_choice=["a"]), ParameterError, {}),
        ({"prompt": "x", "candidate": ["a"]}, ParameterError, {"field": "candidate"}),
        (a_body(min_tokens=4), ParameterError, {"field": "min_tokens"}),
        (a_body(stop_token_ids=[65]), ParameterError, {"field": "stop_token_ids[0]"}),
        (a_body(stop_token_ids=[RESERVED]), ParameterError, {"field": "stop_token_ids[0]"}),
        (a_body(vllm_xargs={"maskfeed": "mf1"}), ParameterError, {}),
        (b"[1]", ParameterError, {}),
        (b"{", ParameterError, {}),
    ],
)
async def test_bad_input_is_refused_before_anything_is_compiled(stack, body, error, context):
    async with expected(error, stack, **context):
        await ask(stack, body)
    assert stack.compiler.started == 0


async def test_the_field_of_a_taken_over_choice_is_named_as_the_caller_wrote_it(stack):
    field = "structured_outputs.choice"
    for candidates, index in ((["a", "b" * 64], 1), (["a", "b" * 70_000], 1), ([], None)):
        body = {"prompt": "x", "structured_outputs": {"choice": candidates}}
        with pytest.raises(CandidateError) as caught:
            await ask(stack, body)
        assert (caught.value.context["field"], caught.value.context.get("index")) == (field, index)
        assert caught.value.message.startswith(f"{field}: " if index is None else f"{field}[{index}]: ")


async def test_a_choice_that_only_the_compiler_can_refuse_is_named_as_the_caller_wrote_it(stack):
    stack.compiler.error = CandidateError("candidates[1]: no tokens spell it", field="candidates", index=1)
    body = {"prompt": "x", "structured_outputs": {"choice": ["a", "b"]}}
    with pytest.raises(CandidateError, match=r"^structured_outputs\.choice\[1\]: no tokens spell it$") as caught:
        await ask(stack, body)
    assert (caught.value.context["field"], caught.value.context["index"]) == ("structured_outputs.choice", 1)


async def test_a_candidate_that_fills_the_context_exactly_is_accepted(stack):
    answer = await answer_of(stack, a_body(["b" * 63]))
    assert answer["maskfeed"]["complete"]


async def test_a_long_candidate_of_few_tokens_is_accepted(stack):
    answer = await answer_of(stack, a_body(["users" * 20]))
    assert answer["maskfeed"]["candidate"] == "users" * 20


async def test_duplicates_are_merged_and_reported(stack):
    answer = await answer_of(stack, a_body(["Paris", "Paris"]))
    assert answer["maskfeed"]["duplicates"] == 1
    assert answer["maskfeed"]["index"] == 0


async def test_a_constraint_on_a_route_that_would_ignore_it_is_refused(stack):
    with pytest.raises(ParameterError):
        async with stack.core.forward("POST", "/v1/responses", b'{"candidates": ["a"]}', headers=()):
            pass
    assert not any("candidates" in request for request in stack.engine.seen.requests)


# -- the queue -----------------------------------------------------------------------------------------------------


async def test_more_waiting_requests_than_the_limit_are_refused_at_once():
    async with gateway_stack(settings=GatewaySettings(queue=QueueSettings(limit=1)), parallelism=1) as stack:
        stack.compiler.gate.clear()
        running = begin(stack, a_body(["a"]))
        await settle()
        waiting = begin(stack, a_body(["b"]))
        await settle()
        with pytest.raises(CapacityError) as caught:
            await ask(stack, a_body(["c"]))
        assert caught.value.context["retry_after_s"] == 1
        stack.compiler.gate.set()
        assert [(await task)[0] for task in (running, waiting)] == [200, 200]


@pytest.mark.parametrize("stage", ["queue", "compile"])
async def test_a_client_that_leaves_before_its_set_is_compiled_costs_nobody_anything(stage):
    async with gateway_stack(parallelism=1) as stack:
        stack.compiler.gate.clear()
        first = begin(stack, a_body(["a"]))
        await settle()
        second = begin(stack, a_body(["b"]))
        await settle()
        leaving, staying = (second, first) if stage == "queue" else (first, second)
        leaving.cancel()
        await settle()
        assert stack.compiler.dropped == (stage == "compile")
        stack.compiler.gate.set()
        assert (await staying)[0] == 200
        assert leaving.cancelled()
        assert stack.metric('maskfeed_requests_total{outcome="cancelled"}') == 1
        assert stack.parts.queue.taken == 0


async def test_clients_with_the_same_fresh_set_share_one_compile_and_each_is_told_what_it_did(stack):
    stack.compiler.gate.clear()
    tasks = [begin(stack, a_body()), begin(stack, a_body(reversed(NAMES)))]
    await settle()
    assert (stack.compiler.started, stack.parts.queue.taken) == (1, 1)
    stack.compiler.gate.set()
    answers = [json.loads((await task)[2])["maskfeed"] for task in tasks]
    assert [answer["cache"] for answer in answers] == ["miss", "waited"]
    assert answers[0]["digest"] == answers[1]["digest"]
    assert stack.metric('maskfeed_compiles_total{outcome="indexed"}') == 1
    assert stack.metric('maskfeed_set_lookups_total{result="waited"}') == 1


async def test_a_hit_goes_past_a_full_line():
    async with gateway_stack(settings=GatewaySettings(queue=QueueSettings(limit=0)), parallelism=1) as stack:
        await answer_of(stack, a_body())
        stack.compiler.gate.clear()
        running = begin(stack, a_body(["z"]))
        await settle()
        with pytest.raises(CapacityError):
            await ask(stack, a_body(["y"]))
        assert (await answer_of(stack, a_body()))["maskfeed"]["cache"] == "hit"
        stack.compiler.gate.set()
        await running


async def test_who_asks_for_a_set_that_is_compiled_already_needs_no_place_in_line():
    async with gateway_stack(settings=GatewaySettings(queue=QueueSettings(limit=0)), parallelism=1) as stack:
        stack.compiler.gate.clear()
        tasks = [begin(stack, a_body()) for _ in range(20)]
        await settle()
        stack.compiler.gate.set()
        assert [(await task)[0] for task in tasks] == [200] * 20


async def test_the_first_client_may_leave_and_the_others_get_their_set(stack):
    stack.compiler.gate.clear()
    first, second = begin(stack, a_body()), begin(stack, a_body())
    await settle()
    first.cancel()
    await settle()
    stack.compiler.gate.set()
    assert json.loads((await second)[2])["maskfeed"]["cache"] == "waited"
    assert (stack.compiler.started, stack.compiler.dropped) == (1, 0)
    await all_ended(stack)


async def test_each_of_those_who_share_a_compile_is_told_of_his_own_candidate(stack):
    stack.compiler.gate.clear()
    stack.compiler.error = CandidateError("candidates[0]: no tokens spell it", field="candidates", index=0)
    first = begin(stack, a_body(["bad", "good"]))
    await settle()
    second = begin(stack, {"prompt": "x", "structured_outputs": {"choice": ["good", "good", "bad"]}})
    await settle()
    stack.compiler.gate.set()
    errors = await asyncio.gather(first, second, return_exceptions=True)
    assert [error.context["index"] for error in errors] == [0, 2]
    assert [error.message for error in errors] == [
        "candidates[0]: no tokens spell it",
        "structured_outputs.choice[2]: no tokens spell it",
    ]
    assert "rank" not in errors[0].context
    # remembered for seconds, and no longer
    with pytest.raises(CandidateError) as caught:
        await ask(stack, a_body(["good", "bad"]))
    assert caught.value.context["index"] == 1
    assert stack.compiler.started == 1
    stack.clock.advance(6)
    stack.compiler.error = None
    assert (await ask(stack, a_body(["good", "bad"])))[0] == 200


async def test_the_sets_of_one_tenant_may_not_fill_the_line():
    queue = QueueSettings(limit=4, tenant_limit=1)
    async with gateway_stack(settings=GatewaySettings(queue=queue), parallelism=1) as stack:
        stack.compiler.gate.clear()
        tasks = [begin(stack, a_body([name])) for name in "ab"]
        await settle()
        with pytest.raises(CapacityError, match="of this tenant"):
            await ask(stack, a_body(["c"]))
        other = asyncio.create_task(ask(stack, a_body(["d"]), headers=(("Authorization", "Bearer d"),)))
        await settle()
        stack.compiler.gate.set()
        assert [(await task)[0] for task in (*tasks, other)] == [200] * 3


# -- other gateways ------------------------------------------------------------------------------------------------


async def digest_of(stack, body):
    """What the index calls the set of a request. Compiles it, and forgets it again."""
    digest = (await answer_of(stack, body))["maskfeed"]["digest"]
    await stack.parts.cache.clear()
    return digest


async def another_gateway_compiles(stack, digest):
    granted = await stack.parts.index.acquire(Layer.SETS, digest, token="f" * 32, lease_ms=5_000)
    return granted.lease


async def test_a_set_that_another_gateway_compiles_is_waited_for_and_the_answer_says_so(stack):
    digest = await digest_of(stack, a_body())
    lease = await another_gateway_compiles(stack, digest)
    waiting = begin(stack, a_body())
    await settle()
    stack.clock.advance(0.02)
    artifact = compile_set(VOCABULARY, NAMES).to_bytes()
    await stack.parts.index.commit(lease, IndexEntry(stack.broker.blobs.put(artifact), len(artifact)))
    ours = json.loads((await waiting)[2])["maskfeed"]
    assert (ours["cache"], ours["compile_ms"], ours["queue_ms"]) == ("waited", 0, 0)
    assert ours["wait_ms"] == pytest.approx(20)
    assert stack.compiler.started == 1
    await all_ended(stack)


async def test_a_gateway_that_dies_while_it_compiles_costs_one_lease(stack):
    digest = await digest_of(stack, a_body())
    await another_gateway_compiles(stack, digest)
    waiting = begin(stack, a_body())
    await settle()
    stack.clock.advance(5.001)
    ours = json.loads((await waiting)[2])["maskfeed"]
    assert ours["cache"] == "miss"
    assert ours["wait_ms"] == pytest.approx(5_001)


async def test_the_deadline_of_a_request_that_waits_for_another_gateway_names_that_stage(stack):
    digest = await digest_of(stack, a_body())
    await another_gateway_compiles(stack, digest)
    late = begin(stack, a_body(candidate_options={"deadline_ms": 500}))
    await settle()
    stack.clock.advance(0.6)
    async with expected_deadline("wait"):
        await late


async def test_a_compiler_that_breaks_is_an_error_for_this_request_only(stack):
    stack.compiler.error = CompileFailed("broken", stage="compile")
    async with expected(CompileFailed, stack):
        await ask(stack, a_body())
    stack.compiler.error = None
    assert (await ask(stack, a_body()))[0] == 200


# -- deadlines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["queue", "compile", "ready"])
async def test_a_deadline_is_reported_with_its_stage(stage):
    async with gateway_stack(parallelism=1) as stack:
        if stage == "ready":
            stack.engine.faults.is_slow = True
        else:
            stack.compiler.gate.clear()
        blocking = begin(stack, a_body(["z"], deadline_ms=None)) if stage == "queue" else None
        await settle()
        late = begin(stack, a_body(["a"], candidate_options={"deadline_ms": 500}))
        if stage == "ready":
            await stack.engine.until(lambda seen: seen.announced)
        await settle()
        stack.clock.advance(0.6)
        async with expected_deadline(stage):
            await late
        stack.compiler.gate.set()
        if blocking is not None:
            await blocking
        await all_ended(stack)
        assert stack.metric('maskfeed_requests_total{outcome="expired"}') == 1


@asynccontextmanager
async def expected_deadline(stage):
    with pytest.raises(DeadlineExceeded) as caught:
        yield
    assert (caught.value.context["stage"], caught.value.context["limit_ms"]) == (stage, 500)


@pytest.mark.parametrize(("call", "stage"), [("acquire", "lookup"), ("commit", "commit")])
async def test_a_store_that_is_slow_meets_the_deadline_too(stack, call, stage, monkeypatch):
    answered = asyncio.Event()
    original = getattr(stack.parts.index, call)

    async def slow(*args, **kwargs):
        await answered.wait()
        return await original(*args, **kwargs)

    monkeypatch.setattr(stack.parts.index, call, slow)
    late = begin(stack, a_body(["a"], candidate_options={"deadline_ms": 500}))
    await settle()
    stack.clock.advance(0.6)
    async with expected_deadline(stage):
        await late
    answered.set()


async def test_the_deadline_of_the_settings_holds_for_requests_that_give_none():
    async with gateway_stack(settings=GatewaySettings(deadline_ms=500)) as stack:
        stack.compiler.gate.clear()
        late = begin(stack, a_body())
        await settle()
        stack.clock.advance(0.6)
        async with expected_deadline("compile"):
            await late


async def test_a_deadline_does_not_cut_an_answer_that_is_being_generated(stack):
    stack.engine.faults.hangs = True
    task = begin(stack, a_body(candidate_options={"deadline_ms": 500}))
    await stack.engine.until(lambda seen: len(seen.requests) == 2)
    stack.clock.advance(5)
    stack.engine.let_go.set()
    assert (await task)[0] == 200


# -- readiness and refusal -----------------------------------------------------------------------------------------


async def test_a_rank_that_fails_is_an_error_with_its_reason(stack):
    stack.engine.faults.fails_with = "out-of-memory: no room"
    async with expected(RankFailure, stack, epoch=stack.engine.record.epoch, reason="out-of-memory: no room"):
        await ask(stack, a_body())
    assert not handles(stack.engine)


async def test_a_known_set_whose_blob_went_away_is_compiled_again_once(stack):
    await ask(stack, a_body())
    lost = dict(stack.broker.blobs.blobs)
    stack.engine.faults.is_slow = True
    task = begin(stack, a_body())
    await stack.engine.until(lambda seen: len(seen.announced) == 2)
    stack.broker.blobs.blobs.clear()
    stack.engine.answer_announcements()
    assert (await task)[0] == 200
    assert stack.broker.blobs.blobs == lost
    assert stack.compiler.started == 2
    assert stack.metric('maskfeed_compiles_total{outcome="indexed"}') == 2
    await all_ended(stack)


async def test_a_fresh_set_that_is_gone_before_the_engine_has_it_is_compiled_again_once(stack):
    stack.engine.faults.is_slow = True
    task = begin(stack, a_body())
    await stack.engine.until(lambda seen: seen.announced)
    stack.broker.blobs.blobs.clear()
    stack.engine.answer_announcements()
    assert json.loads((await task)[2])["maskfeed"]["cache"] == "miss"
    assert stack.compiler.started == 2
    await all_ended(stack)


async def test_a_set_that_is_broken_where_it_lies_is_written_again(stack):
    await ask(stack, a_body())
    (artifact_hash,) = stack.broker.blobs.blobs
    stack.broker.blobs.blobs[artifact_hash] = b"broken"
    assert (await ask(stack, a_body()))[0] == 200
    assert stack.broker.blobs.get(artifact_hash)
    assert stack.metric('maskfeed_compiles_total{outcome="repaired"}') == 1
    await all_ended(stack)


async def test_no_pin_is_left_when_the_requests_are_over(stack):
    await ask(stack, a_body())
    await ask(stack, a_body())
    stack.engine.faults.fails_with = "out-of-memory"
    with pytest.raises(RankFailure):
        await ask(stack, a_body())
    await settle()
    await stack.parts.cache.clear()
    assert (await stack.parts.index.usage()).layers[Layer.SETS].orphaned_pinned_bytes == 0


async def test_a_blob_that_is_lost_again_and_again_is_an_error(stack):
    await ask(stack, a_body())
    stack.engine.faults.fails_with = "unknown-artifact: no blob"
    async with expected(RankFailure, stack):
        await ask(stack, a_body())
    assert stack.compiler.started == 2


async def test_an_engine_that_restarts_between_ready_and_admission_gives_an_error_and_never_an_answer(stack):
    await ask(stack, a_body())
    stack.engine.faults.refuses = True
    async with expected(SetRefused, stack):
        await ask(stack, a_body())
    assert stack.metric('maskfeed_requests_total{outcome="failed"}') == 1


async def test_an_engine_that_loses_its_plugin_gives_an_error_and_never_free_text(stack):
    stack.engine.faults.has_no_plugin = True
    with pytest.raises(Exception, match="no candidate") as caught:
        await ask(stack, a_body())
    assert caught.value.code == "internal-invariant"


async def test_an_engine_that_dies_while_a_request_waits_for_it_ends_the_wait(stack):
    stack.engine.faults.is_slow = True
    task = begin(stack, a_body())
    await stack.engine.until(lambda seen: seen.announced)
    stack.engine.die()
    async with expected(EngineNotReady, stack):
        await task


async def test_a_request_without_a_live_engine_is_refused():
    async with gateway_stack(records=[]) as stack:
        with pytest.raises(EngineNotReady):
            await ask(stack, a_body())


async def test_a_request_waits_for_every_replica_and_any_of_them_may_answer():
    async with gateway_stack(records=[engine_record(), engine_record()]) as stack:
        first, second = stack.engines
        second.faults.is_slow = True
        task = begin(stack, a_body())
        await first.until(lambda seen: seen.announced)
        await second.until(lambda seen: seen.announced)
        await settle()
        assert not [*handles(first), *handles(second)]
        second.answer_announcements()
        assert (await task)[0] == 200
        assert (await ask(stack, a_body()))[0] == 200
        epochs = tuple(sorted(engine.record.epoch for engine in stack.engines))
        assert [handle.epochs for engine in stack.engines for handle in handles(engine)] == [epochs, epochs]


# -- the store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["acquire", "commit", "announce"])
async def test_a_store_that_is_away_is_a_retryable_error_and_the_next_request_passes(stack, stage):
    stack.broker.faults.fail_next(stage)
    async with expected_failure(StoreUnavailable):
        await ask(stack, a_body())
    assert (await ask(stack, a_body()))[0] == 200
    await stack.engine.until(lambda seen: seen.ended)
    assert stack.parts.promises.held == 0


@asynccontextmanager
async def expected_failure(error_type):
    with pytest.raises(error_type) as caught:
        yield
    assert caught.value.retryable


async def test_an_end_that_could_not_be_sent_is_sent_later(stack):
    stack.broker.faults.fail_next("end")
    await ask(stack, a_body())
    await settle()
    assert not [nonce for nonce in stack.engine.seen.ended if nonce == stack.engine.seen.announced[0].nonce]
    stack.clock.advance(1)
    await all_ended(stack)


# -- upstream ------------------------------------------------------------------------------------------------------


async def test_the_engines_own_refusal_is_passed_on_with_its_status_in_our_shape(stack):
    stack.engine.faults.answers_with = (400, '{"error": {"message": "too long", "code": 400}}')
    status, headers, data = await ask(stack, a_body())
    error = json.loads(data)["error"]
    assert (status, headers["x-should-retry"]) == (400, "false")
    assert (error["message"], error["code"], error["request_id"]) == ("too long", "upstream-refused", "r-1")
    await all_ended(stack)
    assert stack.metric('maskfeed_requests_total{outcome="failed"}') == 1


async def test_an_engine_that_broke_is_an_upstream_error(stack):
    stack.engine.faults.answers_with = (500, '{"error": {"message": "EngineCore encountered an issue."}}')
    async with expected(UpstreamError, stack, upstream_status=500):
        await ask(stack, a_body())


@pytest.mark.parametrize("text", ["<html>", "[]", '{"choices": []}', '{"choices": [{"text": "Paris"}]}'])
async def test_an_answer_that_is_none_is_an_upstream_error(stack, text):
    stack.engine.faults.answers_with = (200, text)
    async with expected(UpstreamError, stack):
        await ask(stack, a_body())


async def test_a_server_that_breaks_off_is_an_upstream_error(stack):
    stack.engine.faults.dies = True
    async with expected(UpstreamError, stack):
        await ask(stack, a_body())


async def test_a_client_that_leaves_while_the_engine_works_ends_the_engines_request_and_the_promise(stack):
    stack.engine.faults.hangs = True
    task = begin(stack, a_body())
    await stack.engine.until(lambda seen: len(seen.requests) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stack.engine.until(lambda seen: seen.aborted == 1)
    await all_ended(stack)


async def test_the_clients_headers_reach_the_engine_except_those_of_its_connection(stack):
    headers = (("Authorization", "Bearer k"), ("Connection", "x-hop"), ("X-Hop", "1"), ("Accept-Encoding", "br"))
    await ask(stack, a_body(), headers=headers)
    sent = stack.engine.seen.headers[-1]
    assert sent["Authorization"] == "Bearer k"
    assert sent["Accept-Encoding"] == "identity"
    assert "X-Hop" not in sent


# -- streams -------------------------------------------------------------------------------------------------------


def payloads(data):
    return [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_a_streamed_answer_is_one_candidate_and_its_last_chunk_says_which(stack, route):
    status, headers, data = await ask(stack, a_body(stream=True, messages=[]), route)
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    *chunks, done = payloads(data)
    assert done == b"[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["text"] if route == COMPLETIONS else choice["delta"].get("content", "") for choice in choices)
    assert text in NAMES
    assert chunks[-1]["maskfeed"]["candidate"] == text
    assert not any("token_ids" in choice for choice in choices)
    await all_ended(stack)


async def test_a_refusal_in_a_stream_is_an_error_event(stack):
    await ask(stack, a_body())
    stack.engine.faults.refuses = True
    status, _, data = await ask(stack, a_body(stream=True))
    assert status == 200
    error = json.loads(payloads(data)[-2])["error"]
    assert (error["code"], error["request_id"]) == ("set-refused", "r-1")
    await all_ended(stack)
    assert stack.metric('maskfeed_requests_total{outcome="failed"}') == 1


async def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_event(stack):
    stack.engine.faults.dies_after_events = 2
    _, _, data = await ask(stack, a_body(["aaaaaaaa"], stream=True))
    assert json.loads(payloads(data)[-2])["error"]["code"] == "upstream-error"
    assert payloads(data)[-1] == b"[DONE]"
    await all_ended(stack)


async def test_a_client_that_leaves_in_mid_stream_ends_the_promise(stack):
    raw = json.dumps(a_body(["a" * 40], stream=True)).encode()

    async def leave_after_the_first_piece():
        async with stack.core.answer(COMPLETIONS, raw, headers=(), request_id="r") as reply:
            await anext(reply.body)
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await leave_after_the_first_piece()
    await all_ended(stack)
    assert stack.metric('maskfeed_requests_total{outcome="cancelled"}') == 1


# -- the event loop ------------------------------------------------------------------------------------------------


async def test_a_large_body_is_read_off_the_event_loop_and_a_small_one_is_not(stack):
    await ask(stack, a_body())
    assert stack.executor.submitted == 0
    large = [f"name {number:06d}" for number in range(100_000)]
    answer = await answer_of(stack, a_body(large, max_tokens=20))
    assert answer["maskfeed"]["candidate"] in large
    # once to parse, once to canonicalise
    assert stack.executor.submitted == 2
