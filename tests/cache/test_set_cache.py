"""Compiled sets kept in a process: the same answers as `compile`, one compile for one set, exact bytes."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import maskfeed
from maskfeed import CandidateError, CandidateSet, LimitExceeded, Limits, ParameterError, SetCache, Vocabulary, compile
from maskfeed_cache import set_cache
from seed_interleaving import GUARD_S
from vocabularies import HAND_STOP, hand_vocabulary

VOCABULARY = hand_vocabulary()


class Builds:
    """Counts what is built, and holds it up while `gate` is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        build = set_cache.build

        def counted(*args: object, **options: object) -> maskfeed.Automaton:
            self.n += 1
            self.entered.release()
            assert self.gate.wait(GUARD_S)
            return build(*args, **options)

        monkeypatch.setattr(set_cache, "build", counted)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


@pytest.mark.parametrize("leading_space", ["never", "optional", "always"])
def test_what_it_returns_is_what_compile_returns(leading_space: maskfeed.LeadingSpace):
    candidates = ["foo", "food", "foo", "bar"]
    cache = SetCache(VOCABULARY)
    for _ in range(2):
        kept = cache.get(candidates, leading_space=leading_space)
        fresh = compile(VOCABULARY, candidates, leading_space=leading_space)
        assert kept.to_bytes() == fresh.to_bytes()
        assert kept.stop_token_ids == fresh.stop_token_ids == (HAND_STOP,)
        assert np.array_equal(kept.cursor().allowed_token_ids(), fresh.cursor().allowed_token_ids())


def test_a_list_in_another_order_and_with_duplicates_is_the_same_set_with_its_own_indices(builds: Builds):
    cache = SetCache(VOCABULARY)
    answers = []
    for candidates in (["foo", "bar"], ["bar", "bar", "foo"], [b"bar", b"foo"]):
        cursor = cache.get(candidates).cursor()
        for token in (6, 8):  # f, oo
            cursor.advance(token)
        answers.append(cursor.candidate_index)
    assert answers == [0, 2, 1]
    assert builds.n == 1


def test_stop_ids_and_leading_spaces_are_each_askers_own(builds: Builds):
    cache = SetCache(VOCABULARY)
    assert cache.get(["foo"]).stop_token_ids == (HAND_STOP,)
    assert cache.get(["foo"], stop_token_ids=[15, 22]).stop_token_ids == (15, 22)
    assert cache.get(["foo"], stop_token_ids=[]).stop_token_ids == ()
    assert builds.n == 1
    assert cache.get(["foo"], leading_space="always").digest != cache.get(["foo"]).digest
    assert builds.n == 2


def test_a_candidate_set_that_was_made_before_is_taken_as_it_is(builds: Builds):
    cache = SetCache(VOCABULARY)
    candidate_set = CandidateSet.from_strings(["bar", "foo"])
    assert cache.get(candidate_set, limits=Limits(max_candidates=1)).digest == cache.get(["foo", "bar"]).digest
    assert builds.n == 1


def test_the_size_is_that_of_the_artifacts_and_zero_after_a_clear():
    cache = SetCache(VOCABULARY)
    kept = [cache.get(candidates) for candidates in (["foo"], ["bar", "food"])]
    assert cache.size_bytes() == sum(len(automaton.to_bytes()) for automaton in kept)
    assert (cache.generation, cache.clear(), cache.generation) == (1, 2, 2)
    assert cache.size_bytes() == 0
    assert kept[0].cursor().allowed_token_ids().size, "what was handed out lives on"
    cache.get(["foo"])
    assert cache.size_bytes() == kept[0].nbytes


def test_a_limit_keeps_the_most_recently_used_sets(builds: Builds):
    n_bytes = compile(VOCABULARY, ["foo"]).nbytes
    cache = SetCache(VOCABULARY, limit_bytes=2 * n_bytes)
    for text in ("foo", "bar", "foo", "bad"):
        cache.get([text])
    assert builds.n == 3
    usage = cache.usage()
    assert (usage.entries, usage.bytes, usage.evictions, usage.hits) == (2, 2 * n_bytes, 1, 1)
    cache.get(["foo"])
    assert builds.n == 3
    cache.get(["bar"])
    assert builds.n == 4


def test_a_set_larger_than_the_limit_is_compiled_each_time(builds: Builds):
    cache = SetCache(VOCABULARY, limit_bytes=100)
    for _ in range(2):
        assert cache.get(["foo"]).n_candidates == 1
    assert (builds.n, cache.size_bytes()) == (2, 0)


def test_threads_that_ask_for_one_set_wait_for_one_compile(builds: Builds):
    cache = SetCache(VOCABULARY)
    builds.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(cache.get, ["foo", "bar"][:: 1 if n % 2 else -1]) for n in range(8)]
        try:
            assert builds.entered.acquire(timeout=GUARD_S)
        finally:
            builds.gate.set()
        assert len({future.result(GUARD_S).digest for future in futures}) == 1
    assert builds.n == 1


def test_a_compile_that_a_clear_overtakes_answers_and_is_not_kept(builds: Builds):
    cache = SetCache(VOCABULARY)
    builds.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(cache.get, ["foo"])
        try:
            assert builds.entered.acquire(timeout=GUARD_S)
            cache.clear()
        finally:
            builds.gate.set()
        assert future.result(GUARD_S).n_candidates == 1
    assert cache.size_bytes() == 0


def test_a_bad_candidate_is_named_by_the_index_in_each_askers_own_list(builds: Builds):
    cache = SetCache(VOCABULARY)
    builds.gate.clear()
    lists = [["foo", "xyz", "bar"], ["xyz", "foo", "bar"]]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(cache.get, candidates) for candidates in lists]
        try:
            assert builds.entered.acquire(timeout=GUARD_S)
        finally:
            builds.gate.set()
        errors = [future.exception(GUARD_S) for future in futures]
    assert [error.context["index"] for error in errors if isinstance(error, CandidateError)] == [1, 0]
    assert cache.size_bytes() == 0
    with pytest.raises(CandidateError):
        cache.get(lists[0])


def test_what_can_be_refused_before_compiling_is(builds: Builds):
    cache = SetCache(VOCABULARY)
    with pytest.raises(LimitExceeded):
        cache.get(["foo", "bar"], limits=Limits(max_candidates=1))
    with pytest.raises(CandidateError):
        cache.get([])
    with pytest.raises(ParameterError):
        cache.get(["foo"], leading_space="sometimes")  # type: ignore[arg-type]
    assert builds.n == 0
    with pytest.raises(ParameterError):
        cache.get(["foo"], stop_token_ids=[VOCABULARY.size])


def test_a_cleared_set_that_nobody_holds_is_freed():
    vocabulary = Vocabulary.from_token_bytes([b"a", b"b"])
    cache = SetCache(vocabulary)
    kept = cache.get(["ab"])
    freed = threading.Event()
    weakref.finalize(kept.arrays.byte, freed.set)
    cache.clear()
    del kept
    gc.collect()
    assert freed.wait(GUARD_S)


def test_a_limit_below_zero_is_refused():
    with pytest.raises(ParameterError, match="at least 0, not -1"):
        SetCache(VOCABULARY, limit_bytes=-1)
