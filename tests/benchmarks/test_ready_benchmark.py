"""The pieces of `benchmarks/ready.py` that need no engine."""

import json
from itertools import islice

import pytest


@pytest.fixture
def ready(benchmark_module):
    return benchmark_module("ready")


@pytest.fixture
def live(benchmark_module):
    return benchmark_module("live_requests")


def test_every_list_is_another_and_has_no_candidate_twice(live):
    lists = list(islice(live.FreshLists("names", 40), 5))
    assert all(len(set(candidates)) == len(candidates) == 40 for candidates in lists)
    assert len({frozenset(candidates) for candidates in lists}) == 5


def test_the_middle_and_the_tail_of_times_are_told(live):
    told = live.distribution([float(n) for n in range(1, 102)])
    assert (told.n, told.p50, told.p90, told.p99, told.worst) == (101, 51.0, 91.0, 100.0, 101.0)


async def test_an_answer_counts_only_if_it_is_a_candidate(live, server):
    async with live.open_client("model") as client:
        wanted = client.wanted(["a", "b"], {"candidates": ["a", "b"]})
        asked = await client.ask(server, wanted)
        assert (asked.text, asked.n_tokens, asked.told) == ("a", 1, {"cache": "miss"})
        with pytest.raises(AssertionError):
            await client.ask(server, live.Wanted(wanted.body, ["b"]))


async def test_each_request_has_a_seed_of_its_own(live):
    async with live.open_client("model") as client:
        seeds = [json.loads(client.wanted([], {}).body)["seed"] for _ in range(3)]
    assert len(set(seeds)) == 3


async def test_the_stages_of_a_gateway_are_read_from_its_metrics(live, server):
    async with live.open_client("model") as client:
        assert await client.stage_seconds(server) == {"parse": 0.25, "ready": 0.002}


async def test_a_stream_that_ends_begins_again_and_only_gaps_inside_one_count(live, server):
    async with live.open_client("model") as client:
        stream = client.stream(server, 3)
        async with stream.running():
            while len(stream.gaps_ms) < 6:
                await client.ask_freely(server, client.free_body(1))
    # two gaps for each whole stream
    assert all(0 <= gap < 1_000 for gap in stream.gaps_ms)


def test_gates_are_judged_and_told(ready, live):
    def times(p50, p99):
        return live.Distribution(100, p50, p50, p99, p99)

    idle = {"phase": "idle", "ready": times(19.0, 61.0)}
    assert [line.partition(":")[0] for line in ready.gates(idle)] == ["reached", "not reached"]
    gaps = {"alone": times(1.0, 10.0), "known": times(1.0, 11.0), "fresh": times(1.0, 12.5)}
    told = ready.gates({"phase": "decoding", "gaps": gaps})
    assert [line.partition(":")[0] for line in told] == ["reached", "not reached"]
