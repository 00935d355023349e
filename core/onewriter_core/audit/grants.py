"""Checks the audit of a bucket: the order of fences, one holder per epoch, the right waiter promoted.

Pure. It gets the bucket's records, oldest first. For each log it collects what the check of the log (logs.py)
later compares with the log's markers. Records of fences were written atomically with the markers, so their order
is the order of the fences. Resumes and losses are written later, so their place in the stream is never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onewriter_core.audit.findings import DEFAULT_LIMITS, AuditLimits, Finding
from onewriter_core.audit.records import (
    FenceRecord,
    ForgetRecord,
    LossRecord,
    PublisherRecord,
    ReadyRecord,
    ResumeRecord,
    RiskRecord,
    UnreadableRecord,
    Waiter,
    parse_record,
)
from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_core.publishers import Publisher
from onewriter_core.topic.model import AccessMode, PromotionPolicy, Purpose, TransitionCause

_POLICIES = {policy.value for policy in PromotionPolicy}


@dataclass(slots=True)
class LogAudit:
    """What the bucket's audit says about one log."""

    fences: dict[int, FenceRecord] = field(default_factory=dict)
    """The fences by ledger, in order."""
    losses: list[LossRecord] = field(default_factory=list)
    at_risk: list[RiskRecord] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)
    """Apps whose published version the log was ordered to forget."""
    publishers: dict[tuple[int, str], set[Publisher]] = field(default_factory=dict)
    """The publishers of each epoch and app."""
    newest: FenceRecord | None = None
    first_epoch: int | None = None
    """The epoch of the log's first fence in the audit."""
    epoch: int = 0
    """The highest epoch, granted or recorded."""
    epoch_record: str = ""
    holder: tuple[int, str, str] | None = None
    """Epoch, producer and subject of the newest holder."""
    settled_ledger: int = NUMBER_MAX
    """The highest ledger whose marker must be in the log: later ones were fenced during the check."""
    settled: tuple[int, int] | None = None
    """The highest epoch and ledger that the state of the log must know. None: those of all records."""

    @property
    def remembered(self) -> tuple[int, int]:
        """The highest epoch and ledger in the audit that the state of the log must know."""
        if self.settled is not None:
            return self.settled
        return self.epoch, 0 if self.newest is None else self.newest.ledger

    def reaches_back_to(self, epoch: int) -> bool:
        """Whether the audit has all records since an epoch was granted: they follow its grant."""
        return epoch in self.fences or (self.first_epoch is not None and self.first_epoch < epoch)

    def is_lost(self, after: Position, last: Position) -> bool:
        """Whether a broker reported that the entries after ``after``, up to ``last``, are lost or may be."""
        return any(loss.after <= after and last <= loss.last for loss in self.losses) or any(
            each.after <= after and last.ledger <= each.ledger for each in self.at_risk
        )


