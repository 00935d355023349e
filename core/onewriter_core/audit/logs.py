"""Checks one log against its audit: order, fences, holes, holders, publishes.

Streaming: facts come in the stored order of the log, and only one ledger's numbers are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onewriter_core.audit.facts import (
    EntryRun,
    Fact,
    Fingerprint,
    Gap,
    LedgerBegins,
    Misplaced,
    NamedPublisher,
    PublishRun,
    Unreadable,
    WriterRun,
)
from onewriter_core.audit.findings import Finding
from onewriter_core.audit.grants import BucketAudit, LogAudit
from onewriter_core.audit.publishers import PublisherChecker
from onewriter_core.audit.publishes import VersionChecker
from onewriter_core.audit.records import FenceRecord
from onewriter_core.audit.sequences import SequenceChecker
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the store keeps beside a log: its newest epoch and ledger (0: none), the version that each app published
    last, where it was trimmed (None: nowhere), and the newest ledger of its bucket. Read it after the blocks.
    """

    epoch: int
    ledger: int
    bucket_ledger: int
    published: Mapping[str, int] = field(default_factory=dict)
    trimmed: Position | None = None


@dataclass(slots=True)
class LogChecker:
    """Checks one log, fact by fact.

    ``notes`` say what could not be checked; read them after ``finish``.
    """

    log: str
    audit: BucketAudit
    ledgers: int = 0
    entries: int = 0
    first: Position | None = None
    """The beginning of the log."""
    last: Position = EARLIEST
    notes: list[str] = field(default_factory=list)
    _sequences: SequenceChecker = field(init=False)
    _versions: VersionChecker = field(init=False)
    _publishers: PublisherChecker = field(init=False)
    _known: LogAudit = field(init=False)
    _awaited: deque[int] = field(init=False)
    """Ledgers in the audit whose markers have not come yet."""
    _ledger: int = 0
    _has_marker: bool = False
    _has_entries: bool = False
    _next: int = 0
    """The next expected entry id; 0 if it is not known."""
    _epoch: int = 0
    _holder: tuple[int, str, str] | None = None
    _of_ledger: tuple[int | None, str] = (None, "")
    """The epoch of the ledger's entries (None if no producer held the topic), and the broker that wrote them."""
    _unreadable: int = 0

    def __post_init__(self) -> None:
        self._known = self.audit.logs.get(self.log, LogAudit())
        self._sequences = SequenceChecker(self.log, limits=self.audit.limits)
        self._versions = VersionChecker(self.log, frozenset(self._known.forgotten))
        self._publishers = PublisherChecker(self.log, self.audit, self.notes)
        self._awaited = deque(sorted(self._known.fences))

    def feed(self, fact: Fact) -> Iterator[Finding]:
        """Check the next fact."""
        match fact:
            case EntryRun():
                yield from self._entries(fact)
            case WriterRun():
                if fact.ledger == self._ledger:
                    yield from self._sequences.writer(fact)
            case Fingerprint():
                if fact.position.ledger == self._ledger:
                    yield from self._sequences.fingerprint(fact)
            case Misplaced():
                if fact.ledger == self._ledger:
                    yield from self._sequences.misplaced(fact)
            case LedgerBegins():
                yield from self._marker(fact)
            case PublishRun():
                yield from self._versions.published(fact)
            case NamedPublisher():
                if fact.position.ledger == self._ledger:
                    yield from self._publishers.named(fact, *self._of_ledger)
            case Unreadable():
                self._unreadable += fact.entries
            case Gap():
                self.cut()
            case Finding():
                yield fact

    def cut(self) -> None:
        """Note that the log was trimmed past what was checked: it begins with the next fact."""
        self.first = None
        self._next = 0
        self._sequences.cut()

    # ------------------------------------------------------------ markers

    def _marker(self, marker: LedgerBegins) -> Iterator[Finding]:
        ledger, entry = marker.position
        is_first = self.first is None
        if is_first:
            self.first = marker.position
        if ledger <= self._ledger or entry != 0:
            yield self._finding("S1", marker.position, f"a marker follows on ledger {self._ledger}")
            self.last = max(self.last, marker.position)
            return
        yield from self._missing_markers(ledger, is_first=is_first)
        record = self._known.fences.get(ledger)
        if record is not None and not is_first:
            yield from self._tail_kept(record, marker.position)
        yield from self._audited(marker, record)
        self.ledgers += 1
        self._ledger, self._has_marker, self._has_entries = ledger, True, False
        self._next = marker.next_entry
        self.last = max(self.last, marker.position)
        yield from self._identity(marker, record)

    def _missing_markers(self, ledger: int, *, is_first: bool) -> Iterator[Finding]:
        """Fences in the audit between the previous ledger and this one must have left markers."""
        while self._awaited and self._awaited[0] <= ledger:
            missing = self._awaited.popleft()
            if missing != ledger and not is_first and missing > self._ledger:
                yield self._without_marker(missing)

    def _without_marker(self, ledger: int) -> Finding:
        return Finding(
            self.log,
            "S4",
            (f"{ledger}-0", f"audit {self._known.fences[ledger].record_id}"),
            f"ledger {ledger} was fenced, but the log has no marker of it",
        )

    def _tail_kept(self, record: FenceRecord, position: Position) -> Iterator[Finding]:
        """What the broker had acknowledged before this fence is in the log, or was reported lost."""
        for partition, acknowledged in record.acknowledged.items():
            if record.log_name(partition) != self.log or acknowledged.entry == 0:
                continue
            if acknowledged <= self.last:
                continue
            if self._known.is_lost(self.last, acknowledged):
                self._note(f"entries behind {self.last} up to {acknowledged} were reported lost")
                continue
            yield Finding(
                self.log,
                "S5",
                (str(self.last), str(acknowledged), str(position)),
                f"entries were acknowledged up to {acknowledged}, the log ends at {self.last}",
            )

    def _audited(self, marker: LedgerBegins, record: FenceRecord | None) -> Iterator[Finding]:
        if record is not None:
            return
        oldest, ledger = self.audit.oldest, marker.position.ledger
        time_ms = NUMBER_MAX if marker.time_ms is None else marker.time_ms
        if marker.time_ms is None and ledger > self.audit.newest_ledger:
            return  # a table whose audit ends earlier than its messages
        if oldest is None:
            self._note("the bucket's audit holds no fences: markers were not compared with it")
        elif ledger <= oldest.ledger or time_ms <= oldest.time_ms:
            self._note(f"markers before audit {oldest.record_id} were not compared with the audit")
        else:
            yield self._finding(
                "S4",
                marker.position,
                f"ledger {ledger} has a marker, but the audit has no such fence",
            )

    def _identity(self, marker: LedgerBegins, record: FenceRecord | None) -> Iterator[Finding]:
        """Compare the holder of a ledger; at most one violation, so that one fault is reported once."""
        ledger, epoch, producer = marker.position.ledger, marker.epoch, marker.producer
        holder = (epoch, producer, marker.subject) if epoch and producer else None
        self._of_ledger = (epoch if producer else None, marker.owner or "")
        previous = self._holder
        if epoch is not None and epoch < self._epoch:
            yield self._finding(
                "S1", marker.position, f"epoch {epoch} follows on epoch {self._epoch}"
            )
        elif epoch is not None and epoch > ledger:
            yield self._finding(
                "S1", marker.position, f"epoch {epoch} is above its ledger {ledger}"
            )
        elif holder and previous and holder[0] == previous[0] and holder != previous:
            yield self._finding(
                "S2",
                marker.position,
                f"epoch {epoch} was held by {previous[1]} and is now held by {producer}",
            )
        elif record is not None and marker.owner is not None and record.broker != marker.owner:
            yield Finding(
                self.log,
                "S2",
                (str(marker.position), f"audit {record.record_id}"),
                f"ledger {ledger} belongs to {marker.owner}, by the audit to {record.broker}",
            )
        elif record is not None:
            yield from self._as_audited(marker, record)
        self._epoch = max(self._epoch, epoch or 0)
        if holder is not None:
            self._holder = holder
        self._sequences.ledger(
            epoch, producer if holder else "", begins=epoch == ledger and holder is not None
        )

    def _as_audited(self, marker: LedgerBegins, record: FenceRecord) -> Iterator[Finding]:
        is_of_this_log = record.begins_epoch or record.log_name(record.partitions[0]) == self.log
        if not is_of_this_log or marker.epoch is None:
            return
        places = (str(marker.position), f"audit {record.record_id}")
        if marker.epoch != record.epoch:
            yield Finding(
                self.log,
                "S3",
                places,
                f"the marker says epoch {marker.epoch}, the audit epoch {record.epoch}",
            )
        elif marker.producer and record.producer and marker.producer != record.producer:
            yield Finding(
                self.log,
                "S2",
                places,
                f"the marker names {marker.producer} as holder, the audit {record.producer}",
            )

    # ------------------------------------------------------------ entries

    def _entries(self, run: EntryRun) -> Iterator[Finding]:
        is_first = self.first is None
        if is_first:
            self.first = run.first
        yield from self._placed(run, is_first=is_first)
        self.last = max(self.last, Position(run.first.ledger, run.last))

    def _placed(self, run: EntryRun, *, is_first: bool) -> Iterator[Finding]:
        ledger, entry = run.first
        if ledger < self._ledger:
            is_early = self._has_marker and not self._has_entries
            yield self._finding(
                "S4" if is_early else "S1",
                run.first,
                f"entries of ledger {ledger} are after the marker of ledger {self._ledger}",
            )
            return
        if ledger > self._ledger:
            if not is_first:
                yield self._finding("S4", run.first, f"ledger {ledger} begins without its marker")
            yield from self._missing_markers(ledger - 1, is_first=is_first)
            self._ledger, self._has_marker, self._next = ledger, False, 0
            self._of_ledger = self._as_fenced(ledger)
            self._sequences.ledger(None, "", begins=False)
            self._sequences.cut()
        if self._next and entry < self._next:
            yield self._finding("S1", run.first, f"entry {entry} follows on entry {self._next - 1}")
        elif self._next and entry > self._next:
            yield Finding(
                self.log,
                "S5",
                (f"{ledger}-{self._next}", str(run.first)),
                f"{entry - self._next} entries are missing before {run.first}",
            )
        self._has_entries = True
        self._next = max(self._next, run.last + 1)
        self.entries += run.last - entry + 1

    def _as_fenced(self, ledger: int) -> tuple[int | None, str]:
        """Epoch and broker of a ledger without a marker, as far as the audit shows."""
        record = self._known.fences.get(ledger)
        if record is None or not (
            record.begins_epoch or record.log_name(record.partitions[0]) == self.log
        ):
            return None, ""
        return (record.epoch if record.producer else None), record.broker

    # ------------------------------------------------------------ the end

    def finish(self, state: StoredState | None) -> Iterator[Finding]:
        """Compare with what the store keeps beside the log (None: unknown); call it once, at the end."""
        settled = self._known.settled_ledger
        late = [ledger for ledger in self._awaited if self._ledger < ledger <= settled]
        # An empty log only needs its newest marker: a marker is removed when there is a later one.
        for ledger in late if self.first is not None else late[-1:]:
            yield self._without_marker(ledger)
        if state is not None:
            yield from self._remembered(state)
        yield from self._horizon(None if state is None else state.trimmed)
        self._note_ranges_at_risk()
        if state is not None and state.ledger:
            yield from self._versions.finish(state.published)
        if self._unreadable:
            self._note(
                f"{self._unreadable} entries have metadata that cannot be read: their"
                " order was not checked"
            )
        if self._sequences.forgotten:
            self._note(
                f"{self._sequences.forgotten} times a Shared producer was silent for such a long time that"
                " its later entries were not compared with its earlier ones"
            )

    def _remembered(self, state: StoredState) -> Iterator[Finding]:
        known_epoch, known_ledger = self._known.remembered
        epoch, ledger = max(self._epoch, known_epoch), max(self._ledger, known_ledger)
        if ledger == 0:
            return
        if not state.ledger:
            sentence = "the log's state is gone"
        elif state.epoch < epoch:
            sentence = f"epoch {epoch} was granted, but the state knows only {state.epoch}"
        elif state.ledger < ledger:
            sentence = f"ledger {ledger} was fenced, but the state knows only {state.ledger}"
        elif state.bucket_ledger < ledger:
            sentence = (
                f"ledger {ledger} was fenced, but the bucket knows only {state.bucket_ledger}"
            )
        else:
            return
        yield Finding(self.log, "S12", ("state",), sentence)

    def _note_ranges_at_risk(self) -> None:
        for each in self._known.at_risk:
            self._note(
                f"a failover of the store may have lost acknowledged entries after {each.after}, in ledgers up"
                f" to {each.ledger} (durability {each.durability})"
            )

    def _horizon(self, trimmed: Position | None) -> Iterator[Finding]:
        """Where the log begins, and whether a trim explains it."""
        first = self.first
        if first is None:
            return
        begins_with_marker = first.entry == 0
        older = any(ledger < first.ledger for ledger in self._known.fences)
        if trimmed is not None:
            if first > trimmed and not (
                begins_with_marker and (self._known.losses or self._known.at_risk)
            ):
                yield Finding(
                    self.log,
                    "S5",
                    (str(trimmed), str(first)),
                    f"the log was trimmed up to {trimmed} at most, but begins at {first}",
                )
            else:
                self._note(f"what was trimmed, up to {trimmed}, was not checked")
        elif older or not begins_with_marker:
            self._note(f"the log begins at {first}: nothing before it was checked")

    def _finding(self, predicate: str, position: Position, sentence: str) -> Finding:
        return Finding(self.log, predicate, (str(position),), sentence)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
