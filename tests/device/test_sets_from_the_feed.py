"""What a feed loads lies on the device before the rank votes for it, and leaves the device when it is forgotten."""

import select

import pytest
from device_batch import CPU

from maskfeed_automata import CandidateSet, Vocabulary, build
from maskfeed_automata.errors import CapacityError
from maskfeed_workers.device_layout import SetLayout
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.loading import Available, LoadEnded, Loads, onto_device
from maskfeed_workers.wakeup import Wakeup

VOCABULARY = Vocabulary.from_token_bytes([bytes([byte]) for byte in range(256)])
SMALL = build(VOCABULARY, CandidateSet.from_strings(["a", "b"]))
LARGE = build(VOCABULARY, CandidateSet.from_strings([f"{n:05}" for n in range(3_000)]))


class Feed:
    """The loads of one rank, whose sets must also find room on a device."""

    def __init__(self, arena_bytes: int) -> None:
        self.sets = DeviceSets(device=CPU, arena_bytes=arena_bytes, max_sets=4)
        self.held: set[str] = set()
        self.wakeup = Wakeup()
        self.loads = Loads(
            onto_device(lambda name, available: {"small": SMALL, "large": LARGE}[name], self.sets),
            discard=self.sets.evict,
            is_held=self.held.__contains__,
            wakeup=self.wakeup,
            n_threads=1,
        )

    def load(self, number: int, name: str) -> LoadEnded:
        self.loads.start(number, name)
        events: list[Available | LoadEnded] = []
        while not events:
            readable, _, _ = select.select([self.wakeup], [], [], 10.0)
            assert readable, "the load does not end"
            self.wakeup.clear()
            events = self.loads.collect()
        (ended,) = events
        assert isinstance(ended, LoadEnded)
        return ended


@pytest.fixture
def feed():
    feed = Feed(SetLayout.of(SMALL).size_bytes)
    yield feed
    feed.loads.stop()
    feed.wakeup.close()


def test_a_loaded_set_is_on_the_device_and_leaves_it_when_its_round_is_dropped(feed):
    assert feed.load(1, "small").automaton is SMALL
    assert feed.sets.names() == ["small"]
    feed.loads.drop(1)
    assert feed.sets.names() == []


def test_a_held_set_stays_on_the_device_until_it_is_forgotten(feed):
    feed.load(1, "small")
    assert feed.loads.take(1) is SMALL
    feed.held.add("small")
    feed.loads.tidy("small")
    assert feed.sets.names() == ["small"]
    feed.held.clear()
    feed.loads.tidy("small")
    assert feed.sets.names() == []


def test_a_set_without_room_on_the_device_is_a_failed_load_that_says_how_much_there_was(feed):
    ended = feed.load(1, "large")
    assert ended.automaton is None
    size = SetLayout.of(LARGE).size_bytes
    assert CapacityError.code in ended.reason
    assert f"a set of {size} bytes" in ended.reason
    assert f"of {feed.sets.arena_bytes} bytes" in ended.reason
    feed.loads.drop(1)
