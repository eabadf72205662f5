"""Thousands of requests, every set new, on two ranks, while parts are killed: `make soak`.

    python tests/soak/campaign.py [--requests 10000] [--at-once 24] [--seed 1] [--fault-every 10]
                                  [--rank-every 1000] [--at-most-minutes 60] [--output FOLDER]

A real vLLM with tensor parallel size 2, whose ranks compare their masks in every step; a gateway that compiles in Ray
actors; a redis-server without persistence. In turn an actor and Redis are killed, and every so many requests a rank,
after which the engine is started again. Exit code 1, and the reason, if an answer was outside its set or not masked, a
request did not end or failed without a code, the ranks' masks differed, or something was left behind or grows.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "icd10_rag"))

import aiohttp

from maskfeed_automata import Vocabulary
from model_files import tiny_model_directory
from processes import http_answers
from soak.deployment import Deployment
from soak.memory import Sample, growth, resident_bytes
from soak.outcome import Plan, Result, broken_promises, render
from soak.remains import at_rest, metrics
from soak.visitors import Visitors, fresh_turns

__all__ = ["Soak", "soak"]

_SAMPLE_S = 5.0
_POLL_S = 0.25
_REPORT_S = 30.0
_READY_AGAIN_S = 300.0
# The longest that Redis stays away, seconds; a supervisor starts it again.
_AWAY_S = 1.5
_WARM_UP_TURNS = 96
_DRAIN_S = 90.0


class Over:
    """Tells those who work beside something that it is over."""

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def say(self) -> None:
        """It is."""
        self._said.set()

    async def within(self, seconds: float) -> bool:
        """Wait for it, but no longer than this. Whether it is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._said.wait(), seconds)
        return self._said.is_set()


class Soak:
    """One run. For one event loop.

    Args:
        plan: what is to happen.
        parts: started.
        http: without a time-out.
    """

    def __init__(self, plan: Plan, parts: Deployment, http: aiohttp.ClientSession) -> None:
        self.result = Result(plan)
        self._plan = plan
        self._parts = parts
        self._http = http
        self._is_ready = asyncio.Event()
        self._rng = random.Random(plan.seed)
        self._faults: Counter[str] = Counter()
        vocabulary = Vocabulary.from_tokenizer(tiny_model_directory())
        model = parts.engine.server.model
        self._visitors = Visitors(http, parts.gateway_url, model, vocabulary, self._is_ready)

    async def run(self) -> None:
        """Warm up, look, put under load and faults, let it come to rest, and look again."""
        plan, result = self._plan, self.result
        async with _beside(self._watch_ready):
            warming = fresh_turns(_WARM_UP_TURNS, seed=plan.seed + 1)
            await self._visitors.take(warming, n_at_once=plan.at_once)
            self._visitors.book.outcomes.clear()
            result.at_start = await at_rest(self._http, self._parts, within_s=_DRAIN_S)
            _say(f"at rest: {result.at_start}")
            began_s = time.monotonic()
            async with _beside(self._sample, self._report, self._kill_actors_and_redis, self._kill_ranks):
                turns = itertools.takewhile(
                    lambda _: time.monotonic() < began_s + 60 * plan.at_most_minutes,
                    fresh_turns(plan.requests, seed=plan.seed),
                )
                await self._visitors.take(turns, n_at_once=plan.at_once)
                result.took_s = time.monotonic() - began_s
            async with asyncio.timeout(_READY_AGAIN_S):
                await self._is_ready.wait()
        result.at_end = await at_rest(
            self._http, self._parts, no_more_than=result.at_start, at_once=plan.at_once, within_s=_DRAIN_S
        )
        result.gateway = await metrics(self._http, self._parts.gateway_url)
        self._sum_up()

    def _sum_up(self) -> None:
        result, book, lives = self.result, self._visitors.book, self._parts.lives
        result.faults, result.outcomes = dict(self._faults), dict(book.outcomes)
        result.answers_checked, result.hangs = book.answers_checked, book.hangs
        result.engines, result.failed_engine_starts = len(lives), self._parts.failed_starts
        result.rows_compared = sum(life.rows_compared() for life in lives)
        result.disagreements = sum(life.disagreements() for life in lives)
        parts = dict.fromkeys(sample.part for sample in result.samples)
        result.growth = {part: growth(s for s in result.samples if s.part == part) for part in parts}
        result.violations += [*book.violations, *broken_promises(result)]

    # -- faults ----------------------------------------------------------------------------------------------------

    async def _kill_actors_and_redis(self, over: Over) -> None:
        kills = itertools.cycle((self._kill_actor, self._kill_redis))
        while not await over.within(self._plan.fault_every_s):
            await next(kills)()

    async def _kill_actor(self) -> None:
        pids = await asyncio.to_thread(self._parts.actor_pids)
        if not pids:
            self._faults["no compile actor there to be killed"] += 1
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._rng.choice(pids), signal.SIGKILL)
            self._faults["compile actor killed"] += 1

    async def _kill_redis(self) -> None:
        self._parts.redis.kill()
        self._faults["Redis killed, restarted empty"] += 1
        await asyncio.sleep(self._rng.uniform(0.0, _AWAY_S))
        await asyncio.to_thread(self._parts.redis.start)

    async def _kill_ranks(self, over: Over) -> None:
        due, rank = self._plan.rank_every // 2, 1
        while not await over.within(_POLL_S):
            if self._parts.engine_is_missing():
                self.result.unplanned_engine_ends += 1
                self.result.violations.append("an engine ended that nobody had killed")
                await self._parts.replace_engine()
            elif self._n_ended >= due:
                await self._kill_rank(rank)
                due, rank = due + self._plan.rank_every, 1 - rank

    async def _kill_rank(self, rank: int) -> None:
        _say(f"killing rank {rank} after {self._n_ended} requests")
        self._parts.kill_rank(rank)
        self._faults[f"rank {rank} killed, engine restarted"] += 1
        await self._parts.replace_engine()

    # -- what is looked at meanwhile -------------------------------------------------------------------------------

    @property
    def _n_ended(self) -> int:
        return self._visitors.book.n_ended

    async def _watch_ready(self, over: Over) -> None:
        while not await over.within(_POLL_S):
            if await asyncio.to_thread(http_answers, f"{self._parts.gateway_url}/ready"):
                self._is_ready.set()
            else:
                self._is_ready.clear()

    async def _sample(self, over: Over) -> None:
        while not await over.within(_SAMPLE_S):
            actors = await asyncio.to_thread(self._parts.actor_pids)
            pids = [("gateway", self._parts.gateway_pid), *(("compile actors", pid) for pid in actors)]
            if not self._parts.engine.is_condemned:
                pids += [(f"rank {rank}", pid) for rank, pid in enumerate(self._parts.engine.rank_pids())]
            for part, pid in pids:
                if (size := resident_bytes(pid)) is not None:
                    self.result.samples.append(Sample(part, pid, self._n_ended, size))

    async def _report(self, over: Over) -> None:
        while not await over.within(_REPORT_S):
            _say(f"{self._n_ended} requests, {dict(self._faults)}, {dict(self._visitors.book.outcomes)}")


