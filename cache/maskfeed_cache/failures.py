"""Failures that lie in what was asked for, as values that another process can read, and back.

It knows the error tree and no store. A candidate is named by its rank: each caller has an order of his own, and only he
can say which of his candidates that is. Invariant: what comes back is a `RequestError` with the same code, or, if the
code is another release's, a plain one.
"""

from collections.abc import Iterator

from maskfeed_automata.errors import RequestError
from maskfeed_cache.fence import Failure

__all__ = ["error_of", "failure_of"]


def failure_of(error: RequestError) -> Failure:
    """The error as a value. Its context must name no index."""
    return Failure(code=error.code, message=error.message, context=dict(error.context))


def error_of(failure: Failure) -> RequestError:
    """A fresh error from the value."""
    for cls in _family(RequestError):
        if cls.code == failure.code:
            return cls(failure.message, **failure.context)
    return RequestError(failure.message, **failure.context)


def _family(cls: type[RequestError]) -> Iterator[type[RequestError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _family(child)
