"""A process of a cluster that shares a cache, to be killed: `cache_member.py URL EVENTS_FD LEASE_MS CLIENTS STOP_AT`.

CLIENTS callers ask for one key at once. The process tells what happens by writing the line "<event> <pid>" into the
pipe EVENTS_FD, which stays when the server of URL is killed: "asked" when all its callers are on their way, "computing"
when it computes. A computation counts itself in `test:computations` and then waits for an element of the list
`test:gate`. With STOP_AT "commit" the process tells "committing" when the blob is there, and goes no further; with
"mid-commit" it freezes the server, and then sends the commit. Prints one JSON object: answers by artifact hash, tries,
and what became of its computations.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Never

import redis.asyncio

from maskfeed_automata.errors import StoreUnavailable
from maskfeed_cache.connection import Timeouts
from maskfeed_cache.fence import Commit, IndexEntry, Layer, Lease, Pin
from maskfeed_cache.flight import Report
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.shared_cache import Outcome, SharedCache
from waiting import eventually

__all__ = ["ARTIFACT", "COMPUTATIONS", "GATE"]

ARTIFACT = b"what everybody asks for"
COMPUTATIONS, GATE = "test:computations", "test:gate"

Tell = Callable[[str], None]


class StoppingIndex(RedisIndex):
    """Tells that it is about to commit, and never does."""

    def __init__(self, url: str, tell: Tell) -> None:
        super().__init__(url)
        self._tell = tell

    async def commit(self, *arguments: Any, **options: Any) -> Never:
        self._tell("committing")
        await asyncio.Event().wait()
        raise AssertionError


class FreezingIndex(RedisIndex):
    """Freezes the server just before its first commit is sent."""

    def __init__(self, url: str, tell: Tell, client: Any) -> None:
        super().__init__(url, timeouts=Timeouts(2.0, 10.0))
        self._tell = tell
        self._observer = client
        self._is_first = True

    async def commit(self, lease: Lease, entry: IndexEntry, *, pin: Pin | None = None) -> Commit:
        if self._is_first:
            self._is_first = False
            server = int((await self._observer.info("server"))["process_id"])
            self._tell("committing")
            os.kill(server, signal.SIGSTOP)
        return await super().commit(lease, entry, pin=pin)


async def main(url: str, events_fd: int, lease_ms: int, n_clients: int, stop_at: str) -> None:
    client: Any = redis.asyncio.Redis.from_url(url, protocol=2, socket_timeout=None)
    store = RedisBlobStore(url)

    def tell(event: str) -> None:
        # one write of less than PIPE_BUF bytes: lines of several processes do not mix
        os.write(events_fd, f"{event} {os.getpid()}\n".encode())

    async def compute(report: Report) -> IndexEntry:
        await client.incr(COMPUTATIONS)
        tell("computing")
        await client.blpop([GATE], timeout=0)
        return IndexEntry(await asyncio.to_thread(store.put, ARTIFACT), len(ARTIFACT))

    index: RedisIndex = RedisIndex(url, timeouts=Timeouts(2.0, 10.0))
    if stop_at == "commit":
        index = StoppingIndex(url, tell)
    elif stop_at == "mid-commit":
        index = FreezingIndex(url, tell, client)
    outcomes: Counter[Outcome] = Counter()
    loop = asyncio.get_running_loop()
    follower = IndexFollower(index, clock=loop)
    cache = SharedCache(
        follower,
        Layer.SETS,
        clock=loop,
        lease_ms=lease_ms,
        observe=lambda outcome: outcomes.update([outcome]),
    )
    follower.start()
    tries: Counter[str] = Counter()

    async def store_answers() -> bool:
        try:
            await index.ping()
        except StoreUnavailable:
            return False
        return True

    async def ask() -> str:
        while True:
            tries["all"] += 1
            try:
                return (await cache.get("key", compute)).entry.artifact_hash
            except (StoreUnavailable, redis.ConnectionError):
                # a client of the gateway, too, tries again after an error that says it can be retried
                await eventually(store_answers, within_s=30)

    asking = [asyncio.create_task(ask()) for _ in range(n_clients)]
    # a round trip later, what the callers sent before it has reached the server, too
    await index.ping()
    tell("asked")
    answers = Counter(await asyncio.gather(*asking))
    print(json.dumps({"answers": answers, "tries": tries["all"], "outcomes": outcomes}), flush=True)
    await cache.close()
    await follower.close()
    await index.close()
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
