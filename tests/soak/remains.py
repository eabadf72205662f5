"""What a deployment still keeps when nobody asks it for anything: before the soak, and after it.

The cache is cleared before the figures are read, so whatever is still held then is held by somebody: a pin, a promise,
a row of the batch. With nobody there, that is a leak.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import aiohttp

from maskfeed_cache.keys import Keyspace
from soak.deployment import ADMIN_KEY, Deployment
from soak.memory import open_files

__all__ = ["AtRest", "at_rest", "metrics"]

_METRIC = re.compile(r"^maskfeed_(\w+)(?:{[^}]*})? (\S+)$", re.MULTILINE)
_POLL_S = 0.5
# readings; longer than servers keep an idle connection
_STEADY = 40
_POOLED = ("gateway_open_files", "ranks_open_files", "redis_connections")


@dataclass(frozen=True, slots=True)
class AtRest:
    """Figures of one moment."""

    gateway_open_files: int
    gateway_tasks: int
    gateway_promises: int
    requests_in_flight: int
    waiting_or_compiling_sets: int
    # in the index
    cached_sets: int
    pins: int
    orphaned_pinned_bytes: int
    # in the engine, beside those that it keeps for ever
    held_sets: int
    held_orphans: int
    # of both ranks together
    ranks_open_files: int
    shared_memory_files: int
    redis_connections: int

    def above(self, other: "AtRest", *, at_once: int) -> list[str]:
        """What there is more of than there was.

        Pools keep as many connections as were once used at one time, and after a death of Redis all clients wait for
        theirs together: so of what is pooled there may be one more for each of the `at_once` clients.
        """
        return [
            f"{each.name}: {getattr(self, each.name)}, at the start {getattr(other, each.name)}"
            for each in fields(self)
            if getattr(self, each.name) > getattr(other, each.name) + (at_once if each.name in _POOLED else 0)
        ]


async def at_rest(
    http: aiohttp.ClientSession,
    parts: Deployment,
    *,
    no_more_than: AtRest | None = None,
    at_once: int = 0,
    within_s: float,
) -> AtRest:
    """Clear the cache and read the figures, again and again until they have come down.

    Args:
        http: its idle connections count as the gateway's open files.
        parts: in which nothing goes on.
        no_more_than: what they are to come down to; None: until they are the same for some seconds.
        at_once: see `AtRest.above`.
        within_s: after this they are what they are.
    """
    ends_at = asyncio.get_running_loop().time() + within_s
    seen: list[AtRest] = []
    while True:
        is_over = asyncio.get_running_loop().time() >= ends_at
        try:
            await _clear(http, parts)
            seen.append(await _read(http, parts))
        except aiohttp.ClientResponseError:
            # the last fault is not over yet
            if is_over:
                raise
        else:
            if is_over or _are_down(seen, no_more_than, at_once):
                return seen[-1]
        await asyncio.sleep(_POLL_S)


def _are_down(seen: Sequence[AtRest], no_more_than: AtRest | None, at_once: int) -> bool:
    if no_more_than is not None:
        return not seen[-1].above(no_more_than, at_once=at_once)
    return len(seen) >= _STEADY and len(set(seen[-_STEADY:])) == 1


async def metrics(http: aiohttp.ClientSession, gateway_url: str) -> dict[str, float]:
    """The gateway's figures without their prefix; of those with labels the sum."""
    async with http.get(f"{gateway_url}/metrics") as response:
        text = await response.text()
    found: dict[str, float] = {}
    for name, value in _METRIC.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


async def _clear(http: aiohttp.ClientSession, parts: Deployment) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with http.post(f"{parts.gateway_url}/v1/cache/clear", headers=headers) as response:
        response.raise_for_status()


async def _read(http: aiohttp.ClientSession, parts: Deployment) -> AtRest:
    figures = await metrics(http, parts.gateway_url)
    async with http.get(f"{parts.gateway_url}/v1/cache") as response:
        response.raise_for_status()
        layers: dict[str, Any] = (await response.json())["layers"]
    engines = [held for held in layers["engines"].values() if held is not None]
    pins, connections = await asyncio.to_thread(_read_redis, parts)
    return AtRest(
        gateway_open_files=open_files(parts.gateway_pid),
        gateway_tasks=int(figures["event_loop_tasks"]),
        gateway_promises=int(figures["held_promises"]),
        requests_in_flight=int(figures["requests_in_flight"]),
        waiting_or_compiling_sets=int(figures["queue_sets"] + figures["compiling_sets"]),
        cached_sets=layers["sets"]["entries"],
        pins=pins,
        orphaned_pinned_bytes=layers["sets"]["orphaned_pinned_bytes"],
        held_sets=sum(held["entries"] for held in engines),
        held_orphans=sum(held["orphaned_entries"] for held in engines),
        ranks_open_files=sum(map(open_files, parts.engine.rank_pids())),
        shared_memory_files=_files_below(parts.shm_dir),
        redis_connections=connections,
    )


def _read_redis(parts: Deployment) -> tuple[int, int]:
    keys = dict(zip(("state", "news", "pins"), Keyspace().cache, strict=False))
    return int(parts.redis.client.hlen(keys["pins"])), int(parts.redis.client.info("clients")["connected_clients"])


def _files_below(directory: Path) -> int:
    return sum(1 for path in directory.rglob("*") if path.is_file())
