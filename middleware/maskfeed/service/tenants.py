"""Whose request it is.

A tenant is known by his bearer token and by nothing else; nobody is asked whether the token is valid, the engine's
server does that. Invariant: the token itself is neither kept nor shown.
"""

import hashlib
from typing import Final

from maskfeed.queue.ticket import DEFAULT_TENANT
from maskfeed.service.exchange import Headers

__all__ = ["bearer_token", "tenant_of"]

_SCHEME: Final = "bearer"


def bearer_token(headers: Headers) -> bytes | None:
    """The token as it was sent; None without one.

    Args:
        headers: the client's.
    """
    for name, value in headers:
        scheme, _, token = value.strip().partition(" ")
        if name.lower() == "authorization" and scheme.lower() == _SCHEME and token.strip():
            return token.strip().encode("utf-8", "surrogateescape")
    return None


def tenant_of(headers: Headers) -> str:
    """SHA-256 of the bearer token as 64 hex digits; `default` without one.

    Args:
        headers: the client's.
    """
    token = bearer_token(headers)
    return DEFAULT_TENANT if token is None else hashlib.sha256(token).hexdigest()
