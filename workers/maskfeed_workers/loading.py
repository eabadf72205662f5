"""Loads of sets in a small pool of threads, and the sets that are loaded but not decided.

It knows how a load is started, taken and dropped; it knows nothing of votes, frames or promises. Everything but the
pool's threads belongs to the feed thread, which hears of the pool through a `Wakeup` and `collect`.
Invariants: a load that was dropped, before, during or after it ran, leaves nothing behind, neither in memory nor in
shared memory; one slow load delays no other while there are threads left.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from maskfeed_automata import Automaton, Vocabulary
from maskfeed_automata.errors import MaskfeedError
from maskfeed_cache.store import BlobStore
from maskfeed_workers.shared_files import SharedFiles
from maskfeed_workers.wakeup import Wakeup

__all__ = ["Available", "LoadEnded", "LoadSet", "Loads", "SetDevice", "artifact_loader", "onto_device"]

_log = logging.getLogger(__name__)

_THREAD_NAME: Final = "maskfeed-load"


# (artifact hash, called once others can map the file) -> the verified set.
# Runs in the pool; any exception is a failed load.
LoadSet = Callable[[str, Callable[[], None]], Automaton]


@dataclass(frozen=True, slots=True)
class Available:
    """The bytes of this load are where other ranks of the host can map them; they are not verified yet."""

    number: int


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """This load is over: its set, or the reason why there is none."""

    number: int
    automaton: Automaton | None
    reason: str


@dataclass(slots=True)
class _Job:
    number: int
    artifact_hash: str
    automaton: Automaton | None = None
    running: bool = True
    dropped: bool = False


def artifact_loader(files: SharedFiles, blobs: BlobStore, vocabulary: Vocabulary) -> LoadSet:
    """The real load: map the artifact (first rank of a host: fetch and write it), check its hash, read it."""

    def load(artifact_hash: str, available: Callable[[], None]) -> Automaton:
        buffer = files.load(artifact_hash, lambda: blobs.get(artifact_hash), available=available)
        return Automaton.from_bytes(buffer, vocabulary)

    return load


class SetDevice(Protocol):
    """Where a loaded set must lie before this rank can use it."""

    def place(self, name: str, automaton: Automaton) -> object:
        """Bring the set there; CapacityError if there is no room."""
        ...


def onto_device(load: LoadSet, device: SetDevice) -> LoadSet:
    """`load`, and then the set's copy on the device: a rank without room for it votes against it."""

    def load_and_place(artifact_hash: str, available: Callable[[], None]) -> Automaton:
        automaton = load(artifact_hash, available)
        device.place(artifact_hash, automaton)
        return automaton

    return load_and_place


class Loads:
    """Loads by their round's number.

    Args:
        load: what a pool thread does.
        discard: removes a set's file; not called while the set is held or another load for it is open.
        is_held: whether this rank holds a set.
        wakeup: woken whenever `collect` has something.
        n_threads: loads that run at once; more than that wait.
    """

    def __init__(
        self,
        load: LoadSet,
        *,
        discard: Callable[[str], None],
        is_held: Callable[[str], bool],
        wakeup: Wakeup,
        n_threads: int,
    ) -> None:
        self._load = load
        self._discard = discard
        self._is_held = is_held
        self._wakeup = wakeup
        self._jobs: dict[int, _Job] = {}
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Available | LoadEnded] = queue.SimpleQueue()
        # Not a ThreadPoolExecutor: the interpreter would wait at exit for a load that hangs.
        self._threads = [threading.Thread(target=self._work, name=_THREAD_NAME, daemon=True) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def start(self, number: int, artifact_hash: str) -> None:
        """Begin a load."""
        self._jobs[number] = job = _Job(number, artifact_hash)
        self._waiting.put(job)

    def collect(self) -> list[Available | LoadEnded]:
        """What has happened to loads that were not dropped, in order."""
        events: list[Available | LoadEnded] = []
        while not self._events.empty():
            event = self._events.get()
            job = self._jobs[event.number]
            if isinstance(event, LoadEnded):
                job.running = False
                job.automaton = event.automaton
            if not job.dropped:
                events.append(event)
            elif not job.running:
                self._remove(job)
        return events

    def take(self, number: int) -> Automaton | None:
        """Hand over the set of a load that has ended well, for good. None if there is no such load."""
        job = self._jobs.get(number)
        if job is None or job.automaton is None:
            return None
        del self._jobs[number]
        return job.automaton

    def drop(self, number: int) -> None:
        """Let go of a load in whatever state it is. One that is not there changes nothing."""
        job = self._jobs.get(number)
        if job is None:
            return
        job.dropped = True
        if not job.running:
            self._remove(job)

    def tidy(self, artifact_hash: str) -> None:
        """Remove the set's file unless it is held or being loaded."""
        if not self._is_held(artifact_hash) and all(job.artifact_hash != artifact_hash for job in self._jobs.values()):
            self._discard(artifact_hash)

    def open_loads(self) -> list[int]:
        """Numbers of the loads that run or whose set was neither taken nor dropped."""
        return sorted(self._jobs)

    def stop(self) -> None:
        """Let the threads end after what they are doing now; it is not waited for."""
        for job in self._jobs.values():
            job.dropped = True
        for _ in self._threads:
            self._waiting.put(None)

    def _remove(self, job: _Job) -> None:
        del self._jobs[job.number]
        job.automaton = None
        self.tidy(job.artifact_hash)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            # A function of its own, so that no local of this loop keeps a set alive.
            self._events.put(self._run(job))
            self._wakeup.wake()

    def _run(self, job: _Job) -> LoadEnded:
        if job.dropped:
            return LoadEnded(job.number, None, "dropped")
        try:
            return LoadEnded(job.number, self._load(job.artifact_hash, lambda: self._tell_available(job.number)), "")
        except MaskfeedError as error:
            return LoadEnded(job.number, None, f"{error.code}: {error.message}")
        except Exception as error:
            _log.exception("load of %s broke", job.artifact_hash[:12])
            return LoadEnded(job.number, None, f"internal-invariant: {error!r}")

    def _tell_available(self, number: int) -> None:
        self._events.put(Available(number))
        self._wakeup.wake()
