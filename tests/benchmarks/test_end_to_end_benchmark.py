"""The pieces of `benchmarks/end_to_end.py` that need no engine."""

from itertools import repeat

import llguidance
import pytest


@pytest.fixture
def end_to_end(benchmark_module):
    return benchmark_module("end_to_end")


def test_the_peers_grammar_is_one_that_llguidance_takes(end_to_end):
    grammar = end_to_end.lark_terminal(['say "no"', "back\\slash", "Zürich"])
    assert llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(grammar)) == ""


def test_a_comparison_tells_the_ratio_of_medians_and_whether_the_gate_is_reached(end_to_end):
    seconds = {"maskfeed": [0.1, 0.2, 9.0], "xgrammar choice": [1.1], "unconstrained": [0.1]}
    row = {"size": 1_000, "native": "xgrammar choice", "seconds": seconds}
    told = end_to_end.describe_row(row, 0.5)
    assert "xgrammar choice / maskfeed 5.5, maskfeed / unconstrained 2.00" in told
    assert told.splitlines()[-1].startswith("reached: 5 times")
    assert end_to_end.describe_row({**row, "size": 10_000}, 0.5).splitlines()[-1].startswith("not reached: 29 times")


async def test_a_native_way_that_took_too_long_is_not_asked_again_for_lists_of_that_size(end_to_end, monkeypatch):
    bench = end_to_end.Bench(None, "engine", "gateway")
    asked = []

    async def at_once(way, lists, n):
        asked.append(way)
        return [], 0.1 if way == "maskfeed" else end_to_end.ENOUGH_S + 1

    async def unconstrained(n_tokens):
        return 0.1

    monkeypatch.setattr(bench, "_at_once", at_once)
    monkeypatch.setattr(bench, "_unconstrained", unconstrained)
    row = await bench.compare("slow", 10, repeat([]), 3)
    assert asked.count("slow") == len(row["seconds"]["slow"]) == 1
    assert len(row["seconds"]["maskfeed"]) == 3


async def test_rates_are_of_answers_that_were_candidates(end_to_end, benchmark_module, server):
    async with benchmark_module("live_requests").open_client("model") as client:
        rates = await end_to_end.Bench(client, server, server).rate(["a", "b"])
    assert rates["n_tokens"] == 1
    assert len(rates["constrained"]) == len(rates["unconstrained"]) == end_to_end.RATE_ROUNDS
    told = end_to_end.describe_rates({"n_tokens": 1, "constrained": [96.0], "unconstrained": [100.0]})
    assert told.splitlines()[-1] == "not reached: constrained / unconstrained at least 0.97: 0.960"


async def test_a_stream_is_watched_while_lists_are_posted(end_to_end, benchmark_module, server, monkeypatch):
    monkeypatch.setattr(end_to_end, "STALL_S", 0.05)
    monkeypatch.setattr(end_to_end, "STALL_LISTS", 3)
    async with benchmark_module("live_requests").open_client("model") as client:
        row = await end_to_end.Bench(client, server, server).stalls("xgrammar choice", 2, repeat(["free", "a"]))
    streams = row["streams"]
    assert streams["nothing"]["n_posted"] == 0 < streams["maskfeed"]["n_posted"] <= 3
    assert len(end_to_end.describe_stalls(row).splitlines()) == 6
