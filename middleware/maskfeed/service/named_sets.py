"""Named candidate sets as clients see them: stored, changed, and used by requests.

It joins the store, which knows names and bytes, with the lists, which know candidates; it knows no HTTP. Lists that
requests use stay in memory, sorted, within a bound, under an id that no other list ever has; what the name stands for
is asked of the store for every request. Invariants: a request uses the list of the generation that it is told; of two
changes at once none is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from maskfeed.service.candidate_lists import CandidateList
from maskfeed.service.named_lists import Changed, list_of, read_change, read_list, text_of
from maskfeed.service.named_references import SetReference
from maskfeed.service.offload import off_loop
from maskfeed.service.preconditions import Precondition
from maskfeed.service.requests import ConstrainedRequest
from maskfeed.service.resident_lists import ListPart, ResidentList
from maskfeed_automata.errors import CandidateError, CorruptArtifact, DeletedSet, StaleGeneration, UnknownSet
from maskfeed_cache.counted_entries import CountedEntries, Entry
from maskfeed_cache.named_sets import NamedSet, NamedSetStore, NamedSetUsage, PackedList, pack, stale, unpack

__all__ = ["NamedSets"]

_RESIDENT_LIMIT_BYTES: Final = 512 * 1024 * 1024
# Changes that others may make between reading a name and changing it, before the caller is told.
_TRIES: Final = 8
# An id costs about as much as so many bytes of a body.
_BYTES_PER_ID: Final = 32

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Prepared:
    packed: PackedList
    resident: ResidentList


class NamedSets:
    """The named sets of all tenants. For one event loop.

    Args:
        store: borrowed; whoever made it closes it.
        executor: where large lists are read.
        resident_limit_bytes: of lists that are kept in memory; least recently used ones make room.
    """

    def __init__(
        self, store: NamedSetStore, executor: Executor, *, resident_limit_bytes: int = _RESIDENT_LIMIT_BYTES
    ) -> None:
        self._store = store
        self._executor = executor
        self._lists: CountedEntries[str, ResidentList] = CountedEntries(resident_limit_bytes)
        self._loading: dict[str, asyncio.Task[ResidentList | None]] = {}
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """End what is being loaded."""
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    async def resolve(self, request: ConstrainedRequest, tenant: str) -> ConstrainedRequest:
        """The request with the candidates that it means by name; one with a list of its own as it is.

        Raises:
            UnknownSet: the tenant has no such set.
            DeletedSet: it was deleted.
            StaleGeneration: it has another generation than the request names.
            ParameterError: the set has no candidate with one of the ids. Context: `field`, `index`.
            CandidateError: no ids.
            StoreError: the store is away, or has lost the list.
        """
        reference = request.reference
        if reference is None:
            return request
        named, resident = await self._resident(tenant, reference)
        part = await self._part(resident, reference)
        return replace(request, part=part, reference=replace(reference, generation=named.generation))

    async def put(self, tenant: str, name: str, raw: bytes, condition: Precondition) -> tuple[NamedSet, bool]:
        """Store a list under a name.

        Args:
            tenant: whose name.
            name: checked.
            raw: the body, see `read_list`.
            condition: of the name's present state.

        Returns:
            What the name stands for now, and whether it is new.

        Raises:
            RequestError: a list that can't be used, a condition that does not hold, or too many changes by others.
            StoreError, CapacityError: see `NamedSetStore`.
        """
        prepared = await self._off_loop(len(raw), lambda: _prepare(read_list(raw)))

        async def attempt() -> tuple[NamedSet, bool]:
            expected = None
            if condition.is_given:
                expected = await self._generation(tenant, name)
                condition.check(expected)
            return await self._store.put(tenant, name, prepared.packed, expected=expected)

        named, is_new = await _retried(attempt)
        self._keep(named, prepared.resident)
        return named, is_new

    async def patch(self, tenant: str, name: str, raw: bytes, condition: Precondition) -> tuple[NamedSet, Changed]:
        """Add candidates to a list, and remove some.

        Args:
            tenant: whose name.
            name: checked.
            raw: the body, see `read_change`.
            condition: of the name's present state.

        Returns:
            What the name stands for now, and what was changed.

        Raises:
            RequestError: as in `put`, and there is no such set.
            StoreError, CapacityError: see `NamedSetStore`.
        """
        change = await self._off_loop(len(raw), lambda: read_change(raw))

        def apply(named: NamedSet, packed: bytes) -> tuple[Changed, _Prepared]:
            changed = change.applied_to(list_of(unpack(packed, named)))
            if not changed.listed.values:
                raise CandidateError("remove: no candidate would be left; DELETE deletes a set", field="remove")
            return changed, _prepare(changed.listed)

        async def attempt() -> tuple[NamedSet, Changed, ResidentList]:
            before, packed = await self._read(tenant, name)
            condition.check(before.generation)
            work = before.size_bytes + len(raw)
            changed, prepared = await self._off_loop(work, lambda: apply(before, packed))
            named, _ = await self._store.put(tenant, name, prepared.packed, expected=before.generation)
            return named, changed, prepared.resident

        # changes of one name through this gateway take turns, so that none does its work in vain
        async with self._turns.setdefault((tenant, name), asyncio.Lock()):
            named, changed, resident = await _retried(attempt)
        self._keep(named, resident)
        return named, changed

    async def delete(self, tenant: str, name: str, condition: Precondition) -> None:
        """Delete a set; the name remembers its generation.

        Raises:
            RequestError: there is no such set, a condition does not hold, or too many changes by others.
            StoreError: see `NamedSetStore`.
        """

        async def attempt() -> None:
            before = await self._store.get(tenant, name)
            condition.check(before.generation)
            await self._store.delete(tenant, name, expected=before.generation if condition.is_given else None)

        await _retried(attempt)

    async def get(self, tenant: str, name: str) -> NamedSet:
        """What a name stands for. Raises as `NamedSetStore.get`."""
        return await self._store.get(tenant, name)

    async def text(self, tenant: str, name: str) -> tuple[NamedSet, bytes]:
        """What a name stands for, and its list as JSON.

        Raises:
            UnknownSet, DeletedSet: there is no such set.
            StoreError: the store is away, or has lost the list.
        """
        named, packed = await self._read(tenant, name)
        return named, await self._off_loop(named.size_bytes, lambda: unpack(packed, named))

    async def names(self, tenant: str) -> Sequence[NamedSet]:
        """All of the tenant's sets, by name."""
        return await self._store.names(tenant)

    async def usage(self) -> NamedSetUsage:
        """Figures of the stored lists of all tenants."""
        return await self._store.usage()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the lists that are kept in memory."""
        return self._lists.bytes

    async def _generation(self, tenant: str, name: str) -> int:
        """The present one; 0 if the name stands for nothing."""
        try:
            return (await self._store.get(tenant, name)).generation
        except (UnknownSet, DeletedSet):
            return 0

    async def _read(self, tenant: str, name: str) -> tuple[NamedSet, bytes]:
        """What the name stands for, and its packed list."""
        named = await self._store.get(tenant, name)
        while (packed := await self._store.read(named)) is None:
            before, named = named, await self._store.get(tenant, name)
            _check_moved(before, named)
        return named, packed

    async def _resident(self, tenant: str, reference: SetReference) -> tuple[NamedSet, ResidentList]:
        before: NamedSet | None = None
        while True:
            named = await self._store.get(tenant, reference.name)
            if reference.generation not in (None, named.generation):
                raise stale(reference.name, reference.generation or 0, named.generation)
            entry = self._lists.use(named.list_id)
            if entry is not None:
                return named, entry.value
            if before is not None:
                _check_moved(before, named)
            resident = await self._loaded(named)
            if resident is not None:
                return named, resident
            before = named

    async def _loaded(self, named: NamedSet) -> ResidentList | None:
        """The list, read once for all who ask at the same time; None: the name stands for another one by now."""
        task = self._loading.get(named.list_id)
        if task is None:
            task = self._loading[named.list_id] = asyncio.create_task(self._load(named))
            task.add_done_callback(lambda done: self._end_loading(named, done))
        return await asyncio.shield(task)

    async def _load(self, named: NamedSet) -> ResidentList | None:
        packed = await self._store.read(named)
        if packed is None:
            return None
        resident = await self._off_loop(named.size_bytes, lambda: ResidentList.of(list_of(unpack(packed, named))))
        self._keep(named, resident)
        return resident

    def _end_loading(self, named: NamedSet, task: asyncio.Task[ResidentList | None]) -> None:
        del self._loading[named.list_id]
        if not task.cancelled():
            # those who wait get it; if all of them have left, nobody needs it
            task.exception()

    def _keep(self, named: NamedSet, resident: ResidentList) -> None:
        if named.list_id not in self._lists:
            self._lists.add(named.list_id, Entry(resident, resident.size_bytes))

    async def _part(self, resident: ResidentList, reference: SetReference) -> ListPart:
        ids = reference.ids
        if ids is None:
            return resident.whole()
        return await self._off_loop(len(ids) * _BYTES_PER_ID, lambda: resident.part(ids))

    async def _off_loop(self, n_bytes: int, work: Callable[[], _T]) -> _T:
        return await off_loop(self._executor, n_bytes, work)


def _prepare(listed: CandidateList) -> _Prepared:
    resident = ResidentList.of(listed)
    return _Prepared(pack(text_of(listed), count=len(listed.values)), resident)


def _check_moved(before: NamedSet, named: NamedSet) -> None:
    """Whoever found no list asks what the name stands for; if that is the same, the store has lost the list."""
    if before.list_id == named.list_id:
        raise CorruptArtifact(
            f"the store has lost the list of the candidate set `{named.name}`; send it again", section="named-set"
        )


async def _retried(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Try again while others change the name between reading and changing it.

    Raises:
        StaleGeneration: they always did.
    """
    for _ in range(_TRIES - 1):
        try:
            return await attempt()
        except StaleGeneration:
            continue
    return await attempt()
