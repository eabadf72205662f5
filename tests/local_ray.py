"""A Ray cluster for tests, one for the whole run, and a store of the test process that its actors can reach."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

import pytest

from maskfeed_cache.store import BlobStore, VocabularySource
from maskfeed_workers.thread_compiler import ThreadCompiler

__all__ = ["CompilerOverStore", "ServedStore", "ray_cluster", "served_store"]

_KEY = b"tests"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A cluster that says it has four CPUs, to which the test process is connected."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_timeout_ms_task_wait_for_death_info": "100",
        # of the actors
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    signal.signal(signal.SIGTERM, handler)
    yield
    ray.shutdown()


@dataclass(frozen=True)
class ServedStore:
    """A store of the test process; may be sent to other processes of this machine."""

    address: str

    def put(self, blob: bytes) -> str:
        return self._call("put", blob)

    def get(self, artifact_hash: str) -> bytes:
        return self._call("get", artifact_hash)

    def get_vocabulary(self, fingerprint: str) -> bytes:
        return self._call("get_vocabulary", fingerprint)

    def close(self) -> None:
        pass

    def _call(self, method: str, argument: object) -> Any:
        with Client(self.address, authkey=_KEY) as connection:
            connection.send((method, argument))
            succeeded, outcome = connection.recv()
        if succeeded:
            return outcome
        raise outcome


@dataclass(frozen=True)
class CompilerOverStore:
    """Opens a compiler in an actor."""

    store: ServedStore
    cache_directory: Path
    threads: int = 1

    def __call__(self) -> ThreadCompiler:
        return ThreadCompiler(self.store, self.store, self.threads, cache_directory=self.cache_directory)


class _Store(BlobStore, VocabularySource, Protocol):
    pass


@contextmanager
def served_store(store: _Store) -> Iterator[ServedStore]:
    """Other processes may call `store`; each call runs in a thread of this one."""
    with Listener(family="AF_UNIX", authkey=_KEY, backlog=16) as listener:
        is_open = True

        def accept() -> None:
            while True:
                connection = listener.accept()
                if not is_open:
                    connection.close()
                    return
                threading.Thread(target=_answer, args=(connection, store), daemon=True).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield ServedStore(str(listener.address))
        is_open = False
        Client(str(listener.address), authkey=_KEY).close()
        accepting.join()


def _answer(connection: Connection, store: _Store) -> None:
    with connection:
        try:
            method, argument = connection.recv()
            outcome = (True, getattr(store, method)(argument))
        except Exception as error:
            outcome = (False, error)
        # the actor that called may have been killed
        with contextlib.suppress(BrokenPipeError):
            connection.send(outcome)
