"""What a gateway needs on this machine, looked at one by one.

It changes nothing. Invariant: each check reports, whatever the others found.
"""

from dataclasses import dataclass

from maskfeed.config import GatewaySettings
from maskfeed.service.upstream import HttpUpstream, client_session
from maskfeed_automata.errors import MaskfeedError
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import find_redis_server
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.redis_index import RedisIndex

__all__ = ["Finding", "examine"]

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


async def examine(settings: GatewaySettings) -> list[Finding]:
    """Look for Redis, the engine's server, and engines of the group."""
    findings = [await _look_for_upstream(settings)]
    if settings.redis_url is None:
        findings.append(_look_for_program())
    else:
        findings.append(await _look_for_redis(settings.redis_url))
        findings.append(await _look_for_engines(settings.redis_url, settings.group))
    return findings


def _look_for_program() -> Finding:
    try:
        return Finding("redis-server", True, find_redis_server())
    except MaskfeedError as error:
        return Finding("redis-server", False, error.message)


async def _look_for_redis(redis_url: str) -> Finding:
    try:
        index = RedisIndex(redis_url)
        try:
            await index.ping()
        finally:
            await index.close()
    except MaskfeedError as error:
        return Finding("redis", False, error.message)
    return Finding("redis", True, "answers")


async def _look_for_engines(redis_url: str, group: str) -> Finding:
    try:
        feed = RedisGatewayFeed(redis_url, Keyspace(group=group))
        try:
            records = await feed.engines()
        finally:
            await feed.close()
    except MaskfeedError as error:
        return Finding("engines", False, error.message)
    found = ", ".join(f"{record.epoch} ({record.model}, {record.engine_version})" for record in records)
    return Finding("engines", bool(records), found or f"none in the group {group!r}")


async def _look_for_upstream(settings: GatewaySettings) -> Finding:
    async with client_session(silence_timeout_s=_TIMEOUT_S) as session:
        try:
            async with HttpUpstream(session, settings.upstream_url).open(
                "GET", "/health", headers=(), body=b""
            ) as response:
                return Finding("upstream", response.status == 200, f"/health answers {response.status}")
        except MaskfeedError as error:
            return Finding("upstream", False, error.message)
