"""The effects of a step: what the caller performs, in order.

Names are imperative. An effect with a result names the event that reports it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.model import (
    Outage,
    ProducerGroup,
    PromotionPolicy,
    Purpose,
    Tenure,
    Topic,
    TransitionCause,
)

NEW_EPOCH = -1
"""Placeholder for an epoch that equals the ledger that the fence opens."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Open a new ledger for all of ``partitions``, or for none. FenceStored or FenceRefused reports the result.

    ``stops`` lists the registrations that must not append from now on, before anything is written. Entries that
    the store already has are still acknowledged, all others are rejected. ``tenures`` are the markers' contents by
    partition: a tenure of epoch NEW_EPOCH starts with this ledger, another tenure is kept, None ends the right to
    resume. ``deposed`` is stored with each partition. ``best_loser`` is the next waiter by ``policy``, for the
    audit; ``load`` and ``best_loser_load`` are the topics that their hosts lead.
    """

    number: int
    purpose: Purpose
    partitions: tuple[int, ...]
    group: ProducerGroup | None
    cause: TransitionCause
    stops: tuple[str, ...]
    tenures: tuple[tuple[int, Tenure | None], ...]
    deposed: tuple[tuple[int, tuple[Identity, ...]], ...]
    best_loser: ProducerGroup | None
    policy: PromotionPolicy = PromotionPolicy.PRIORITY
    load: int = 0
    best_loser_load: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Notify the producer that it may write. ``epoch`` is None for a Shared producer without an epoch.

    ``resumed``: the producer keeps its epoch.
    """

    registration: str
    partition: int
    producer_name: str
    epoch: int | None
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """Notify the producer that it waits."""

    registration: str
    producer_name: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer a request, or a waiter, with an error."""

    registration: str
    code: ServerError
    message: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close a granted producer. Its receipts are sent first."""

    registration: str
    cause: TransitionCause


@dataclass(frozen=True, slots=True)
class Probe:
    """Check with a PING whether the producer's connection is alive: another group wants its partition."""

    registration: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A producer sent an epoch above the stored one: the store lost it, or the client invented it."""

    registration: str
    claimed_epoch: int
    stored_epoch: int


@dataclass(frozen=True, slots=True)
class Record:
    """Record a transition in the topic's history: a new holder, or a holder that resumed.

    ``leaderless_seconds`` is None if no producer had written before, 0 if the holder changed without a gap.
    ``former`` is the previous tenure of the first partition, None if there was none that could be resumed.
    ``outage`` is the time in which no producer could write before the grant; None: there was no writer before, or it is
    unknown when its right ended.
    """

    partitions: tuple[int, ...]
    purpose: Purpose
    old_epoch: int
    epoch: int
    ledger: int
    holder: ProducerGroup | None
    cause: TransitionCause
    leaderless_seconds: float | None
    former: Tenure | None = None
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer an administrator's request. ``refusal`` is empty if the request succeeded."""

    identifier: str
    epoch: int
    refusal: str = ""


Effect = Fence | Grant | Queue | Reject | Close | Probe | Suspect | Record | Answer

Step = tuple[Topic, tuple[Effect, ...]]
"""The topic after a step, and the effects of the step."""
