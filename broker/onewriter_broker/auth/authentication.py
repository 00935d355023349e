"""How a client proves who it is: an Authenticator turns what CONNECT or AUTH_RESPONSE carried into an
identity. What that identity may do is decided in ``access``.

Not here: the proofs themselves (tokens.py, token_review.py), which need a library for cryptography
that takes a noticeable part of a broker's start.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity

METHOD_TOKEN: Final = "token"  # noqa: S105 - the name of a method, not a secret
METHODS_NONE: Final = frozenset({"", "none"})
"""How clients without credentials name their method; whatever data comes with it is ignored."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A proven identity, good until ``expires_at`` (Unix seconds; None: for ever).

    The session must ask for a new proof by then (AUTH_CHALLENGE) or end. ``renew_at``: it should
    ask by then already, and goes on if it gets none. ``may_only_resume``: proved without whoever
    would know that the identity has ended since; it may go on with what it had and begin nothing.
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
        """Judge one proof. Raises Refused(AUTHENTICATION_ERROR); Unavailable if nobody can tell."""
        ...


class AnonymousAuthenticator:
    """Asks for no proof: everybody is anonymous, as in Pulsar without authentication."""

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        del method, data
        return Authenticated(Identity())


class EitherAuthenticator:
    """Takes what ``first`` takes and, of what that refuses and did not issue, what ``second`` takes."""

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
    """Whether a client proves itself by a token; False: by nothing, which will do. Raises Refused."""
    if method in METHODS_NONE:
        if is_required:
            raise refused("a token is required")
        return False
    if method != METHOD_TOKEN:
        raise refused("only the authentication method 'token' is known here")
    return True


def refused(reason: str) -> Refused:
    """What is raised for a proof that is none."""
    return Refused(ServerError.AUTHENTICATION_ERROR, reason)
