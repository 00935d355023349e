"""The audit records of a bucket as values: what tenures.py and the runner write, read back.

Parsing only; what must hold of them is in audit.py. docs/log-format.md describes the fields.
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
    """A place in the queue. ``partitions`` None: the record does not say what was waited for.

    ``load``: how many topics its host was seen to lead; None: the policy did not ask.
    """

    priority: int
    arrival: int
    partitions: tuple[int, ...] | None
    load: int | None = None


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The record that a fence wrote together with its markers.

    ``partitions`` in the fence's order; ``epoch`` and ``old_epoch`` are the first one's, and a grant's or
    a deposition's epoch is every partition's. ``producer`` is empty where nobody holds. ``promoted`` and
    ``next_waiter`` are set where a waiter was promoted. ``acknowledged`` is, per partition, how far the
    broker had acknowledged when it fenced.
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
    """A holder came back under the ledger and epoch it had; written after the fact."""

    record_id: str
    topic: TopicName
    ledger: int
    epoch: int
    producer: str


@dataclass(frozen=True, slots=True)
class LossRecord:
    """The broker found acknowledged entries missing: those behind ``after``, up to ``last``."""

    record_id: str
    log: str
    after: Position
    last: Position


@dataclass(frozen=True, slots=True)
class ForgetRecord:
    """Somebody had the log forget which version an app has published last."""

    record_id: str
    log: str
    app: str


@dataclass(frozen=True, slots=True)
class PublisherRecord:
    """Who was about to publish as ``app`` under an epoch of a log, written before it did.

    ``holder``: to whom the epoch was granted, as text. ``is_passed_on``: the publisher bears a
    capability of the holder's; else it is the holder.
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
    """One record; None for kinds that say nothing about order. Raises UnreadableRecord."""
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
