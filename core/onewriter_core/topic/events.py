"""The events of a topic. Only an event changes the state of a topic.

Names are in the past tense. ``now`` is the broker's monotonic clock in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.topic.model import Loads, Partition, PromotionPolicy, Request, TransitionCause


@dataclass(frozen=True, slots=True)
class ProducerRequested:
    """A PRODUCER command arrived."""

    request: Request
    now: float


@dataclass(frozen=True, slots=True)
class ProducerGone:
    """A producer or waiter left, or was found dead. Only this registration is removed.

    ``heard_at``: its last sign of life; None: unknown.
    """

    registration: str
    cause: TransitionCause
    now: float
    heard_at: float | None = None


@dataclass(frozen=True, slots=True)
class FenceStored:
    """The ``Fence`` effect of that number is durable. ``ledger`` is the ledger that it opened.

    ``assured_at`` is the latest time at which the last holder may have learned that it still holds the topic. None:
    unknown, ``now`` counts. ``stopped_at`` is when the fence stopped the writers of its
    partitions (None: ``now``), and ``heard_at`` their last sign of life (None: unknown).
    """

    number: int
    ledger: int
    now: float
    assured_at: float | None = None
    stopped_at: float | None = None
    heard_at: float | None = None


@dataclass(frozen=True, slots=True)
class FenceRefused:
    """The ``Fence`` effect of that number was abandoned before it stopped a producer or wrote."""

    number: int
    reason: str
    now: float


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """A deadline that ``next_deadline`` returned may have passed.

    ``resumable_until``: no reservation ends before it, because the broker answers returning holders late.
    """

    now: float
    resumable_until: float = 0.0


@dataclass(frozen=True, slots=True)
class HandoverRequested:
    """An administrator asked for a handover.

    ``to`` is the producer name or the claim of a waiter; empty: the first waiter. ``if_epoch``: the request is
    valid only in this epoch.
    """

    identifier: str
    to: str
    now: float
    if_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FenceRequested:
    """An administrator asked to depose the holder. ``if_epoch``: only if this is the topic epoch."""

    identifier: str
    if_epoch: int | None
    now: float


@dataclass(frozen=True, slots=True)
class LedgerFull:
    """The ledger of a partition reached its size or age limit. The holder stays, under a new ledger."""

    partition: int
    now: float


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """The store failed over: every ledger must be fenced again.

    ``grants_known`` is False if grants may have been lost with the tail of the former dataset. Then no holder
    may resume (docs/adr/0002).
    """

    grants_known: bool
    now: float


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Partitions were added to the topic."""

    partitions: tuple[Partition, ...]
    now: float


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The topic's promotion policy changed."""

    policy: PromotionPolicy
    now: float


@dataclass(frozen=True, slots=True)
class LoadsChanged:
    """The waiters' hosts lead these numbers of other topics. A hint for Balanced; it may be late."""

    loads: Loads
    now: float


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker stops serving the topic: the topic moves, was deleted, or the broker shuts down.

    No later event changes the topic. The result of a pending fence is ignored.
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