@dataclass(slots=True)
class BucketAudit:
    """What a bucket's audit says about all its logs.

    ``oldest`` is the first fence in it: older records may have been trimmed. ``notes`` say what was not
    checked.
    """

    logs: dict[str, LogAudit] = field(default_factory=dict)
    ledgers: dict[int, FenceRecord] = field(default_factory=dict)
    oldest: FenceRecord | None = None
    newest_ledger: int = 0
    recorders: set[str] = field(default_factory=set)
    """Brokers that record the publishers."""
    ready: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and ledger, how long the topic was without a writer before, in milliseconds."""
    records: int = 0
    last_id: str = ""
    """The id of the newest record."""
    is_cut: bool = False
    """There are records that were not checked."""
    unreadable: int = 0
    notes: list[str] = field(default_factory=list)
    limits: AuditLimits = DEFAULT_LIMITS

    def log(self, name: str) -> LogAudit:
        """What is known about a log; creates it if it is new."""
        return self.logs.setdefault(name, LogAudit())

    def settle(self, names: Sequence[str]) -> None:
        """Note that all records of these logs so far must be visible in the logs and their states.

        Records that are read later may be newer than what was read of the logs.
        """
        for name in names:
            log = self.log(name)
            log.settled = log.remembered
            log.settled_ledger = log.settled[1]


def check_audit(
    records: Iterable[tuple[str, Mapping[str, Any]]], audit: BucketAudit
) -> Iterator[Finding]:
    """Check a bucket's records, oldest first, and collect them in ``audit``.

    May be called again with the following records.
    """
    for record_id, fields in records:
        if audit.records >= audit.limits.audit_records_max:
            audit.is_cut = True
            note = (
                f"the audit was looked at up to its {audit.limits.audit_records_max}th record only"
            )
            if note not in audit.notes:
                audit.notes.append(note)
            return
        audit.records += 1
        audit.last_id = record_id
        try:
            record = parse_record(record_id, fields)
        except UnreadableRecord as unreadable:
            audit.unreadable += 1
            if audit.unreadable == 1:
                audit.notes.append(f"{unreadable}; it is left out, as are others like it")
            continue
        match record:
            case FenceRecord():
                yield from _fence(record, audit)
            case ResumeRecord():
                yield from _resume(record, audit)
            case LossRecord():
                audit.log(record.log).losses.append(record)
            case RiskRecord():
                audit.log(record.log).at_risk.append(record)
            case ForgetRecord():
                audit.log(record.log).forgotten.add(record.app)
            case PublisherRecord():
                yield from _publisher(record, audit)
            case ReadyRecord(leaderless_ms=int(leaderless_ms)):
                key = (str(record.topic), record.ledger)
                audit.ready[key] = max(audit.ready.get(key, 0), leaderless_ms)
            case _:
                pass


def _fence(record: FenceRecord, audit: BucketAudit) -> Iterator[Finding]:
    audit.oldest = audit.oldest or record
    audit.newest_ledger = max(audit.newest_ledger, record.ledger)
    yield from _given_once(record, audit)
    yield from _chosen(record, audit)
    for index, partition in enumerate(record.partitions):
        name = record.log_name(partition)
        log = audit.log(name)
        if index == 0 or record.begins_epoch:
            yield from _epoch(record, log, name, is_first=index == 0)
            if log.first_epoch is None:
                log.first_epoch = record.epoch
        if log.newest is not None and record.ledger < log.newest.ledger:
            yield Finding(
                name,
                "S3",
                (_place(log.newest.record_id), _place(record.record_id)),
                f"ledger {record.ledger} was fenced after ledger {log.newest.ledger}",
            )
        log.fences.setdefault(record.ledger, record)
        log.newest = record


def _given_once(record: FenceRecord, audit: BucketAudit) -> Iterator[Finding]:
    """A ledger is granted once, to one broker."""
    other = audit.ledgers.setdefault(record.ledger, record)
    if other is record:
        return
    to = "" if other.broker == record.broker else f", to {other.broker} and to {record.broker}"
    for name in dict.fromkeys(
        [other.log_name(other.partitions[0]), record.log_name(record.partitions[0])]
    ):
        yield Finding(
            name,
            "S2",
            (_place(other.record_id), _place(record.record_id)),
            f"ledger {record.ledger} was handed out twice{to}",
        )


def _epoch(record: FenceRecord, log: LogAudit, name: str, *, is_first: bool) -> Iterator[Finding]:
    """What must hold for a record's epoch, given the records before it."""
    places = (_place(log.epoch_record), _place(record.record_id))
    if is_first and record.old_epoch < log.epoch and not _repeats(record, log.newest):
        yield Finding(
            name,
            "S12",
            places,
            f"epoch {log.epoch} had been granted, but this fence knew only {record.old_epoch}",
        )
    holder = (record.epoch, record.producer, record.subject) if record.producer else None
    if record.kind is Purpose.GRANT and log.holder is not None and record.epoch == log.holder[0]:
        yield Finding(name, "S2", places, f"epoch {record.epoch} was granted twice")
    elif record.epoch < log.epoch:
        yield Finding(
            name, "S3", places, f"epoch {record.epoch} was written after epoch {log.epoch}"
        )
    elif record.begins_epoch and record.epoch != record.ledger:
        yield Finding(
            name,
            "S3",
            (_place(record.record_id),),
            f"epoch {record.epoch} began with ledger {record.ledger}: they must be one number",
        )
    elif record.epoch > record.ledger:
        yield Finding(
            name,
            "S3",
            (_place(record.record_id),),
            f"epoch {record.epoch} is above its ledger {record.ledger}",
        )
    elif holder and log.holder and holder[0] == log.holder[0] and holder != log.holder:
        yield Finding(
            name,
            "S2",
            places,
            f"epoch {record.epoch} was held by {log.holder[1]} and then by {record.producer}",
        )
    if max(record.epoch, record.old_epoch) >= log.epoch:
        log.epoch = max(record.epoch, record.old_epoch)
        log.epoch_record = record.record_id
    if holder is not None:
        log.holder = holder


