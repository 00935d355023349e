"""Checks S6 in a log: each producer's entries are in its order, none is stored twice, no chunk is missing.

An entry is stored twice if an earlier one has the same sequence id and checksum. Under an exclusive epoch,
sequence ids must increase. An exception is a client that restarts its numbering: the C++ client does so when
it returns without a receipt, and its entries were then published later. Shared producers are known only by
name, which another producer may use at the same time, so their order shows nothing. A missing sequence id
shows nothing either, because clients skip some.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from onewriter_broker.verify.findings import DEFAULT_LIMITS, Limits, Violation
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.messages import EntrySummary, entry_checksum, summarize

RECENT_ENTRIES_MAX = 1_024
"""Earlier entries of one producer that an entry is compared with: what a client may resend."""

_Print = tuple[int, int]
"""Sequence id and checksum: they distinguish the entries of one producer."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """The newest entry of an exclusive holder."""

    position: Position
    sequence_id: int
    chunk: int
    uuid: str
    published_ms: int


@dataclass(slots=True)
class SequenceChecker:
    """Checks the entries of one log in order. ``log`` is its name.

    ``unreadable`` counts entries with unreadable metadata, ``forgotten`` producers that were dropped from
    memory. Neither is checked further.
    """

    log: str
    unreadable: int = 0
    forgotten: int = 0
    limits: Limits = DEFAULT_LIMITS
    _holder: str = ""
    _epoch: int | None = None
    _begins_here: bool = False
    _latest: _Latest | None = None
    _recent: OrderedDict[tuple[int | None, str], dict[_Print, Position]] = field(
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

    def entry(self, position: Position, payload: memoryview) -> Iterator[Violation]:
        """Check the next entry."""
        try:
            summary = summarize(payload)
        except ProtocolError:
            self.unreadable += 1
            return
        if self._holder and summary.producer_name != self._holder:
            yield from self._foreign(position, summary)
            return
        twice = list(self._stored_twice(position, summary, entry_checksum(payload)))
        yield from twice
        if self._holder and not twice:
            yield from self._exclusive(position, summary)

    def _foreign(self, position: Position, summary: EntrySummary) -> Iterator[Violation]:
        if position.ledger == self._foreign_ledger:
            return  # reported once for each ledger
        self._foreign_ledger = position.ledger
        yield Violation(
            "S2",
            self.log,
            (str(position),),
            f"epoch {self._epoch} is held by {self._holder}, but this entry says it is by"
            f" {summary.producer_name}",
        )

    def _exclusive(self, position: Position, summary: EntrySummary) -> Iterator[Violation]:
        chunk = summary.chunk_id or 0
        before = self._latest
        self._latest = _Latest(
            position, summary.sequence_id, chunk, summary.uuid, summary.publish_time_ms
        )
        if before is None:
            if chunk and self._begins_here:
                yield self._missing((str(position),), chunk, summary)
            return
        places = (str(before.position), str(position))
        if (summary.sequence_id, chunk) > (before.sequence_id, before.chunk):
            if chunk and (before.uuid, before.chunk + 1) != (summary.uuid, chunk):
                yield self._missing(places, chunk, summary)
        elif summary.publish_time_ms <= before.published_ms:
            yield Violation(
                "S6",
                self.log,
                places,
                f"sequence id {summary.sequence_id} of {self._holder} follows on its"
                f" {before.sequence_id} and was published no later",
            )
            self._latest = before  # one misplaced entry is one violation

    def _missing(self, places: tuple[str, ...], chunk: int, summary: EntrySummary) -> Violation:
        return Violation(
            "S6",
            self.log,
            places,
            f"chunk {chunk} of message {summary.uuid} of {self._holder} without the one before it",
        )

    def _stored_twice(
        self, position: Position, summary: EntrySummary, checksum: int
    ) -> Iterator[Violation]:
        producer = (self._epoch, summary.producer_name)
        recent = self._recent.setdefault(producer, {})
        self._recent.move_to_end(producer)
        mark = (summary.sequence_id, checksum)
        if mark in recent:
            yield Violation(
                "S6",
                self.log,
                (str(recent[mark]), str(position)),
                f"sequence id {summary.sequence_id} of {summary.producer_name} is stored twice",
            )
            return
        recent[mark] = position
        self._remembered += 1
        if len(recent) > RECENT_ENTRIES_MAX:
            del recent[next(iter(recent))]
            self._remembered -= 1
        while self._remembered > self.limits.remembered_entries_max:
            _, dropped = self._recent.popitem(last=False)
            self._remembered -= len(dropped)
            self.forgotten += 1
