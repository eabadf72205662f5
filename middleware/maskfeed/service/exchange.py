"""What passes between a client, the gateway and the engine's server, as values.

It knows no HTTP library, so that the core can be run behind any server. Invariant: headers that belong to one
connection never cross the gateway.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["Headers", "Reply", "Upstream", "UpstreamResponse", "end_to_end"]

# In the order sent; a name may occur more than once.
Headers = tuple[tuple[str, str], ...]

# RFC 9110, 7.6.1, and those that a hop sets for itself.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets. A body that is an iterator is sent piece by piece as it comes."""

    status: int
    headers: Headers
    body: bytes | AsyncGenerator[bytes, None]


class UpstreamResponse(Protocol):
    """An answer of the engine's server whose body has not been read yet."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> Headers:
        """All headers, as sent."""
        ...

    async def read(self) -> bytes:
        """The whole body, not decoded.

        Raises:
            UpstreamError: the connection broke first.
        """
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, not decoded.

        Raises:
            UpstreamError: the connection broke before the end.
        """
        ...


class Upstream(Protocol):
    """The engine's HTTP server."""

    def open(
        self, method: str, target: str, *, headers: Headers, body: bytes
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Send a request; leaving the block closes the connection if the answer was not read to its end.

        Args:
            method: GET, POST, ...
            target: path and query, as the client wrote them.
            headers: end-to-end headers.
            body: sent as it is; empty for none.

        Raises:
            UpstreamError: no connection, or no answer in time.
        """
        ...


def end_to_end(headers: Iterable[tuple[str, str]], *, without: Iterable[str] = ()) -> Headers:
    """The headers that may cross the gateway, minus those named in `without` (lower case)."""
    given = tuple(headers)
    named = {part.strip().lower() for name, value in given if name.lower() == "connection" for part in value.split(",")}
    dropped = _HOP_BY_HOP | named | set(without)
    return tuple((name, value) for name, value in given if name.lower() not in dropped)