def _repeats(record: FenceRecord, before: FenceRecord | None) -> bool:
    """Whether this repeats the fence: a failover lost the first one before its result was known."""
    return (
        before is not None
        and (record.kind, record.broker) == (before.kind, before.broker)
        and (record.old_epoch, record.incarnation) == (before.old_epoch, before.incarnation)
    )


def _resume(record: ResumeRecord, audit: BucketAudit) -> Iterator[Finding]:
    """A resume is valid only under a ledger of the same epoch and holder, with nothing in between."""
    fence = audit.ledgers.get(record.ledger)
    if fence is None or fence.topic != record.topic:
        return
    if len(fence.partitions) > 1 and not fence.begins_epoch:
        return  # the record has only the first partition's epoch
    name = fence.log_name(fence.partitions[0])
    places = (_place(fence.record_id), _place(record.record_id))
    if record.epoch != fence.epoch:
        yield Finding(
            name,
            "S3",
            places,
            f"epoch {record.epoch} was resumed under ledger {record.ledger} of epoch {fence.epoch}",
        )
    elif record.producer and fence.producer and record.producer != fence.producer:
        yield Finding(
            name,
            "S2",
            places,
            f"epoch {record.epoch} of {fence.producer} was resumed by {record.producer}",
        )


def _publisher(record: PublisherRecord, audit: BucketAudit) -> Iterator[Finding]:
    """A publisher under an epoch is its holder, or received the right from the holder."""
    log = audit.log(record.log)
    audit.recorders.add(record.broker)
    log.publishers.setdefault((record.epoch, record.app), set()).add(record.publisher)
    grant = log.fences.get(record.epoch)
    if grant is None or not grant.begins_epoch:
        if log.reaches_back_to(record.epoch):
            yield Finding(
                record.log,
                "S15",
                (_place(record.record_id),),
                f"{record.publisher} published {record.app} under epoch {record.epoch}, which was"
                " not granted",
            )
        return
    places = (_place(grant.record_id), _place(record.record_id))
    holder = grant.subject if grant.producer else "no producer"
    if record.holder != holder:
        yield Finding(
            record.log,
            "S15",
            places,
            f"{record.app} was published under epoch {record.epoch} of {record.holder}, but that"
            f" was granted to {holder}",
        )
    elif not record.is_passed_on and str(record.publisher) != holder:
        yield Finding(
            record.log,
            "S15",
            places,
            f"{record.publisher} published {record.app} as the holder of epoch {record.epoch}, but"
            f" that was granted to {holder}",
        )


def _chosen(record: FenceRecord, audit: BucketAudit) -> Iterator[Finding]:
    """Check that the promoted waiter ranks before the best of the waiters that were not promoted."""
    promoted, left = record.promoted, record.next_waiter
    if (
        record.kind is not Purpose.GRANT
        or record.mode != AccessMode.WAIT_FOR_EXCLUSIVE.name
        or record.cause
        == TransitionCause.HANDED_OVER.value  # an administrator may choose any waiter
        or promoted is None
        or left is None
    ):
        return
    if left.partitions is None and record.partitions[0] >= 0:
        return  # it may have waited for a partition that was not free
    if left.partitions is not None and not set(left.partitions) <= set(record.partitions):
        return
    name = record.log_name(record.partitions[0])
    if record.policy and record.policy not in _POLICIES:
        note = f"promotions by the policy {record.policy} are not checked"
        if note not in audit.notes:
            audit.notes.append(note)
        return
    policies = [PromotionPolicy(record.policy)] if record.policy else list(PromotionPolicy)
    if all(_rank(left, policy) < _rank(promoted, policy) for policy in policies):
        yield Finding(
            name,
            "S11",
            (_place(record.record_id),),
            f"{record.producer} ({_described(promoted)}) was promoted before a waiter of"
            f" {_described(left)}",
        )


def _rank(waiter: Waiter, policy: PromotionPolicy) -> tuple[int, int, int]:
    match policy:
        case PromotionPolicy.FIFO:
            return (0, 0, waiter.arrival)
        case PromotionPolicy.PRIORITY:
            return (-waiter.priority, 0, waiter.arrival)
        case PromotionPolicy.BALANCED:
            return (-waiter.priority, waiter.load or 0, waiter.arrival)


def _described(waiter: Waiter) -> str:
    load = "" if waiter.load is None else f", load {waiter.load}"
    return f"priority {waiter.priority}{load}, arrival {waiter.arrival}"


def _place(record_id: str) -> str:
    return f"audit {record_id}"
