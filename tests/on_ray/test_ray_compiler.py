"""What a pool of actors adds to a compiler: deaths, sharing, and work that lands where the vocabulary is."""

import asyncio
import itertools
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Never

import pytest
import ray

from gated_store import VOCABULARY, GatedBlobStore, job_for
from local_ray import CompilerOverStore, served_store
from maskfeed.config import CacheSettings, GatewaySettings, RaySettings
from maskfeed.service.compilers import open_compiler
from maskfeed.service.stores import StoreSettings
from maskfeed_automata import build
from maskfeed_automata.errors import CompileFailed
from maskfeed_cache.fence import Layer
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.store import hash_blob
from maskfeed_workers.ray_actor import ActorPlan, CompileActor
from maskfeed_workers.ray_cluster import NAMESPACE, joined_cluster, pool_size
from maskfeed_workers.ray_compiler import MemberStatus, RayCompiler
from maskfeed_workers.ray_member import MAX_DEATHS
from waiting import eventually

pytestmark = pytest.mark.usefixtures("ray_cluster")

REPORT_S = 0.05


@pytest.fixture
def blobs() -> GatedBlobStore:
    blobs = GatedBlobStore()
    blobs.put_vocabulary(VOCABULARY.fingerprint, VOCABULARY.to_bytes())
    return blobs


@pytest.fixture
def plan(blobs: GatedBlobStore, tmp_path: Path) -> Iterator[ActorPlan]:
    with served_store(blobs) as store:
        yield ActorPlan(CompilerOverStore(store, tmp_path))
        blobs.gate.set()


@pytest.fixture
def pool() -> str:
    return f"test-{secrets.token_hex(4)}"


@asynccontextmanager
async def ray_compiler(plan: ActorPlan, pool: str, size: int) -> AsyncIterator[RayCompiler]:
    compiler = RayCompiler(plan, pool=pool, size=size, report_s=REPORT_S)
    try:
        yield compiler
    finally:
        await compiler.close()


async def all_warm(compiler: RayCompiler) -> list[MemberStatus]:
    async def are_warm() -> bool:
        return all(member.is_warm and member.report is not None for member in compiler.members)

    await eventually(are_warm, within_s=30)
    return compiler.members


def pid_of(member: MemberStatus) -> int:
    assert member.report is not None
    return member.report.pid


async def is_gone(name: str) -> bool:
    try:
        await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
    except ValueError:
        return True
    return False


async def test_an_actor_killed_in_the_middle_of_a_compile_costs_one_retry_and_comes_back_warm(
    plan: ActorPlan, pool: str, blobs: GatedBlobStore
) -> None:
    async with ray_compiler(plan, pool, 2) as compiler:
        await compiler.warm(VOCABULARY.fingerprint)
        await all_warm(compiler)
        blobs.gate.clear()
        running = asyncio.create_task(compiler.compile(job_for(["abc", "abd"])))
        await blobs.has_been_entered()
        (victim,) = (member for member in compiler.members if member.in_flight)
        os.kill(pid_of(victim), signal.SIGKILL)
        # the other actor stores the same blob
        await blobs.has_been_entered()
        blobs.gate.set()
        result = await running
        assert hash_blob(blobs.get(result.artifact_hash)) == result.artifact_hash
        assert len(blobs.blobs) == 1
        members = await all_warm(compiler)
        assert sorted(member.n_deaths for member in members) == [0, 1]
        (back,) = (member for member in members if member.n_deaths)
        assert back.name == victim.name
        assert pid_of(back) != pid_of(victim)
        assert back.restart_to_warm_ms is not None
        assert back.report is not None
        assert back.report.resident == (VOCABULARY.fingerprint,)


async def test_a_set_under_which_actor_after_actor_dies_is_given_up(
    plan: ActorPlan, pool: str, blobs: GatedBlobStore
) -> None:
    async with ray_compiler(plan, pool, 1) as compiler:
        blobs.gate.clear()
        running = asyncio.create_task(compiler.compile(job_for(["abc"])))
        for _ in range(MAX_DEATHS):
            await blobs.has_been_entered()
            os.kill(pid_of(compiler.members[0]), signal.SIGKILL)
        with pytest.raises(CompileFailed) as caught:
            await running
        assert caught.value.context == {"stage": "compile", "attempts": MAX_DEATHS}
        blobs.gate.set()
        assert (await compiler.compile(job_for(["j"]))).n_nodes > 0


async def test_an_idle_actor_that_dies_is_warmed_again_before_it_gets_work(
    plan: ActorPlan, pool: str, blobs: GatedBlobStore
) -> None:
    async with ray_compiler(plan, pool, 1) as compiler:
        await compiler.warm(VOCABULARY.fingerprint)
        os.kill(pid_of((await all_warm(compiler))[0]), signal.SIGKILL)

        async def has_died() -> bool:
            return compiler.members[0].n_deaths == 1

        await eventually(has_died)
        await all_warm(compiler)
        assert blobs.n_vocabularies_read == 2
        await compiler.compile(job_for(["abc"]))
        assert blobs.n_vocabularies_read == 2


async def test_jobs_go_to_free_actors_and_more_of_them_wait_outside(
    plan: ActorPlan, pool: str, blobs: GatedBlobStore
) -> None:
    async with ray_compiler(plan, pool, 2) as compiler:
        assert compiler.parallelism == 2
        await all_warm(compiler)
        blobs.gate.clear()
        jobs = [asyncio.create_task(compiler.compile(job_for([text]))) for text in "abc"]
        for _ in range(2):
            await blobs.has_been_entered()
        assert [member.in_flight for member in compiler.members] == [1, 1]
        blobs.gate.set()
        assert len({result.artifact_hash for result in await asyncio.gather(*jobs)}) == 3
        assert [member.in_flight for member in compiler.members] == [0, 0]


