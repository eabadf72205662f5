"""A rank whose load hangs: its set fails on all ranks, and every other set goes on."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from direct_client import DirectClient, SetFailed
from maskfeed_cache.private_redis import PrivateRedis
from maskfeed_cache.store import hash_blob
from two_ranks import compared_rows, two_rank_engine

pytestmark = [pytest.mark.engine, pytest.mark.full]

STUCK = ["a set that hangs", "on one rank"]
# much longer than the other sets take, all of which come in this time
ROUND_DEADLINE_MS = 10_000


async def test_a_load_that_hangs_on_one_rank_fails_its_set_on_both_and_delays_no_other():
    settings = {"round_deadline_ms": ROUND_DEADLINE_MS}
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as made,
        PrivateRedis(Path(made) / "redis") as redis,
        two_rank_engine(redis.url, Path(made), processor="stuck_rank:StuckProcessor", settings=settings) as engine,
    ):
        async with DirectClient(engine.url, redis.url) as client:
            await one_rank_hangs(client, Path(made) / "compared")
        assert await compared_rows(Path(made) / "compared") > 20


async def one_rank_hangs(client: DirectClient, folder: Path) -> None:
    blob = client.artifact(STUCK)
    gate = folder / f"stuck-{hash_blob(blob)}"
    os.mkfifo(gate)
    hanging = asyncio.create_task(client.ready(STUCK))
    for number in range(20):
        candidates = [f"city {number}", f"town {number}"]
        handle = await client.ready(candidates)
        status, answer = await client.complete(handle, temperature=1)
        assert (status, answer["choices"][0]["text"] in candidates) == (200, True)
        await client.end(handle)
    assert not hanging.done(), "nobody has waited for it"
    with pytest.raises(SetFailed, match="deadline-exceeded: no vote from rank 1"):
        await hanging
    status, answer = await client.complete(client.handle(hash_blob(blob)))
    assert (status, client.is_refusal(answer["choices"][0])) == (200, True)
    await asyncio.to_thread(gate.write_bytes, b"")  # lets the old load end, which leaves nothing
    gate.unlink()
    handle = await client.ready(STUCK)
    status, answer = await client.complete(handle, temperature=1)
    assert (status, answer["choices"][0]["text"] in STUCK) == (200, True)
