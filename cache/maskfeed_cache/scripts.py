"""The Lua scripts of the cache: where they lie, and how one is run.

It knows files, hashes and NOSCRIPT; what a script does stands in its header. Invariant: a script is sent at most once
to a server that has it, and a server that has forgotten it, or never had it, is no error.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

import redis.asyncio
from redis.exceptions import NoScriptError

__all__ = ["Script", "run_script"]

_LUA: Final = files("maskfeed_cache") / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script as Redis gets it."""

    source: bytes = field(repr=False)
    # SHA-1 of the source: Redis's name for it
    sha: str

    @staticmethod
    @cache
    def load(name: str) -> "Script":
        """The script `lua/<name>.lua`, for one key of its own. Read once."""
        return Script._of((_LUA / f"{name}.lua").read_bytes())

    @staticmethod
    @cache
    def load_with_ledger(name: str) -> "Script":
        """The script `lua/<name>.lua` behind `lua/ledger.lua`, for the keys of the cache. Read once."""
        return Script._of((_LUA / "ledger.lua").read_bytes() + (_LUA / f"{name}.lua").read_bytes())

    @staticmethod
    def _of(source: bytes) -> "Script":
        return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


async def run_script(
    client: redis.asyncio.Redis, script: Script, keys: Sequence[str], arguments: Sequence[str | int | bytes]
) -> Any:
    """Run `script` by its hash, or by its source on a server that does not know it, which then does.

    Returns:
        What the script returns: integers, bytes, or a list of them.

    Raises:
        redis.exceptions.RedisError: whatever the driver raises.
    """
    client_: Any = client  # the driver types these for both of its kinds at once
    try:
        return await client_.evalsha(script.sha, len(keys), *keys, *arguments)
    except NoScriptError:
        return await client_.eval(script.source, len(keys), *keys, *arguments)
