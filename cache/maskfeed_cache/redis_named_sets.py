"""Named candidate sets in Redis.

It knows commands and their order, no list and no candidate. The names of all tenants, and the counts, lie under one
hash tag, each list under its own. Invariants: a list is reserved before it is written and written before a name stands
for it, so that what a dead writer left is found and deleted; a list is deleted only after the name has moved on, so
whoever finds it gone asks again what the name stands for.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from maskfeed_automata.errors import CorruptArtifact, InternalInvariant, StoreUnavailable
from maskfeed_cache.connection import DEFAULT_TIMEOUTS, Timeouts, as_bytes, async_store_errors, open_async_client
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.named_sets import (
    DEFAULT_LIMITS,
    NamedSet,
    NamedSetLimits,
    NamedSetUsage,
    PackedList,
    check_list_size,
    not_there,
    over_limit,
    stale,
)
from maskfeed_cache.scripts import Script, run_script

__all__ = ["RedisNamedSets"]

_DEFAULT_KEYS: Final = Keyspace()
# A writer has so long between announcing a list and letting a name stand for it.
_RESERVATION_MS: Final = 600_000
# Lists that one change deletes beside its own.
_SWEPT_AT_ONCE: Final = 16

_GET: Final = Script.load("names_get")
_RESERVE: Final = Script.load("names_reserve")
_PUT: Final = Script.load("names_put")
_DELETE: Final = Script.load("names_delete")


class RedisNamedSets:
    """A `NamedSetStore` in Redis. Connects at the first call.

    Args:
        url: as in `open_async_client`.
        keys: namespace of the keys; its group is not used, so that all groups of a namespace have the same names.
        limits: for all tenants together.
        reservation_ms: how long a list may be on its way; what is older is taken for left over.

    Raises:
        StoreError: the URL can't be read.
    """

    def __init__(
        self,
        url: str,
        keys: Keyspace = _DEFAULT_KEYS,
        *,
        limits: NamedSetLimits = DEFAULT_LIMITS,
        reservation_ms: int = _RESERVATION_MS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._client = open_async_client(url, timeouts)
        self._answer_s = timeouts.answer_s
        self._keys = keys
        self._limits = limits
        self._reservation_ms = reservation_ms

    async def get(self, tenant: str, name: str) -> NamedSet:
        """See `NamedSetStore`. One round trip."""
        keys = (self._keys.tenant_names(tenant), self._keys.deleted_names)
        record, last_generation = await self._run(_GET, "names-get", keys, (_member(tenant, name), name))
        if not record:
            raise not_there(name, int(last_generation))
        return _read_record(name, record)

    async def read(self, named: NamedSet) -> bytes | None:
        """See `NamedSetStore`."""
        async with async_store_errors("names-read", within_s=self._answer_s):
            return as_bytes(await self._client.get(self._keys.named_list(named.list_id)))

    async def put(
        self, tenant: str, name: str, listed: PackedList, *, expected: int | None = None
    ) -> tuple[NamedSet, bool]:
        """See `NamedSetStore`. Three round trips, and one or two to delete what is left over."""
        check_list_size(listed, self._limits)
        list_id = secrets.token_hex(16)
        reserving = (self._keys.reserved_lists, self._keys.garbage_lists)
        await self._run(_RESERVE, "names-reserve", reserving, (list_id, self._reservation_ms))
        async with async_store_errors("names-write", within_s=self._answer_s):
            await self._client.set(self._keys.named_list(list_id), listed.packed)
        facts = (listed.digest, listed.count, len(listed.packed), list_id)
        limits = (self._limits.total_bytes, self._limits.names)
        verdict = await self._run(
            _PUT,
            "names-put",
            (self._keys.tenant_names(tenant), self._keys.names_state, self._keys.deleted_names, *reserving),
            (_member(tenant, name), name, *facts, "" if expected is None else expected, *limits),
        )
        await self._sweep()
        match verdict:
            case [b"put", generation, is_new]:
                return _named(name, int(generation), *facts), bool(is_new)
            case [b"stale", generation]:
                raise stale(name, expected or 0, int(generation))
            case [b"full", b"bytes", value]:
                raise over_limit(int(value), self._limits.total_bytes, "bytes")
            case [b"full", b"names", value]:
                raise over_limit(int(value), self._limits.names, "names")
            case [b"lost"]:
                raise StoreUnavailable(
                    "writing the list took longer than it may; nothing was stored", stage="names-put"
                )
        raise _unknown(verdict)

    async def delete(self, tenant: str, name: str, *, expected: int | None = None) -> None:
        """See `NamedSetStore`."""
        verdict = await self._run(
            _DELETE,
            "names-delete",
            (
                self._keys.tenant_names(tenant),
                self._keys.names_state,
                self._keys.deleted_names,
                self._keys.garbage_lists,
            ),
            (
                _member(tenant, name),
                name,
                "" if expected is None else expected,
                self._limits.deleted_names,
            ),
        )
        match verdict:
            case [b"deleted", _]:
                await self._sweep()
            case [b"stale", generation]:
                raise stale(name, expected or 0, int(generation))
            case [b"absent", last_generation]:
                raise not_there(name, int(last_generation))
            case _:
                raise _unknown(verdict)

    async def names(self, tenant: str) -> Sequence[NamedSet]:
        """See `NamedSetStore`. Cost: linear in the tenant's names."""
        async with async_store_errors("names-list", within_s=self._answer_s):
            records: Any = await self._client.hgetall(self._keys.tenant_names(tenant))
        return sorted(
            (_read_record(name.decode(), record) for name, record in records.items()), key=lambda named: named.name
        )

    async def usage(self) -> NamedSetUsage:
        """See `NamedSetStore`."""
        async with async_store_errors("names-usage", within_s=self._answer_s):
            entries, size = await self._client.hmget(self._keys.names_state, ["entries", "bytes"])
        return NamedSetUsage(int(entries or 0), int(size or 0), self._limits.names, self._limits.total_bytes)

    async def close(self) -> None:
        """Give connections back. Idempotent."""
        await self._client.aclose()

    async def _run(self, script: Script, stage: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        async with async_store_errors(stage, within_s=self._answer_s):
            return await run_script(self._client, script, keys, args)

    async def _sweep(self) -> None:
        """Delete some of the lists that no name stands for.

        An id leaves the garbage after its list is gone, so a crash between the two costs nothing but a second try.
        """
        async with async_store_errors("names-sweep", within_s=self._answer_s):
            garbage: Any = await self._client.srandmember(self._keys.garbage_lists, _SWEPT_AT_ONCE)
            for list_id in garbage:
                await self._client.unlink(self._keys.named_list(list_id.decode()))
            if garbage:
                await self._client.srem(self._keys.garbage_lists, *garbage)


def _member(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


def _read_record(name: str, record: bytes) -> NamedSet:
    try:
        generation, digest, count, size_bytes, list_id = record.decode("ascii").split(" ")
        return _named(name, int(generation), digest, int(count), int(size_bytes), list_id)
    except ValueError as error:
        raise CorruptArtifact(f"the entry of the candidate set `{name}` can't be read", section="named-set") from error


def _named(name: str, generation: int, digest: str, count: int, size_bytes: int, list_id: str) -> NamedSet:
    return NamedSet(name, generation, digest, count, size_bytes, list_id)


def _unknown(verdict: object) -> InternalInvariant:
    return InternalInvariant(f"a script of the named sets said {verdict!r}")
