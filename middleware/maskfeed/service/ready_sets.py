"""From a prepared set to the engines' promise to hold it: cache, queue, compiler, feed.

It knows no HTTP and no answer. Invariants: a set is pinned in the cache from the instant at which it is found until the
engines hold it; a set that they find lost or broken on the way is compiled again, once; a failure that lies in the set
names the candidate that this caller gave, whoever compiled it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from maskfeed.queue.candidate_queue import CandidateQueue
from maskfeed.queue.ticket import Stage, State, Ticket
from maskfeed.service.admission import PreparedSet, in_the_callers_words
from maskfeed.service.answers import Figures
from maskfeed.service.engines import LiveGroup
from maskfeed.service.promises import Promise, Promises, blob_is_lost
from maskfeed.service.requests import ConstrainedRequest
from maskfeed.service.telemetry import Telemetry
from maskfeed_automata import CandidateSet
from maskfeed_automata.errors import CandidateError, RankFailure
from maskfeed_cache.fence import IndexEntry
from maskfeed_cache.shared_cache import Found, Report, SharedCache, Source
from maskfeed_workers.compiler import CompileJob, Compiler

__all__ = ["ReadySets", "Wanted"]

# what the client reads of where its set came from
_CACHE_FIGURE: Final = {Source.HIT: "hit", Source.COMPILED: "miss", Source.WAITED: "waited"}
_TOLD_STAGES: Final = (Stage.WAIT, Stage.QUEUE, Stage.COMPILE, Stage.COMMIT, Stage.READY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made ready, and for whom."""

    ticket: Ticket
    request: ConstrainedRequest
    prepared: PreparedSet
    live: LiveGroup


class ReadySets:
    """Makes sets ready. For one event loop.

    Args:
        cache: of compiled sets.
        queue: in front of the compiler.
        compiler: of sets that nobody has compiled.
        promises: of the engines.
        telemetry: told where sets came from.
    """

    def __init__(
        self,
        *,
        cache: SharedCache,
        queue: CandidateQueue,
        compiler: Compiler,
        promises: Promises,
        telemetry: Telemetry,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._compiler = compiler
        self._promises = promises
        self._telemetry = telemetry

    async def obtain(self, wanted: Wanted, held: AsyncExitStack) -> tuple[Promise, Figures]:
        """Have the set held by every engine of the group until `held` is closed.

        Raises:
            CandidateError: a candidate that the vocabulary can't produce, in the caller's words.
            RankFailure: a rank could not take the set.
            MaskfeedError: what else the cache, the queue, the compiler or the engines raise.
        """
        lost: Found | None = None
        while True:
            async with self._found(wanted, lost) as found:
                wanted.ticket.enter(Stage.READY)
                try:
                    promise = await held.enter_async_context(self._promises.hold(found, wanted.live.epochs))
                except RankFailure as error:
                    if lost is not None or not blob_is_lost(error):
                        raise
                    # evicted before an engine had it, or broken where it lies: nobody else will mend it
                    lost = found
                    continue
            wanted.ticket.move(State.READY)
            return promise, _figures(wanted.ticket, found)

    @asynccontextmanager
    async def _found(self, wanted: Wanted, lost: Found | None) -> AsyncIterator[Found]:
        """The compiled set, pinned for the length of the block."""
        ticket = wanted.ticket
        with _in_the_callers_words(wanted):
            async with self._cache.hold(
                wanted.prepared.digest,
                lambda report: self._compile(wanted, report),
                pin_ms=ticket.deadline_ms,
                report=lambda step, since_s=0.0: ticket.enter(Stage(step), since_s),
                replaces=lost.entry.artifact_hash if lost is not None else None,
            ) as found:
                self._telemetry.looked_up(found.source)
                if found.source is not Source.HIT and ticket.state is not State.COMMITTED:
                    ticket.move(State.COMMITTED)
                yield found

    async def _compile(self, wanted: Wanted, report: Report) -> IndexEntry:
        """Work that all who wait for this set share; the first of them pays with a place in line."""
        prepared = wanted.prepared
        job = CompileJob(
            digest=prepared.digest,
            fingerprint=wanted.live.record.fingerprint,
            candidate_set=prepared.candidate_set,
            leading_space=wanted.request.leading_space,
        )
        report(Stage.QUEUE)
        async with self._queue.place(size_bytes=prepared.candidate_set.data.nbytes, tenant=wanted.ticket.tenant):
            report(Stage.COMPILE)
            with _by_rank(prepared.candidate_set):
                result = await self._compiler.compile(job)
        # writing the blob belongs to publishing the set
        report(Stage.COMMIT, result.store_ms / 1000)
        return IndexEntry(artifact_hash=result.artifact_hash, size_bytes=result.size_bytes)


@contextmanager
def _by_rank(candidate_set: CandidateSet) -> Iterator[None]:
    """Name a candidate that can't be used as every caller with this set can: by its rank."""
    try:
        yield
    except CandidateError as error:
        context = dict(error.context)
        index = context.pop("index", None)
        if not isinstance(index, int):
            raise
        message = error.message.removeprefix(_element(index))
        rank = int(candidate_set.rank_of_input[index])
        raise type(error)(message, **context, rank=rank) from error


@contextmanager
def _in_the_callers_words(wanted: Wanted) -> Iterator[None]:
    """Name it as this caller does."""
    with in_the_callers_words(wanted.request):
        try:
            yield
        except CandidateError as error:
            context = dict(error.context)
            rank = context.pop("rank", None)
            if not isinstance(rank, int):
                raise
            index = int(wanted.prepared.candidate_set.first_input_of_rank[rank])
            raise type(error)(_element(index) + error.message, **context, index=index) from error


def _element(index: int) -> str:
    return f"candidates[{index}]: "


def _figures(ticket: Ticket, found: Found) -> Figures:
    return {
        "cache": _CACHE_FIGURE[found.source],
        **{f"{stage}_ms": round(ticket.milliseconds(stage), 3) for stage in _TOLD_STAGES},
    }
