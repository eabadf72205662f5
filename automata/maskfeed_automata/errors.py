"""Every error of maskfeed, in one tree.

The lowest room owns the tree, so that each room can raise and catch the same types and the gateway can
map them to HTTP in one table. An error knows nothing of HTTP, Redis, vLLM or Ray. Invariant: each error has a
stable `code`, says whether trying again can help, and carries its numbers in `context`.

    MaskfeedError
    ├── RequestError                the caller can mend it
    │   ├── CandidateError          a candidate, or the whole list, can't be used
    │   │   └── LimitExceeded       more than the stated limit of something
    │   ├── ParameterError          a request parameter that breaks masks, or a misplaced field
    │   ├── UnknownSet              no candidate set of this name
    │   ├── DeletedSet              the named candidate set was deleted
    │   ├── StaleGeneration         the name stands for a newer candidate set than was meant
    │   ├── NotPermitted            nobody may do this here
    │   │   └── WrongKey            others may: the key is not the right one
    │   ├── PreconditionFailed      the state of the named candidate set is not the one that was asked for
    │   ├── VocabularyMismatch      an artifact or handle made for another vocabulary
    │   └── HandleError             a handle that can't be read
    ├── TokenNotAllowed             a cursor was given a token outside its mask
    ├── VocabularyError             a tokenizer that can't be read exactly
    ├── CapacityError               too much work is waiting
    ├── DeadlineExceeded            a stage did not finish in time
    ├── StoreError
    │   ├── StoreUnavailable        no connection to the store, or no answer from it
    │   ├── UnknownArtifact         no blob under this hash
    │   └── CorruptArtifact         bytes that are no valid artifact or vocabulary
    │       └── FormatVersionError  written in another format version
    ├── WorkerError
    │   ├── CompileFailed           a compiler broke (a defect, not bad input)
    │   ├── EngineNotReady          no live, proven engine
    │   ├── RankFailure             a rank could not take the set
    │   ├── SetRefused              the engine refused the request's set
    │   └── EngineUnsupported       a vLLM version or configuration that would make masks wrong
    ├── UpstreamError               the engine's HTTP server failed
    └── InternalInvariant           a defect of maskfeed
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

__all__ = [
    "CandidateError",
    "CapacityError",
    "CompileFailed",
    "CorruptArtifact",
    "DeadlineExceeded",
    "DeletedSet",
    "EngineNotReady",
    "EngineUnsupported",
    "FormatVersionError",
    "HandleError",
    "InternalInvariant",
    "LimitExceeded",
    "MaskfeedError",
    "NotPermitted",
    "ParameterError",
    "PreconditionFailed",
    "RankFailure",
    "RequestError",
    "SetRefused",
    "StaleGeneration",
    "StoreError",
    "StoreUnavailable",
    "TokenNotAllowed",
    "UnknownArtifact",
    "UnknownSet",
    "UpstreamError",
    "VocabularyError",
    "VocabularyMismatch",
    "WorkerError",
    "WrongKey",
]

Detail = str | int | float | bool | None


class MaskfeedError(Exception):
    """Root of the tree.

    Args:
        message: one sentence for a person, numbers included.
        **context: the same facts for a program: `field`, `index`, `limit`, `value`, `stage`, ...
    """

    code: ClassVar[str] = "maskfeed-error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.context: Mapping[str, Detail] = MappingProxyType(context)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes whole: from a pool, or from an actor on another machine."""
        return _restore, (type(self), self.message, dict(self.context))


def _restore(cls: type[MaskfeedError], message: str, context: dict[str, Detail]) -> MaskfeedError:
    return cls(message, **context)


class RequestError(MaskfeedError):
    """The caller can mend the request."""

    code = "bad-request"


class CandidateError(RequestError):
    """A candidate can't be used: empty, not a string, a lone surrogate, not producible. `index` names it."""

    code = "bad-candidate"