@contextlib.asynccontextmanager
async def _beside(*work: Callable[[Over], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do the work as long as the block runs; what has begun then is finished. A failure of it ends the block."""
    over = Over()
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each(over))
        yield
        over.say()


def soak(plan: Plan, *, log: Path | None = None) -> Result:
    """Run a plan from nothing to nothing; the gateway's log is left at `log`."""
    shm_root = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="mf-soak-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryDirectory(prefix="mf-soak-", dir=shm_root if shm_root.is_dir() else None) as shm,
    ):
        parts = Deployment(Path(folder), Path(shm) / "maskfeed")
        try:
            parts.start()
            return asyncio.run(_soak(plan, parts))
        finally:
            parts.stop()
            if log is not None:
                shutil.copy(parts.gateway_log, log)


async def _soak(plan: Plan, parts: Deployment) -> Result:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        running = Soak(plan, parts, http)
        await running.run()
        return running.result


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run, print, keep, and fail if anything was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    option: Callable[..., Any] = parser.add_argument
    option("--requests", type=int, default=10_000, help="each with a new set")
    option("--at-once", type=int, default=24, help="clients")
    option("--seed", type=int, default=1, help="of sets, clients and faults")
    option("--fault-every", type=float, default=10.0, help="seconds between the deaths of an actor and of Redis")
    option("--rank-every", type=int, default=1_000, help="requests between the deaths of ranks")
    option("--at-most-minutes", type=float, default=60.0, help="after which no request is begun any more")
    option("--output", type=Path, help="folder for soak.json and soak.txt")
    given = parser.parse_args()
    plan = Plan(
        requests=given.requests,
        at_once=given.at_once,
        seed=given.seed,
        fault_every_s=given.fault_every,
        rank_every=given.rank_every,
        at_most_minutes=given.at_most_minutes,
    )
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
    result = soak(plan, log=given.output / "gateway.log" if given.output is not None else None)
    rendered = render(result)
    print(rendered)
    if given.output is not None:
        (given.output / "soak.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
        (given.output / "soak.txt").write_text(rendered + "\n")
    if result.violations:
        sys.exit(f"{len(result.violations)} promises were broken")


if __name__ == "__main__":
    main()
