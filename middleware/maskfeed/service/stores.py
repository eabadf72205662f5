"""The stores in Redis, opened as the settings say: in the gateway, and in actors that compile for it.

It knows addresses, limits and life spans. Invariants: a blob lives longer than any entry that names it; the settings
can be sent to another process.
"""

from dataclasses import dataclass, field
from typing import Final

from maskfeed.config import MAX_DEADLINE_MS, CacheSettings
from maskfeed_cache.fence import Layer
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.named_sets import NamedSetLimits
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_named_sets import RedisNamedSets
from maskfeed_cache.redis_store import RedisBlobStore

__all__ = ["StoreSettings"]

# Longer than any pin: a request may hold one for its whole deadline.
_MIN_BLOB_LIFE_S: Final = 2 * MAX_DEADLINE_MS // 1000


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where the stores are, and how they are kept."""

    # may hold a password
    redis_url: str = field(repr=False)
    keys: Keyspace
    cache: CacheSettings

    def open_blobs(self) -> RedisBlobStore:
        """Blobs and vocabularies. Connects at the first call.

        Raises:
            StoreError: the URL can't be read.
        """
        return RedisBlobStore(self.redis_url, self.keys, blob_ttl_s=self._blob_life_s)

    def open_index(self) -> RedisIndex:
        """The index of all layers, for one event loop. Connects at the first call.

        Raises:
            StoreError: the URL can't be read.
        """
        limits = {Layer.SETS: self.cache.limit_bytes, Layer.AUTOMATA: self.cache.automata_limit_bytes}
        return RedisIndex(
            self.redis_url,
            self.keys,
            limit_bytes={layer: limit or None for layer, limit in limits.items()},
            entry_ttl_s=self.cache.entry_life_s,
            blob_ttl_s=self._blob_life_s,
        )

    def open_named_sets(self) -> RedisNamedSets:
        """The lists behind names, for one event loop. Connects at the first call.

        Raises:
            StoreError: the URL can't be read.
        """
        limits = NamedSetLimits(total_bytes=self.cache.named_limit_bytes)
        return RedisNamedSets(self.redis_url, self.keys, limits=limits)

    @property
    def _blob_life_s(self) -> int:
        return max(2 * self.cache.entry_life_s, _MIN_BLOB_LIFE_S)
