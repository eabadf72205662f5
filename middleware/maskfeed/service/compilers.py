"""Which compiler a gateway has, and how one is made in an actor of a Ray cluster.

It knows what a compiler is put together from, and compiles nothing. Invariant: what is opened here is closed when the
block ends, in the reverse order.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import maskfeed
from maskfeed.config import GatewaySettings
from maskfeed.service.stores import StoreSettings
from maskfeed_automata.errors import ParameterError
from maskfeed_cache.fence import Layer
from maskfeed_cache.index_follower import IndexFollower
from maskfeed_cache.shared_cache import SharedCache
from maskfeed_workers.compiler import Compiler
from maskfeed_workers.thread_compiler import ThreadCompiler

if TYPE_CHECKING:
    from maskfeed_workers.ray_compiler import RayCompiler

__all__ = ["open_compiler"]

Watch = Callable[[str, str, Callable[[], float]], None]

# An actor reserves one CPU: a second thread would only wait for it.
_ACTOR_THREADS: Final = 1


@asynccontextmanager
async def open_compiler(
    settings: GatewaySettings, stores: StoreSettings, follower: IndexFollower, *, watch: Watch
) -> AsyncIterator[Compiler]:
    """The compiler that the settings name, running.

    Args:
        settings: of the gateway.
        stores: where artifacts go.
        follower: of the gateway's index, for compilers in its process; borrowed.
        watch: publishes a gauge: name, documentation, and how it is read.

    Raises:
        ParameterError: Ray is not installed, or no cluster answers at the address.
        StoreError: the URL can't be read.
    """
    async with AsyncExitStack() as stack:
        if settings.compiler == "ray":
            yield await _open_actors(settings, stores, stack, watch)
            return
        blobs = stores.open_blobs()
        stack.callback(blobs.close)
        automata = _shared_automata(stores, follower)
        stack.push_async_callback(automata.close)
        compiler = ThreadCompiler(blobs, blobs, settings.compile.threads, automata=automata)
        follower.subscribe(compiler.take)
        stack.push_async_callback(compiler.close)
        yield compiler


async def _open_actors(
    settings: GatewaySettings, stores: StoreSettings, stack: AsyncExitStack, watch: Watch
) -> Compiler:
    try:
        from maskfeed_workers.ray_actor import ActorPlan
        from maskfeed_workers.ray_cluster import cluster_cpus, joined_cluster, pool_size
        from maskfeed_workers.ray_compiler import RayCompiler
    except ModuleNotFoundError as error:
        raise ParameterError("Ray is not installed: pip install 'maskfeed[ray]'", field="compiler") from error
    stack.enter_context(joined_cluster(settings.ray.address))
    n_cpus = await asyncio.to_thread(cluster_cpus)
    compiler = RayCompiler(
        ActorPlan(_OpenInActor(stores), threads=_ACTOR_THREADS),
        pool=_pool_name(stores),
        size=settings.ray.actors or pool_size(n_cpus),
    )
    stack.push_async_callback(compiler.close)
    _publish_gauges(compiler, watch)
    return compiler


def _publish_gauges(compiler: "RayCompiler", watch: Watch) -> None:
    def memory_bytes() -> int:
        return sum(member.report.memory_bytes for member in compiler.members if member.report is not None)

    def restart_to_warm_seconds() -> float:
        return max((member.restart_to_warm_ms or 0.0 for member in compiler.members), default=0.0) / 1000

    watch("warm_actors", "Ray actors that take work", lambda: sum(member.is_warm for member in compiler.members))
    watch("lost_actors", "Deaths of Ray actors", lambda: sum(member.n_deaths for member in compiler.members))
    watch("actors_memory_bytes", "Resident memory of all Ray actors", memory_bytes)
    watch(
        "actor_restart_to_warm_seconds",
        "From the news of an actor's death until it took work again: the longest of the last of each",
        restart_to_warm_seconds,
    )


@dataclass(frozen=True, slots=True)
class _OpenInActor:
    """Makes an actor's compiler, on the actor's event loop; it ends with the actor's process."""

    stores: StoreSettings

    def __call__(self) -> ThreadCompiler:
        blobs = self.stores.open_blobs()
        follower = IndexFollower(self.stores.open_index(), clock=asyncio.get_running_loop())
        follower.start()
        automata = _shared_automata(self.stores, follower)
        compiler = ThreadCompiler(blobs, blobs, _ACTOR_THREADS, automata=automata)
        follower.subscribe(compiler.take)
        return compiler


def _shared_automata(stores: StoreSettings, follower: IndexFollower) -> SharedCache:
    clock = asyncio.get_running_loop()
    return SharedCache(follower, Layer.AUTOMATA, clock=clock, lease_ms=stores.cache.lease_ms)


def _pool_name(stores: StoreSettings) -> str:
    """One name for all gateways whose actors would be the same, and for no others."""
    plan = f"{maskfeed.__version__} {stores.redis_url} {stores.keys.namespace} {stores.cache}"
    return f"maskfeed-{hashlib.sha256(plan.encode()).hexdigest()[:12]}"
