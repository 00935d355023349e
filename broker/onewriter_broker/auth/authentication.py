"""Authentication of clients: an Authenticator turns the contents of CONNECT or AUTH_RESPONSE into an
identity.

authorization.py decides what the identity may do. Tokens are verified in tokens.py and token_review.py. These
need a library for cryptography, which takes a noticeable part of a broker's start.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity

METHOD_TOKEN: Final = "token"  # noqa: S105 - the name of a method, not a secret
METHODS_NONE: Final = frozenset({"", "none"})
"""Names of the method that clients without credentials send. Their data is ignored."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A proven identity, valid until ``expires_at`` (Unix seconds; None: without end).

    The session must ask for a new proof by then (AUTH_CHALLENGE) or end. ``renew_at``: the session asks by
    then already, but continues without an answer. ``may_only_resume``: the proof was accepted without the
    server that would know that the identity has ended; the client may continue with what it holds, and begin
    nothing new.
    """

    identity: Identity
    expires_at: float | None = None
    renew_at: float | None = None
    may_only_resume: bool = False


PEER: Final[ContextVar[str]] = ContextVar("PEER", default="")
"""The address of the client (``onewriter_http.addresses.address_of``); empty if unknown. The caller of
``authenticate`` sets it: reviews of tokens are limited per address, so one address cannot delay the others."""


class RefusedByIssuer(Refused):
    """The issuer that the token names refused it, so no other authenticator is asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(ServerError.AUTHENTICATION_ERROR, reason)


class Authenticator(Protocol):
    """Proves identities; asynchronous, because some ask a server."""

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        """Check one proof. Raises Refused(AUTHENTICATION_ERROR), or Unavailable if it cannot be checked now."""
        ...


class AnonymousAuthenticator:
    """Requires no proof: every client is anonymous, as in Pulsar without authentication."""

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        del method, data
        return Authenticated(Identity())


class EitherAuthenticator:
    """Asks ``first``; if it refuses a token that it did not issue, asks ``second``."""

    def __init__(self, first: Authenticator, second: Authenticator) -> None:
        self._first = first
        self._second = second

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        try:
            return await self._first.authenticate(method, data)
        except RefusedByIssuer:
            raise
        except Refused:
            return await self._second.authenticate(method, data)


def shows_token(method: str, *, is_required: bool) -> bool:
    """Whether a client sent a token; False if it sent no proof and needs none. Raises Refused."""
    if method in METHODS_NONE:
        if is_required:
            raise refused("a token is required")
        return False
    if method != METHOD_TOKEN:
        raise refused("only the authentication method 'token' is known here")
    return True


def refused(reason: str) -> Refused:
    """The error for an invalid proof."""
    return Refused(ServerError.AUTHENTICATION_ERROR, reason)
