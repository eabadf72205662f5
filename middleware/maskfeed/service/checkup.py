"""What a gateway needs, looked at one by one: Python, Redis, Ray, the engine's server, its engines and their masks.

It changes nothing that lasts. Invariant: each check reports, whatever the others found; what could not be looked at
because another thing is missing is not reported as missing itself.
"""

import asyncio
import secrets
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from maskfeed.config import GatewaySettings
from maskfeed.service.exchange import Headers
from maskfeed.service.proof import prove
from maskfeed.service.upstream import HttpUpstream, client_session
from maskfeed_automata import FORMAT_VERSION, Vocabulary
from maskfeed_automata.errors import MaskfeedError
from maskfeed_cache.connection import async_store_errors, open_async_client
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.private_redis import find_redis_server
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_workers.engine_checks import TESTED_VERSIONS

__all__ = ["Finding", "examine", "find_version"]

# without a Redis there is no way to the engines: a doctor who is content has not seen them
_NOT_LOOKED_AT: Final = "engines and masks not looked at: give --redis-url, the one that `maskfeed serve` prints"
_TIMEOUT_S: Final = 5.0
_PROOF_TIMEOUT_S: Final = 30.0
_PYTHONS: Final = ((3, 11), (3, 14))
_OLDEST_REDIS: Final = (6, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


async def examine(settings: GatewaySettings) -> list[Finding]:
    """Make all checks that these settings call for, in the order in which things depend on each other."""
    findings = [_look_at_python(), _look_at_local_vllm()]
    address = settings.redis.address
    if address is None:
        findings.append(_look_for_program())
    else:
        findings.append(await _look_for_redis(address))
    if settings.compiler == "ray":
        findings.append(await asyncio.to_thread(_look_for_ray, settings))
    headers = _headers(settings)
    async with client_session(silence_timeout_s=_TIMEOUT_S) as session:
        upstream = HttpUpstream(session, settings.upstream_url)
        findings.append(await _look_for_upstream(upstream, headers))
        if address is not None:
            findings += await _look_for_engines(address, settings.group, upstream, headers)
    return findings


def find_version(distribution: str) -> str | None:
    """Version of an installed distribution, or of its build for CPUs; None if it is not installed."""
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _look_at_python() -> Finding:
    oldest, newest = _PYTHONS
    found = sys.version_info[:2]
    detail = sys.version.split()[0]
    if oldest <= found <= newest:
        return Finding("python", True, detail)
    return Finding("python", False, f"{detail}; needed: {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}")


def _look_at_local_vllm() -> Finding:
    """The engine may run elsewhere, so its absence here is nothing; a release that it would refuse to run with is."""
    found = find_version("vllm")
    if found is None:
        return Finding("vllm", True, "not installed here; the engine runs elsewhere")
    ok = ".".join(found.split(".")[:2]) in TESTED_VERSIONS
    return Finding("vllm", ok, found if ok else f"{found}; the processor works with {', '.join(TESTED_VERSIONS)}")


def _look_for_program() -> Finding:
    try:
        return Finding("redis-server", True, f"{find_redis_server()}; {_NOT_LOOKED_AT}")
    except MaskfeedError as error:
        return Finding("redis-server", False, error.message)


async def _look_for_redis(redis_url: str) -> Finding:
    try:
        client = open_async_client(redis_url)
        try:
            async with async_store_errors("info", within_s=_TIMEOUT_S):
                told = await client.info()
        finally:
            await client.aclose()
    except MaskfeedError as error:
        # the driver's own text, where it has more to say than ours
        cause = str(error.__cause__)
        return Finding("redis", False, error.message if cause in error.message else f"{error.message}; {cause}")
    release, policy = str(told["redis_version"]), told.get("maxmemory_policy", "unknown")
    detail = f"{release}, {told['used_memory_human']} of {told.get('maxmemory_human', '?')} used, policy {policy}"
    if tuple(map(int, release.split(".")[:2])) < _OLDEST_REDIS:
        return Finding("redis", False, f"{detail}; needed: {_OLDEST_REDIS[0]}.{_OLDEST_REDIS[1]} or later")
    if str(policy).startswith("allkeys"):
        return Finding("redis", False, f"{detail}: it may drop the cache's own counts; set volatile-lru or noeviction")
    return Finding("redis", True, detail)


def _look_for_ray(settings: GatewaySettings) -> Finding:
    found = find_version("ray")
    if found is None:
        return Finding("ray", False, "not installed: pip install 'maskfeed[ray]'")
    from maskfeed_workers.ray_cluster import address_of_cluster, check_address, cluster_cpus, joined_cluster, pool_size

    address = address_of_cluster(settings.ray.address)
    if address is None:
        return Finding("ray", True, f"{found}; the gateway will start a cluster on this machine")
    try:
        check_address(address)
        with joined_cluster(address):
            n_cpus = cluster_cpus()
    except MaskfeedError as error:
        return Finding("ray", False, error.message)
    return Finding(
        "ray", n_cpus > 0, f"{found}; {n_cpus:.0f} CPUs at {address}, {settings.ray.actors or pool_size(n_cpus)} actors"
    )


async def _look_for_upstream(upstream: HttpUpstream, headers: Headers) -> Finding:
    try:
        async with upstream.open("GET", "/v1/models", headers=headers, body=b"") as response:
            body = await response.read()
            if response.status != 200:
                return Finding("upstream", False, f"/v1/models answers {response.status}")
            models = [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
    except MaskfeedError as error:
        return Finding("upstream", False, error.message)
    except (msgspec.DecodeError, KeyError, TypeError):
        return Finding("upstream", False, "/v1/models answers with something that is no list of models")
    return Finding("upstream", True, f"serves {', '.join(models)}")


async def _look_for_engines(redis_url: str, group: str, upstream: HttpUpstream, headers: Headers) -> list[Finding]:
    try:
        feed = RedisGatewayFeed(redis_url, Keyspace(group=group))
        try:
            records = await feed.engines()
            if not records:
                return [Finding("engines", False, f"none in the group {group!r}")]
            findings = [_describe_engines(records)]
            try:
                vocabulary = Vocabulary.from_bytes(await feed.vocabulary(records[0].fingerprint))
            except MaskfeedError as error:
                return [*findings, Finding("vocabulary", False, error.message)]
            findings.append(_compare(vocabulary, records))
        finally:
            await feed.close()
    except MaskfeedError as error:
        return [Finding("engines", False, error.message)]
    if all(finding.ok for finding in findings):
        findings.append(await _try_masks(records, vocabulary, upstream, headers))
    return findings


def _describe_engines(records: list[EngineRecord]) -> Finding:
    found = ", ".join(
        f"{record.epoch} ({record.model}, vLLM {record.engine_version}, {record.n_ranks} rank(s))" for record in records
    )
    strangers = [record.epoch for record in records if FORMAT_VERSION not in record.format_versions]
    if strangers:
        return Finding("engines", False, f"{found}; {', '.join(strangers)} do not read format {FORMAT_VERSION}")
    return Finding("engines", True, found)


def _compare(vocabulary: Vocabulary, records: list[EngineRecord]) -> Finding:
    expected = {record.fingerprint for record in records}
    if expected != {vocabulary.fingerprint}:
        return Finding("vocabulary", False, f"engines name {sorted(expected)}, published is {vocabulary.fingerprint}")
    return Finding("vocabulary", True, f"{vocabulary.size} ids, fingerprint {vocabulary.fingerprint[:12]}")


async def _try_masks(
    records: list[EngineRecord], vocabulary: Vocabulary, upstream: HttpUpstream, headers: Headers
) -> Finding:
    """Ask each engine, through the URL, for what only masks can make it say."""
    try:
        async with asyncio.timeout(_PROOF_TIMEOUT_S):
            await prove(upstream, records, vocabulary, headers=headers, new_nonce=lambda: secrets.token_hex(16))
    except MaskfeedError as error:
        return Finding("masks", False, error.message)
    except TimeoutError:
        return Finding("masks", False, f"no answer to a probe within {_PROOF_TIMEOUT_S:.0f} s")
    return Finding("masks", True, "every engine of the group enforces them, and is reached through the URL")


def _headers(settings: GatewaySettings) -> Headers:
    if settings.upstream_api_key is None:
        return ()
    return (("Authorization", f"Bearer {settings.upstream_api_key}"),)
