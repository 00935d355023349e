"""S6 as a log shows it: each producer's entries in its own order, none twice, no chunk missing.

An entry is stored twice when sequence id and checksum are both there before. Under an exclusive
epoch sequence ids must ascend, but for a client that counts anew: the C++ one does when it comes
back without a receipt, and then what it sends was published later. Shared producers are known by
name only, which a namesake may use at the same time: their order shows nothing. A sequence id that
is simply missing shows nothing either: clients skip them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from onewriter_broker.verify.findings import Violation
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.messages import EntrySummary, entry_checksum, summarize

RECENT_ENTRIES_MAX = 1_024
"""Entries of one producer that a later one is compared with: what a client may resend."""

REMEMBERED_ENTRIES_MAX = 200_000
"""The same over all producers; the longest silent one is forgotten first."""

_Print = tuple[int, int]
"""Sequence id and checksum: what tells entries of one producer apart."""


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
    """The entries of one log in order. ``log`` is its name.

    ``unreadable`` counts entries whose metadata cannot be read, ``forgotten`` producers that were
    dropped from memory: neither is checked further.
    """

    log: str
    unreadable: int = 0
    forgotten: int = 0
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
        """A ledger opens: exclusive under ``epoch`` for ``holder``, or shared when there is none.

        ``begins``: the epoch's first ledger, so that its first entry is the holder's first.
        """
        if not holder or (epoch, holder) != (self._epoch, self._holder):
            self._latest = None
            self._begins_here = begins
        self._epoch, self._holder = epoch, holder

    def cut(self) -> None:
        """What lay before was trimmed: the next entry follows on nothing that is known."""
        self._latest = None
        self._begins_here = False

    def entry(self, position: Position, payload: memoryview) -> Iterator[Violation]:
        """The next entry."""
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
            return  # said once for each ledger
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
        while self._remembered > REMEMBERED_ENTRIES_MAX:
            _, dropped = self._recent.popitem(last=False)
            self._remembered -= len(dropped)
            self.forgotten += 1
