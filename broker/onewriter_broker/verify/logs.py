"""Checks one log against its audit: order, fences, holes, the chain of hashes.

Pure and streaming: blocks come in their stored order, and only one ledger's numbers are kept. ``check``
handles a whole stream at once. A reader that continues while the log is trimmed feeds a LogChecker itself and
reports the trim to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onewriter_broker.log.store.api import Block, Marker, StoredBlock, Unit
from onewriter_broker.log.topic_log.log import last_position, payloads
from onewriter_broker.verify.audit import BucketAudit, LogAudit
from onewriter_broker.verify.findings import Violation
from onewriter_broker.verify.publishers import PublisherChecker
from onewriter_broker.verify.publishes import PublishChecker
from onewriter_broker.verify.records import FenceRecord
from onewriter_broker.verify.sequences import SequenceChecker
from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_core.log_format.chain import CHAIN_START, chain
from onewriter_core.log_format.field_names import TRIMMED


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store keeps beside a log, read after its blocks.

    ``state`` is empty if it is gone. ``unit`` is the bucket's record.
    """

    state: Mapping[str, str]
    unit: Unit


def check(
    log: str, blocks: Iterable[StoredBlock], audit: BucketAudit, stored: Stored
) -> Iterator[Violation]:
    """All violations that a log, its bucket's audit and its state show together."""
    checker = LogChecker(log, audit)
    for block in blocks:
        yield from checker.feed(block)
    yield from checker.finish(stored)


