"""One compile actor of a pool, as a gateway sees it: made or found by name, warmed, watched, brought back.

It knows one actor and chooses no job. Invariant: while `is_warm`, the actor's kernels and every wanted vocabulary that
the store could give were in memory when it was last seen: work does not wait for a start. For one event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import ray
from ray.exceptions import ObjectStoreFullError, RayActorError, RayError, RayTaskError

from maskfeed_automata.errors import CapacityError, CompileFailed, MaskfeedError, StoreError
from maskfeed_cache.connection import backoff_s
from maskfeed_cache.fence import LayerUsage
from maskfeed_workers.compiler import CompileJob, CompileResult
from maskfeed_workers.ray_actor import ActorPlan, ActorReport, CompileActor
from maskfeed_workers.ray_cluster import NAMESPACE

__all__ = ["MAX_DEATHS", "ActorLost", "Member", "share"]

# A job, or a vocabulary, under which so many actors have died is not tried again: it may be what kills them.
MAX_DEATHS: Final = 3
# A start that takes longer waits for a CPU that nobody gives back.
_START_S: Final = 60.0
_LEAVE_S: Final = 2.0
# A larger list takes longer to copy into the object store than to hand to a thread.
_OFFLOAD_BYTES: Final = 256 * 1024

# Made once: Ray keeps what it makes of a class for as long as the process lives.
_REMOTE_ACTOR: Final[Any] = ray.remote(CompileActor)

_LOG = logging.getLogger("maskfeed.compiler")


class ActorLost(Exception):
    """The actor died under a call, or can't be reached. What it was doing may or may not have been done."""


