"""Named candidate sets in this process: for tests and for tools that need no Redis.

It keeps the contract of `NamedSetStore`, faults included. Nothing here awaits, so each method is one step. Invariant:
of a name only the present list is kept.
"""

import secrets
from collections.abc import Sequence

from maskfeed_cache.memory_store import FaultScript
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

__all__ = ["MemoryNamedSets"]


class MemoryNamedSets:
    """A `NamedSetStore` over dictionaries.

    Args:
        limits: for all tenants together.
        faults: script of failures; stages as in the Redis store.
    """

    def __init__(self, *, limits: NamedSetLimits = DEFAULT_LIMITS, faults: FaultScript | None = None) -> None:
        self.faults = faults or FaultScript()
        # list id -> packed list, open to tests that want to tamper with it
        self.lists: dict[str, bytes] = {}
        self._limits = limits
        self._named: dict[tuple[str, str], NamedSet] = {}
        # last generation of each deleted name
        self._deleted: dict[tuple[str, str], int] = {}
        # above the generations of all names that were forgotten
        self._floor = 0

    async def get(self, tenant: str, name: str) -> NamedSet:
        """See `NamedSetStore`."""
        self.faults.check("names-get")
        return self._present(tenant, name, expected=None)

    async def read(self, named: NamedSet) -> bytes | None:
        """See `NamedSetStore`."""
        self.faults.check("names-read")
        return self.lists.get(named.list_id)

    async def put(
        self, tenant: str, name: str, listed: PackedList, *, expected: int | None = None
    ) -> tuple[NamedSet, bool]:
        """See `NamedSetStore`."""
        self.faults.check("names-put")
        check_list_size(listed, self._limits)
        before = self._named.get((tenant, name))
        generation = before.generation if before else 0
        if expected not in (None, generation):
            raise stale(name, expected or 0, generation)
        self._check_room(len(listed.packed), before)
        last_generation = generation or self._deleted.pop((tenant, name), self._floor)
        list_id = secrets.token_hex(16)
        named = NamedSet(name, last_generation + 1, listed.digest, listed.count, len(listed.packed), list_id)
        self.lists[list_id] = listed.packed
        self._named[tenant, name] = named
        if before:
            del self.lists[before.list_id]
        return named, before is None

    async def delete(self, tenant: str, name: str, *, expected: int | None = None) -> None:
        """See `NamedSetStore`."""
        self.faults.check("names-delete")
        named = self._present(tenant, name, expected=expected)
        del self._named[tenant, name]
        del self.lists[named.list_id]
        self._deleted[tenant, name] = named.generation
        if len(self._deleted) > self._limits.deleted_names:
            forgotten = min(self._deleted, key=lambda key: self._deleted[key])
            self._floor = max(self._floor, self._deleted.pop(forgotten))

    async def names(self, tenant: str) -> Sequence[NamedSet]:
        """See `NamedSetStore`."""
        self.faults.check("names-list")
        return [self._named[key] for key in sorted(self._named) if key[0] == tenant]

    async def usage(self) -> NamedSetUsage:
        """See `NamedSetStore`."""
        self.faults.check("names-usage")
        return NamedSetUsage(len(self._named), self._bytes(), self._limits.names, self._limits.total_bytes)

    async def close(self) -> None:
        """Nothing to give back."""

    def _present(self, tenant: str, name: str, *, expected: int | None) -> NamedSet:
        named = self._named.get((tenant, name))
        if named is None:
            raise not_there(name, self._deleted.get((tenant, name), 0))
        if expected not in (None, named.generation):
            raise stale(name, expected or 0, named.generation)
        return named

    def _check_room(self, size_bytes: int, before: NamedSet | None) -> None:
        old_bytes = before.size_bytes if before else 0
        total_bytes = self._bytes() + size_bytes - old_bytes
        if size_bytes > old_bytes and total_bytes > self._limits.total_bytes:
            raise over_limit(total_bytes, self._limits.total_bytes, "bytes")
        if before is None and len(self._named) >= self._limits.names:
            raise over_limit(len(self._named) + 1, self._limits.names, "names")

    def _bytes(self) -> int:
        return sum(named.size_bytes for named in self._named.values())
