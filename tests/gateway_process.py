"""`maskfeed serve` in a process of its own, and a fake engine that shares its Redis."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from fake_engine import FakeEngine
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore

__all__ = ["SOURCE_ROOTS", "Served", "an_engine", "served"]

SOURCE_ROOTS = [
    str(Path(__file__).resolve().parents[1] / root) for root in ("automata", "cache", "workers", "middleware")
]


@asynccontextmanager
async def an_engine(redis_url):
    blobs = RedisBlobStore(redis_url)
    try:
        async with FakeEngine(RedisEngineFeed(redis_url, Keyspace()), blobs) as engine:
            yield engine
    finally:
        blobs.close()


class Served:
    """`maskfeed serve` in a process of its own."""

    def __init__(self, *arguments, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MASKFEED_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "maskfeed.cli", "serve", "--port", "0", *arguments],
            env={**inherited, "PYTHONPATH": os.pathsep.join([*SOURCE_ROOTS, *sys.path]), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed = {}

    def read_until(self, name):
        """The value that the process prints for `name`."""
        while name not in self.printed:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            key, _, value = line.strip().partition("=")
            self.printed[key] = value
        return self.printed[name]

    def log_until(self, event):
        """Read the log up to a line with `event`."""
        for line in self.process.stderr:
            if f"event={event}" in line:
                return
        raise AssertionError(f"the gateway ended without {event}")

    def ask_to_stop(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """Exit code and the rest of the log."""
        _, log = self.process.communicate(timeout=30)
        return self.process.returncode, log


@asynccontextmanager
async def served(*arguments, **environment):
    gateway = Served(*arguments, **environment)
    try:
        yield gateway
    finally:
        gateway.process.kill()
        await asyncio.to_thread(gateway.process.communicate)
