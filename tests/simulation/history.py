"""The record of a run: operations, the store's own log and audit, and the injected faults.

Checkers are pure functions over a History. ``invoked`` and ``completed`` are places in one total order of all
events of the run (never equal); ``*_at`` are virtual seconds.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from onewriter_core.ids import Position

NEVER = 10**12
"""The place at which an operation that was never answered is completed."""


class Kind(enum.StrEnum):
    """The kind of an operation."""

    GRANT = "grant"
    """A producer was created; ok: it may write under ``epoch``."""
    RESUME = "resume"
    """A granted producer returned; ok: it resumed the epoch that it had."""
    APPEND = "append"
    READ = "read"
    """A reader read the whole log."""
    DELIVER = "deliver"
    ACK = "ack"
    REDELIVER = "redeliver"
    OWN = "own"
    """A client requested a topic for a group (``name``); ok: it owns it under the generation in ``epoch``."""
    SERVE = "serve"
    """A holder asked whether it may serve further; ok: it does so until ``until``."""
    HANDOVER = "handover"
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
    """It certainly did not happen."""
    INFO = "info"
    """The outcome is unknown."""


@dataclass(slots=True)
class Operation:
    """One operation of one process. Fields that do not apply have their defaults."""

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
    """The holder's own sequence number (k)."""
    value: str = ""
    guard: str = ""
    """A guarded write: the topic and the epoch that it depends on."""
    guard_epoch: int = 0
    completed: int = NEVER
    completed_at: float = float(NEVER)
    outcome: Outcome = Outcome.INFO
    error: str = ""
    position: Position | None = None
    ledger: int = 0
    replid: str = ""
    is_waiting: bool = False
    """The broker answered that the producer has to wait."""
    until: float = 0.0
    values: list[tuple[Position, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the final log."""

    position: Position
    epoch: int
    """The topic epoch of its ledger."""
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
    """The store's contents of a topic at the end."""

    entries: list[LogEntry] = field(default_factory=list)
    markers: list[LogMarker] = field(default_factory=list)
    epoch: int = 0
    """The epoch in the topic's state."""
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
    forgotten: dict[str, dict[str, float]] = field(default_factory=dict)
    """Per topic, values that a fault of the store destroyed beyond the promises of the profile, with the
    time of the loss."""
    unreportable: set[str] = field(default_factory=set)
    """Those of them that a broker acknowledged that no longer existed to notice the loss."""
    faults: list[Span] = field(default_factory=list)
    tenures: list[tuple[str, Span]] = field(default_factory=list)
    """By topic: when a client held it (``what`` names the holder)."""
    absences: list[Span] = field(default_factory=list)
    """When a client process was frozen or dead. ``what`` is its name."""
    healed_at: float = 0.0
    ended_at: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    """How often each noted event happened."""
    anomalies: list[str] = field(default_factory=list)
    """Events that must never happen in a process: unexpected exceptions, protocol errors."""
    journal: list[str] = field(default_factory=list)
    """The brokers' log lines."""

    def of(self, kind: Kind, topic: str = "") -> Iterable[Operation]:
        return (o for o in self.operations if o.kind is kind and (not topic or o.topic == topic))

    @property
    def topics(self) -> list[str]:
        return sorted(self.logs)

    def noticed(self, what: str, count: int = 1) -> None:
        self.seen[what] = self.seen.get(what, 0) + count

    def to_text(self) -> str:
        """Return one JSON document per line. Equal runs give equal bytes."""
        lines: list[Any] = [{"seed": self.seed, "healed": self.healed_at, "ended": self.ended_at}]
        lines += [asdict(operation) for operation in self.operations]
        lines += [{"topic": name, **asdict(self.logs[name])} for name in self.topics]
        lines += [{"audit": record} for record in self.audit]
        lines += [{"loss": asdict(loss)} for loss in self.losses]
        lines += [{"fault": asdict(fault)} for fault in self.faults]
        lines += [{"tenure": topic, **asdict(span)} for topic, span in self.tenures]
        lines += [{"absence": asdict(span)} for span in self.absences]
        lines += [{"seen": dict(sorted(self.seen.items()))}, {"anomalies": self.anomalies}]
        lines += [{"forgotten": self.forgotten, "unreportable": sorted(self.unreportable)}]
        lines += [{"log": line} for line in self.journal]
        return "".join(json.dumps(line, default=str) + "\n" for line in lines)
