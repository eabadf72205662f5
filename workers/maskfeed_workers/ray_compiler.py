"""A compiler in a Ray cluster: a pool of named actors that all gateways of the cluster share.

It knows which actors are warm and how much this gateway has given to each; it knows no index, no engine and no request.
Invariants: an actor is given work only while it is warm, and no more at once than it has threads; a job ends with its
result or one typed error, however many actors die under it. For one event loop.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final

from maskfeed_automata.errors import CompileFailed
from maskfeed_cache.fence import LayerUsage
from maskfeed_workers.compiler import CompileJob, CompileResult
from maskfeed_workers.ray_actor import ActorPlan, ActorReport
from maskfeed_workers.ray_member import MAX_DEATHS, ActorLost, Member, share
from maskfeed_workers.ray_places import Places

__all__ = ["MemberStatus", "RayCompiler"]

_REPORT_S: Final = 5.0
# Vocabularies that a restarted actor loads before it takes work; an older one is loaded by the job that needs it.
_MAX_WANTED: Final = 4
_SUMMED: Final = tuple(field.name for field in fields(LayerUsage) if field.name != "limit_bytes")

_LOG = logging.getLogger("maskfeed.compiler")


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What is known of one actor."""

    name: str
    is_warm: bool
    # this gateway's jobs
    in_flight: int
    # seen by this gateway
    n_deaths: int
    # from the news of the last death until it was warm again
    restart_to_warm_ms: float | None
    # why it does not start
    failure: str | None
    # its own words, at most a few seconds old; None before the first
    report: ActorReport | None


class RayCompiler:
    """A `Compiler` in actors. Ray must be connected, and stay so until `close` has returned.

    Args:
        plan: what each actor is made of.
        pool: beginning of the actors' names. Gateways with the same pool name share actors, so it must tell plans, and
            releases of this package, apart.
        size: number of actors.
        report_s: how often actors report.
    """

    def __init__(self, plan: ActorPlan, *, pool: str, size: int, report_s: float = _REPORT_S) -> None:
        self._parallelism = plan.threads * size
        # the vocabularies that were warmed last
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._n_open_jobs = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closed = False
        self._warmings: set[asyncio.Task[None]] = set()
        gateway = secrets.token_hex(8)
        self._members: list[Member] = []
        self._places = Places(self._members, plan.threads)
        self._members += [
            Member(
                f"{pool}-{number}",
                plan,
                gateway=gateway,
                report_s=report_s,
                wanted=self._wanted.keys(),
                on_change=self._places.hand_out,
            )
            for number in range(size)
        ]

    @property
    def parallelism(self) -> int:
        """See `Compiler`."""
        return self._parallelism

    @property
    def members(self) -> list[MemberStatus]:
        """What is known of each actor now."""
        return [
            MemberStatus(
                name=member.name,
                is_warm=member.is_warm,
                in_flight=member.in_flight,
                n_deaths=member.n_deaths,
                restart_to_warm_ms=member.restart_to_warm_ms,
                failure=member.failure.message if member.failure is not None else None,
                report=member.report,
            )
            for member in self._members
        ]

    async def warm(self, fingerprint: str) -> None:
        """See `Compiler`. Returns when the first actor has the vocabulary; the others go on loading it."""
        self._check_open()
        pending = {asyncio.create_task(member.warm(fingerprint)) for member in self._members}
        self._warmings |= pending
        for task in pending:
            task.add_done_callback(self._warmed)
        first_error: BaseException | None = None
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            errors = [task.exception() for task in done if not task.cancelled()]
            if None in errors:
                self._want(fingerprint)
                return
            first_error = first_error or next(iter(errors), None)
        raise first_error or CompileFailed("the compiler is closed", stage="compile")

    async def compile(self, job: CompileJob) -> CompileResult:
        """See `Compiler`. A job whose actor dies is given to another one; one under which several die is given up."""
        self._check_open()
        with self._counted():
            shared = await share(job)
            for _ in range(MAX_DEATHS):
                async with self._places.take(job.fingerprint) as member:
                    try:
                        return await member.compile(shared, job.fingerprint)
                    except ActorLost as error:
                        lost = error
            raise CompileFailed(
                f"{MAX_DEATHS} actors died while they compiled the set", stage="compile", attempts=MAX_DEATHS
            ) from lost

    async def clear(self) -> None:
        """See `Compiler`."""
        await asyncio.gather(*(member.clear() for member in self._members))

    async def usage(self) -> LayerUsage:
        """See `Compiler`. The sum over the actors that answer."""
        found = await asyncio.gather(*(member.usage() for member in self._members))
        answers = [usage for usage in found if usage is not None]
        sums = {name: sum(getattr(usage, name) for usage in answers) for name in _SUMMED}
        return LayerUsage(limit_bytes=sum(usage.limit_bytes or 0 for usage in answers) or None, **sums)

    async def close(self) -> None:
        """See `Compiler`. Actors that no other gateway attends end."""
        self._is_closed = True
        await self._is_idle.wait()
        for task in self._warmings:
            task.cancel()
        await asyncio.gather(*(member.leave() for member in self._members))
        self._members.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise CompileFailed("the compiler is closed", stage="compile")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._n_open_jobs += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._n_open_jobs -= 1
            if not self._n_open_jobs:
                self._is_idle.set()

    def _want(self, fingerprint: str) -> None:
        self._wanted[fingerprint] = None
        self._wanted.move_to_end(fingerprint)
        while len(self._wanted) > _MAX_WANTED:
            self._wanted.popitem(last=False)

    def _warmed(self, task: asyncio.Task[None]) -> None:
        self._warmings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # told to the caller only if no actor could
            _LOG.info("event=actor-not-warmed reason=%r", str(error))
