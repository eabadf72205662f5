"""Every key in Redis, and the only place that builds one.

It knows names, types and life spans; it opens no connection. `<v>` is the version of this layout: two releases with
different layouts share nothing, and a rolling upgrade starves neither.

| key | type | TTL | holds |
|---|---|---|---|
| `<namespace>:v<v>:{cache}:state` | hash | none | epoch, generation, clock, figures of each layer |
| `<namespace>:v<v>:{cache}:news` | stream | none, at most about 10,000 entries | what became of leases, and clears |
| `<namespace>:v<v>:{cache}:pins` | hash | none | pin -> layer, size, artifact hash, key |
| `<namespace>:v<v>:{cache}:pin_ends` | zset | none | pin by the end of its life |
| `<namespace>:v<v>:{cache}:pinned` | hash | none | what is pinned -> by how many pins |
| `<namespace>:v<v>:{cache}:references` | hash | none | artifact hash -> by how many records and pins it is named |
| `<namespace>:v<v>:{cache}:garbage` | zset | none | artifact hash by the moment in which nothing named it any more |
| `<namespace>:v<v>:{cache}:index:<layer>` | hash | none, ended by script | key -> generation, size, token, artifact |
| `<namespace>:v<v>:{cache}:order:<layer>` | zset | none, ended by script | key that nobody pins by its last use |
| `<namespace>:v<v>:{cache}:lease:<layer>:<key>` | string | as asked, renewed | token and fence of its holder |
| `<namespace>:v<v>:{cache}:failure:<layer>:<key>` | string | as asked, seconds | fence and failure, JSON |
| `<namespace>:v<v>:blob:{<artifact hash>}` | string | 2 h, renewed by each hit | the artifact's bytes |
| `<namespace>:v<v>:vocabulary:{<fingerprint>}` | string | 1 h, renewed by each live engine | the vocabulary's bytes |
| `<namespace>:v<v>:{names}:tenant:<tenant>` | hash | none | name -> generation, digest, count, size, list id |
| `<namespace>:v<v>:{names}:state` | hash | none | counts of all tenants; the generation below all forgotten ones |
| `<namespace>:v<v>:{names}:deleted` | zset | none, at most 10,000 members | tenant and name by last generation |
| `<namespace>:v<v>:{names}:reserved` | zset | none, members live 10 min | ids of lists that are being written |
| `<namespace>:v<v>:{names}:garbage` | set | none | ids of lists that are to be deleted |
| `<namespace>:v<v>:list:{<list id>}` | string | none | the list of one generation of one name, zstd |
| `<namespace>:v<v>:{group:<group>}:feed` | stream | none, at most about 10,000 entries | gateways -> engines |
| `<namespace>:v<v>:{group:<group>}:events` | stream | none, at most about 10,000 entries | engines -> gateways |
| `<namespace>:v<v>:{group:<group>}:engines` | set | none | epochs of engines, expired ones dropped by readers |
| `<namespace>:v<v>:{group:<group>}:engine:<epoch>` | string | 6 s, renewed every 2 s | the engine's record, JSON |
| `<namespace>:v<v>:{group:<group>}:gateway:<gateway>` | string | 6 s, renewed every 2 s | `1` while the gateway lives |

Invariants: what one command or script touches together has one hash tag; a blob has its own tag, so that blobs
spread over a Redis Cluster; the TTL of a blob is longer than the life of its index entry; no count has a TTL.
"""

import re
from dataclasses import dataclass
from typing import Final

from maskfeed_cache.fence import Layer

__all__ = [
    "BLOB_GRACE_S",
    "BLOB_TTL_S",
    "INDEX_TTL_S",
    "LAYOUT_VERSION",
    "LEASE_MS",
    "STREAM_MAX_ENTRIES",
    "VOCABULARY_TTL_S",
    "Keyspace",
]

LAYOUT_VERSION: Final = 2

