"""Who owns a resource, and under which generation: the decision table of ``own``.

Pure: a record and a request in, a OwnershipGranted or a OwnershipDenied out. Who is connected, what is stored and who
is told are the broker's part.

============================  ====================================================================
the record                    the request names generation n
============================  ====================================================================
its owner's own nonce         n <= g: the owner goes on under g. It is how a lost answer, or a lost
                              connection, is made good; nobody came between, or the nonce were gone
nobody owns it                g + 1 (1 for a resource that nobody ever owned)
owned, g > n > 0              denied: there is a newer owner
owned, g = n                  the same identity: g + 1, the former owner is deposed; others: denied
owned, g < n                  n, the former owner is deposed
n = 0                         g + 1, whoever owns it is deposed: only with a permission for it
n < 0, n above the limit      denied; g + 1 and less may be named of whatever generation
============================  ====================================================================

``g`` is the record's generation, the highest ever granted. It never falls and is never given to two
owners: so a generation that comes with a read, an acknowledgement or a write tells whose it is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity

GENERATION_MAX = 2**53 - 1
"""The highest generation: the store compares them as floating-point numbers."""

GENERATION_ASKED_MAX = 2**47 - 1
"""The highest one that a request may name, but for g + 1: so nobody can use all of them up, for this
resource or, once its record is dropped, for others (``own.floors``)."""

SERVE_SECONDS_MAX = 3.0
"""The longest that a successor is kept waiting for what its predecessor may still do."""

LINEAGE_BITS = 32
"""A dataset that may have forgotten grants goes on at a multiple of 2**32: see ``floor_of``."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks, or owns. ``identity`` is proved, ``name`` is what it calls itself.

    ``nonce`` is its own for as long as it owns what it asks for; empty: it never comes back.
    ``serve_seconds``: so long after each answer it acts as the owner without asking again; whoever
    succeeds it, other than behind its release, is answered no earlier.
    """

    identity: Identity
    name: str = ""
    nonce: str = ""
    serve_seconds: float = 0.0

    def is_same_as(self, other: Owner) -> bool:
        """Whether both are one identity, perhaps a later life of it.

        The same proved subject, and the same name if it has one, else the same pod. Who has neither
        subject nor name is nobody in particular.
        """
        if (self.identity.subject, self.name) != (other.identity.subject, other.name):
            return False
        if self.name:
            return True
        return not self.identity.is_anonymous and self.identity.pod_uid == other.identity.pod_uid

    def is_return_of(self, other: Owner) -> bool:
        """Whether this is the very owner ``other``, coming again."""
        is_known = self.nonce and self.nonce == other.nonce
        return bool(is_known) and (self.identity, self.name) == (other.identity, other.name)


@dataclass(frozen=True, slots=True)
class Ownership:
    """A record. ``owner`` owns it, or did last and may return; ``is_owned``: it is there."""

    generation: int = 0
    owner: Owner | None = None
    is_owned: bool = False

    def left(self) -> Ownership:
        """Its owner's connection is gone: nobody owns it, but the owner may return."""
        return replace(self, is_owned=False)

    def released(self) -> Ownership:
        """Its owner gave it up: nobody returns to it."""
        return replace(self, owner=None, is_owned=False)


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """``generation``: the one that the owner knows of, or the one that it is to have.

    ``only_returns``: go on as the present owner, never begin anew. ``may_reset``: generation 0 is
    permitted to it.
    """

    owner: Owner
    generation: int
    only_returns: bool = False
    may_reset: bool = False


class Cause(enum.Enum):
    """Why somebody owns a resource now."""

    RETURNED = "returned"
    """It is the owner already, or it still was."""
    VACANT = "vacant"
    """Nobody owned it."""
    SUCCEEDED = "succeeded"
    """The same identity in its next life."""
    OUTRANKED = "outranked"
    """The request named a higher generation."""
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class OwnershipGranted:
    """The resource is the asker's. ``deposed``: who owned it until now."""

    after: Ownership
    cause: Cause
    deposed: Owner | None = None

    @property
    def is_new(self) -> bool:
        """Whether a generation begins."""
        return self.cause is not Cause.RETURNED


@dataclass(frozen=True, slots=True)
class OwnershipDenied:
    """The resource is not the asker's; nothing changed. ``generation`` is the record's."""

    code: ServerError
    text: str
    generation: int


def decide(before: Ownership, request: OwnRequest) -> OwnershipGranted | OwnershipDenied:
    """The table of this module."""
    asked, current, owner = request.generation, before.generation, before.owner
    asked_max = max(GENERATION_ASKED_MAX, current + 1)
    if not 0 <= asked <= asked_max:
        text = f"a generation is a number from 0 to {asked_max}, not {asked}"
        return OwnershipDenied(ServerError.NOT_ALLOWED_ERROR, text, current)
    if owner is not None and asked <= current and request.owner.is_return_of(owner):
        return OwnershipGranted(replace(before, is_owned=True), Cause.RETURNED)
    if request.only_returns:
        text = f"the ownership is over: the current generation is {current}"
        return OwnershipDenied(ServerError.PRODUCER_FENCED, text, current)
    if asked == 0:
        if not request.may_reset:
            text = "generation 0 resets an ownership, and needs the permission resetOwnership"
            return OwnershipDenied(ServerError.AUTHORIZATION_ERROR, text, current)
        return _granted(before, request, current + 1, Cause.RESET)
    if not before.is_owned or owner is None:
        return _granted(before, request, current + 1, Cause.VACANT)
    if asked > current:
        return _granted(before, request, asked, Cause.OUTRANKED)
    if asked < current:
        text = f"there is a newer owner: the current generation is {current}, not {asked}"
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
    """What a stored record means to a broker that takes its bucket over.

    ``registration`` numbers the registration of the dataset under which the record was written;
    ``known_since`` is the first one since which no grant can be missing (0: none ever was). A record
    from before it may have had successors that the store has forgotten. Nobody returns to it, and
    generations go on so far above it that no forgotten one comes again.
    """
    if registration >= known_since:
        return stored
    return Ownership(max(stored.generation, known_since << LINEAGE_BITS))
