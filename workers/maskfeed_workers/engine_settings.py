"""What the processor inside an engine is told: where Redis is, which group it belongs to.

Read once, at construction, from `additional_config["maskfeed"]` of vLLM (it reaches every rank, under every executor)
and, key by key, from MASKFEED_* of the environment where that is silent. Knows no vLLM type. Invariant: an unknown or
ill-typed key is an error at start, never ignored.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from maskfeed_automata.errors import EngineUnsupported

__all__ = ["CONFIG_KEY", "EngineSettings", "engine_variables"]

CONFIG_KEY: Final = "maskfeed"
_ENVIRONMENT_PREFIX: Final = "MASKFEED_"


def _default_shm_dir() -> str:
    shm = Path("/dev/shm")  # noqa: S108 - shared memory is the point: ranks of a host map the same file
    return str((shm if shm.is_dir() else Path(tempfile.gettempdir())) / "maskfeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine. All ranks of it get the same."""

    # redis://, rediss:// or unix:// URL; None = no feed, only candidates given inline (offline `LLM`)
    redis_url: str | None = None
    # the engine group: replicas behind one URL
    group: str = "default"
    # folder on a shared-memory filesystem for mapped artifacts
    shm_dir: str = field(default_factory=_default_shm_dir)
    # a round (fetch, map, verify, vote, acknowledge) must end within this
    round_deadline_ms: int = 5_000
    # held sets beyond this are evicted, least recently used first, never a promised one
    held_limit_bytes: int = 512 * 1024 * 1024
    held_limit_sets: int = 1_024
    # V2 model runner: device memory for sets, taken at start; no more than this is held there
    device_arena_bytes: int = 256 * 1024 * 1024
    # folder for tokenizer automata on disk; None = the user's cache folder
    cache_dir: str | None = None

    @classmethod
    def from_mappings(cls, additional_config: Any, environ: Mapping[str, str]) -> Self:
        """Read the settings.

        Args:
            additional_config: `VllmConfig.additional_config`; only its key "maskfeed" is looked at.
            environ: the process environment.

        Raises:
            EngineUnsupported: a key that does not exist, or a value of another type. Context: `field`.
        """
        given = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(given, Mapping):
            raise EngineUnsupported(f"additional_config.{CONFIG_KEY} must be an object", field=CONFIG_KEY)
        names = [each.name for each in fields(cls)]
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise EngineUnsupported(
                f"additional_config.{CONFIG_KEY}.{unknown[0]} does not exist; known: {', '.join(names)}",
                field=unknown[0],
            )
        values: dict[str, Any] = {
            name: environ[key] for name in names if (key := _ENVIRONMENT_PREFIX + name.upper()) in environ
        }
        values.update(given)
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise EngineUnsupported(f"additional_config.{CONFIG_KEY}: {error}", field=CONFIG_KEY) from error


def engine_variables() -> frozenset[str]:
    """Names of all variables of the environment that are settings of an engine."""
    return frozenset(_ENVIRONMENT_PREFIX + each.name.upper() for each in fields(EngineSettings))
