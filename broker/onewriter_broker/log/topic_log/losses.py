"""Acknowledged entries that the store lost, and ranges of positions whose entries it may have lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from onewriter_core.api.topic import Durability
from onewriter_core.ids import Position, TopicName

REPORTS_MAX: Final = 64
"""Reports of a log that its owner repeats after another failover. Above this number, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Acknowledged entries of one ledger that the store no longer has (a weak profile lost them).

    They are the entries after ``after`` up to and including ``last``.
    """

    topic: TopicName
    after: Position
    last: Position

    @property
    def entries(self) -> int:
        """The number of lost entries."""
        return self.last.entry - self.after.entry

    def audit_fields(self, generation: int) -> dict[str, str]:
        """The audit record, written in registration ``generation`` of the dataset."""
        return {
            "kind": "loss",
            "log": str(self.topic),
            "after": str(self.after),
            "last": str(self.last),
            "entries": str(self.entries),
            "generation": str(generation),
        }


@dataclass(frozen=True, slots=True)
class RangeAtRisk:
    """Positions whose entries may have been acknowledged and lost, together with the broker that knew.

    They are the positions after ``after``, in ledgers up to and including ``ledger``. ``generation``: the
    registration of the dataset that was searched. ``durability``: the profile of the log.
    """

    topic: TopicName
    after: Position
    ledger: int
    generation: int
    durability: Durability

    def audit_fields(self, generation: int) -> dict[str, str]:
        """The audit record, written in registration ``generation`` of the dataset."""
        return {
            "kind": "risk",
            "log": str(self.topic),
            "after": str(self.after),
            "ledger": str(self.ledger),
            "generation": str(generation),
            "durability": self.durability.value,
        }


Report = Loss | RangeAtRisk
ReportT = TypeVar("ReportT", bound=Report)


class LatestReports(Generic[ReportT]):
    """The latest reports of a broker, oldest first. Above ``reports_max``, the oldest are dropped.

    The reports of one topic are found without a search: after a failover there may be many, and the status of each
    of thousands of topics asks for its own.
    """

    def __init__(self, reports_max: int) -> None:
        self._reports_max = reports_max
        self._all: deque[ReportT] = deque()
        self._by_topic: dict[TopicName, deque[ReportT]] = {}

    def add(self, report: ReportT) -> None:
        """Add the newest report."""
        self._all.append(report)
        self._by_topic.setdefault(report.topic.base, deque()).append(report)
        if len(self._all) > self._reports_max:
            base = self._all.popleft().topic.base
            self._by_topic[base].popleft()
            if not self._by_topic[base]:
                del self._by_topic[base]

    def of(self, base: TopicName) -> Sequence[ReportT]:
        """The reports of a topic and its partitions."""
        return self._by_topic.get(base, ())

    def __iter__(self) -> Iterator[ReportT]:
        return iter(self._all)


@dataclass(slots=True)
class LossReports:
    """The reports of a log since this broker opened it: ``pending`` must be in the audit before the next append."""

    pending: list[Report] = field(default_factory=list)
    _written: list[Report] = field(default_factory=list)
    _generation: int = 0

    def bind(self, generation: int) -> None:
        """Repeat all reports if the dataset changed since they were written: it may lack them."""
        if generation > self._generation:
            self.pending = (self._written + self.pending)[-REPORTS_MAX:]
            self._written = []
            self._generation = generation

    def wrote(self, report: Report) -> None:
        """The audit of the present dataset has this report."""
        self.pending.remove(report)
        self._written = [*self._written, report][-REPORTS_MAX:]


def keeps_acknowledged(durability: Durability, replicas: int) -> bool:
    """Whether every replica that may be promoted has all entries that were acknowledged with this durability."""
    return durability is Durability.ALL_REPLICAS or (
        durability is Durability.REPLICATED and replicas == 1
    )


def losses(topic: TopicName, ends: Iterable[Position], survived: Position) -> list[Loss]:
    """The losses of a log that has everything up to ``survived``, and nothing after it.

    ``ends``: the last acknowledged entry of each ledger.
    """
    return [
        Loss(topic, max(survived, Position(end.ledger, 0)), end) for end in ends if end > survived
    ]
