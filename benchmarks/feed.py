"""How long does a fresh set take from the gateway's announcement to READY on all ranks of an idle engine?

    python benchmarks/feed.py [--rounds 200]

Each rank is a process with the feed that engines use, without an engine beside it; Redis is real and on a UNIX
socket; the gateway is this process. Every round is a set that nobody has seen. A figure counts only if every round
ended in READY and both ranks then handed out an automaton with the right number of candidates.
"""

import argparse
import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import redis

from maskfeed_automata import CandidateSet, Vocabulary, build
from maskfeed_cache.feed_messages import Announcement, Ended, EngineRecord, Ready, decode_engine_event, encode_message
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_workers.feed import RankFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.shared_files import SharedFiles
from maskfeed_workers.star import Exchange

SPAWN = multiprocessing.get_context("spawn")
KEYS = Keyspace(group="bench", namespace="bench")
EPOCH = "b" * 16
LETTERS = [bytes([byte]) for byte in range(256)]
# 256 + 26 * 26 + 26 * 26 * 26 tokens: branching like a tokenizer's, made in a moment.
VOCABULARY = Vocabulary.from_token_bytes(
    LETTERS
    + [a + b for a in LETTERS[97:123] for b in LETTERS[97:123]]
    + [a + b + c for a in LETTERS[97:123] for b in LETTERS[97:123] for c in LETTERS[97:123]]
)
TARGET_BYTES = {"200 KB": 200_000, "2 MB": 2_000_000}
WARM_UP_ROUNDS = 20


@dataclass(frozen=True)
class Figures:
    """One row; milliseconds."""

    ranks: int
    artifact: str
    artifact_bytes: int
    rounds: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    worst_ms: float


def run_rank(rank: int, size: int, url: str, shm_dir: str, control: Connection) -> None:
    """Main of a rank's process; answers hashes with the number of candidates that the rank would serve."""

    # The ranks end one after the other, and whoever is left would report that; a failure before is an assertion here.
    logging.disable()

    def exchange_address(invitation: object) -> object:
        if rank == 0:
            control.send(invitation)
            return invitation
        return control.recv()

    held = HeldSets(limit_bytes=64 << 20, max_sets=64)
    record = EngineRecord(
        EPOCH, KEYS.group, VOCABULARY.fingerprint, 20_000, 512, 19_999, (0,), "m", None, (1,), size, "0"
    )
    feed = RankFeed(
        rank=rank,
        size=size,
        exchange=Exchange(exchange_address) if size > 1 else None,
        vocabulary=VOCABULARY,
        blobs=RedisBlobStore(url, KEYS),
        shared_files=SharedFiles(Path(shm_dir)),
        held=held,
        engine_feed=RedisEngineFeed(url, KEYS) if rank == 0 else None,
        epoch=EPOCH,
        record=record if rank == 0 else None,
        clock=time.monotonic,
        settings=FeedSettings(),
    )
    feed.start()
    control.send("started")
    while (artifact_hash := control.recv()) != "end":
        automaton = held.acquire(artifact_hash, "", 0)
        held.release(0)
        control.send(automaton and automaton.n_candidates)
    feed.stop()


def make_artifact(n_candidates: int, number: int) -> bytes:
    """A set like no other."""
    words = [f"{number:05d} {i * 7_919 % 999_983:06d} entry" for i in range(n_candidates)]
    return build(VOCABULARY, CandidateSet.from_strings(words)).to_bytes()


def candidates_for(target_bytes: int) -> int:
    """How many candidates give an artifact of about this size; asserted, because the format may change."""
    n_candidates = 2_000
    for _ in range(3):
        n_candidates = n_candidates * target_bytes // len(make_artifact(n_candidates, 0))
    assert abs(len(make_artifact(n_candidates, 0)) - target_bytes) < 0.1 * target_bytes
    return n_candidates


def measure(size: int, name: str, n_rounds: int, url: str, shm_dir: str) -> Figures:
    """Start the ranks, feed them one set after the other, stop them."""
    pipes = [SPAWN.Pipe() for _ in range(size)]
    processes = [
        SPAWN.Process(target=run_rank, args=(rank, size, url, shm_dir, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    controls = [ours for ours, _ in pipes]
    if size > 1:
        invitation = controls[0].recv()
        for control in controls[1:]:
            control.send(invitation)
    for control in controls:
        assert control.recv() == "started"
    gateway = Gateway(url)
    n_candidates = candidates_for(TARGET_BYTES[name])
    times_ms = []
    for number in range(WARM_UP_ROUNDS + n_rounds):
        blob = make_artifact(n_candidates, number)
        artifact_hash = gateway.blobs.put(blob)
        times_ms.append(gateway.make_ready(artifact_hash, len(blob), f"{number:032x}"))
        for control in controls:
            control.send(artifact_hash)
        assert [control.recv() for control in controls] == [n_candidates] * size
        gateway.client.delete(KEYS.blob(artifact_hash))
    for control in controls:
        control.send("end")
    for process in processes:
        process.join(10)
    times_ms = sorted(times_ms[WARM_UP_ROUNDS:])
    cuts = statistics.quantiles(times_ms, n=100, method="inclusive")
    return Figures(size, name, len(blob), n_rounds, cuts[49], cuts[89], cuts[98], times_ms[-1])


class Gateway:
    """What a gateway does in Redis, in one thread and without an event loop, so that its own time is small."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url, protocol=2, socket_timeout=15)
        self.blobs = RedisBlobStore(url, KEYS)
        self.client.set(KEYS.gateway("g"), "1")
        newest = self.client.xrevrange(KEYS.events, count=1)
        self.position = newest[0][0] if newest else b"0-0"

    def make_ready(self, artifact_hash: str, size_bytes: int, nonce: str) -> float:
        """Milliseconds from the announcement to READY; the request is over at once."""
        began = time.perf_counter()
        self.client.xadd(KEYS.feed, encode_message(Announcement(artifact_hash, size_bytes, nonce, 60_000, "g")))
        ((_, entries),) = self.client.xread({KEYS.events: self.position}, block=10_000)
        took_ms = (time.perf_counter() - began) * 1e3
        self.position = entries[-1][0]
        assert [decode_engine_event(fields) for _, fields in entries] == [Ready(artifact_hash, EPOCH, nonce)]
        self.client.xadd(KEYS.feed, encode_message(Ended(nonce)))
        return took_ms


def main() -> None:
    """Measure every row and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    arguments = parser.parse_args()
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mf-") as folder, tempfile.TemporaryDirectory(dir=shm) as shm_dir:
        server = PrivateRedis(Path(folder))
        server.start()
        try:
            for size in (1, 2):
                for name in TARGET_BYTES:
                    row = measure(size, name, arguments.rounds, server.url, str(Path(shm_dir) / "maskfeed"))
                    print(json.dumps(asdict(row)) if arguments.json else describe(row), flush=True)
        finally:
            server.stop()


def describe(row: Figures) -> str:
    """One line for a person."""
    times = f"p50 {row.p50_ms:.2f}  p90 {row.p90_ms:.2f}  p99 {row.p99_ms:.2f}  worst {row.worst_ms:.2f} ms"
    return f"{row.ranks} rank(s), {row.artifact:>6} ({row.artifact_bytes:>9,} bytes), {row.rounds} rounds: {times}"


if __name__ == "__main__":
    sys.exit(main())
