"""Settings of the gateway: frozen values, one for each role, read from a mapping.

The only module of the middleware that names environment variables. It knows no service and opens nothing.
Invariant: a `GatewaySettings` that exists is valid; text that is no setting raises ParameterError naming its variable.
Precedence is command line, then environment, then default. `python -m maskfeed.config` prints docs/settings.md.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Final, Self
from urllib.parse import urlsplit

from maskfeed_automata.errors import ParameterError
from maskfeed_cache.connection import with_credentials
from maskfeed_cache.keys import Keyspace

__all__ = [
    "COMPILERS",
    "ENVIRONMENT_PREFIX",
    "MAX_DEADLINE_MS",
    "CacheSettings",
    "CompileSettings",
    "GatewaySettings",
    "QueueSettings",
    "RaySettings",
    "settings_document",
    "unknown_variables",
    "variables",
]

ENVIRONMENT_PREFIX: Final = "MASKFEED_"
# of a request's own deadline, too
MAX_DEADLINE_MS: Final = 600_000
COMPILERS: Final = ("thread", "ray")
# Of the settings that can be wrong, those that `maskfeed serve` has an option for.
_OPTIONS: Final = {
    "upstream_url": "--upstream",
    "compiler": "--compiler",
    "group": "--group",
    "port": "--port",
    "deadline_ms": "--deadline-ms",
}
_MIB: Final = 1024 * 1024


def _setting(
    default: Any, doc: str, *, minimum: int | None = None, maximum: int | None = None, secret: bool = False
) -> Any:
    return field(default=default, metadata={"doc": doc, "minimum": minimum, "maximum": maximum}, repr=not secret)


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The Redis of cache, feed and named lists."""

    url: str | None = _setting(
        None,
        "Redis that the engine uses too (`redis://`, `rediss://`, `unix://`, `redis+cluster://`, `rediss+cluster://`). "
        "Without it, a private redis-server is started.",
        secret=True,
    )
    username: str | None = _setting(None, "ACL user for that Redis, if the URL names none.")
    password: str | None = _setting(None, "Password for that Redis, if the URL has none.", secret=True)

    @property
    def address(self) -> str | None:
        """The URL with user and password in it; None where a private redis-server is to be started.

        Raises:
            StoreError: the URL names a user or password of its own as well.
        """
        return None if self.url is None else with_credentials(self.url, username=self.username, password=self.password)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The line in front of the compilers, and how long a request may stay in each stage."""

    limit: int = _setting(1_024, "Sets that may wait for a compiler; one more is answered 429.", minimum=0)
    tenant_limit: int = _setting(512, "The same for the sets of one tenant.", minimum=0)
    wait_ms: int = _setting(30_000, "Longest stay of a request in the line.", minimum=1)
    compile_ms: int = _setting(30_000, "Longest time that a request waits for a compiler that works.", minimum=1)
    ready_ms: int = _setting(30_000, "Longest time that a request waits for the engines to take its set.", minimum=1)

    def __post_init__(self) -> None:
        _check_ranges(self, "queue_")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The cache in Redis. All gateways over one Redis should have the same."""

    limit_bytes: int = _setting(
        1024 * _MIB, "Bytes of compiled sets, pinned ones of earlier generations included; 0: no limit.", minimum=0
    )
    automata_limit_bytes: int = _setting(256 * _MIB, "The same for tokenizer automata.", minimum=0)
    named_limit_bytes: int = _setting(
        512 * _MIB, "Bytes of the lists behind names, compressed. Nothing makes room for them but DELETE.", minimum=1
    )
    entry_life_s: int = _setting(3_600, "Life of a set that nobody asks for.", minimum=1)
    lease_ms: int = _setting(
        5_000, "After the death of a gateway that compiles, others wait so long for its set.", minimum=100
    )

    def __post_init__(self) -> None:
        _check_ranges(self, "cache_")


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """The compiler in the gateway's own process."""

    threads: int = _setting(2, "Sets that are compiled at once, where `MASKFEED_COMPILER` is `thread`.", minimum=1)

    def __post_init__(self) -> None:
        _check_ranges(self, "compile_")


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The compilers in a Ray cluster."""

    address: str | None = _setting(
        None,
        "Ray cluster whose actors compile, where `MASKFEED_COMPILER` is `ray`. Without it, the one that the process "
        "belongs to, else that at `RAY_ADDRESS`, else one that is started for the gateway.",
    )
    actors: int = _setting(0, "Number of actors; 0: one for every four CPUs of the cluster, 1 to 16.", minimum=0)

    def __post_init__(self) -> None:
        _check_ranges(self, "ray_")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What `maskfeed serve` can be told. Units are in the names."""

    upstream_url: str = _setting("http://127.0.0.1:8000", "Base URL of the vLLM server, without `/v1`.")
    group: str = _setting("default", "Engine group behind `upstream_url`.")
    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    deadline_ms: int = _setting(
        30_000,
        "Time from receipt until the set is ready on all ranks, for requests that give none; at most "
        f"{MAX_DEADLINE_MS}.",
        minimum=1,
        maximum=MAX_DEADLINE_MS,
    )
    compiler: str = _setting(
        "thread", "Who compiles: `thread`, the gateway's own threads; `ray`, actors in a Ray cluster."
    )
    max_body_bytes: int = _setting(
        128 * _MIB, "Largest request body, as sent and after decompression; a larger one is answered 413.", minimum=1
    )
    upstream_api_key: str | None = _setting(
        None, "Key for the gateway's own probes, where vLLM runs with `--api-key`; clients send theirs.", secret=True
    )
    upstream_timeout_s: int = _setting(
        600, "Longest silence of the engine's server before it counts as failed.", minimum=1
    )
    drain_timeout_s: int = _setting(60, "Time that running requests are given after SIGTERM.", minimum=0)
    admin_key: str | None = _setting(
        None, "Bearer token for `POST /v1/cache/clear`; without it the route is closed.", secret=True
    )
    redis: RedisSettings = field(default_factory=RedisSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    compile: CompileSettings = field(default_factory=CompileSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        _check_ranges(self, "")
        if self.compiler not in COMPILERS:
            raise _refusal("compiler", f"must be {' or '.join(COMPILERS)}, not {self.compiler!r}")
        _check_base_url(self.upstream_url)
        try:
            Keyspace(group=self.group)
        except ValueError as error:
            raise _refusal("group", str(error)) from error

    @classmethod
    def from_mapping(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings of an environment. Empty text counts as absent; other variables are not looked at.

        Raises:
            ParameterError: text that is no value of its setting. Context: `field`, the variable's name.
        """
        roles: dict[str, Any] = {name: role(**_given(role, environ, f"{name}_")) for name, role in _ROLES.items()}
        return cls(**_given(cls, environ, ""), **roles)

    def with_overrides(self, **given: Any) -> Self:
        """The settings with every given value that is not None in place.

        Args:
            **given: by the names of the variables, in small letters and without the prefix.

        Raises:
            ParameterError: a value out of its range.
        """
        changes = {name: value for name, value in given.items() if value is not None}
        for role in _ROLES:
            prefix = f"{role}_"
            own = {name.removeprefix(prefix): changes.pop(name) for name in [*changes] if name.startswith(prefix)}
            if own:
                changes[role] = replace(getattr(self, role), **own)
        return replace(self, **changes)


# settings that have a role of their own, by the first word of their variables
_ROLES: Final[Mapping[str, type[Any]]] = {
    "redis": RedisSettings,
    "queue": QueueSettings,
    "cache": CacheSettings,
    "compile": CompileSettings,
    "ray": RaySettings,
}


def variables() -> frozenset[str]:
    """Names of all variables of the environment that are settings."""
    return frozenset(
        f"{ENVIRONMENT_PREFIX}{prefix}{setting.name}".upper()
        for prefix, settings in _by_prefix()
        for setting in _plain_fields(settings)
    )


def unknown_variables(environ: Mapping[str, str], *, known_elsewhere: frozenset[str]) -> dict[str, str | None]:
    """Variables with our prefix that nobody reads, most likely misspelt, and the one that each was meant to be.

    Args:
        environ: the environment.
        known_elsewhere: variables of other parts, which often share an environment with the gateway.
    """
    known = variables() | known_elsewhere
    strangers = sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    # compared without the prefix, which would make all of them alike
    words = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in sorted(known)}
    nearest = {name: get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), words, 1) for name in strangers}
    return {name: words[close[0]] if close else None for name, close in nearest.items()}


def settings_document() -> str:
    """The text of docs/settings.md."""
    rows = [
        "# Settings of the gateway",
        "",
        "Read from the environment; options of `maskfeed serve` win over them. A variable `MASKFEED_*` that neither",
        "gateway nor engine reads is told in the log, `event=unknown-setting`. This page is generated:",
        "`python -m maskfeed.config > docs/settings.md`.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for prefix, settings in _by_prefix():
        for setting in _plain_fields(settings):
            default = "none" if setting.default is None else f"`{setting.default}`"
            name = f"{ENVIRONMENT_PREFIX}{prefix}{setting.name}".upper()
            rows.append(f"| `{name}` | {default} | {setting.metadata['doc']} |")
    return "\n".join(rows) + "\n"


def _by_prefix() -> list[tuple[str, Any]]:
    return [("", GatewaySettings), *((f"{name}_", role) for name, role in _ROLES.items())]


def _plain_fields(settings: Any) -> list[Field[Any]]:
    """The fields that are settings themselves, not roles."""
    return [setting for setting in fields(settings) if setting.metadata]


def _given(settings: Any, environ: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """What the environment says of the fields of `settings`."""
    given: dict[str, Any] = {}
    for setting in _plain_fields(settings):
        name = prefix + setting.name
        text = environ.get(ENVIRONMENT_PREFIX + name.upper(), "")
        if text:
            given[setting.name] = _read(name, text, is_number=isinstance(setting.default, int))
    return given


def _check_base_url(url: str) -> None:
    if not url.startswith(("http://", "https://")) or not urlsplit(url).netloc:
        raise _refusal("upstream_url", "must start with http:// or https:// and a host")
    if url.rstrip("/").endswith("/v1"):
        raise _refusal("upstream_url", "must be without /v1, which the gateway adds itself")


def _check_ranges(settings: Any, prefix: str) -> None:
    for setting in _plain_fields(settings):
        minimum, maximum = setting.metadata["minimum"], setting.metadata["maximum"]
        value = getattr(settings, setting.name)
        if minimum is not None and value < minimum:
            raise _refusal(prefix + setting.name, f"must be at least {minimum}, not {value}")
        if maximum is not None and value > maximum:
            raise _refusal(prefix + setting.name, f"must be at most {maximum}, not {value}")


def _read(name: str, text: str, *, is_number: bool) -> str | int:
    if not is_number:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise _refusal(name, f"must be a whole number, not {text!r}") from error


def _refusal(name: str, problem: str) -> ParameterError:
    variable = ENVIRONMENT_PREFIX + name.upper()
    # what was set where isn't known here
    where = f"{variable} or {_OPTIONS[name]}" if name in _OPTIONS else variable
    return ParameterError(f"{name} {problem} ({where})", field=variable)


if __name__ == "__main__":
    print(settings_document(), end="")
