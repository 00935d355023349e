"""The record of a run: operations of clients and brokers, the store's final logs and audit, and the injected faults.

Predicates (checkers/) are pure functions of a History. ``invoked`` and ``completed`` are numbers in one total order of
all events of the run, so no two are equal. Fields that end in ``_at`` are virtual seconds.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from onewriter_core.ids import Position

NEVER = 10**12
"""``completed`` of an operation that was never answered."""


class Kind(enum.StrEnum):
    """The kind of an operation."""

    GRANT = "grant"
    """A producer was created; ok: it may write under ``epoch``."""
    RESUME = "resume"
    """A producer that had been granted the topic returned; ok: it resumed its epoch."""
    APPEND = "append"
    """A producer sent a message; ok: it received the receipt."""
    READ = "read"
    """A reader read the whole log."""
    DELIVER = "deliver"
    """A consumer received a message."""
    ACK = "ack"
    """A consumer acknowledged a message."""
    REDELIVER = "redeliver"
    """A consumer requested redelivery of all unacknowledged messages, under the consumer epoch in ``epoch``."""
    OWN = "own"
    """A client requested a topic for a group (``name``); ok: it owns it under the generation in ``epoch``."""
    SERVE = "serve"
    """A holder asked whether it may continue to serve; ok: it serves until ``until``."""
    HANDOVER = "handover"
    """An administrator requested a handover to the next waiter."""
    FENCE = "fence"
    """An administrator deposed the holder."""
    REFENCE = "refence"
    """A broker asked the store to open a ledger."""
    WRITE = "write"
    """A broker asked the store to append a block."""


class Outcome(enum.StrEnum):
    """The outcome of an operation."""

    OK = "ok"
    FAIL = "fail"
    """It certainly did not take effect."""
    INFO = "info"
    """The outcome is unknown."""


@dataclass(slots=True)
class Operation:
    """One operation of one process. Fields that its kind does not use have their defaults."""

    kind: Kind
    process: str
    topic: str
    invoked: int
    invoked_at: float
    holder: str = ""
    """The holder incarnation: one producer object of one client process."""
    name: str = ""
    mode: str = ""
    epoch: int | None = None
    number: int = -1
    """The number of the message among those of its holder; of a grant, the producer's priority."""
    value: str = ""
    guard: str = ""
    """Of a guarded write: the topic whose epoch ``guard_epoch`` must be current."""
    guard_epoch: int = 0
    completed: int = NEVER
    completed_at: float = float(NEVER)
    outcome: Outcome = Outcome.INFO
    error: str = ""
    position: Position | None = None
    ledger: int = 0
    replid: str = ""
    is_waiting: bool = False
    """Whether the broker answered that the producer must wait in the queue."""
    until: float = 0.0
    values: list[tuple[Position, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the final log."""

    position: Position
    epoch: int
    """The topic epoch of the entry's ledger."""
    is_exclusive: bool
    holder: str
    number: int
    value: str


@dataclass(frozen=True, slots=True)
class LogMarker:
    """A marker of the final log."""

    ledger: int
    epoch: int
    owner: str


@dataclass(slots=True)
class TopicLogs:
    """What the store contains of a topic at the end of the run."""

    entries: list[LogEntry] = field(default_factory=list)
    markers: list[LogMarker] = field(default_factory=list)
    epoch: int = 0
    """The epoch in the topic's stored state."""
    ledger: int = 0
    cursors: dict[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LossReport:
    """A broker reported that acknowledged entries are lost: those after ``after`` up to ``last``."""

    topic: str
    after: Position
    last: Position


@dataclass(frozen=True, slots=True)
class Span:
    """A condition that held from ``start`` to ``end`` (virtual seconds)."""

    what: str
    start: float
    end: float


@dataclass(slots=True)
class History:
    """All records of one run."""

    seed: int
    operations: list[Operation] = field(default_factory=list)
    logs: dict[str, TopicLogs] = field(default_factory=dict)
    audit: list[dict[str, str]] = field(default_factory=list)
    losses: list[LossReport] = field(default_factory=list)
    destroyed: dict[str, dict[str, float]] = field(default_factory=dict)
    """By topic: values that a fault destroyed and that the durability profile does not protect, with the time of
    the loss."""
    unreportable: set[str] = field(default_factory=set)
    """Destroyed values whose loss no broker could report, because the brokers that knew them had ended."""
    faults: list[Span] = field(default_factory=list)
    tenures: list[tuple[str, Span]] = field(default_factory=list)
    """Topics with the times in which a client held them. ``what`` names the holder."""
    absences: list[Span] = field(default_factory=list)
    """Times in which a client process was frozen or dead. ``what`` is its name."""
    healed_at: float = 0.0
    ended_at: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    """How often each event occurred."""
    anomalies: list[str] = field(default_factory=list)
    """Events that must never occur: unexpected exceptions, answers that the protocol does not allow."""
    journal: list[str] = field(default_factory=list)
    """The brokers' log lines."""

    def of(self, kind: Kind, topic: str = "") -> Iterable[Operation]:
        return (o for o in self.operations if o.kind is kind and (not topic or o.topic == topic))

    @property
    def topics(self) -> list[str]:
        return sorted(self.logs)

    def add_event(self, what: str, count: int = 1) -> None:
        self.seen[what] = self.seen.get(what, 0) + count

    def to_text(self) -> str:
        """Return the history as lines of JSON. Equal runs give equal bytes."""
        lines: list[Any] = [{"seed": self.seed, "healed": self.healed_at, "ended": self.ended_at}]
        lines += [asdict(operation) for operation in self.operations]
        lines += [{"topic": name, **asdict(self.logs[name])} for name in self.topics]
        lines += [{"audit": record} for record in self.audit]
        lines += [{"loss": asdict(loss)} for loss in self.losses]
        lines += [{"fault": asdict(fault)} for fault in self.faults]
        lines += [{"tenure": topic, **asdict(span)} for topic, span in self.tenures]
        lines += [{"absence": asdict(span)} for span in self.absences]
        lines += [{"seen": dict(sorted(self.seen.items()))}, {"anomalies": self.anomalies}]
        lines += [{"destroyed": self.destroyed, "unreportable": sorted(self.unreportable)}]
        lines += [{"log": line} for line in self.journal]
        return "".join(json.dumps(line, default=str) + "\n" for line in lines)
