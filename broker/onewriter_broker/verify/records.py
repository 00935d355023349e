"""The audit records of a bucket as values: parses what tenures.py and the runner write.

audit.py checks them. docs/log-format.md describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from onewriter_core.ids import InvalidTopicName, Position, TopicName
from onewriter_core.publishers import CAPABILITY, PUBLISHER, Publisher
from onewriter_core.topic.model import WHOLE, Purpose

FENCES = frozenset(purpose.value for purpose in Purpose)


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
    last acknowledged position at the time of the fence.
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

    @property
    def changes_hands(self) -> bool:
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


Record = FenceRecord | ResumeRecord | LossRecord | ForgetRecord | PublisherRecord


def parse_record(record_id: str, fields: Mapping[str, str]) -> Record | None:
    """Parse one record; None for kinds that are irrelevant for the order. Raises UnreadableRecord."""
    kind = fields.get("kind", "")
    try:
        if kind == "loss":
            after, last = Position.parse(fields["after"]), Position.parse(fields["last"])
            return LossRecord(record_id, fields["log"], after, last)
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
    record_id: str, kind: Purpose, topic: TopicName, fields: Mapping[str, str]
) -> FenceRecord:
    fenced = fields["partitions"]
    mode = fields.get("mode", "")
    promoted = None
    if "arrival" in fields:
        load = int(fields["load"]) if "load" in fields else None
        promoted = Waiter(int(fields.get("priority", "0")), int(fields["arrival"]), None, load)
    next_waiter = None
    if "nextWaiter" in fields:
        waiter = json.loads(fields["nextWaiter"])
        partitions = tuple(waiter["slots"]) if "slots" in waiter else None
        load = int(waiter["load"]) if "load" in waiter else None
        next_waiter = Waiter(int(waiter["priority"]), int(waiter["arrival"]), partitions, load)
    return FenceRecord(
        record_id=record_id,
        kind=kind,
        topic=topic,
        partitions=tuple(int(partition) for partition in fenced.split(",")) if fenced else (WHOLE,),
        ledger=int(fields["ledger"]),
        epoch=int(fields["epoch"]),
        old_epoch=int(fields["oldEpoch"]),
        broker=fields["broker"],
        time_ms=int(fields["t"]),
        cause=fields.get("cause", ""),
        mode=mode,
        producer=fields.get("producer", ""),
        subject=fields.get("subject", ""),
        incarnation=fields.get("incarnation", ""),
        policy=fields.get("policy", ""),
        promoted=promoted,
        next_waiter=next_waiter,
        acknowledged={
            int(partition): Position.parse(summary[0])
            for partition, summary in json.loads(fields["previous"]).items()
        },
    )
