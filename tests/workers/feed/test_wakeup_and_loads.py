"""The pool of loads: order, errors, and that a dropped load leaves nothing, whenever it ends."""

import gc
import queue
import select
import threading
import weakref

import pytest

from maskfeed_automata.errors import UnknownArtifact
from maskfeed_workers.loading import Available, LoadEnded, Loads
from maskfeed_workers.wakeup import Wakeup


class Set:
    """Stands for an automaton."""


class Pool:
    """Loads whose ends the test decides."""

    def __init__(self, n_threads=2):
        self.started = queue.SimpleQueue()
        self.answers = {}
        self.discarded = []
        self.held = set()
        self.last_set = None
        self.wakeup = Wakeup()
        self.loads = Loads(
            self._load,
            discard=self.discarded.append,
            is_held=self.held.__contains__,
            wakeup=self.wakeup,
            n_threads=n_threads,
        )

    def _load(self, artifact_hash, available):
        answer = self.answers.setdefault(artifact_hash, queue.SimpleQueue())
        self.started.put(artifact_hash)
        error = answer.get(timeout=10)
        if error is not None:
            raise error
        available()
        made = Set()
        self.last_set = weakref.ref(made)
        return made

    def start(self, number, name):
        self.answers.setdefault(name, queue.SimpleQueue())
        self.loads.start(number, name)

    def collect(self, n_events):
        events = []
        while len(events) < n_events:
            assert select.select([self.wakeup], [], [], 10)[0], "the pool said nothing"
            self.wakeup.clear()
            events += self.loads.collect()
        return events

    def close(self):
        self.loads.stop()
        self.wakeup.close()


@pytest.fixture
def pool():
    made = Pool()
    yield made
    made.close()


def test_a_load_tells_when_its_file_is_there_and_when_it_is_over(pool):
    pool.start(1, "a")
    pool.answers["a"].put(None)
    available, ended = pool.collect(2)
    assert available == Available(1)
    assert (ended.number, ended.reason) == (1, "")
    assert pool.loads.take(1) is ended.automaton
    assert pool.loads.take(1) is None
    assert pool.loads.open_loads() == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnknownArtifact("no blob under ab", artifact_hash="ab"), "unknown-artifact: no blob under ab"),
        (ZeroDivisionError("odd"), "internal-invariant: ZeroDivisionError('odd')"),
    ],
)
def test_a_load_that_raises_ends_with_the_reason(pool, error, reason):
    pool.start(1, "a")
    pool.answers["a"].put(error)
    assert pool.collect(1) == [LoadEnded(1, None, reason)]
    assert pool.loads.take(1) is None


def test_a_slow_load_delays_no_other(pool):
    pool.start(1, "slow")
    pool.start(2, "quick")
    pool.answers["quick"].put(None)
    assert [event.number for event in pool.collect(2)] == [2, 2]
    pool.answers["slow"].put(None)
    pool.collect(2)


def test_a_load_that_ends_after_it_was_dropped_leaves_nothing(pool):
    pool.start(1, "late")
    assert pool.started.get(timeout=10) == "late"
    pool.loads.drop(1)
    assert pool.discarded == []
    pool.answers["late"].put(None)
    while pool.loads.open_loads():
        assert select.select([pool.wakeup], [], [], 10)[0]
        pool.wakeup.clear()
        assert pool.loads.collect() == []
    assert pool.discarded == ["late"]
    gc.collect()
    assert pool.last_set() is None


def test_a_load_that_was_dropped_before_it_began_does_not_run():
    pool = Pool(n_threads=1)
    pool.start(1, "first")
    assert pool.started.get(timeout=10) == "first"
    pool.start(2, "dropped")
    pool.loads.drop(2)
    pool.answers["first"].put(None)
    pool.collect(2)
    pool.start(3, "last")
    pool.answers["last"].put(None)
    pool.collect(2)
    assert pool.started.get(timeout=10) == "last"
    assert pool.discarded == ["dropped"]
    pool.close()


def test_dropping_what_is_loaded_removes_its_file(pool):
    pool.start(1, "a")
    pool.answers["a"].put(None)
    pool.collect(2)
    pool.loads.drop(1)
    pool.loads.drop(1)
    assert pool.discarded == ["a"]
    assert pool.loads.take(1) is None


def test_the_file_stays_while_the_set_is_held_or_loaded_for_another_round(pool):
    pool.start(1, "a")
    pool.start(2, "a")
    for _ in range(2):
        pool.answers["a"].put(None)
    pool.collect(4)
    pool.loads.drop(1)
    assert pool.discarded == []
    pool.held.add("a")
    pool.loads.take(2)
    pool.loads.tidy("a")
    assert pool.discarded == []
    pool.held.remove("a")
    pool.loads.tidy("a")
    assert pool.discarded == ["a"]


def test_a_wakeup_is_readable_until_it_is_cleared_and_harmless_once_closed():
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.wake()
    assert select.select([wakeup], [], [], 0)[0]
    wakeup.clear()
    wakeup.clear()
    assert not select.select([wakeup], [], [], 0)[0]
    thread = threading.Thread(target=wakeup.wake)
    wakeup.close()
    wakeup.close()
    thread.start()
    thread.join(5)
    wakeup.clear()
    assert wakeup.fileno() == -1
