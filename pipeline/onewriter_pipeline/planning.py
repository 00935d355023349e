"""From what a person asks for to runs of logs: topics by name or pattern, bounds by position, time, epoch.

Asks brokers; what follows from their answers is decided in ``offsets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from onewriter_core.ids import EARLIEST, InvalidTopicName, Position, TopicName
from onewriter_pipeline.broker import Broker, Segments
from onewriter_pipeline.errors import Invalid, Trimmed
from onewriter_pipeline.offsets import Run, of_epochs, runs_between

PATTERN_TOPICS_MAX: Final = 10_000
"""Topics that one pattern may name."""

_DOMAIN: Final = "persistent://"


class Kind(Enum):
    """How a bound is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    POSITIONS = "positions"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a range begins or ends. ``positions`` by log; ``or_latest``: where a time is not reached."""

    kind: Kind
    positions: Mapping[str, Position] = field(default_factory=dict)
    time_ms: int = 0
    or_latest: bool = False


@dataclass(frozen=True, slots=True)
class Epochs:
    """Topic epochs: those listed, or all from the first to the last, both included."""

    listed: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None

    def __contains__(self, epoch: object) -> bool:
        if not isinstance(epoch, int):
            return False
        if self.listed:
            return epoch in self.listed
        return (self.first is None or epoch >= self.first) and (
            self.last is None or epoch <= self.last
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be read: ``topics`` by name, or all whose full name matches ``pattern``."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Bound = Bound(Kind.EARLIEST)
    ending: Bound = Bound(Kind.LATEST)
    epochs: Epochs | None = None


def logs_of(broker: Broker, selection: Selection) -> list[str]:
    """The logs of all topics that are selected, partitions apart, by their full names."""
    topics = selection.topics or _matching(broker, selection.pattern)
    found = dict.fromkeys(log for topic in topics for log in broker.logs(topic))
    return list(found)


def _matching(broker: Broker, pattern: str) -> list[str]:
    """The topics that there are whose name matches."""
    return matching((str(each["name"]) for each in broker.topics()), pattern)


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that match as a whole, with or without ``persistent://``, sorted. Raises Invalid."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Invalid(f"topicsPattern: {pattern!r} is no regular expression: {error}") from None
    found = [
        name
        for name in sorted(names)
        if wanted.fullmatch(name) or wanted.fullmatch(name.removeprefix(_DOMAIN))
    ]
    if len(found) > PATTERN_TOPICS_MAX:
        raise Invalid(f"topicsPattern: {len(found)} topics match, {PATTERN_TOPICS_MAX} may")
    return found


def full_positions(positions: Mapping[str, Position]) -> dict[str, Position]:
    """Positions by the full names of their logs; raises Invalid."""
    try:
        return {str(TopicName.parse(name)): position for name, position in positions.items()}
    except InvalidTopicName as error:
        raise Invalid(str(error)) from None


def parts_of(
    broker: Broker, selection: Selection, *, fail_on_loss: bool
) -> list[tuple[str, list[Run]]]:
    """The runs that a selection means now, by log; runs of one part follow each other.

    Raises Invalid for a range that makes no sense, Trimmed for one whose beginning is gone.
    """
    logs = logs_of(broker, selection)
    check_names("startingOffsets", selection.starting, logs)
    check_names("endingOffsets", selection.ending, logs)
    parts: list[tuple[str, list[Run]]] = []
    for log in logs:
        held = broker.segments(log)
        start = resolved(broker, log, held, selection.starting)
        end = resolved(broker, log, held, selection.ending)
        if end < start and Kind.POSITIONS in {selection.starting.kind, selection.ending.kind}:
            raise Invalid(
                f"{log}: the range ends at {shown(end)}, in front of its start {shown(start)}"
            )
        if fail_on_loss:
            check_kept(broker, log, held, start)
        runs = runs_between(held.segments, start, end)
        if selection.epochs is None:
            parts.append((log, runs))
        else:
            parts.extend((log, group) for group in of_epochs(runs, selection.epochs))
    return [(log, runs) for log, runs in parts if runs]


def check_names(option: str, bound: Bound, logs: Sequence[str]) -> None:
    """Positions must be given for the logs that are read, and for no others; raises Invalid."""
    if bound.kind is not Kind.POSITIONS:
        return
    for log in logs:
        if log not in bound.positions:
            raise Invalid(f"{option} gives no position of {log}")
    for log in bound.positions:
        if log not in logs:
            raise Invalid(f"{option} gives a position of {log}, which is not read")


def resolved(broker: Broker, log: str, held: Segments, bound: Bound) -> Position:
    """Where a bound lies in a log, as far as that is committed."""
    match bound.kind:
        case Kind.EARLIEST:
            return held.first
        case Kind.LATEST:
            return held.end
        case Kind.POSITIONS:
            return _within(log, held, bound.positions[log])
        case Kind.TIME:
            found = broker.position_at(log, bound.time_ms)
            if found is not None:
                return max(found, held.first)
            if bound.or_latest:
                return held.end
            raise Invalid(f"{log} has no message published at {bound.time_ms} ms or later")


def _within(log: str, held: Segments, position: Position) -> Position:
    if position == EARLIEST:
        return held.first
    if position > held.end:
        raise Invalid(f"{log} ends at {shown(held.end)}, in front of {shown(position)}")
    return position


def check_kept(broker: Broker, log: str, held: Segments, start: Position) -> None:
    """Raise Trimmed where entries from ``start`` on are gone: the broker knows."""
    if start < held.first:
        try:
            for _ in broker.frames(log, start, held.first):
                pass
        except Trimmed as error:
            raise Trimmed(
                f"{log} was trimmed: it begins at {shown(held.first)}, behind {shown(start)}"
                " (failOnDataLoss=false begins there)",
                error.first,
                error.trimmed,
            ) from None


def shown(position: Position) -> str:
    """A position as offsets are written."""
    return f"{position.ledger}:{position.entry}"


def ends_of(broker: Broker, logs: Iterable[str]) -> dict[str, Position]:
    """Behind what is committed of each log now."""
    return {log: broker.segments(log).end for log in logs}
