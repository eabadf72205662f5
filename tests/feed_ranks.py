"""Ranks for tests of the feed: in this process, or in another one that does as it is told.

A module of its own, because the other process imports it by name.
"""

import multiprocessing
import threading
import time
from dataclasses import replace

from feed_samples import RECORD
from maskfeed_automata import Automaton, CandidateSet, Vocabulary, build
from maskfeed_automata.errors import RankFailure, StoreUnavailable
from maskfeed_cache.connection import DEFAULT_TIMEOUTS
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_workers.feed import RankFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import artifact_loader
from maskfeed_workers.shared_files import SharedFiles
from maskfeed_workers.star import Exchange

__all__ = ["EPOCH", "KEYS", "VOCABULARY", "WAIT_S", "MemberProcess", "Rank", "warm_up"]

KEYS = Keyspace(group="ranks")
VOCABULARY = Vocabulary.from_token_bytes([bytes([i]) for i in range(256)])
EPOCH = "0123456789abcdef"
# Longer than a process takes to start on a busy machine with cold caches; only a failing test waits for it.
WAIT_S = 60

_SPAWN = multiprocessing.get_context("spawn")


class GuidedLoad:
    """The real load, which can be told to stop before its end, or to fail."""

    def __init__(self, load, report):
        self.load = load
        self.report = report
        self.gates = {}
        self.failures = {}

    def __call__(self, artifact_hash, available):
        if artifact_hash in self.failures:
            raise RankFailure(self.failures[artifact_hash], reason="told-to")
        automaton = self.load(artifact_hash, available)
        gate = self.gates.get(artifact_hash)
        if gate is not None:
            self.report(artifact_hash)
            assert gate.wait(WAIT_S)
        return automaton

    def hold_back(self, artifact_hash):
        self.gates[artifact_hash] = threading.Event()

    def let_go(self, artifact_hash):
        self.gates.pop(artifact_hash).set()

    def fail(self, artifact_hash, reason):
        self.failures[artifact_hash] = reason


class WatchedEngineFeed(RedisEngineFeed):
    """Tells when the feed has noticed that the store is away, at its start or later: it then tries again."""

    def __init__(self, url, timeouts):
        super().__init__(url, KEYS, timeouts=timeouts)
        self.was_lost = threading.Event()
        self.was_not_there = threading.Event()

    def register(self, record, vocabulary):
        try:
            super().register(record, vocabulary)
        except StoreUnavailable:
            self.was_not_there.set()
            raise

    def reconnect(self):
        self.was_lost.set()
        super().reconnect()


class Rank:
    """One rank's feed with what it is made of."""

    def __init__(
        self,
        rank,
        *,
        size=2,
        url,
        shm_dir,
        exchange=None,
        report=None,
        max_sets=4,
        round_timeout_s=10.0,
        timeouts=DEFAULT_TIMEOUTS,
        register_timeout_s=WAIT_S,
    ):
        self.held = HeldSets(limit_bytes=1_000_000, max_sets=max_sets)
        self.files = SharedFiles(shm_dir)
        blobs = RedisBlobStore(url, KEYS)
        self.engine_feed = WatchedEngineFeed(url, timeouts) if rank == 0 else None
        self.load = GuidedLoad(artifact_loader(self.files, blobs, VOCABULARY), report)
        self.feed = RankFeed(
            rank=rank,
            size=size,
            exchange=exchange,
            vocabulary=VOCABULARY,
            blobs=blobs,
            shared_files=self.files,
            held=self.held,
            engine_feed=self.engine_feed,
            epoch=EPOCH,
            record=replace(RECORD, epoch=EPOCH, n_ranks=size) if rank == 0 else None,
            clock=time.monotonic,
            settings=FeedSettings(
                round_timeout_s=round_timeout_s,
                renew_interval_s=0.2,
                connect_timeout_s=WAIT_S,
                register_timeout_s=register_timeout_s,
            ),
            load=self.load,
        )

    def state(self):
        return {"held": self.held.hashes(), "names": self.files.names(), "dead": self.feed.dead}


def warm_up():
    """Have the kernels compiled before a deadline counts."""
    artifact = build(VOCABULARY, CandidateSet.from_strings(["warm"])).to_bytes()
    Automaton.from_bytes(artifact, VOCABULARY)


def live_as_member(control, reports):
    """Main of the other process: rank 1 of one engine after another, as it is told."""
    reporting = threading.Lock()

    def report(artifact_hash):
        with reporting:
            reports.send(artifact_hash)

    warm_up()
    control.send("warm")
    rank = None
    while True:
        match control.recv():
            case ("start", options):
                rank = Rank(1, exchange=Exchange(lambda nothing: control.recv()), report=report, **options)
                rank.feed.start()
            case ("stop",):
                rank.feed.stop()
            case ("hold_back" | "let_go" | "fail" as order, *arguments):
                getattr(rank.load, order)(*arguments)
            case ("state",):
                control.send(rank.state())
                continue
            case ("end",):
                return
        control.send("done")


class MemberProcess:
    """The process in which rank 1 lives; one for all tests, until one kills it."""

    def __init__(self):
        self.control, control = _SPAWN.Pipe()
        self.reports, reports = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=live_as_member, args=(control, reports), daemon=True)
        self.process.start()
        control.close()
        reports.close()
        self.is_warm = False

    def wait_until_warm(self):
        if not self.is_warm:
            assert self.answer() == "warm"
            self.is_warm = True

    def tell(self, *order):
        self.control.send(order)
        return self.answer()

    def answer(self):
        assert self.control.poll(WAIT_S), "the member does not answer"
        return self.control.recv()

    def next_report(self):
        assert self.reports.poll(WAIT_S), "the member reports nothing"
        return self.reports.recv()

    def end(self):
        if self.process.is_alive():
            self.control.send(("end",))
        self.process.join(WAIT_S)
        self.control.close()
        self.reports.close()
