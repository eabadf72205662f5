"""Values by key, in the order of their use, counted to the byte, within a limit.

The bookkeeping of one cache layer in a process. It knows no thread, no generation and no computation: whoever uses it
holds a lock. Invariants: `bytes` is the sum of the live entries, `orphaned_pinned_bytes` that of the pinned ones which
are not live; pinned entries are never evicted; the two together are within the limit unless nothing else is left.
Entries that are evicted or emptied are returned, never freed here, because freeing a value can take long.
"""

from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, Generic, TypeVar

__all__ = ["CountedEntries", "Entry"]

K = TypeVar("K")
V = TypeVar("V")


class Entry(Generic[V]):
    """A value, its size, and how many pins it has. Live while the index points to it; a pin may outlive that."""

    __slots__ = ("n_pins", "size_bytes", "value")

    def __init__(self, value: V, size_bytes: int) -> None:
        self.value = value
        self.size_bytes = size_bytes
        self.n_pins = 0


class CountedEntries(Generic[K, V]):
    """The entries of one layer.

    Args:
        limit_bytes: for live and orphaned pinned entries together; None: unlimited.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.orphaned_pinned_bytes = 0
        self.evictions = 0
        # entries that there was no room for
        self.refusals = 0
        self._entries: dict[K, Entry[V]] = {}
        # the entries that are not pinned, least recently used first
        self._order: OrderedDict[K, None] = OrderedDict()
        self._pinned_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def keys(self) -> tuple[K, ...]:
        """Of the live entries, least recently used first, the pinned ones last. Cost: O(entries)."""
        return (*self._order, *(key for key in self._entries if key not in self._order))

    def use(self, key: K) -> Entry[V] | None:
        """The live entry of `key`, which is now the most recently used one."""
        if key in self._order:
            self._order.move_to_end(key)
        return self._entries.get(key)

    def add(self, key: K, entry: Entry[V]) -> list[Entry[V]]:
        """Make an entry live, unless what is pinned leaves no room for it. `key` must have none.

        Returns:
            What was evicted for it.
        """
        fixed_bytes = self._pinned_bytes + self.orphaned_pinned_bytes + entry.size_bytes
        if self.limit_bytes is not None and fixed_bytes > self.limit_bytes:
            self.refusals += 1
            return []
        self._entries[key] = entry
        self._order[key] = None
        self.bytes += entry.size_bytes
        return self._make_room()

    def pin(self, key: K, entry: Entry[V]) -> list[Entry[V]]:
        """Keep an entry of `key`, live or not, until it is unpinned as often. Returns what was evicted for it."""
        entry.n_pins += 1
        if entry.n_pins > 1:
            return []
        if self._is_live(key, entry):
            del self._order[key]
            self._pinned_bytes += entry.size_bytes
        else:
            self.orphaned_pinned_bytes += entry.size_bytes
        return self._make_room()

    def unpin(self, key: K, entry: Entry[V]) -> list[Entry[V]]:
        """End one pin; a live entry's last one counts as a use. Returns what was evicted, the entry perhaps."""
        entry.n_pins -= 1
        if entry.n_pins:
            return []
        if self._is_live(key, entry):
            self._order[key] = None
            self._pinned_bytes -= entry.size_bytes
        else:
            self.orphaned_pinned_bytes -= entry.size_bytes
        return self._make_room()

    def empty(self) -> tuple[MutableMapping[K, Any], ...]:
        """Forget all entries; the pinned ones become orphans. Returns what they were kept in. Cost: O(1)."""
        emptied = (self._entries, self._order)
        self._entries, self._order = {}, OrderedDict()
        self.orphaned_pinned_bytes += self._pinned_bytes
        self.bytes = self._pinned_bytes = 0
        return emptied

    def _is_live(self, key: K, entry: Entry[V]) -> bool:
        return self._entries.get(key) is entry

    def _make_room(self) -> list[Entry[V]]:
        evicted: list[Entry[V]] = []
        if self.limit_bytes is None:
            return evicted
        while self._order and self.bytes + self.orphaned_pinned_bytes > self.limit_bytes:
            key, _ = self._order.popitem(last=False)
            evicted.append(self._entries.pop(key))
            self.bytes -= evicted[-1].size_bytes
        self.evictions += len(evicted)
        return evicted
