"""Settings of the gateway: one frozen value, read from a mapping.

The only module of the middleware that names environment variables. It knows no service and opens nothing.
Invariant: a `GatewaySettings` that exists is valid; text that is no setting raises ParameterError naming its variable.
Precedence is command line, then environment, then default. `python -m maskfeed.config` prints docs/settings.md.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final, Self

from maskfeed_automata.errors import ParameterError
from maskfeed_cache.keys import Keyspace

__all__ = ["ENVIRONMENT_PREFIX", "MAX_DEADLINE_MS", "GatewaySettings", "settings_document"]

ENVIRONMENT_PREFIX: Final = "MASKFEED_"
# of a request's own deadline, too
MAX_DEADLINE_MS: Final = 600_000
# Of the settings that can be wrong, those that `maskfeed serve` has an option for.
_OPTIONS: Final = {
    "upstream_url": "--upstream",
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
class GatewaySettings:
    """What `maskfeed serve` can be told. Units are in the names."""

    upstream_url: str = _setting("http://127.0.0.1:8000", "Base URL of the vLLM server, without `/v1`.")
    redis_url: str | None = _setting(
        None, "Redis that the engine uses too. Without it, a private redis-server is started."
    )
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
    queue_limit: int = _setting(1_024, "Requests that may wait for a compiler; one more is answered 429.", minimum=0)
    compile_threads: int = _setting(2, "Sets that are compiled at once.", minimum=1)
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

    def __post_init__(self) -> None:
        for setting in fields(self):
            minimum, maximum = setting.metadata["minimum"], setting.metadata["maximum"]
            value = getattr(self, setting.name)
            if minimum is not None and value < minimum:
                raise _refusal(setting.name, f"must be at least {minimum}, not {value}")
            if maximum is not None and value > maximum:
                raise _refusal(setting.name, f"must be at most {maximum}, not {value}")
        if not self.upstream_url.startswith(("http://", "https://")):
            raise _refusal("upstream_url", "must start with http:// or https://")
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
        given: dict[str, Any] = {}
        for setting in fields(cls):
            text = environ.get(ENVIRONMENT_PREFIX + setting.name.upper(), "")
            if text:
                given[setting.name] = _read(setting.name, text, is_number=isinstance(setting.default, int))
        return cls(**given)

    def with_overrides(self, **given: Any) -> Self:
        """The settings with every given value that is not None in place.

        Raises:
            ParameterError: a value out of its range.
        """
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def settings_document() -> str:
    """The text of docs/settings.md."""
    rows = [
        "# Settings of the gateway",
        "",
        "Read from the environment; options of `maskfeed serve` win over them. This page is generated:",
        "`python -m maskfeed.config > docs/settings.md`.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for setting in fields(GatewaySettings):
        assert setting.default is not MISSING
        default = "none" if setting.default is None else f"`{setting.default}`"
        rows.append(f"| `{ENVIRONMENT_PREFIX}{setting.name.upper()}` | {default} | {setting.metadata['doc']} |")
    return "\n".join(rows) + "\n"


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
