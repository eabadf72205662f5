"""The gateway put together: which implementation plays which part, and how the server runs.

The composition root of the service; it contains no decision about a request. Invariants: parts are closed in the
reverse order of their making; the server stops taking connections before anything that a running request needs is
closed.
"""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Never

from aiohttp import web

from maskfeed.config import GatewaySettings, QueueSettings
from maskfeed.queue.candidate_queue import CandidateQueue
from maskfeed.queue.ticket import Stage
from maskfeed.service.compilers import open_compiler
from maskfeed.service.engines import EngineGroup
from maskfeed.service.exchange import Headers
from maskfeed.service.named_sets import NamedSets
from maskfeed.service.promises import Promises
from maskfeed.service.ready_sets import ReadySets
from maskfeed.service.request_life import GatewayCore, Parts
from maskfeed.service.requests import MAX_DEADLINE_MS
from maskfeed.service.routes import CORE, PARTS, SETTINGS, explain_errors, name_response, routes
from maskfeed.service.stores import StoreSettings
from maskfeed.service.telemetry import SERVER_LOG, Telemetry, log_event
from maskfeed.service.upstream import HttpUpstream, client_session
from maskfeed_cache.fence import Layer
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.shared_cache import SharedCache

__all__ = ["create_app", "open_parts", "runner_options", "serve", "stage_limits_ms"]

_READER_THREADS: Final = 2


@asynccontextmanager
async def open_parts(settings: GatewaySettings, redis_url: str) -> AsyncIterator[Parts]:
    """Everything that a gateway needs, over Redis and one engine's URL, running.

    Redis and the engine may be away: the gateway is then not ready, and becomes ready when they come.

    Args:
        settings: of this gateway.
        redis_url: of the Redis that the engine uses too.

    Raises:
        StoreError: the URL can't be read.
    """
    loop = asyncio.get_running_loop()
    keys = Keyspace(group=settings.group)
    telemetry = Telemetry()
    async with AsyncExitStack() as stack:
        executor = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="maskfeed-reader")
        stack.callback(executor.shutdown, cancel_futures=True)
        stores = StoreSettings(redis_url, keys, settings.cache)
        index = stores.open_index()
        stack.push_async_callback(index.close)
        follower = IndexFollower(index, clock=loop)
        stack.push_async_callback(follower.close)
        compiler = await stack.enter_async_context(open_compiler(settings, stores, follower, watch=telemetry.watch))
        session = client_session(silence_timeout_s=settings.upstream_timeout_s)
        stack.push_async_callback(session.close)
        upstream = HttpUpstream(session, settings.upstream_url)
        feed = RedisGatewayFeed(redis_url, keys)
        stack.push_async_callback(feed.close)
        promises = Promises(feed, lifetime_ms=_promise_lifetime_ms(settings), new_nonce=_new_nonce)
        stack.push_async_callback(promises.close)
        engines = EngineGroup(
            feed,
            promises,
            compiler,
            upstream,
            probe_headers=_probe_headers(settings),
            clock=loop,
            new_nonce=_new_nonce,
        )
        stack.push_async_callback(engines.close)
        engines.start()
        cache = SharedCache(
            follower, Layer.SETS, clock=loop, lease_ms=settings.cache.lease_ms, observe=telemetry.compiled
        )
        stack.push_async_callback(cache.close)
        follower.start()
        queue = CandidateQueue(
            parallelism=compiler.parallelism, limit=settings.queue.limit, tenant_limit=settings.queue.tenant_limit
        )
        _publish_gauges(telemetry, queue, promises)
        named_store = stores.open_named_sets()
        stack.push_async_callback(named_store.close)
        named_sets = NamedSets(named_store, executor)
        stack.push_async_callback(named_sets.close)
        sets = ReadySets(cache=cache, queue=queue, compiler=compiler, promises=promises, telemetry=telemetry)
        yield Parts(
            index=index,
            cache=cache,
            compiler=compiler,
            queue=queue,
            engines=engines,
            promises=promises,
            sets=sets,
            named_sets=named_sets,
            upstream=upstream,
            telemetry=telemetry,
            clock=loop,
            executor=executor,
        )


