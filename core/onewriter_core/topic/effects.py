"""What a step may ask for. Imperative; each effect that can finish names the event that answers it.

Effects are performed in order. What a Fence stops (the writers of its partitions) is stopped when it is
performed, before anything is written; see ``Fence``.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.model import (
    Departure,
    ProducerGroup,
    PromotionPolicy,
    Purpose,
    Tenure,
    Topic,
)

NEW_EPOCH = -1
"""Stands for an epoch that is the ledger about to be opened."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Open a new ledger for ``partitions``, all or none. Answered by FenceStored or FenceRefused.

    ``stops`` are the registrations that must not append any more from now on: what they have
    handed to the store is still receipted, what they have not is refused. ``tenures`` is what the
    markers say, by partition: a tenure of epoch NEW_EPOCH starts with this ledger, others are kept, None
    ends the right to resume. ``deposed`` is remembered with each partition. ``best_loser`` is the waiter
    that comes next by ``policy``, for the audit; the loads are what their hosts were seen to lead.
    """

    number: int
    purpose: Purpose
    partitions: tuple[int, ...]
    group: ProducerGroup | None
    departure: Departure
    stops: tuple[str, ...]
    tenures: tuple[tuple[int, Tenure | None], ...]
    deposed: tuple[tuple[int, tuple[Identity, ...]], ...]
    best_loser: ProducerGroup | None
    policy: PromotionPolicy = PromotionPolicy.PRIORITY
    load: int = 0
    best_loser_load: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell the producer that it may write; ``epoch`` is None for a Shared one without epoch.

    ``resumed``: it goes on under the epoch it had.
    """

    registration: str
    partition: int
    producer_name: str
    epoch: int | None
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """Tell the producer that it waits."""

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
    """Tell a producer that had been granted that it is closed. Its receipts go out first."""

    registration: str
    departure: Departure


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether that producer's connection still lives (PING, soon); a group has come."""

    registration: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A producer carried an epoch above the stored one: the store forgot, or the client lies."""

    registration: str
    claimed_epoch: int
    stored_epoch: int


@dataclass(frozen=True, slots=True)
class Record:
    """Partitions changed hands, or their writer came back: one line of the topic's story.

    ``leaderless_seconds`` is None when nobody had written before, 0 when one took over from the
    other without a gap. ``former`` is the tenure that stood until then, of the first partition; None
    when there was none that could be resumed.
    """

    partitions: tuple[int, ...]
    purpose: Purpose
    old_epoch: int
    epoch: int
    ledger: int
    holder: ProducerGroup | None
    departure: Departure
    leaderless_seconds: float | None
    former: Tenure | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer an administrator's request; ``refusal`` is empty when it was done."""

    identifier: str
    epoch: int
    refusal: str = ""


Effect = Fence | Grant | Queue | Reject | Close | Probe | Suspect | Record | Answer

Step = tuple[Topic, tuple[Effect, ...]]
"""What a step makes of the topic, and what it asks for."""
