"""Checks S6 in a log: each producer's entries are in its order, none is stored twice, no chunk is missing.

Under an exclusive epoch, sequence ids must increase. An exception is a client that restarts its numbering: the C++
client does so when it returns without a receipt, and its entries were then published later. Shared producers are
known only by name, which another producer may use at the same time, so their order shows nothing. A missing sequence
id shows nothing either, because clients skip some.

An entry is stored twice if an earlier one of its producer has the same fingerprint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from onewriter_core.audit.facts import Fingerprint, Misplaced, Numbers, WriterRun
from onewriter_core.audit.findings import DEFAULT_LIMITS, AuditLimits, Finding
from onewriter_core.ids import Position

RECENT_ENTRIES_MAX = 1_024
"""Earlier entries of one producer that an entry is compared with: what a client may resend."""


def stored_twice(
    log: str, producer: str, sequence_id: int, before: Position, again: Position
) -> Finding:
    """The finding that an entry is stored at two positions."""
    return Finding(
        log,
        "S6",
        (str(before), str(again)),
        f"sequence id {sequence_id} of {producer} is stored twice",
    )


@dataclass(slots=True)
class SequenceChecker:
    """Checks the entries of one log in order. ``log`` is its name.

    ``forgotten`` counts producers that were dropped from memory: their later entries are not compared with those.
    """

    log: str
    forgotten: int = 0
    limits: AuditLimits = DEFAULT_LIMITS
    _holder: str = ""
    _epoch: int | None = None
    _begins_here: bool = False
    _latest: tuple[int, Numbers] | None = None
    """Ledger and numbers of the newest entry of the exclusive holder."""
    _misplaced: Position | None = None
    _recent: OrderedDict[tuple[int | None, str], dict[tuple[int, int], Position]] = field(
        default_factory=OrderedDict
    )
    _remembered: int = 0
    _foreign_ledger: int = 0

    def ledger(self, epoch: int | None, holder: str, *, begins: bool) -> None:
        """Begin a ledger: exclusive under ``epoch`` for ``holder``, or shared if there is no epoch.

        ``begins``: this is the epoch's first ledger, so its first entry is the holder's first.
        """
        if not holder or (epoch, holder) != (self._epoch, self._holder):
            self._latest = None
            self._begins_here = begins
        self._epoch, self._holder = epoch, holder

    def cut(self) -> None:
        """Note that everything before was trimmed, so the next entry has no known predecessor."""
        self._latest = None
        self._begins_here = False

    def writer(self, run: WriterRun) -> Iterator[Finding]:
        """Check the next entries of a producer."""
        if not self._holder:
            return
        if run.producer != self._holder:
            yield from self._foreign(run)
            return
        before, first = self._latest, run.first
        if before is not None and (run.ledger, first.entry) <= (before[0], before[1].entry):
            return  # the position is a violation of its own
        self._latest = (run.ledger, run.last)
        if before is None:
            if first.chunk and self._begins_here:
                yield self._torn((Position(run.ledger, first.entry),), first)
            return
        ledger, numbers = before
        places = Position(ledger, numbers.entry), Position(run.ledger, first.entry)
        if (first.sequence_id, first.chunk) > (numbers.sequence_id, numbers.chunk):
            if first.chunk and (numbers.uuid, numbers.chunk + 1) != (first.uuid, first.chunk):
                yield self._torn(places, first)
        elif first.published_ms <= numbers.published_ms:
            self._misplaced = places[1]
            yield self._falls(places, numbers, first)

    def misplaced(self, found: Misplaced) -> Iterator[Finding]:
        """Report an entry that is out of order in a run, if the ledger has a single holder."""
        if found.producer != self._holder:
            return
        places = (
            Position(found.ledger, found.before.entry),
            Position(found.ledger, found.after.entry),
        )
        if found.is_torn:
            yield self._torn(places, found.after)
        else:
            yield self._falls(places, found.before, found.after)

    def fingerprint(self, mark: Fingerprint) -> Iterator[Finding]:
        """Compare an entry with earlier ones of its producer, unless it is known to be out of order."""
        if mark.position == self._misplaced or (self._holder and mark.producer != self._holder):
            return
        producer = (self._epoch, mark.producer)
        recent = self._recent.setdefault(producer, {})
        self._recent.move_to_end(producer)
        key = (mark.sequence_id, mark.checksum)
        if key in recent:
            before = recent[key]
            yield stored_twice(self.log, mark.producer, mark.sequence_id, before, mark.position)
            return
        recent[key] = mark.position
        self._remembered += 1
        if len(recent) > RECENT_ENTRIES_MAX:
            del recent[next(iter(recent))]
            self._remembered -= 1
        while self._remembered > self.limits.remembered_entries_max:
            _, dropped = self._recent.popitem(last=False)
            self._remembered -= len(dropped)
            self.forgotten += 1

    def _foreign(self, run: WriterRun) -> Iterator[Finding]:
        if run.ledger == self._foreign_ledger:
            return  # reported once for each ledger
        self._foreign_ledger = run.ledger
        yield Finding(
            self.log,
            "S2",
            (str(Position(run.ledger, run.first.entry)),),
            f"epoch {self._epoch} is held by {self._holder}, but this entry says it is by"
            f" {run.producer}",
        )

    def _falls(self, places: tuple[Position, ...], before: Numbers, after: Numbers) -> Finding:
        return Finding(
            self.log,
            "S6",
            tuple(map(str, places)),
            f"sequence id {after.sequence_id} of {self._holder} follows on its"
            f" {before.sequence_id} and was published no later",
        )

    def _torn(self, places: tuple[Position, ...], after: Numbers) -> Finding:
        return Finding(
            self.log,
            "S6",
            tuple(map(str, places)),
            f"chunk {after.chunk} of message {after.uuid} of {self._holder} without the one before"
            " it",
        )