class Member:
    """An actor of the pool.

    Args:
        name: of the actor, in the cluster.
        plan: what it is made of, if it is not there yet.
        gateway: who attends it.
        report_s: how often it reports.
        wanted: fingerprints that it loads before it takes work.
        on_change: called when it has become warm, or is known not to start.
    """

    def __init__(
        self,
        name: str,
        plan: ActorPlan,
        *,
        gateway: str,
        report_s: float,
        wanted: Collection[str],
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        # jobs of this gateway that are with the actor now
        self.in_flight = 0
        self.is_warm = False
        # the last report; None before the first
        self.report: ActorReport | None = None
        self.n_deaths = 0
        # from the news of the last death until the actor was warm again
        self.restart_to_warm_ms: float | None = None
        # why it does not start
        self.failure: CompileFailed | None = None
        self._plan = plan
        self._gateway = gateway
        self._report_s = report_s
        self._wanted = wanted
        self._on_change = on_change
        self._resident: set[str] = set()
        self._lost_at_s: float | None = None
        self._handle: Any = None
        # warm, or known not to start
        self._is_settled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live(), name=name)
        self._task.add_done_callback(self._stopped)

    def holds(self, fingerprint: str) -> bool:
        """Whether the vocabulary was in memory when the actor was last seen."""
        return fingerprint in self._resident

    async def warm(self, fingerprint: str) -> None:
        """Make the vocabulary resident, once the actor is up.

        Raises:
            CompileFailed: the actor does not start, or has died of this several times.
            StoreError: as `Compiler.warm`.
        """
        for _ in range(MAX_DEATHS):
            await self._is_settled.wait()
            if self.failure is not None:
                raise CompileFailed(self.failure.message, **self.failure.context)
            try:
                self._note(await self._call("warm", (fingerprint,)))
            except ActorLost:
                self._lose()
            else:
                return
        raise CompileFailed(
            f"{self.name} died {MAX_DEATHS} times while it loaded a vocabulary", stage="actor", attempts=MAX_DEATHS
        )

    async def compile(self, job: "CompileJob | ray.ObjectRef[CompileJob]", fingerprint: str) -> CompileResult:
        """Let the actor do the job. Cancelling drops the job there, unless its kernel runs already.

        Raises:
            ActorLost: the actor died; the job may be given to another one.
            MaskfeedError: as `Compiler.compile`.
        """
        try:
            result: CompileResult = await self._call("compile", job)
        except ActorLost:
            self._lose()
            raise
        self._resident.add(fingerprint)
        return result

    async def clear(self) -> None:
        """Forget the vocabularies in memory. An actor that is not there has none."""
        self._resident.clear()
        try:
            if self.is_warm:
                await self._call("clear")
        except ActorLost:
            self._lose()

    async def usage(self) -> LayerUsage | None:
        """Figures of the automata in memory; None if the actor is not there."""
        try:
            usage: LayerUsage | None = await self._call("usage") if self.is_warm else None
        except ActorLost:
            self._lose()
            return None
        return usage

    async def leave(self) -> None:
        """Stop watching, and tell the actor that this gateway needs it no longer."""
        self.is_warm = False
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._handle is not None:
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self._call("leave", self._gateway)
            except (ActorLost, MaskfeedError, TimeoutError) as error:
                # it has ended, then, or ends when its idle time is over
                _LOG.info("event=compile-actor-not-left name=%s reason=%r", self.name, str(error))

    async def _live(self) -> None:
        waits_s, n_failed_starts = backoff_s(), 0
        while True:
            try:
                await self._bring_up()
                waits_s, n_failed_starts = backoff_s(), 0
                while self.is_warm:
                    self._note(await self._call("attend", self._gateway, self._report_s))
            except (ActorLost, MaskfeedError, TimeoutError) as error:
                if self.is_warm:
                    self._lose()
                else:
                    n_failed_starts = MAX_DEATHS if isinstance(error, TimeoutError) else n_failed_starts + 1
                if n_failed_starts >= MAX_DEATHS:
                    self._give_up(error, n_failed_starts)
            await asyncio.sleep(next(waits_s))

    async def _bring_up(self) -> None:
        async with asyncio.timeout(_START_S):
            self._handle = await asyncio.to_thread(self._find_or_make)
            # Ray holds the call back until a restart is over, however many it takes
            self._note(await self._call("warm", (), n_retries=-1))
        for fingerprint in tuple(self._wanted):
            try:
                self._note(await self._call("warm", (fingerprint,)))
            except StoreError as error:
                # the job that needs it says so, or loads it then
                _LOG.warning("event=vocabulary-not-loaded actor=%s reason=%r", self.name, error.message)
        if self._lost_at_s is not None:
            self.restart_to_warm_ms = (time.monotonic() - self._lost_at_s) * 1000
            self._lost_at_s = None
            _LOG.info("event=compile-actor-back name=%s after_ms=%.0f", self.name, self.restart_to_warm_ms)
        self.is_warm, self.failure = True, None
        self._is_settled.set()
        self._on_change()

    def _find_or_make(self) -> Any:
        try:
            return self._find_or_make_actor()
        except (RayError, RuntimeError, ValueError) as error:
            raise CompileFailed(f"Ray failed: {type(error).__name__}", stage="actor") from error

    def _find_or_make_actor(self) -> Any:
        actor = _REMOTE_ACTOR.options(
            name=self.name,
            namespace=NAMESPACE,
            get_if_exists=True,
            # shared by gateways, so the one that made it may end
            lifetime="detached",
            max_restarts=-1,
            # a lost job goes to another actor, which is warm
            max_task_retries=0,
            num_cpus=1,
            scheduling_strategy="SPREAD",
        )
        return actor.remote(self._plan)

    def _lose(self) -> None:
        """The actor is not there; `_live` will bring it back."""
        if not self.is_warm:
            return
        _LOG.warning("event=compile-actor-lost name=%s", self.name)
        self.is_warm = False
        self.n_deaths += 1
        self._lost_at_s = time.monotonic()
        self._resident.clear()
        self._is_settled.clear()

    def _give_up(self, error: Exception, n_failed_starts: int) -> None:
        """Say why the actor does not start. It is tried again all the same."""
        reason = str(error)
        if isinstance(error, TimeoutError):
            reason = f"not within {_START_S:.0f} s; it needs a free CPU of the cluster"
        elif isinstance(error.__cause__, RayError):
            # the last line of the actor's traceback, where its constructor failed
            reason = str(error.__cause__).strip().rpartition("\n")[2].strip()
        self.failure = CompileFailed(f"{self.name} does not start: {reason}", stage="actor", attempts=n_failed_starts)
        _LOG.error("event=compile-actor-does-not-start name=%s reason=%r", self.name, reason, exc_info=error)
        self._is_settled.set()
        self._on_change()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        # a defect: without its watcher the actor must not get work
        _LOG.error("event=compile-actor-not-watched name=%s", self.name, exc_info=task.exception())
        self.is_warm = False
        self.failure = CompileFailed(f"{self.name} is no longer watched; the log says why", stage="actor")
        self._is_settled.set()
        self._on_change()

    def _note(self, report: ActorReport) -> None:
        self.report = report
        self._resident = set(report.resident)

    async def _call(self, method: str, *arguments: object, n_retries: int = 0) -> Any:
        try:
            call = getattr(self._handle, method).options(max_task_retries=n_retries).remote(*arguments)
            try:
                return await call
            except asyncio.CancelledError:
                ray.cancel(call)
                raise
        except RayActorError as error:
            raise ActorLost(f"{type(error).__name__} in {method}") from error
        except RayTaskError as error:
            if isinstance(error.cause, MaskfeedError):
                # the actor's own traceback comes along as the cause
                raise error.cause from error
            raise CompileFailed(f"the compiler broke: {type(error.cause).__name__}", stage="compile") from error
        except ObjectStoreFullError as error:
            raise _full() from error
        except RayError as error:
            raise CompileFailed(f"Ray failed: {type(error).__name__}", stage="compile") from error


async def share(job: CompileJob) -> "CompileJob | ray.ObjectRef[CompileJob]":
    """The job as it is sent to actors: a large one lies in the object store once, however often it is sent.

    Raises:
        CapacityError: the object store is full.
    """
    if job.candidate_set.data.nbytes < _OFFLOAD_BYTES:
        return job
    try:
        return await asyncio.to_thread(ray.put, job)
    except ObjectStoreFullError as error:
        raise _full() from error


def _full() -> CapacityError:
    return CapacityError("Ray's object store has no room for the candidates", stage="compile", retry_after_s=1)
