"""What may happen to a topic. Past tense; nothing else changes its state.

``now`` is always the broker's monotonic clock in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.topic.model import Departure, Loads, Partition, PromotionPolicy, Request


@dataclass(frozen=True, slots=True)
class ProducerRequested:
    """A PRODUCER command arrived."""

    request: Request
    now: float


@dataclass(frozen=True, slots=True)
class ProducerGone:
    """A producer or waiter left, or was found dead. Names who: nobody else is removed."""

    registration: str
    departure: Departure
    now: float


@dataclass(frozen=True, slots=True)
class FenceStored:
    """The Fence effect of that number is durable; ``ledger`` is the one it opened.

    ``assured_at``: when its partitions' last holder was told for the last time that it holds them, or may
    have been; None: that is not known, so it may have been just now.
    """

    number: int
    ledger: int
    now: float
    assured_at: float | None = None


@dataclass(frozen=True, slots=True)
class FenceRefused:
    """The Fence effect of that number was given up before anything was stopped or written."""

    number: int
    reason: str
    now: float


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """A deadline that ``next_deadline`` named may have passed."""

    now: float


@dataclass(frozen=True, slots=True)
class HandoverRequested:
    """An administrator asked for a planned change of hands, perhaps to a named waiter.

    ``to`` matches a waiter's producer name or claim; empty: the first in line. ``if_epoch`` makes
    it conditional.
    """

    identifier: str
    to: str
    now: float
    if_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FenceRequested:
    """An administrator asked to depose the holder; ``if_epoch`` makes it conditional."""

    identifier: str
    if_epoch: int | None
    now: float


@dataclass(frozen=True, slots=True)
class LedgerFull:
    """A partition's ledger passed its size or age: roll it. No change of hands."""

    partition: int
    now: float


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """The store failed over: every ledger must be fenced again.

    ``grants_known`` is False when grants may have been lost with the old dataset's tail: then
    nobody may resume (decision recorded in docs/adr/0002).
    """

    grants_known: bool
    now: float


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The topic got partitions."""

    partitions: tuple[Partition, ...]
    now: float


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Waiters are promoted in another order from now on."""

    policy: PromotionPolicy
    now: float


@dataclass(frozen=True, slots=True)
class LoadsChanged:
    """The waiters' hosts lead so many other topics: Balanced promotes by it. A hint, perhaps late."""

    loads: Loads
    now: float


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker stops serving the topic: it moves, was deleted, or the broker shuts down.

    The last event that changes anything; the answer to a fence still under way is ignored.
    """

    reason: str
    now: float


Event = (
    ProducerRequested
    | ProducerGone
    | FenceStored
    | FenceRefused
    | ClockTicked
    | HandoverRequested
    | FenceRequested
    | LedgerFull
    | DatasetChanged
    | PartitionsAdded
    | PolicyChanged
    | LoadsChanged
    | Unloaded
)
