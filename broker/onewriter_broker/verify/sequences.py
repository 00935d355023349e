"""S6 as a log shows it: each producer's entries in its own order, none twice, no chunk missing.

Under an exclusive epoch sequence ids must ascend; an application that sets its own must let them
rise as well. Shared producers are known by name only, and a name may be used again by a producer
that counts anew: there an entry counts as stored twice when it is the same to the byte count and
the producer's own clock. A sequence id that is simply missing shows nothing: clients skip them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from onewriter_broker.verify.findings import Violation
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.messages import EntrySummary, summarize

RECENT_ENTRIES_MAX = 1_024
"""Entries of one Shared producer that a later one is compared with: what a client may resend."""

REMEMBERED_ENTRIES_MAX = 200_000
"""The same over all Shared producers; the longest silent one is forgotten first."""

_Print = tuple[int, int, int, int]
"""Sequence id, chunk, the producer's clock and size: what tells entries of one name apart."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """The newest entry of an exclusive holder."""

    position: Position
    sequence_id: int
    chunk: int
    uuid: str


@dataclass(slots=True)
class SequenceChecker:
    """The entries of one log in order. ``log`` is its name.

    ``unreadable`` counts entries whose metadata cannot be read, ``forgotten`` Shared producers that
    were dropped from memory: neither is checked further.
    """

    log: str
    unreadable: int = 0
    forgotten: int = 0
    _holder: str = ""
    _epoch: int | None = None
    _begins_here: bool = False
    _latest: _Latest | None = None
    _recent: OrderedDict[str, dict[_Print, Position]] = field(default_factory=OrderedDict)
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
        if not self._holder:
            yield from self._shared(position, summary, len(payload))
        elif summary.producer_name != self._holder:
            yield from self._foreign(position, summary)
        else:
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
        self._latest = _Latest(position, summary.sequence_id, chunk, summary.uuid)
        number = f"sequence id {summary.sequence_id}"
        if before is None:
            if chunk and self._begins_here:
                yield self._missing((str(position),), chunk, summary)
            return
        places = (str(before.position), str(position))
        if (summary.sequence_id, chunk) == (before.sequence_id, before.chunk):
            yield Violation("S6", self.log, places, f"{number} of {self._holder} is stored twice")
        elif (summary.sequence_id, chunk) < (before.sequence_id, before.chunk):
            yield Violation(
                "S6",
                self.log,
                places,
                f"{number} of {self._holder} follows on its {before.sequence_id}",
            )
            if summary.sequence_id < before.sequence_id:
                self._latest = before  # one misplaced entry is one violation
        elif chunk and (before.uuid, before.chunk + 1) != (summary.uuid, chunk):
            yield self._missing(places, chunk, summary)

    def _missing(self, places: tuple[str, ...], chunk: int, summary: EntrySummary) -> Violation:
        return Violation(
            "S6",
            self.log,
            places,
            f"chunk {chunk} of message {summary.uuid} of {self._holder} without the one before it",
        )

    def _shared(self, position: Position, summary: EntrySummary, size: int) -> Iterator[Violation]:
        name = summary.producer_name
        recent = self._recent.setdefault(name, {})
        self._recent.move_to_end(name)
        key = (summary.sequence_id, summary.chunk_id or 0, summary.publish_time_ms, size)
        if key in recent:
            yield Violation(
                "S6",
                self.log,
                (str(recent[key]), str(position)),
                f"sequence id {summary.sequence_id} of {name} is stored twice",
            )
            return
        recent[key] = position
        self._remembered += 1
        if len(recent) > RECENT_ENTRIES_MAX:
            del recent[next(iter(recent))]
            self._remembered -= 1
        while self._remembered > REMEMBERED_ENTRIES_MAX:
            _, dropped = self._recent.popitem(last=False)
            self._remembered -= len(dropped)
            self.forgotten += 1