@dataclass(slots=True)
class LogChecker:
    """Checks one log, block by block.

    ``notes`` say what could not be checked; read them after ``finish``.
    """

    log: str
    audit: BucketAudit
    settled: int = NUMBER_MAX
    """The highest ledger whose marker must exist: later ones were fenced during the check."""
    entries: int = 0
    blocks: int = 0
    ledgers: int = 0
    first: Position | None = None
    """The beginning of the stored log."""
    last: Position = EARLIEST
    notes: list[str] = field(default_factory=list)
    sequences: SequenceChecker = field(init=False)
    publishes: PublishChecker = field(init=False)
    publishers: PublisherChecker = field(init=False)
    _known: LogAudit = field(init=False)
    _awaited: deque[int] = field(init=False)
    """Ledgers in the audit whose markers have not come yet."""
    _ledger: int = 0
    _has_marker: bool = False
    _has_entries: bool = False
    _next: int = 0
    """The next expected entry id; 0 if it is not known."""
    _chain: bytes | None = None
    """The hash before the next block; None if it is not known."""
    _epoch: int = 0
    _holder: tuple[int, str, str] | None = None
    _of_ledger: tuple[int | None, str] = (None, "")
    """The epoch of the ledger's entries (None if no producer held the topic), and the broker that wrote them."""

    def __post_init__(self) -> None:
        self.sequences = SequenceChecker(self.log, limits=self.audit.limits)
        self._known = self.audit.logs.get(self.log, LogAudit())
        self.publishes = PublishChecker(self.log, frozenset(self._known.forgotten))
        self.publishers = PublisherChecker(self.log, self.audit)
        self._awaited = deque(sorted(self._known.fences))

    def cut(self) -> None:
        """Note that the log was trimmed past what was checked: it begins with the next block."""
        self.first = None
        self._next, self._chain = 0, None
        self.sequences.cut()
        self.publishes.cut()

    def feed(self, block: StoredBlock) -> Iterator[Violation]:
        """Check the next block or marker."""
        self.blocks += 1
        is_first = self.first is None
        if is_first:
            self.first = block.position
        if isinstance(block, Marker):
            yield from self.publishes.marker(block)
            yield from self._marker(block, is_first=is_first)
        else:
            yield from self.publishes.block(block)
            yield from self._block(block, is_first=is_first)
        self.last = max(self.last, last_position(block))

    # ------------------------------------------------------------ markers

    def _marker(self, marker: Marker, *, is_first: bool) -> Iterator[Violation]:
        ledger, entry = marker.position
        if ledger <= self._ledger or entry != 0:
            yield self._violation(
                "S1", marker.position, f"a marker follows on ledger {self._ledger}"
            )
            return
        yield from self._missing_markers(ledger, is_first=is_first)
        record = self._known.fences.get(ledger)
        if record is not None and not is_first:
            yield from self._tail_kept(record, marker.position)
        yield from self._audited(marker, record)
        self.ledgers += 1
        self._ledger, self._has_marker, self._has_entries = ledger, True, False
        self._next, self._chain = 1, CHAIN_START
        yield from self._identity(marker, record)

    def _missing_markers(self, ledger: int, *, is_first: bool) -> Iterator[Violation]:
        """Fences in the audit between the previous ledger and this one must have left markers."""
        while self._awaited and self._awaited[0] <= ledger:
            missing = self._awaited.popleft()
            if missing != ledger and not is_first and missing > self._ledger:
                yield self._without_marker(missing)

    def _without_marker(self, ledger: int) -> Violation:
        return Violation(
            "S4",
            self.log,
            (f"{ledger}-0", f"audit {self._known.fences[ledger].record_id}"),
            f"ledger {ledger} was fenced, but the log has no marker of it",
        )

    def _tail_kept(self, record: FenceRecord, position: Position) -> Iterator[Violation]:
        """What the broker had acknowledged before this fence is in the log, or was reported lost."""
        for partition, acknowledged in record.acknowledged.items():
            if record.log_name(partition) != self.log or acknowledged.entry == 0:
                continue
            if acknowledged <= self.last:
                continue
            if self._known.is_lost(self.last, acknowledged):
                self._note(f"entries behind {self.last} up to {acknowledged} were reported lost")
                continue
            yield Violation(
                "S5",
                self.log,
                (str(self.last), str(acknowledged), str(position)),
                f"entries were acknowledged up to {acknowledged}, the log ends at {self.last}",
            )

    def _audited(self, marker: Marker, record: FenceRecord | None) -> Iterator[Violation]:
        if record is not None:
            return
        oldest = self.audit.oldest
        if oldest is None:
            self._note("the bucket's audit holds no fences: markers were not compared with it")
        elif marker.position.ledger <= oldest.ledger or _time(marker) <= oldest.time_ms:
            self._note(f"markers before audit {oldest.record_id} were not compared with the audit")
        else:
            yield self._violation(
                "S4",
                marker.position,
                f"ledger {marker.position.ledger} has a marker, but the audit has no such fence",
            )

    def _identity(self, marker: Marker, record: FenceRecord | None) -> Iterator[Violation]:
        """Compare the holder of a ledger; at most one violation, so that one fault is reported once."""
        ledger = marker.position.ledger
        fields = marker.fields
        epoch = _number(fields.get("epoch", ""))
        producer = fields.get("producer", "")
        holder = (epoch, producer, fields.get("subject", "")) if epoch and producer else None
        self._of_ledger = (epoch if producer else None, fields.get("owner", ""))
        previous = self._holder
        if epoch is not None and epoch < self._epoch:
            yield self._violation(
                "S1", marker.position, f"epoch {epoch} follows on epoch {self._epoch}"
            )
        elif epoch is not None and epoch > ledger:
            yield self._violation(
                "S1", marker.position, f"epoch {epoch} is above its ledger {ledger}"
            )
        elif holder and previous and holder[0] == previous[0] and holder != previous:
            yield self._violation(
                "S2",
                marker.position,
                f"epoch {epoch} was held by {previous[1]} and is now held by {producer}",
            )
        elif record is not None and record.broker != fields.get("owner", ""):
            yield Violation(
                "S2",
                self.log,
                (str(marker.position), f"audit {record.record_id}"),
                f"ledger {ledger} belongs to {fields.get('owner')}, by the audit to"
                f" {record.broker}",
            )
        elif record is not None:
            yield from self._as_audited(marker, record, epoch, producer)
        self._epoch = max(self._epoch, epoch or 0)
        if holder is not None:
            self._holder = holder
        self.sequences.ledger(
            epoch, producer if holder else "", begins=epoch == ledger and holder is not None
        )

    def _as_audited(
        self, marker: Marker, record: FenceRecord, epoch: int | None, producer: str
    ) -> Iterator[Violation]:
        is_of_this_log = record.changes_hands or record.log_name(record.partitions[0]) == self.log
        if not is_of_this_log or epoch is None:
            return
        places = (str(marker.position), f"audit {record.record_id}")
        if epoch != record.epoch:
            yield Violation(
                "S3",
                self.log,
                places,
                f"the marker says epoch {epoch}, the audit epoch {record.epoch}",
            )
        elif producer and record.producer and producer != record.producer:
            yield Violation(
                "S2",
                self.log,
                places,
                f"the marker names {producer} as holder, the audit {record.producer}",
            )

    # ------------------------------------------------------------ blocks

    def _block(self, block: Block, *, is_first: bool) -> Iterator[Violation]:
        ledger, entry = block.position
        if ledger < self._ledger:
            is_early = self._has_marker and not self._has_entries
            yield self._violation(
                "S4" if is_early else "S1",
                block.position,
                f"entries of ledger {ledger} are after the marker of ledger {self._ledger}",
            )
            return
        if ledger > self._ledger:
            if not is_first:
                yield self._violation(
                    "S4", block.position, f"ledger {ledger} begins without its marker"
                )
            yield from self._missing_markers(ledger - 1, is_first=is_first)
            self._ledger, self._has_marker = ledger, False
            self._of_ledger = self._as_fenced(ledger)
            self._next, self._chain = 0, None
            self.sequences.ledger(None, "", begins=False)
            self.sequences.cut()
        yield from self._numbers(block, entry)
        self._has_entries = True
        self._next, self._chain = block.last.entry + 1, block.chain
        self.entries += len(block.lengths)
        number = entry
        if block.publish:  # its entries belong to the publish, whichever producer holds the topic
            yield from self.publishers.block(block, *self._of_ledger)
            return
        for payload in payloads(block):
            yield from self.sequences.entry(Position(ledger, number), payload)
            number += 1

    def _as_fenced(self, ledger: int) -> tuple[int | None, str]:
        """Epoch and broker of a ledger without a marker, as far as the audit shows."""
        record = self._known.fences.get(ledger)
        if record is None or not (
            record.changes_hands or record.log_name(record.partitions[0]) == self.log
        ):
            return None, ""
        return (record.epoch if record.producer else None), record.broker

    def _numbers(self, block: Block, entry: int) -> Iterator[Violation]:
        """Check that numbers and hashes continue. After a hole, the chain begins again."""
        if self._next and entry < self._next:
            yield self._violation(
                "S1", block.position, f"entry {entry} follows on entry {self._next - 1}"
            )
        elif self._next and entry > self._next:
            yield Violation(
                "S5",
                self.log,
                (f"{block.position.ledger}-{self._next}", str(block.position)),
                f"{entry - self._next} entries are missing before {block.position}",
            )
        elif self._chain is not None:
            expected = chain(self._chain, block.position, block.lengths, block.payload)
            if expected != block.chain:
                yield Violation(
                    "S7",
                    self.log,
                    (str(block.position), str(block.last)),
                    f"the entries {block.position} to {block.last} are not those that were"
                    " written: their hash does not follow on the one before",
                )

    # ------------------------------------------------------------ the end

    def finish(self, stored: Stored) -> Iterator[Violation]:
        """Compare with what the store keeps beside the log; call it once, at the end."""
        late = [ledger for ledger in self._awaited if self._ledger < ledger <= self.settled]
        # An empty log only needs its newest marker: a marker is removed when there is a later one.
        for ledger in late if self.first is not None else late[-1:]:
            yield self._without_marker(ledger)
        yield from self._remembered(stored)
        yield from self._horizon(stored.state)
        yield from self.publishes.finish(stored.state)
        for note in self.publishers.notes:
            self._note(note)
        if self.publishes.open:
            self._note(
                f"publish {self.publishes.open} is not whole: it is being written, or the next"
                " fence drops it"
            )
        if self.sequences.unreadable:
            self._note(
                f"{self.sequences.unreadable} entries have metadata that cannot be read: their"
                " order was not checked"
            )
        if self.sequences.forgotten:
            self._note(
                f"{self.sequences.forgotten} times a Shared producer was silent for such a long time that"
                " its later entries were not compared with its earlier ones"
            )

    def _remembered(self, stored: Stored) -> Iterator[Violation]:
        epoch = max(self._epoch, self._known.epoch)
        newest = self._known.newest
        ledger = max(self._ledger, 0 if newest is None else newest.ledger)
        if ledger == 0:
            return
        state_epoch = _number(stored.state.get("epoch", "")) or 0
        state_ledger = _number(stored.state.get("ledger", "")) or 0
        if not stored.state:
            yield Violation("S12", self.log, ("state",), "the log's state is gone")
        elif state_epoch < epoch:
            yield Violation(
                "S12",
                self.log,
                ("state",),
                f"epoch {epoch} was granted, but the state knows only {state_epoch}",
            )
        elif state_ledger < ledger:
            yield Violation(
                "S12",
                self.log,
                ("state",),
                f"ledger {ledger} was fenced, but the state knows only {state_ledger}",
            )
        elif stored.unit.last_ledger < ledger:
            yield Violation(
                "S12",
                self.log,
                ("state",),
                f"ledger {ledger} was fenced, but the bucket knows only {stored.unit.last_ledger}",
            )

    def _horizon(self, state: Mapping[str, str]) -> Iterator[Violation]:
        """Where the log begins, and whether a trim explains it."""
        first = self.first
        if first is None:
            return
        trimmed = state.get(TRIMMED, "")
        begins_with_marker = first.entry == 0
        older = [ledger for ledger in self._known.fences if ledger < first.ledger]
        if trimmed:
            horizon = Position.parse(trimmed)
            if first > horizon and not (begins_with_marker and self._known.losses):
                yield Violation(
                    "S5",
                    self.log,
                    (str(horizon), str(first)),
                    f"the log was trimmed up to {horizon} at most, but begins at {first}",
                )
            else:
                self._note(f"what was trimmed, up to {horizon}, was not checked")
        elif older or not begins_with_marker:
            self._note(f"the log begins at {first}: nothing before it was checked")

    def _violation(self, predicate: str, position: Position, sentence: str) -> Violation:
        return Violation(predicate, self.log, (str(position),), sentence)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _time(marker: Marker) -> int:
    return _number(marker.fields.get("t", "")) or 0