def create_app(
    settings: GatewaySettings, open_parts: Callable[[], AbstractAsyncContextManager[Parts]]
) -> web.Application:
    """The application; its parts are opened when it starts and closed when it ends."""

    async def parts(app: web.Application) -> AsyncIterator[None]:
        async with open_parts() as opened:
            app[PARTS] = opened
            app[CORE] = GatewayCore(
                opened, deadline_ms=settings.deadline_ms, stage_limits_ms=stage_limits_ms(settings.queue)
            )
            yield

    # aiohttp refuses a body that reaches its limit; ours may have exactly the bytes of the setting
    app = web.Application(middlewares=[explain_errors], client_max_size=settings.max_body_bytes + 1)
    app[SETTINGS] = settings
    app.cleanup_ctx.append(parts)
    app.on_response_prepare.append(name_response)
    app.add_routes(routes())
    return app


def stage_limits_ms(settings: QueueSettings) -> Mapping[Stage, int]:
    """The stages that have a limit of their own. What the store does is bounded by its own time-outs."""
    return {Stage.QUEUE: settings.wait_ms, Stage.COMPILE: settings.compile_ms, Stage.READY: settings.ready_ms}


def runner_options(settings: GatewaySettings) -> dict[str, Any]:
    """How aiohttp must run the application: what its handlers rely on."""
    return {
        # a client that leaves cancels its request at the engine
        "handler_cancellation": True,
        # bodies are unpacked within a bound of our own
        "auto_decompress": False,
        "access_log": None,
        "logger": SERVER_LOG,
        "shutdown_timeout": settings.drain_timeout_s,
    }


async def serve(
    settings: GatewaySettings,
    redis_url: str,
    *,
    announce: Callable[[str], None],
    beside: Callable[[], Awaitable[Never]] | None = None,
) -> None:
    """Run the gateway until SIGTERM or SIGINT, then let running requests end.

    Args:
        settings: of this gateway.
        redis_url: of the Redis that the engine uses too.
        announce: called once, with the gateway's own URL, when it listens.
        beside: runs as long as the gateway; its failure stops the gateway as SIGTERM does, and is raised afterwards.

    Raises:
        StoreError: the URL can't be read.
        Exception: what `beside` raised.
        OSError: the address can't be listened on.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    app = create_app(settings, lambda: open_parts(settings, redis_url))
    runner = web.AppRunner(app, **runner_options(settings))
    async with _running(beside, on_failure=stop.set):
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
            host, port = runner.addresses[0][:2]
            announce(f"http://{host}:{port}")
            await stop.wait()
            log_event("draining", {"timeout_s": settings.drain_timeout_s})
        finally:
            await runner.cleanup()
            log_event("stopped", {})


@asynccontextmanager
async def _running(
    work: Callable[[], Awaitable[Never]] | None, *, on_failure: Callable[[], None]
) -> AsyncIterator[None]:
    """Run `work` beside the block and cancel it afterwards; if it has failed, raise its failure after the block."""
    if work is None:
        yield
        return

    async def run() -> None:
        try:
            await work()
        finally:
            on_failure()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _promise_lifetime_ms(settings: GatewaySettings) -> int:
    """No request lives longer than the longest deadline and an answer that is silent for as long as is allowed."""
    return MAX_DEADLINE_MS + settings.upstream_timeout_s * 1000


def _probe_headers(settings: GatewaySettings) -> Headers:
    if settings.upstream_api_key is None:
        return ()
    return (("Authorization", f"Bearer {settings.upstream_api_key}"),)


def _publish_gauges(telemetry: Telemetry, queue: CandidateQueue, promises: Promises) -> None:
    telemetry.watch("queue_sets", "Sets that wait for a compiler", lambda: queue.waiting)
    telemetry.watch("compiling_sets", "Sets that are compiled now", lambda: queue.taken)
    telemetry.watch("held_promises", "Sets that engines hold for running requests", lambda: promises.held)
    telemetry.watch("event_loop_tasks", "Tasks that have not ended", lambda: len(asyncio.all_tasks()))


def _new_nonce() -> str:
    return secrets.token_hex(16)
