"""The transitions of a topic: changes of its holder, as its status shows them, and their form in the audit.

A broker adds each transition when it happens. A broker that begins to serve a topic reads the transitions of its
predecessors from the bucket's audit stream (audit.py). It reads a limited number of records, so an old transition
of a quiet topic in a busy bucket may be missing. The audit stream has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Record
from onewriter_core.topic.model import WHOLE, ProducerGroup, Purpose, Tenure, TransitionCause

HISTORY_MAX: Final = 10
"""The latest changes of the holder that the broker keeps per topic, and the latest resumes."""

UNANSWERED: Final = "unanswered"
"""Kind of the audit record about a former writer that did not answer after a takeover."""

READY: Final = "ready"
"""Kind of the audit records that say that the winner may write, and how long the topic had no writer.

The first record is written at the grant, the second at the winner's first message. Both have all known times."""

LEADERLESS_MS: Final = "leaderlessMs"
"""Field of an audit record: how long the topic had no writer before the winner could write."""

DETECTION_MS: Final = "detectionMs"
"""Field of an audit record: from the former holder's last sign of life to the end of its right to write."""

HANDOVER_MS: Final = "handoverMs"
"""Field of an audit record: from the end of the former holder's right to write to the grant."""

OUTAGE_MS: Final = "outageMs"
"""Field of an audit record: the sum of detection and handover."""

FIRST_MESSAGE_MS: Final = "firstMessageMs"
"""Field of an audit record: from the grant to the acknowledgement of the winner's first message."""

OUTAGE_FIELDS: Final = (LEADERLESS_MS, DETECTION_MS, HANDOVER_MS, OUTAGE_MS, FIRST_MESSAGE_MS)
"""The fields that an audit record of kind READY may have. A field is absent if the time is unknown."""

FORCED: Final = "Forced"
"""Cause of a takeover whose former writer did not answer and may still act as the writer."""

_SHOWN: Final = {Purpose.GRANT.value, Purpose.DEPOSE.value, Purpose.RESUME.value}


