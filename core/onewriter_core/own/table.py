"""Who owns a resource, and under which generation: the decision table of ``own``.

A pure function from a record and a request to OwnershipGranted or OwnershipDenied. The broker knows the connections,
stores the records and sends the answers.

============================  ====================================================================
the record                    the request names generation n
============================  ====================================================================
its owner's own nonce         n <= g: the owner continues under g. So it recovers from a lost answer or a
                              lost connection; a successor would have replaced the nonce
no owner                      g + 1 (1 for a resource that never had an owner)
owned, g > n > 0              denied: there is a newer owner
owned, g = n                  the same identity: g + 1, the former owner is deposed; others: denied
owned, g < n                  n, the former owner is deposed
n = 0                         g + 1, the present owner is deposed: only with the permission for it
n < 0, n above the limit      denied; g + 1 and less are always allowed
============================  ====================================================================

``g`` is the record's generation, the highest ever granted. It never falls and is never granted to two owners. So the
generation of a read, an acknowledgement or a write identifies the owner.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity

GENERATION_MAX = 2**53 - 1
"""The highest generation: the store compares them as floating-point numbers."""

GENERATION_ASKED_MAX = 2**47 - 1
"""The highest generation that a request may name, except g + 1. So no client can use up all generations, for this
resource or, after its record was dropped, for others (``own.floors``)."""

SERVE_SECONDS_MAX = 3.0
"""The longest time that a successor waits while its predecessor may still serve."""

LINEAGE_BITS = 32
"""A dataset that may have lost grants continues at a multiple of 2**32: see ``floor_of``."""


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner, or a client that asks to own. ``identity`` is authenticated, ``name`` is its own choice.

    ``nonce`` is unique to this ownership; empty: the owner never returns. ``serve_seconds``: the owner acts for this
    time after each answer without asking again. A successor is answered no earlier, except after a release.
    """

    identity: Identity
    name: str = ""
    nonce: str = ""
    serve_seconds: float = 0.0

    def is_same_as(self, other: Owner) -> bool:
        """Whether both are one identity, possibly after a restart.

        That means the same authenticated subject, and the same name if it has one, else the same pod. A client
        without subject and name equals no other client.
        """
        if (self.identity.subject, self.name) != (other.identity.subject, other.name):
            return False
        if self.name:
            return True
        return not self.identity.is_anonymous and self.identity.pod_uid == other.identity.pod_uid

    def is_return_of(self, other: Owner) -> bool:
        """Whether this is the owner ``other`` itself, after a reconnect."""
        is_known = self.nonce and self.nonce == other.nonce
        return bool(is_known) and (self.identity, self.name) == (other.identity, other.name)


@dataclass(frozen=True, slots=True)
class Ownership:
    """A record. ``owner`` owns the resource, or did last and may return. ``is_owned``: it is connected."""

    generation: int = 0
    owner: Owner | None = None
    is_owned: bool = False

    def left(self) -> Ownership:
        """Its owner's connection was lost: the resource has no owner, but the owner may return."""
        return replace(self, is_owned=False)

    def released(self) -> Ownership:
        """Its owner released it and cannot return."""
        return replace(self, owner=None, is_owned=False)


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """``generation``: the one that the owner has, or the one that it wants.

    ``only_returns``: continue as the present owner, never start a new generation. ``may_reset``: the client is
    permitted to use generation 0.
    """

    owner: Owner
    generation: int
    only_returns: bool = False
    may_reset: bool = False


class Cause(enum.Enum):
    """Why the client owns the resource now."""

    RETURNED = "returned"
    """The client was the owner, and continues."""
    VACANT = "vacant"
    """The resource had no owner."""
    SUCCEEDED = "succeeded"
    """The same identity after a restart."""
    OUTRANKED = "outranked"
    """The request named a higher generation."""
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class OwnershipGranted:
    """The client owns the resource. ``deposed`` is the owner until now."""

    after: Ownership
    cause: Cause
    deposed: Owner | None = None

    @property
    def is_new(self) -> bool:
        """Whether a new generation begins."""
        return self.cause is not Cause.RETURNED


@dataclass(frozen=True, slots=True)
class OwnershipDenied:
    """The client does not own the resource. Nothing changed. ``generation`` is the record's."""

    code: ServerError
    text: str
    generation: int


def decide(before: Ownership, request: OwnRequest) -> OwnershipGranted | OwnershipDenied:
    """The table of this module."""
    requested, current, owner = request.generation, before.generation, before.owner
    asked_max = max(GENERATION_ASKED_MAX, current + 1)
    if not 0 <= requested <= asked_max:
        text = f"a generation is a number from 0 to {asked_max}, not {requested}"
        return OwnershipDenied(ServerError.NOT_ALLOWED_ERROR, text, current)
    if owner is not None and requested <= current and request.owner.is_return_of(owner):
        return OwnershipGranted(replace(before, is_owned=True), Cause.RETURNED)
    if request.only_returns:
        text = f"the ownership is over: the current generation is {current}"
        return OwnershipDenied(ServerError.PRODUCER_FENCED, text, current)
    if requested == 0:
        if not request.may_reset:
            text = "generation 0 resets an ownership, and needs the permission resetOwnership"
            return OwnershipDenied(ServerError.AUTHORIZATION_ERROR, text, current)
        return _granted(before, request, current + 1, Cause.RESET)
    if not before.is_owned or owner is None:
        return _granted(before, request, current + 1, Cause.VACANT)
    if requested > current:
        return _granted(before, request, requested, Cause.OUTRANKED)
    if requested < current:
        text = f"there is a newer owner: the current generation is {current}, not {requested}"
        return OwnershipDenied(ServerError.PRODUCER_FENCED, text, current)
    if not request.owner.is_same_as(owner):
        text = f"another identity owns generation {current}: only a higher one takes it over"
        return OwnershipDenied(ServerError.PRODUCER_BUSY, text, current)
    return _granted(before, request, current + 1, Cause.SUCCEEDED)


def _granted(
    before: Ownership, request: OwnRequest, generation: int, cause: Cause
) -> OwnershipGranted | OwnershipDenied:
    if generation > GENERATION_MAX:
        text = "the generations of this resource are used up"
        return OwnershipDenied(ServerError.NOT_ALLOWED_ERROR, text, before.generation)
    deposed = before.owner if before.is_owned else None
    return OwnershipGranted(Ownership(generation, request.owner, is_owned=True), cause, deposed)


def floor_of(stored: Ownership, *, registration: int, known_since: int) -> Ownership:
    """The ownership of a stored record for a broker that acquires its bucket.

    ``registration`` numbers the registration of the dataset under which the record was written. ``known_since`` is
    the first registration since which no grant can be missing (0: none ever was). An older record may have had
    successors that the store lost. Its owner cannot return, and generations continue so far above it that no
    lost generation is granted again.
    """
    if registration >= known_since:
        return stored
    return Ownership(max(stored.generation, known_since << LINEAGE_BITS))