# Life of an entry of the index that nobody asks for; scripts end it, not Redis.
INDEX_TTL_S: Final = 3_600
BLOB_TTL_S: Final = 7_200
# From storing a blob to committing it takes less than this; so long it is not swept, whatever refers to it.
BLOB_GRACE_S: Final = 15
VOCABULARY_TTL_S: Final = 3_600
# Life of an engine record and of a gateway's lease; each is renewed every third of it.
LEASE_MS: Final = 6_000
# Redis trims whole nodes of a stream, so it may hold a little more.
STREAM_MAX_ENTRIES: Final = 10_000

# No colon or brace: a name can't forge another key or another hash tag.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys of one engine group in one namespace. Blobs and index are shared by all groups of the namespace.

    Raises:
        ValueError: `group` or `namespace` is not 1 to 64 letters, digits, dots, underscores or hyphens.
    """

    group: str = "default"
    namespace: str = "maskfeed"

    def __post_init__(self) -> None:
        for field, name in (("group", self.group), ("namespace", self.namespace)):
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"{field}: {name!r} is not 1 to 64 letters, digits, dots, underscores or hyphens")

    @property
    def cache_state(self) -> str:
        """Epoch, generation and figures of the cache."""
        return f"{self._cache_prefix}:state"

    @property
    def cache_news(self) -> str:
        """Stream of what has happened in the cache."""
        return f"{self._cache_prefix}:news"

    @property
    def cache(self) -> tuple[str, ...]:
        """All keys that scripts of the cache share, in the order in which they know them."""
        names = ("state", "news", "pins", "pin_ends", "pinned", "references", "garbage")
        layers = (f"{name}:{layer}" for layer in Layer for name in ("index", "order"))
        return tuple(f"{self._cache_prefix}:{name}" for name in (*names, *layers))

    def lease(self, layer: Layer, key: str) -> str:
        """Who computes a key of the cache."""
        return f"{self._cache_prefix}:lease:{layer}:{key}"

    def failure(self, layer: Layer, key: str) -> str:
        """A failure that is remembered of a key of the cache."""
        return f"{self._cache_prefix}:failure:{layer}:{key}"

    def blob(self, artifact_hash: str) -> str:
        """Artifact under its own hash."""
        return f"{self._prefix}:blob:{{{artifact_hash}}}"

    def vocabulary(self, fingerprint: str) -> str:
        """Vocabulary under its fingerprint."""
        return f"{self._prefix}:vocabulary:{{{fingerprint}}}"

    def tenant_names(self, tenant: str) -> str:
        """Named sets of one tenant."""
        return f"{self._names_prefix}:tenant:{tenant}"

    @property
    def names_state(self) -> str:
        """Counts of the named sets."""
        return f"{self._names_prefix}:state"

    @property
    def deleted_names(self) -> str:
        """Names that were deleted, by their last generation."""
        return f"{self._names_prefix}:deleted"

    @property
    def reserved_lists(self) -> str:
        """Lists that are being written."""
        return f"{self._names_prefix}:reserved"

    @property
    def garbage_lists(self) -> str:
        """Lists that no name stands for any more."""
        return f"{self._names_prefix}:garbage"

    def named_list(self, list_id: str) -> str:
        """The list of one generation of one name."""
        return f"{self._prefix}:list:{{{list_id}}}"

    @property
    def feed(self) -> str:
        """Stream from the gateways to the engines of the group."""
        return f"{self._group_prefix}:feed"

    @property
    def events(self) -> str:
        """Stream from the engines to the gateways of the group."""
        return f"{self._group_prefix}:events"

    @property
    def engines(self) -> str:
        """Set of the epochs of the group's engines."""
        return f"{self._group_prefix}:engines"

    def engine(self, epoch: str) -> str:
        """Record of one engine."""
        return f"{self._group_prefix}:engine:{epoch}"

    def gateway(self, gateway: str) -> str:
        """Lease of one gateway."""
        return f"{self._group_prefix}:gateway:{gateway}"

    @property
    def _prefix(self) -> str:
        return f"{self.namespace}:v{LAYOUT_VERSION}"

    @property
    def _cache_prefix(self) -> str:
        return f"{self._prefix}:{{cache}}"

    @property
    def _names_prefix(self) -> str:
        return f"{self._prefix}:{{names}}"

    @property
    def _group_prefix(self) -> str:
        return f"{self._prefix}:{{group:{self.group}}}"
