"""A gateway for tests: the real core over in-process stores, a compiler that a test can hold, and a fake engine."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from fake_engine import VOCABULARY, FakeEngine
from manual_clock import ManualClock, settle
from maskfeed.config import GatewaySettings
from maskfeed.queue.candidate_queue import CandidateQueue
from maskfeed.service.app import create_app, runner_options, stage_limits_ms
from maskfeed.service.engines import EngineGroup
from maskfeed.service.exchange import Headers, UpstreamResponse
from maskfeed.service.named_sets import NamedSets
from maskfeed.service.promises import Promises
from maskfeed.service.ready_sets import ReadySets
from maskfeed.service.request_life import GatewayCore, Parts
from maskfeed.service.telemetry import Telemetry
from maskfeed.service.upstream import HttpUpstream, client_session
from maskfeed_automata import build
from maskfeed_cache.fence import Layer, LayerUsage
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.memory_broker import MemoryBroker
from maskfeed_cache.memory_feed import MemoryEngineFeed, MemoryGatewayFeed
from maskfeed_cache.memory_index import MemoryIndex
from maskfeed_cache.memory_named_sets import MemoryNamedSets
from maskfeed_cache.memory_store import MemoryBlobStore
from maskfeed_cache.shared_cache import SharedCache
from maskfeed_workers.compiler import CompileJob, CompileResult

__all__ = ["CountingExecutor", "HeldCompiler", "RotatingUpstream", "Stack", "gateway_stack", "http_client", "serving"]


class HeldCompiler:
    """A compiler on the event loop that works while `gate` is set, and counts."""

    def __init__(self, blobs: MemoryBlobStore, *, parallelism: int = 2) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        # set from the first job on
        self.busy = asyncio.Event()
        self.error: Exception | None = None
        self.started = 0
        self.dropped = 0
        self.warmed: list[str] = []
        self.cleared = 0
        self._blobs = blobs
        self._parallelism = parallelism

    @property
    def parallelism(self) -> int:
        return self._parallelism

    async def warm(self, fingerprint: str) -> None:
        self.warmed.append(fingerprint)

    async def compile(self, job: CompileJob) -> CompileResult:
        self.started += 1
        self.busy.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        if self.error is not None:
            raise self.error
        automaton = build(VOCABULARY, job.candidate_set, leading_space=job.leading_space)
        artifact = automaton.to_bytes()
        return CompileResult(self._blobs.put(artifact), len(artifact), automaton.n_nodes, 1.0, 0.0)

    async def clear(self) -> None:
        self.cleared += 1

    async def usage(self) -> LayerUsage:
        return LayerUsage(len(self.warmed), 0, 0, None, 0, len(self.warmed), 0, 0)

    async def close(self) -> None:
        pass


class RotatingUpstream:
    """One URL in front of several replicas: each request goes to the next of `servers`."""

    def __init__(self, servers: Sequence[HttpUpstream]) -> None:
        self.servers = list(servers)
        self._turn = 0

    def open(
        self, method: str, target: str, *, headers: Headers, body: bytes
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        server = self.servers[self._turn % len(self.servers)]
        self._turn += 1
        return server.open(method, target, headers=headers, body=body)


class CountingExecutor(ThreadPoolExecutor):
    """Counts what it is given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.submitted = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.submitted += 1
        return super().submit(function, *args, **kwargs)


@dataclass
class Stack:
    """All parts, open to the test."""

    settings: GatewaySettings
    parts: Parts
    core: GatewayCore
    broker: MemoryBroker
    compiler: HeldCompiler
    clock: ManualClock
    executor: CountingExecutor
    engines: list[FakeEngine] = field(default_factory=list)

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    def metric(self, name: str) -> float:
        """The value of one line of /metrics, labels included in `name`; 0 if it is not there."""
        for line in self.parts.telemetry.exposition().decode().splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        return 0.0


@asynccontextmanager
async def gateway_stack(
    *,
    records: Sequence[Any] = (None,),
    settings: GatewaySettings | None = None,
    parallelism: int = 2,
    upstream_url: str | None = None,
) -> AsyncIterator[Stack]:
    """A gateway whose group has been read once, in front of its engines (or of `upstream_url`).

    Args:
        records: one fake engine for each; None stands for the usual record.
        settings: deadlines and the queue's limits are used.
        parallelism: of the compiler.
        upstream_url: instead of the engines'.
    """
    settings = settings or GatewaySettings()
    broker = MemoryBroker()
    nonces = itertools.count(1)
    clock = ManualClock()

    def new_nonce() -> str:
        return f"{next(nonces):032x}"

    async with AsyncExitStack() as stack:
        engines = []
        for record in records:
            engine = FakeEngine(MemoryEngineFeed(broker), broker.blobs, record=record)
            engines.append(await stack.enter_async_context(engine))
        compiler = HeldCompiler(broker.blobs, parallelism=parallelism)
        session = await stack.enter_async_context(client_session(silence_timeout_s=30))
        urls = [engine.url for engine in engines] if upstream_url is None else [upstream_url]
        upstream = RotatingUpstream([HttpUpstream(session, url) for url in urls or ["http://127.0.0.1:9"]])
        feed = MemoryGatewayFeed(broker)
        stack.push_async_callback(feed.close)
        promises = Promises(feed, lifetime_ms=60_000, new_nonce=new_nonce)
        stack.push_async_callback(promises.close)
        group = EngineGroup(feed, promises, compiler, upstream, probe_headers=(), clock=clock, new_nonce=new_nonce)
        stack.push_async_callback(group.close)
        await group.refresh()
        group.start()
        executor = stack.enter_context(CountingExecutor())
        telemetry = Telemetry()
        index = MemoryIndex(broker.blobs, clock=clock.time)
        follower = IndexFollower(index, clock=clock)
        stack.push_async_callback(follower.close)
        cache = SharedCache(follower, Layer.SETS, clock=clock, observe=telemetry.compiled, new_token=new_nonce)
        stack.push_async_callback(cache.close)
        follower.start()
        await settle()
        queue = CandidateQueue(
            parallelism=parallelism, limit=settings.queue.limit, tenant_limit=settings.queue.tenant_limit
        )
        named_sets = NamedSets(MemoryNamedSets(), executor)
        stack.push_async_callback(named_sets.close)
        parts = Parts(
            index=index,
            cache=cache,
            compiler=compiler,
            queue=queue,
            engines=group,
            promises=promises,
            sets=ReadySets(cache=cache, queue=queue, compiler=compiler, promises=promises, telemetry=telemetry),
            named_sets=named_sets,
            upstream=upstream,
            telemetry=telemetry,
            clock=clock,
            executor=executor,
        )
        core = GatewayCore(parts, deadline_ms=settings.deadline_ms, stage_limits_ms=stage_limits_ms(settings.queue))
        yield Stack(settings, parts, core, broker, compiler, clock, executor, engines)


@asynccontextmanager
async def serving(app: web.Application, settings: GatewaySettings) -> AsyncIterator[aiohttp.ClientSession]:
    """The application run as `maskfeed serve` runs it, and an HTTP client of it."""
    runner = web.AppRunner(app, **runner_options(settings))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(base_url, auto_decompress=False) as session:
            yield session
    finally:
        await runner.cleanup()


@asynccontextmanager
async def http_client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client of the gateway's server over the parts of `stack`."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Parts]:
        yield stack.parts

    async with serving(create_app(stack.settings, opened), stack.settings) as session:
        yield session
