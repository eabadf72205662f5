"""The handle: all that travels to the engine with a request.

It names a set by content and says under which lives of which engines it was made ready. It carries no candidate.
Invariant: text that is not exactly a handle of this version raises HandleError; nothing is guessed.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from maskfeed_automata.errors import HandleError

__all__ = ["HANDLE_KEY", "PROBE", "Handle"]

# The key in `vllm_xargs` / `SamplingParams.extra_args`.
HANDLE_KEY: Final = "maskfeed"
# Stands in place of an artifact hash and means: the engine's own probe set, whose only candidate is its epoch.
PROBE: Final = "probe"

_PATTERN: Final = re.compile(
    r"mf1:(?P<hash>[0-9a-f]{64}|probe):(?P<reserved>0|[1-9][0-9]{0,9}):(?P<nonce>[0-9a-f]{32}):(?P<epochs>[0-9a-f]{16}(,[0-9a-f]{16})*)"
)


@dataclass(frozen=True, slots=True)
class Handle:
    """Artifact hash, epochs of the group's live engines, reserved id, request nonce.

    An engine refuses a handle that does not list its own epoch.
    """

    # 64 hex digits, or PROBE
    artifact_hash: str
    # each 16 hex digits; at least one
    epochs: tuple[str, ...]
    reserved_id: int
    # 32 hex digits, fresh for each request
    nonce: str

    def to_text(self) -> str:
        """One string, because `vllm_xargs` carries no nested object."""
        return f"mf1:{self.artifact_hash}:{self.reserved_id}:{self.nonce}:{','.join(self.epochs)}"

    @classmethod
    def from_text(cls, text: object) -> Self:
        """Read a handle.

        Raises:
            HandleError: not a string, or not exactly a handle of version mf1.
        """
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise HandleError(f"{HANDLE_KEY}: this is no handle of version mf1", field=HANDLE_KEY)
        return cls(
            artifact_hash=match["hash"],
            epochs=tuple(match["epochs"].split(",")),
            reserved_id=int(match["reserved"]),
            nonce=match["nonce"],
        )