async def test_work_goes_where_its_vocabulary_is(plan: ActorPlan, pool: str, blobs: GatedBlobStore) -> None:
    async with ray_compiler(plan, pool, 2) as compiler:
        await all_warm(compiler)
        for text in "abc":
            await compiler.compile(job_for([text]))
        assert blobs.n_vocabularies_read == 1


async def test_a_large_set_gives_the_same_bytes_as_it_gives_here(
    plan: ActorPlan, pool: str, blobs: GatedBlobStore
) -> None:
    letters = "abcdefghij"
    words = ["".join(word) for word in itertools.product(letters, repeat=4)]
    small = job_for(words)
    large = job_for([first + word for first, word in itertools.product(letters, words)])
    # the job of the one travels with the call, the other's lies in the object store
    assert small.candidate_set.data.nbytes < 100 * 1024 < 256 * 1024 < large.candidate_set.data.nbytes
    async with ray_compiler(plan, pool, 1) as compiler:
        for job in (small, large):
            result = await compiler.compile(job)
            assert blobs.get(result.artifact_hash) == build(VOCABULARY, job.candidate_set).to_bytes()


async def test_gateways_share_the_actors_and_the_last_to_leave_ends_them(plan: ActorPlan, pool: str) -> None:
    async with ray_compiler(plan, pool, 1) as first:
        (seen_by_first,) = await all_warm(first)
        async with ray_compiler(plan, pool, 1) as second:
            (seen_by_second,) = await all_warm(second)
            assert pid_of(seen_by_first) == pid_of(seen_by_second)
        assert (await first.compile(job_for(["abc"]))).n_nodes > 0
        assert first.members[0].n_deaths == 0

    async def has_ended() -> bool:
        return await is_gone(f"{pool}-0")

    await eventually(has_ended)


async def test_an_actor_whose_gateways_were_killed_ends_itself(pool: str) -> None:
    plan = ActorPlan(no_compiler, idle_exit_s=0.2)
    ray.remote(CompileActor).options(name=pool, namespace=NAMESPACE, lifetime="detached", max_restarts=-1).remote(plan)

    async def has_ended() -> bool:
        return await is_gone(pool)

    await eventually(has_ended, within_s=30)


def no_compiler() -> Never:
    raise OSError("no such store")


async def test_a_pool_that_cannot_start_says_why(pool: str) -> None:
    async with ray_compiler(ActorPlan(no_compiler), pool, 1) as compiler:
        with pytest.raises(CompileFailed, match="no such store"):
            await compiler.warm(VOCABULARY.fingerprint)
        with pytest.raises(CompileFailed, match="no such store"):
            await compiler.compile(job_for(["abc"]))
        assert [member.is_warm for member in compiler.members] == [False]


async def test_the_gateways_actors_write_to_redis_and_share_their_automata_there(redis_url: str) -> None:
    stores = StoreSettings(redis_url, Keyspace(), CacheSettings())
    blobs, index = stores.open_blobs(), stores.open_index()
    blobs.put_vocabulary(VOCABULARY.fingerprint, VOCABULARY.to_bytes())
    settings = GatewaySettings(compiler="ray", ray=RaySettings(actors=1))
    gauges: dict[str, Callable[[], float]] = {}
    async with open_compiler(
        settings, stores, index, watch=lambda name, _, read: gauges.update({name: read})
    ) as compiler:
        result = await compiler.compile(job_for(["abc"]))
        assert len(blobs.get(result.artifact_hash)) == result.size_bytes
        assert (await index.usage()).layers[Layer.AUTOMATA].entries == 1
        assert (await compiler.usage()).entries == 1
        assert {name: read() > 0 for name, read in gauges.items()} == {
            "warm_actors": True,
            "lost_actors": False,
            "actors_memory_bytes": True,
            "actor_restart_to_warm_seconds": False,
        }
        await compiler.clear()
        assert (await compiler.usage()).entries == 0
    await index.close()
    blobs.close()


async def test_actors_say_what_they_hold_and_what_it_cost(plan: ActorPlan, pool: str) -> None:
    async with ray_compiler(plan, pool, 1) as compiler:
        await compiler.warm(VOCABULARY.fingerprint)
        await compiler.compile(job_for(["abc"]))

        async def has_reported() -> bool:
            report = compiler.members[0].report
            return report is not None and report.n_compiled == 1

        await eventually(has_reported)
        report = compiler.members[0].report
        assert report is not None
        assert report.pid != os.getpid()
        assert report.resident == (VOCABULARY.fingerprint,)
        assert report.memory_bytes > 10_000_000
        assert report.start_to_warm_ms is not None


def test_a_process_that_is_connected_already_is_left_so() -> None:
    with joined_cluster():
        assert ray.is_initialized()
    assert ray.is_initialized()


@pytest.mark.parametrize(("n_cpus", "size"), [(0, 1), (1, 1), (2, 1), (7.5, 1), (8, 2), (64, 16), (1_000, 16)])
def test_a_quarter_of_the_cpus_compiles(n_cpus: float, size: int) -> None:
    assert pool_size(n_cpus) == size
