"""The audit records of a bucket as values. ``grants`` checks them. docs/log-format.md describes the fields.

Records come from the store, where each field is a text, or from a broker's HTTP interface, where numbers and documents
are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_core.publishers import CAPABILITY, PUBLISHER, Publisher
from onewriter_core.topic.model import WHOLE, Purpose

FENCES = frozenset(purpose.value for purpose in Purpose)

READY = "ready"
"""The kind of the record that says when the holder of a new epoch could write."""


class UnreadableRecord(ValueError):
    """An audit record that lacks what its kind must have."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A place in the queue. ``partitions`` None: the record does not name the partitions.

    ``load``: the number of topics that its host led; None if the policy did not ask.
    """

    priority: int
    arrival: int
    partitions: tuple[int, ...] | None
    load: int | None = None


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The record that a fence wrote together with its markers.

    ``partitions`` are in the fence's order. ``epoch`` and ``old_epoch`` are those of the first one; the epoch
    of a grant or a deposition is that of every partition. ``producer`` is empty without a holder.
    ``promoted`` and ``next_waiter`` are set if a waiter was promoted. ``acknowledged`` is, per partition, the
    last acknowledged position at the time of the fence. ``host``: where the holder runs, as far as it is known.
    ``leaderless_ms``: how long the topic was without a writer before; None: unknown.
    """

    record_id: str
    kind: Purpose
    topic: TopicName
    partitions: tuple[int, ...]
    ledger: int
    epoch: int
    old_epoch: int
    broker: str
    time_ms: int
    cause: str
    mode: str
    producer: str
    subject: str
    incarnation: str
    policy: str
    promoted: Waiter | None
    next_waiter: Waiter | None
    acknowledged: Mapping[int, Position]
    host: str
    leaderless_ms: int | None

    @property
    def begins_epoch(self) -> bool:
        """Whether an epoch began with it."""
        return self.kind in {Purpose.GRANT, Purpose.DEPOSE}

    def log_name(self, partition: int) -> str:
        """The full name of a partition's log."""
        return str(self.topic if partition == WHOLE else self.topic.with_partition(partition))


@dataclass(frozen=True, slots=True)
class ResumeRecord:
    """A holder returned under its ledger and epoch; written later."""

    record_id: str
    topic: TopicName
    ledger: int
    epoch: int
    producer: str


@dataclass(frozen=True, slots=True)
class LossRecord:
    """The broker found acknowledged entries missing: those after ``after``, up to ``last``."""

    record_id: str
    log: str
    after: Position
    last: Position
    time_ms: int | None


@dataclass(frozen=True, slots=True)
class RiskRecord:
    """Entries after ``after``, in ledgers up to ``ledger``, were perhaps acknowledged and lost."""

    record_id: str
    log: str
    after: Position
    ledger: int
    durability: str
    time_ms: int | None


@dataclass(frozen=True, slots=True)
class ForgetRecord:
    """An order to forget the version that an app has published last."""

    record_id: str
    log: str
    app: str


@dataclass(frozen=True, slots=True)
class PublisherRecord:
    """The publisher of ``app`` under an epoch of a log, written before it published.

    ``holder``: the holder of the epoch, as text. ``is_passed_on``: the publisher has a capability of the
    holder; otherwise it is the holder.
    """

    record_id: str
    log: str
    broker: str
    epoch: int
    app: str
    publisher: Publisher
    holder: str
    is_passed_on: bool


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """The holder of a ledger could write ``leaderless_ms`` after the topic lost its previous one."""

    record_id: str
    topic: TopicName
    ledger: int
    leaderless_ms: int | None


AuditRecord = (
    FenceRecord
    | ResumeRecord
    | LossRecord
    | RiskRecord
    | ForgetRecord
    | PublisherRecord
    | ReadyRecord
)


def parse_record(record_id: str, fields: Mapping[str, Any]) -> AuditRecord | None:
    """Parse one record; None for kinds that are irrelevant for the order. Raises UnreadableRecord."""
    kind = fields.get("kind", "")
    try:
        if kind == "loss":
            after, last = Position.parse(fields["after"]), Position.parse(fields["last"])
            return LossRecord(record_id, fields["log"], after, last, _time(fields))
        if kind == "risk":
            return RiskRecord(
                record_id,
                fields["log"],
                Position.parse(fields["after"]),
                int(fields["ledger"]),
                fields.get("durability", ""),
                _time(fields),
            )
        if kind == "forget":
            return ForgetRecord(record_id, fields["log"], fields["app"])
        if kind == PUBLISHER:
            return PublisherRecord(
                record_id,
                fields["log"],
                fields["broker"],
                int(fields["epoch"]),
                fields["app"],
                Publisher(fields.get("subject", ""), fields.get("podUID", "")),
                fields["holder"],
                fields["right"] == CAPABILITY,
            )
        if kind == READY:
            return ReadyRecord(
                record_id,
                TopicName.parse(fields["topic"]),
                int(fields["ledger"]),
                _number(fields.get("leaderlessMs")),
            )
        if kind not in FENCES:
            return None
        topic = TopicName.parse(fields["topic"])
        if "previous" not in fields:
            return ResumeRecord(
                record_id,
                topic,
                int(fields["ledger"]),
                int(fields["epoch"]),
                fields.get("producer", ""),
            )
        return _fence(record_id, Purpose(kind), topic, fields)
    except (KeyError, TypeError, AttributeError, ValueError, InvalidTopicName) as error:
        raise UnreadableRecord(f"audit record {record_id} cannot be read: {error!r}") from error


def _fence(
    record_id: str, kind: Purpose, topic: TopicName, fields: Mapping[str, Any]
) -> FenceRecord:
    fenced = str(fields["partitions"])
    promoted = _waiter(fields, None) if "arrival" in fields else None
    next_waiter = None
    if "nextWaiter" in fields:
        waiter = _document(fields["nextWaiter"])
        next_waiter = _waiter(waiter, tuple(waiter["slots"]) if "slots" in waiter else None)
    return FenceRecord(
        record_id=record_id,
        kind=kind,
        topic=topic,
        partitions=tuple(int(partition) for partition in fenced.split(",")) if fenced else (WHOLE,),
        ledger=int(fields["ledger"]),
        epoch=int(fields["epoch"]),
        old_epoch=int(fields["oldEpoch"]),
        broker=fields["broker"],
        time_ms=int(fields["timeMs"] if "timeMs" in fields else fields["t"]),
        cause=fields.get("cause", ""),
        mode=fields.get("mode", ""),
        producer=fields.get("producer", ""),
        subject=fields.get("subject", ""),
        incarnation=fields.get("incarnation", ""),
        policy=fields.get("policy", ""),
        promoted=promoted,
        next_waiter=next_waiter,
        acknowledged={
            int(partition): Position.parse(summary[0])
            for partition, summary in _document(fields["previous"]).items()
        },
        host=fields.get("host") or fields.get("node") or _pod(fields),
        leaderless_ms=_number(fields.get("leaderlessMs")),
    )


def _waiter(fields: Mapping[str, Any], partitions: tuple[int, ...] | None) -> Waiter:
    priority, arrival = int(fields.get("priority", 0)), int(fields["arrival"])
    return Waiter(priority, arrival, partitions, _number(fields.get("load")))


def _document(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _pod(fields: Mapping[str, Any]) -> str:
    return str(fields.get("pod") or fields.get("address") or "").rsplit(":", 1)[0]


def _number(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)


def _time(fields: Mapping[str, Any]) -> int | None:
    return _number(fields.get("timeMs", fields.get("t")))
