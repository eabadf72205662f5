"""Named candidate sets: what a name of a tenant stands for, and what a store of them promises.

The lists are the users' own data. Nothing can make them again, so they are no part of the cache: no TTL, no eviction,
no `clear`. A store knows names, numbers and packed bytes; what a list holds is for others to say. Invariants: a
generation of a name stands for one list for ever, also across DELETE; a list belongs to one generation of one name and
lies under an id of its own, so that it can be deleted without asking who else uses it; whoever unpacks it checks its
digest.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import zstandard

from maskfeed_automata.errors import (
    CapacityError,
    CorruptArtifact,
    DeletedSet,
    LimitExceeded,
    StaleGeneration,
    UnknownSet,
)

__all__ = [
    "DEFAULT_LIMITS",
    "NamedSet",
    "NamedSetLimits",
    "NamedSetStore",
    "NamedSetUsage",
    "PackedList",
    "check_list_size",
    "not_there",
    "over_limit",
    "pack",
    "stale",
    "unpack",
]

# What the store has no room for it won't have in a moment either: somebody has to delete something.
_FULL_RETRY_S: Final = 60


@dataclass(frozen=True, slots=True)
class NamedSet:
    """What a name stands for now."""

    name: str
    # from 1; each change of the list adds 1 or more, and no number comes twice
    generation: int
    # SHA-256 of the list's text, 64 hex digits: of values and ids in their order, of no vocabulary
    digest: str
    # candidates, duplicates counted
    count: int
    # of the packed list
    size_bytes: int
    # under which the packed list lies; fresh for each generation
    list_id: str


@dataclass(frozen=True, slots=True)
class PackedList:
    """A list on its way into a store."""

    digest: str
    count: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class NamedSetLimits:
    """What all tenants together may keep."""

    # packed
    total_bytes: int = 512 * 1024 * 1024
    names: int = 100_000
    # deleted names that are remembered as such; beyond, those with the lowest generations are forgotten
    deleted_names: int = 10_000


DEFAULT_LIMITS: Final = NamedSetLimits()


@dataclass(frozen=True, slots=True)
class NamedSetUsage:
    """Figures of the layer, taken in one step. Lists that are being written or deleted are not in them."""

    entries: int
    # of the packed lists that names stand for, exactly
    bytes: int
    limit_entries: int
    limit_bytes: int


class NamedSetStore(Protocol):
    """(tenant, name) -> list, with generations. For one event loop.

    Each change is one atomic step of the store. Every method raises StoreUnavailable (no connection, or no answer in
    time; a change may or may not have happened).
    """

    async def get(self, tenant: str, name: str) -> NamedSet:
        """What the name stands for.

        Raises:
            UnknownSet: the tenant has no such name, and has not deleted one.
            DeletedSet: it was deleted. Context: `generation`, the last one.
        """
        ...

    async def read(self, named: NamedSet) -> bytes | None:
        """The packed list; None: it is gone, because the name stands for another one by now, or for none."""
        ...

    async def put(
        self, tenant: str, name: str, listed: PackedList, *, expected: int | None = None
    ) -> tuple[NamedSet, bool]:
        """Let the name stand for another list, under a new generation; the old list is deleted.

        Args:
            tenant: whose name.
            name: any.
            listed: the list.
            expected: generation that the name must have now, 0 for none; None: any.

        Returns:
            What the name stands for now, and whether it is new (or was deleted before).

        Raises:
            StaleGeneration: it has another generation than `expected`. Context: `expected`, `generation`.
            LimitExceeded: the list alone is over the limit. Context: `limit`, `value`, `unit`.
            CapacityError: with all the others it is. Context: `limit`, `value`, `unit`, `retry_after_s`. Or: the store
                is at its own memory limit.
        """
        ...

    async def delete(self, tenant: str, name: str, *, expected: int | None = None) -> None:
        """Let the name stand for nothing; its generation goes on counting if it comes back.

        Raises:
            UnknownSet, DeletedSet: there is no such name.
            StaleGeneration: it has another generation than `expected`.
        """
        ...

    async def names(self, tenant: str) -> Sequence[NamedSet]:
        """All of the tenant's, by name."""
        ...

    async def usage(self) -> NamedSetUsage:
        """Figures of all tenants together."""
        ...

    async def close(self) -> None:
        """Give connections back. Idempotent."""
        ...


def pack(text: bytes, *, count: int) -> PackedList:
    """Compress a list.

    Args:
        text: the list, in a form that is the same for equal lists.
        count: candidates in it.

    Cost: linear; 0.1 s for 20 MB. Releases the GIL.
    """
    return PackedList(hashlib.sha256(text).hexdigest(), count, zstandard.ZstdCompressor().compress(text))


def unpack(packed: bytes, named: NamedSet) -> bytes:
    """The text of a list.

    Args:
        packed: as the store gave it.
        named: that it was read for.

    Raises:
        CorruptArtifact: it is not the list that the name stands for.

    Cost: linear. Releases the GIL.
    """
    try:
        text = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise _corrupt(named) from error
    if hashlib.sha256(text).hexdigest() != named.digest:
        raise _corrupt(named)
    return text


# -- what every store says ---------------------------------------------------------------------------------------------


def check_list_size(listed: PackedList, limits: NamedSetLimits) -> None:
    """Refuse a list that is over the limit alone.

    Raises:
        LimitExceeded: it is.
    """
    size_bytes = len(listed.packed)
    if size_bytes > limits.total_bytes:
        raise LimitExceeded(
            f"the list has {size_bytes} bytes when compressed; all named sets together may have {limits.total_bytes}",
            field="candidates",
            limit=limits.total_bytes,
            value=size_bytes,
            unit="bytes",
        )


def over_limit(value: int, limit: int, unit: str) -> CapacityError:
    """The error for a list, or a name, that there is no room for beside the others."""
    return CapacityError(
        f"with this one the named sets would have {value} {unit}; the limit is {limit}",
        limit=limit,
        value=value,
        unit=unit,
        stage="named-sets",
        retry_after_s=_FULL_RETRY_S,
    )


def not_there(name: str, last_generation: int) -> UnknownSet | DeletedSet:
    """The error for a name that stands for nothing.

    Args:
        name: of the set.
        last_generation: of the deleted set; 0: there never was one.
    """
    if last_generation:
        return DeletedSet(
            f"the candidate set `{name}` was deleted; its last generation was {last_generation}",
            field="candidate_set",
            generation=last_generation,
        )
    return UnknownSet(f"there is no candidate set `{name}`", field="candidate_set")


def stale(name: str, expected: int, generation: int) -> StaleGeneration:
    """The error for a name that has another generation than `expected`; 0 stands for none."""
    return StaleGeneration(
        f"the candidate set `{name}` is at generation {generation}, not {expected}",
        field="candidate_set",
        expected=expected,
        generation=generation,
    )


def _corrupt(named: NamedSet) -> CorruptArtifact:
    return CorruptArtifact(
        f"the list of the candidate set `{named.name}` is damaged in the store; send it again", section="named-set"
    )