class LimitExceeded(CandidateError):
    """More than a stated limit. Context: `limit`, `value`, `unit`, and `index` where one candidate is at fault."""

    code = "limit-exceeded"


class ParameterError(RequestError):
    """A parameter that can't go with a candidate set, or a field in the wrong place. Context: `field`."""

    code = "bad-parameter"


class UnknownSet(RequestError):
    """No candidate set of this name: never stored, forgotten long after it was deleted, or lost with its store."""

    code = "unknown-candidate-set"


class DeletedSet(RequestError):
    """The candidate set of this name was deleted. Context: `generation`, the last one."""

    code = "deleted-candidate-set"


class StaleGeneration(RequestError):
    """The name stands for another generation than the one meant. Context: `expected`, and `generation`, the present."""

    code = "stale-generation"


class PreconditionFailed(RequestError):
    """A change that was to be made in another state of the named candidate set. Context: `generation`, 0 for none."""

    code = "precondition-failed"


class NotPermitted(RequestError):
    """A change that this gateway lets nobody make."""

    code = "no-admin-key"


class WrongKey(NotPermitted):
    """A change that somebody with another key may make."""

    code = "wrong-admin-key"


class VocabularyMismatch(RequestError):
    """Made for another vocabulary. Context: `expected`, `found` (fingerprints)."""

    code = "vocabulary-mismatch"


class HandleError(RequestError):
    """Text that is no handle of a known version."""

    code = "bad-handle"


class TokenNotAllowed(MaskfeedError):
    """`Cursor.advance` was given a token outside the mask. Context: `token_id`. The cursor is unchanged."""

    code = "token-not-allowed"


class VocabularyError(MaskfeedError):
    """A tokenizer whose token bytes can't be told exactly."""

    code = "bad-vocabulary"


class CapacityError(MaskfeedError):
    """Too much is waiting already. Context: `limit`, `value`, `stage`."""

    code = "over-capacity"
    retryable = True


class DeadlineExceeded(MaskfeedError):
    """Not done in time. Context: `stage`, `limit_ms`."""

    code = "deadline-exceeded"
    retryable = True


class StoreError(MaskfeedError):
    """The store of artifacts failed."""

    code = "store-error"


class StoreUnavailable(StoreError):
    """No connection to the store, or no answer in time. Context: `stage`."""

    code = "store-unavailable"
    retryable = True


class UnknownArtifact(StoreError):
    """No blob under this hash (never written, or expired). Context: `artifact_hash`."""

    code = "unknown-artifact"
    retryable = True


class CorruptArtifact(StoreError):
    """Bytes that fail validation: magic, length, checksum, bounds, or hash. Context: `section` where known."""

    code = "corrupt-artifact"


class FormatVersionError(CorruptArtifact):
    """Written by another release. Context: `expected`, `found`."""

    code = "format-version"


class WorkerError(MaskfeedError):
    """Something on the road from a posted set to the engine's ranks failed."""

    code = "worker-error"


class CompileFailed(WorkerError):
    """A compiler broke on good input. Context: `stage`."""

    code = "compile-failed"


class EngineNotReady(WorkerError):
    """No live engine, or none that has proven that it enforces masks. Context: `stage`."""

    code = "engine-not-ready"
    retryable = True


class RankFailure(WorkerError):
    """At least one rank could not take the set. Context: `epoch`, `reason`."""

    code = "rank-failure"
    retryable = True


class SetRefused(WorkerError):
    """The engine refused the request: it restarted, or no longer holds the set. Context: `stage`."""

    code = "set-refused"
    retryable = True


class EngineUnsupported(WorkerError):
    """A vLLM version or configuration under which a mask could be wrong; the engine must not start."""

    code = "engine-unsupported"


class UpstreamError(MaskfeedError):
    """The engine's HTTP server could not be reached or answered with something that is no answer."""

    code = "upstream-error"
    retryable = True


class InternalInvariant(MaskfeedError):
    """A defect of maskfeed: something that can't be, was."""

    code = "internal-invariant"
