"""The life of a request, from its bytes to its answer. Framework-free.

It decides in which order things happen and what each failure undoes; its parts do the work. It knows no HTTP server
and no Redis. Invariants: a constrained request reaches the engine only with a promise of every live, proven engine;
whatever happens afterwards, the promise is ended; a request ends no later than the last engine of its promise; what
the engine said is never passed on unchecked.
"""

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from maskfeed.queue.candidate_queue import CandidateQueue
from maskfeed.queue.ticket import Stage, State, Ticket
from maskfeed.service.admission import prepare
from maskfeed.service.dispatch import Admitted, checked_answer, engine_request, events
from maskfeed.service.engines import EngineGroup
from maskfeed.service.exchange import Headers, Reply, Upstream, end_to_end
from maskfeed.service.lifeline import open_while_alive
from maskfeed.service.named_sets import NamedSets
from maskfeed.service.offload import off_loop
from maskfeed.service.problems import engine_refusal
from maskfeed.service.promises import Promises
from maskfeed.service.ready_sets import ReadySets, Wanted
from maskfeed.service.requests import (
    ConstrainedRequest,
    NativeRequest,
    Route,
    check_pass_through,
    parse_request,
)
from maskfeed.service.telemetry import Telemetry
from maskfeed.service.tenants import tenant_of
from maskfeed_automata.errors import UpstreamError
from maskfeed_cache.clock import Clock
from maskfeed_cache.shared_cache import SharedCache
from maskfeed_cache.store import CacheIndex
from maskfeed_workers.compiler import Compiler

__all__ = ["GatewayCore", "Parts"]

# Of the engine's response to a constrained request: the body is another one than it sent.
_REPLACED: Final = ("content-length", "content-type", "content-encoding", "etag")
# Of the client's request: the engine gets another body, and answers in one that can be read here.
_NOT_FORWARDED: Final = ("accept-encoding", "content-encoding", "content-length", "content-type")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the core is made of. Borrowed: whoever made them closes them."""

    index: CacheIndex
    cache: SharedCache
    compiler: Compiler
    queue: CandidateQueue
    engines: EngineGroup
    promises: Promises
    sets: ReadySets
    named_sets: NamedSets
    upstream: Upstream
    telemetry: Telemetry
    clock: Clock
    # where large bodies are read
    executor: Executor


class GatewayCore:
    """Answers requests. For one event loop.

    Args:
        parts: the collaborators.
        deadline_ms: until the set is ready, for requests that give none.
        stage_limits_ms: longest stay in a stage, for those that have a limit of their own.
    """

    def __init__(
        self, parts: Parts, *, deadline_ms: int, stage_limits_ms: Mapping[Stage, int] = MappingProxyType({})
    ) -> None:
        self._parts = parts
        self._deadline_ms = deadline_ms
        self._stage_limits_ms = stage_limits_ms

    @asynccontextmanager
    async def answer(self, route: Route, raw: bytes, *, headers: Headers, request_id: str) -> AsyncIterator[Reply]:
        """Answer a request of one of the two routes that take candidates.

        Leaving the block, in whatever way, ends the request at the engine and its promise.

        Args:
            route: where it was posted.
            raw: the body, decompressed.
            headers: the client's; those that may cross go on to the engine.
            request_id: repeated in errors and sent to the engine.

        Yields:
            The reply. A streamed body must be consumed inside the block.

        Raises:
            MaskfeedError: anything that goes wrong before the first byte of the reply.
        """
        received_at = self._parts.clock.time()
        live = self._parts.engines.live
        parser = live.record.reasoning_parser if live is not None else None
        executor = self._parts.executor
        request = await off_loop(executor, len(raw), lambda: parse_request(route, raw, reasoning_parser=parser))
        if isinstance(request, NativeRequest):
            async with self._native(request, headers) as reply:
                yield reply
            return
        self._parts.telemetry.received()
        ticket = Ticket(
            self._parts.clock,
            received_at=received_at,
            deadline_ms=request.deadline_ms or self._deadline_ms,
            tenant=tenant_of(headers),
            stage_limits_ms=self._stage_limits_ms,
            observe=self._parts.telemetry.moved,
        )
        with ticket.followed_to_its_end():
            async with AsyncExitStack() as held:
                async with ticket.within_deadline():
                    admitted = await self._admit(ticket, request, len(raw), request_id, held)
                async with self._dispatched(ticket, admitted, headers) as reply:
                    yield reply

    @asynccontextmanager
    async def forward(self, method: str, target: str, raw: bytes, *, headers: Headers) -> AsyncIterator[Reply]:
        """Pass a request of another route on, and its answer back, unchanged.

        Raises:
            ParameterError: the body holds a constraint that the route would ignore.
            UpstreamError: the engine's server can't be reached.
        """
        route = target.partition("?")[0]
        await off_loop(self._parts.executor, len(raw), lambda: check_pass_through(route, raw))
        self._parts.telemetry.forwarded("pass-through")
        async with self._unchanged(method, target, raw, headers) as reply:
            yield reply

    @asynccontextmanager
    async def _native(self, request: NativeRequest, headers: Headers) -> AsyncIterator[Reply]:
        self._parts.telemetry.forwarded("native")
        async with self._unchanged("POST", request.route, request.body, headers) as reply:
            if request.reason is not None:
                marked = (*reply.headers, ("x-maskfeed", f"native; reason={request.reason}"))
                reply = Reply(reply.status, marked, reply.body)
            yield reply

    @asynccontextmanager
    async def _unchanged(self, method: str, target: str, raw: bytes, headers: Headers) -> AsyncIterator[Reply]:
        sent = end_to_end(headers, without=("content-length",))
        async with self._parts.upstream.open(method, target, headers=sent, body=raw) as response:
            yield Reply(response.status, end_to_end(response.headers), response.chunks())

    async def _admit(
        self, ticket: Ticket, request: ConstrainedRequest, body_bytes: int, request_id: str, held: AsyncExitStack
    ) -> Admitted:
        live = self._parts.engines.require()
        request = await self._parts.named_sets.resolve(request, ticket.tenant)
        prepared = await off_loop(self._parts.executor, body_bytes, lambda: prepare(request, live))
        promise, figures = await self._parts.sets.obtain(Wanted(ticket, request, prepared, live), held)
        return Admitted(request, prepared, live, promise, figures, request_id)

    @asynccontextmanager
    async def _dispatched(self, ticket: Ticket, admitted: Admitted, headers: Headers) -> AsyncIterator[Reply]:
        ticket.move(State.DISPATCHED)
        body = engine_request(admitted)
        sent = (
            *end_to_end(headers, without=_NOT_FORWARDED),
            ("Content-Type", "application/json"),
            ("Accept-Encoding", "identity"),
        )
        ticket.enter(Stage.GENERATE)
        async with open_while_alive(
            admitted.promise.lifeline,
            self._parts.upstream,
            *("POST", admitted.request.route),
            headers=sent,
            body=body,
        ) as response:
            kept = end_to_end(response.headers, without=_REPLACED)
            if response.status != 200:
                # the engine's own refusal: a wrong parameter, a prompt that is too long, a missing key
                status, added, problem = engine_refusal(response.status, await response.read(), admitted.request_id)
                ticket.fail(UpstreamError.code)
                yield Reply(status, (*kept, *added.items()), problem)
                return
            if admitted.request.stream:
                kind = ("Content-Type", "text/event-stream; charset=utf-8")
                yield Reply(200, (*kept, kind), events(admitted, response, on_failure=ticket.fail))
            else:
                answer = checked_answer(admitted, await response.read())
                yield Reply(200, (*kept, ("Content-Type", "application/json")), answer)
