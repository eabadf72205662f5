"""Every key in Redis, and the only place that builds one.

It knows names, types and life spans; it opens no connection. `<v>` is the version of this layout: two releases with
different layouts share nothing, and a rolling upgrade starves neither.

| key | type | TTL | holds |
|---|---|---|---|
| `<namespace>:v<v>:{sets}:index:<digest>` | string | 1 h, renewed by each hit | artifact hash and size, JSON |
| `<namespace>:v<v>:blob:{<artifact hash>}` | string | 2 h, renewed by each hit | the artifact's bytes |
| `<namespace>:v<v>:vocabulary:{<fingerprint>}` | string | 1 h, renewed by each live engine | the vocabulary's bytes |
| `<namespace>:v<v>:{group:<group>}:feed` | stream | none, at most about 10,000 entries | gateways -> engines |
| `<namespace>:v<v>:{group:<group>}:events` | stream | none, at most about 10,000 entries | engines -> gateways |
| `<namespace>:v<v>:{group:<group>}:engines` | set | none | epochs of engines, expired ones dropped by readers |
| `<namespace>:v<v>:{group:<group>}:engine:<epoch>` | string | 6 s, renewed every 2 s | the engine's record, JSON |
| `<namespace>:v<v>:{group:<group>}:gateway:<gateway>` | string | 6 s, renewed every 2 s | `1` while the gateway lives |

Invariants: what one command or script touches together has one hash tag; a blob has its own tag, so that blobs
spread over a Redis Cluster; the TTL of a blob is longer than that of its index entry.
"""

import re
from dataclasses import dataclass
from typing import Final

__all__ = [
    "BLOB_TTL_S",
    "INDEX_TTL_S",
    "LAYOUT_VERSION",
    "LEASE_MS",
    "STREAM_MAX_ENTRIES",
    "VOCABULARY_TTL_S",
    "Keyspace",
]

LAYOUT_VERSION: Final = 1

INDEX_TTL_S: Final = 3_600
BLOB_TTL_S: Final = 7_200
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

    def index(self, digest: str) -> str:
        """Index entry of a digest."""
        return f"{self._prefix}:{{sets}}:index:{digest}"

    def blob(self, artifact_hash: str) -> str:
        """Artifact under its own hash."""
        return f"{self._prefix}:blob:{{{artifact_hash}}}"

    def vocabulary(self, fingerprint: str) -> str:
        """Vocabulary under its fingerprint."""
        return f"{self._prefix}:vocabulary:{{{fingerprint}}}"

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
    def _group_prefix(self) -> str:
        return f"{self._prefix}:{{group:{self.group}}}"
