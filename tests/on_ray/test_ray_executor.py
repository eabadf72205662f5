"""vLLM's own Ray executor: both ranks are Ray actors, are fed as any other ranks, and mask alike in every step."""

import psutil
import pytest

from clients import http_session
from divergence import read_counts
from maskfeed_automata import Vocabulary
from model_files import tiny_model_directory
from traffic import KINDS, Traffic, turns
from two_ranks import two_ranks

pytestmark = [pytest.mark.full, pytest.mark.engine]

# The engine starts a cluster of its own, which says it has a GPU for each rank; the executor asks for no less.
OWN_CLUSTER = {
    "RAY_ADDRESS": "local",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 2, "GPU": 2}',
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


async def test_ranks_that_are_ray_actors_are_fed_and_mask_alike(capsys):
    vocabulary = Vocabulary.from_tokenizer(tiny_model_directory())
    arguments = ["--distributed-executor-backend", "ray"]
    with two_ranks(async_scheduling=True, arguments=arguments, environment=OWN_CLUSTER) as ranks:
        # for the executor the platform has to be the one that leaves asynchronous scheduling on
        assert ranks.engine.schedules_asynchronously
        for rank in (0, 1):
            pid = int((ranks.folder / f"pid-{rank}").read_text())
            assert psutil.Process(pid).cmdline()[0].startswith("ray::RayWorkerProc"), "an actor"
        async with http_session(answer_s=60) as http:
            traffic = Traffic(http, ranks.gateway_url, ranks.engine.model, vocabulary, turns(100, seed=61))
            await traffic.run(n_at_once=16)
        rows = await ranks.rows_compared()
        (_, _, refused), _ = read_counts(ranks.folder)
    assert set(traffic.outcomes) == KINDS, traffic.outcomes
    assert (rows > 1_000, refused) == (True, 0)
    with capsys.disabled():
        print(f"\nRay executor: {rows} rows compared on two ranks: {dict(traffic.outcomes)}")
