"""Compares what writers recorded with the log and with the brokers' reports, after a round of a campaign. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.integration.continuous_writer import StoredTopic
from tests.integration.recorded_writer import Records
from tests.violation import require

from onewriter_core.ids import Position

EXAMPLES = 3
"""Values that a violation names."""


@dataclass(frozen=True, slots=True)
class Reports:
    """What the brokers reported about a topic.

    ``lost``: entries after the first position, up to the second. ``at_risk``: those after the position, in ledgers up
    to the number.
    """

    lost: Sequence[tuple[Position, Position]] = ()
    at_risk: Sequence[tuple[Position, int]] = ()

    def lists(self, position: Position) -> bool:
        """Whether an entry was reported as lost."""
        return any(after < position <= last for after, last in self.lost)

    def covers(self, position: Position) -> bool:
        """Whether an entry was reported as lost, or is in a range at risk."""
        return self.lists(position) or any(
            after < position and position.ledger <= ledger for after, ledger in self.at_risk
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is known about a topic after a round.

    ``may_lose``: its profile allows losses that are reported. ``reports``: in the brokers' log. ``audit``: in the audit
    stream.
    """

    topic: str
    may_lose: bool
    records: Records
    stored: StoredTopic
    reports: Reports = field(default_factory=Reports)
    audit: Reports = field(default_factory=Reports)

    @property
    def missing(self) -> list[tuple[bytes, Position]]:
        """The acknowledged values that are not at their positions."""
        present = dict(self.stored.entries)
        return [(v, p) for v, p in self.records.acked.items() if present.get(p) != v]


SILENT = "acknowledged and lost without a report"
UNRECORDED = "acknowledged and lost without a record in the audit stream"


def violations(outcome: Outcome) -> list[str]:
    """Return every promise that the outcome breaks."""
    found = [
        *outcome.records.failures,
        *_disorder(outcome.stored),
        *_stale(outcome.stored),
        *_epochs(outcome),
        *_losses(outcome),
    ]
    return [f"{outcome.topic}: {text}" for text in found]


def judge(outcome: Outcome) -> None:
    """Raise Violation if the outcome breaks a promise."""
    found = violations(outcome)
    require(not found, "; ".join(found))


def parts(value: bytes) -> tuple[str, int, int]:
    """The writer of a value, the epoch under which it was sent, and its number."""
    writer, epoch, number = value.decode().split("/")
    return writer, int(epoch), int(number)


def _some(values: Sequence[object]) -> str:
    return f"{len(values)}: {', '.join(str(value) for value in values[:EXAMPLES])}"


def _disorder(stored: StoredTopic) -> Iterator[str]:
    positions = [position for position, _ in stored.entries]
    if positions != sorted(set(positions)):
        yield "entries are not in the order of their positions"
    values = [value for _, value in stored.entries]
    if len(set(values)) != len(values):
        yield "a value was stored twice"
    last: dict[tuple[str, int], int] = {}
    for value in values:
        writer, epoch, number = parts(value)
        if last.get((writer, epoch), -1) >= number:
            yield f"{value!r} was stored after a later value of its writer"
        last[writer, epoch] = number


def _stale(stored: StoredTopic) -> Iterator[str]:
    """Entries that a deposed writer sent and that were stored after the fence of its successor."""
    epochs = [epoch for _, epoch in sorted(stored.epochs.items())]
    if epochs != sorted(epochs):
        yield f"the epochs of the markers decrease: {sorted(stored.epochs.items())}"
    if any(epoch > ledger for ledger, epoch in stored.epochs.items()):
        yield f"a marker has an epoch above its ledger: {sorted(stored.epochs.items())}"
    stale = [
        (position, value)
        for position, value in stored.entries
        if stored.epochs.get(position.ledger) != parts(value)[1]
    ]
    if stale:
        yield f"entries of another epoch than their ledger's, {_some(stale)}"


def _epochs(outcome: Outcome) -> Iterator[str]:
    grants = outcome.records.grants
    epochs = [grant.epoch for grant in grants]
    if len(set(epochs)) != len(epochs):
        yield f"an epoch was granted twice: {grants}"
    for earlier in grants:
        for later in grants:
            if earlier.granted < later.asked and earlier.epoch >= later.epoch:
                yield f"{later} was granted after {earlier}"


def _losses(outcome: Outcome) -> Iterator[str]:
    reports = outcome.reports
    missing = outcome.missing
    stored = {value for _, value in outcome.stored.entries}
    moved = [(value, position) for value, position in missing if value in stored]
    if moved:
        yield f"values are not where they were acknowledged, {_some(moved)}"
    silent = [(value, position) for value, position in missing if not reports.covers(position)]
    if silent:
        yield f"{SILENT}, {_some(silent)}; reported: {reports}"
    unrecorded = [(v, position) for v, position in missing if not outcome.audit.covers(position)]
    if unrecorded:
        yield f"{UNRECORDED}, {_some(unrecorded)}; recorded: {outcome.audit}"
    if missing and not outcome.may_lose:
        yield f"lost although the profile excludes it, {_some(missing)}"
    if (reports.lost or reports.at_risk) and not outcome.may_lose:
        yield f"reported as lost or at risk although the profile excludes it: {reports}"
    present = [position for position, _ in outcome.stored.entries if reports.lists(position)]
    if present:
        yield f"reported as lost but present, {_some(present)}"
