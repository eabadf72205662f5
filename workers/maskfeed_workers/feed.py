"""One rank's feed: the thread beside the decode loop that brings sets to the rank, and its life.

It connects the ranks, registers the engine (rank 0), runs the feed's thread and ends it. The decode thread needs only
`held`. Invariant: when the thread ends for any reason but `stop`, the epoch is over: `dead` says why, and rank 0
refuses every set from then on, at once or as soon as it sees the connection end. The other ranks refuse nothing of
their own: they follow rank 0, whose word may still be on its way.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import InternalInvariant, MaskfeedError, RankFailure, StoreUnavailable
from maskfeed_cache.connection import backoff_s
from maskfeed_cache.feed import EngineFeed
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.store import BlobStore
from maskfeed_workers.feed_member import MemberFeed
from maskfeed_workers.feed_root import RootFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import Loads, LoadSet, artifact_loader
from maskfeed_workers.shared_files import SharedFiles
from maskfeed_workers.star import Exchange, Peer, connect_star
from maskfeed_workers.wakeup import Wakeup

__all__ = ["RankFeed"]

_log = logging.getLogger(__name__)

_THREAD_NAME: Final = "maskfeed-feed"


class RankFeed:
    """The feed of one rank for one epoch. `start` and `stop` are for one thread.

    Args:
        rank: of this process among the ranks that share requests.
        size: number of these ranks.
        exchange: how the ranks find each other; None for an engine with one rank, which uses no socket.
        vocabulary: the engine's, as artifacts for it are made.
        blobs: where artifacts are fetched; owned from now on.
        shared_files: this rank's part of the host's shared memory; owned from now on.
        held: this rank's sets.
        engine_feed: the line to the gateways, on rank 0; None on the others. Owned from now on.
        epoch: this life of the engine; the same on all ranks.
        record: what the engine publishes of itself, on rank 0; None on the others.
        clock: seconds, monotonic; the one of `held`.
        settings: times.
        load: what loads a set, instead of `artifact_loader` on the arguments above.
        forgotten: told the hash of a set that this rank neither holds nor loads any more.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        exchange: Exchange | None,
        vocabulary: Vocabulary,
        blobs: BlobStore,
        shared_files: SharedFiles,
        held: HeldSets,
        engine_feed: EngineFeed | None,
        epoch: str,
        record: EngineRecord | None,
        clock: Callable[[], float],
        settings: FeedSettings,
        load: LoadSet | None = None,
        forgotten: Callable[[str], None] | None = None,
    ) -> None:
        if (rank == 0) != (engine_feed is not None and record is not None):
            raise InternalInvariant("rank 0, and only rank 0, has an engine feed and a record")
        if size > 1 and exchange is None:
            raise InternalInvariant(f"{size} ranks need an exchange to find each other")
        self.held = held
        self._rank = rank
        self._size = size
        self._exchange = exchange
        self._vocabulary = vocabulary
        self._blobs = blobs
        self._files = shared_files
        self._engine_feed = engine_feed
        self._epoch = epoch
        self._record = record
        self._clock = clock
        self._settings = settings
        self._load = load or artifact_loader(shared_files, blobs, vocabulary)
        self._forgotten = forgotten
        self._wakeup = Wakeup()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._dead: str | None = None

    @property
    def dead(self) -> str | None:
        """Why the epoch is over; None while it is not."""
        return self._dead

    def start(self) -> None:
        """Connect the ranks (every rank calls this at the same point of its start), register, and run the thread.

        Raises:
            RankFailure: the ranks could not connect in time.
            StoreUnavailable, CapacityError: the engine could not be registered in time.
        """
        peers: list[Peer] = []
        if self._exchange is not None and self._size > 1:
            peers = connect_star(
                rank=self._rank,
                size=self._size,
                exchange=self._exchange,
                timeout_s=self._settings.connect_timeout_s,
            )
        try:
            if self._engine_feed is not None and self._record is not None:
                self._register(self._engine_feed, self._record)
        except MaskfeedError:
            for peer in peers:
                peer.close()
            raise
        # Here and not in the thread, whose end before its first turn nobody would hear of.
        loads = Loads(
            self._load,
            discard=self._discard,
            is_held=self.held.__contains__,
            wakeup=self._wakeup,
            n_threads=self._settings.n_loaders,
        )
        side = self._side(peers, loads)
        # Daemon: an interpreter that exits does not wait for a store that hangs.
        self._thread = threading.Thread(target=self._run, args=(side, loads), name=_THREAD_NAME, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group and end the thread, in less than a second. Idempotent.

        The other ranks see the end of the connection, as with any end: an epoch ends for all ranks together.
        """
        self.held.close()
        self._stopping.set()
        self._wakeup.wake()
        if self._thread is not None:
            self._thread.join(self._settings.stop_timeout_s)
        self._files.close()
        self._blobs.close()

    def _register(self, engine_feed: EngineFeed, record: EngineRecord) -> None:
        vocabulary = self._vocabulary.to_bytes()
        ends_at = self._clock() + self._settings.register_timeout_s
        for wait_s in backoff_s():
            try:
                engine_feed.register(record, vocabulary)
                return
            except StoreUnavailable as error:
                if self._clock() + wait_s >= ends_at:
                    raise
                _log.warning("not registered yet, trying again in %.2f s: %s", wait_s, error)
            self._stopping.wait(wait_s)

    def _run(self, side: RootFeed | MemberFeed, loads: Loads) -> None:
        try:
            while not self._stopping.is_set():
                side.turn()
        except Exception as error:
            if self._stopping.is_set():
                _log.info("feed of rank %d broke while it stopped: %s", self._rank, error)
                return
            # Whatever it is: a rank without a feed must not take part any longer, and must not raise into the engine.
            self._dead = str(error) or repr(error)
            if self._rank == 0:
                self.held.close()
            expected = isinstance(error, RankFailure)
            _log.error("epoch %s is over on rank %d: %s", self._epoch, self._rank, self._dead, exc_info=not expected)
        finally:
            loads.stop()
            side.leave(self._dead)
            self._wakeup.close()

    def _discard(self, artifact_hash: str) -> None:
        self._files.discard(artifact_hash)
        if self._forgotten is not None:
            self._forgotten(artifact_hash)

    def _side(self, peers: list[Peer], loads: Loads) -> RootFeed | MemberFeed:
        if self._engine_feed is None:
            return MemberFeed(size=self._size, root=peers[0], held=self.held, loads=loads, wakeup=self._wakeup)
        return RootFeed(
            epoch=self._epoch,
            members=peers,
            engine_feed=self._engine_feed,
            held=self.held,
            loads=loads,
            wakeup=self._wakeup,
            clock=self._clock,
            settings=self._settings,
        )