@dataclass(frozen=True, slots=True)
class Writer:
    """A present or former writer. ``claim``: the ProducerClaim that admitted it."""

    producer_name: str
    identity: Identity
    claim: str = ""
    address: str = ""
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a topic's holder, or a resume.

    ``previous`` is the writer whose tenure ended; None for a resume. ``cause`` says why it ended. ``detection_ms``,
    ``handover_ms`` and ``first_message_ms``: the parts of the time without a message, None if unknown.
    """

    at_ms: int
    kind: str
    cause: str
    old_epoch: int
    epoch: int
    ledger: int
    holder: Writer | None
    previous: Writer | None
    leaderless_ms: int | None
    partitions: tuple[int, ...]
    detection_ms: int | None = None
    handover_ms: int | None = None
    first_message_ms: int | None = None

    @property
    def is_change_of_holder(self) -> bool:
        return self.kind != Purpose.RESUME.value

    @property
    def outage_ms(self) -> int | None:
        """The time in which no producer could write. None: unknown."""
        if self.detection_ms is None or self.handover_ms is None:
            return None
        return self.detection_ms + self.handover_ms

    def times(self) -> dict[str, str]:
        """Its known times as fields of an audit record."""
        values = (
            self.leaderless_ms,
            self.detection_ms,
            self.handover_ms,
            self.outage_ms,
            self.first_message_ms,
        )
        known = zip(OUTAGE_FIELDS, values, strict=True)
        return {name: str(value) for name, value in known if value is not None}


def latest(transitions: Iterable[Transition]) -> list[Transition]:
    """The latest changes of the holder and the latest resumes, HISTORY_MAX of each.

    Resumes do not displace changes: a topic that moves often keeps its changes.
    """
    left = {True: HISTORY_MAX, False: HISTORY_MAX}
    kept: list[Transition] = []
    for each in reversed(list(transitions)):
        if left[each.is_change_of_holder]:
            left[each.is_change_of_holder] -= 1
            kept.append(each)
    return kept[::-1]


def milliseconds(seconds: float | None) -> int | None:
    """Whole milliseconds, rounded; None stays None."""
    return None if seconds is None else round(seconds * 1000)


def transition_of(record: Record, at_ms: int) -> Transition:
    """The transition in a Record effect of the topic machine."""
    is_resume = record.purpose is Purpose.RESUME
    former = None if is_resume else record.former
    outage = record.outage
    return Transition(
        at_ms,
        record.purpose.value,
        record.cause.value,
        record.old_epoch,
        record.epoch,
        record.ledger,
        None if record.holder is None else _holder(record.holder, record.epoch),
        None if former is None else _former(former),
        milliseconds(record.leaderless_seconds),
        tuple(partition for partition in record.partitions if partition != WHOLE),
        None if outage is None else milliseconds(outage.detection_seconds),
        None if outage is None else milliseconds(outage.handover_seconds),
    )


def _holder(group: ProducerGroup, epoch: int) -> Writer:
    return Writer(group.producer_name, group.identity, group.admitted_by, group.address, epoch)


def _former(tenure: Tenure) -> Writer:
    return Writer(tenure.producer_name, tenure.identity, tenure.admitted_by, "", tenure.epoch)


# ------------------------------------------------------------ the fields of audit records


def identity_fields(identity: Identity) -> dict[str, str]:
    """The parts of an identity that are not empty."""
    parts = {"podUID": identity.pod_uid, "pod": identity.pod, "node": identity.node}
    return {name: value for name, value in parts.items() if value}


def former_fields(tenure: Tenure) -> dict[str, str]:
    """The audit field of the writer whose tenure a fence ended."""
    writer = {
        "epoch": tenure.epoch,
        "producer": tenure.producer_name,
        "subject": tenure.identity.subject,
        "claim": tenure.admitted_by,
    }
    return {"former": json.dumps(writer | identity_fields(tenure.identity))}


def parse_transition(fields: Mapping[str, str]) -> Transition | None:
    """The transition in an audit record. None: the record has none."""
    if fields.get("kind") not in _SHOWN:
        return None
    if fields["kind"] == Purpose.RESUME.value and "previous" in fields:
        return None  # the fence before a resume; the resume has its own record
    try:
        epoch = int(fields["epoch"])
        partitions = fields.get("partitions", "")
        found = Transition(
            int(fields["t"]),
            fields["kind"],
            fields.get("cause", ""),
            int(fields.get("oldEpoch", epoch)),
            epoch,
            int(fields["ledger"]),
            _parse_holder(fields, epoch),
            _parse_former(fields.get("former")),
            None,
            tuple(int(partition) for partition in partitions.split(",")) if partitions else (),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # not written by a broker; `onewriter verify` reports it
    return with_times(found, fields)


def _parse_holder(fields: Mapping[str, str], epoch: int) -> Writer | None:
    if not fields.get("producer"):
        return None
    pod_uid = fields.get("podUID", "")
    subject = fields.get("subject", "").removesuffix(f" (pod {pod_uid})")
    if subject == str(Identity()):
        subject = ""
    identity = Identity(subject, pod_uid, fields.get("pod", ""), fields.get("node", ""))
    return Writer(
        fields["producer"], identity, fields.get("claim", ""), fields.get("address", ""), epoch
    )


def _parse_former(text: str | None) -> Writer | None:
    if not text:
        return None
    found = json.loads(text)
    identity = Identity(
        found["subject"], found.get("podUID", ""), found.get("pod", ""), found.get("node", "")
    )
    return Writer(found["producer"], identity, found.get("claim", ""), "", int(found["epoch"]))


def forced(transition: Transition, epoch: int) -> Transition:
    """The transition, with the cause Forced if it is the takeover that led to ``epoch``."""
    if transition.epoch != epoch or transition.cause != TransitionCause.TAKEN_OVER.value:
        return transition
    return replace(transition, cause=FORCED)


def with_times(transition: Transition, fields: Mapping[str, str]) -> Transition:
    """The transition, with the times of a record, its own or one of kind READY, if the record is about its ledger."""
    if str(transition.ledger) != fields.get("ledger"):
        return transition

    def time(name: str, before: int | None) -> int | None:
        value = fields.get(name, "")
        return int(value) if value.isdecimal() else before

    return replace(
        transition,
        leaderless_ms=time(LEADERLESS_MS, transition.leaderless_ms),
        detection_ms=time(DETECTION_MS, transition.detection_ms),
        handover_ms=time(HANDOVER_MS, transition.handover_ms),
        first_message_ms=time(FIRST_MESSAGE_MS, transition.first_message_ms),
    )
