"""Converts a user's selection to logs and positions: topics by name or pattern, bounds by position, time or epoch.

This module sends requests to brokers; ``offsets`` computes with the answers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from onewriter_core.ids import EARLIEST, InvalidTopicName, Position, TopicName
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.names import log_name, shown
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import Invalid, NotFound, Trimmed

PATTERN_TOPICS_MAX: Final = 10_000
"""Topics that one pattern may match."""

BEGINNING: Final = Position(0, 1)
"""Before all entries that a log ever had."""

_DOMAIN: Final = "persistent://"

log = logging.getLogger("onewriter")


class Kind(Enum):
    """The kind of a bound."""

    EARLIEST = "earliest"
    LATEST = "latest"
    POSITIONS = "positions"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """The beginning or end of a range. ``positions`` by log; ``or_latest``: use the end of the log if no message is
    that new.
    """

    kind: Kind
    positions: Mapping[str, Position] = field(default_factory=dict)
    time_ms: int = 0
    or_latest: bool = False


@dataclass(frozen=True, slots=True)
class Epochs:
    """Topic epochs: a list, or a range with both ends included."""

    listed: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None

    @property
    def lowest(self) -> int | None:
        """The lowest epoch that the selection names; None: it names none."""
        return min(self.listed) if self.listed else self.first

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
    """What to read: ``topics`` by name, or all topics whose full name matches ``pattern``."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Bound = Bound(Kind.EARLIEST)
    ending: Bound = Bound(Kind.LATEST)
    epochs: Epochs | None = None


def logs_of(broker: Broker, selection: Selection) -> list[str]:
    """The full names of the selected logs: the topics, or their partitions."""
    topics = selection.topics or matching(broker.topic_names(), selection.pattern)
    found = dict.fromkeys(log for topic in topics for log in broker.logs(topic))
    return list(found)


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The sorted names that match completely, with or without ``persistent://``. Raises Invalid."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Invalid(f"topicsPattern: {pattern!r} is not a regular expression: {error}") from None
    found = [
        name
        for name in sorted(names)
        if wanted.fullmatch(name) or wanted.fullmatch(name.removeprefix(_DOMAIN))
    ]
    if len(found) > PATTERN_TOPICS_MAX:
        raise Invalid(f"topicsPattern: {len(found)} topics match, {PATTERN_TOPICS_MAX} may")
    return found


def selected(selection: Selection, logs: Iterable[str]) -> list[str]:
    """The selected logs of a table, as ``logs_of`` for brokers.

    Partitions are in the order of their numbers. Raises Invalid, and NotFound if the table has no log of a named
    topic; a pattern may match nothing.
    """
    by_topic: dict[str, list[str]] = {}
    for name in sorted(map(TopicName.parse, logs), key=lambda name: name.partition or 0):
        by_topic.setdefault(str(name.base), []).append(str(name))
    if selection.pattern:
        return [log for topic in matching(by_topic, selection.pattern) for log in by_topic[topic]]
    found: list[str] = []
    for topic in selection.topics:
        name = log_name(topic)
        of_topic = by_topic.get(str(name.base), [])
        if name.partition is not None:
            of_topic = [log for log in of_topic if log == str(name)]
        if not of_topic:
            raise NotFound(f"the table has nothing of {name}: it was not offloaded yet")
        found += of_topic
    return list(dict.fromkeys(found))


def warn_if_unmatched(selection: Selection, logs: Sequence[str]) -> None:
    """Log a warning if the pattern of a selection matches no topic, which is not an error."""
    if selection.pattern and not logs:
        log.warning(
            "topicsPattern: no topic matches %r; a pattern has to match a whole name, such as"
            " public/default/orders",
            selection.pattern,
        )


def full_positions(positions: Mapping[str, Position]) -> dict[str, Position]:
    """Positions by the full names of their logs. Raises Invalid."""
    try:
        return {str(TopicName.parse(name)): position for name, position in positions.items()}
    except InvalidTopicName as error:
        raise Invalid(str(error)) from None


def check_names(option: str, bound: Bound, logs: Sequence[str]) -> None:
    """Raise Invalid unless positions are given for exactly the logs that are read."""
    if bound.kind is not Kind.POSITIONS:
        return
    for log in logs:
        if log not in bound.positions:
            raise Invalid(f"{option} gives no position of {log}")
    for log in bound.positions:
        if log not in logs:
            raise Invalid(f"{option} gives a position of {log}, which is not read")


def resolved(broker: Broker, held: Segments, bound: Bound) -> Position:
    """The position of a bound in the committed part of a log."""
    match bound.kind:
        case Kind.EARLIEST:
            return held.first
        case Kind.LATEST:
            return held.end
        case Kind.POSITIONS:
            return _within(held, bound.positions[held.log])
        case Kind.TIME:
            found = broker.position_at(held.log, bound.time_ms)
            if found is not None:
                return max(found, held.first)
            if bound.or_latest:
                return held.end
            raise Invalid(f"{held.log} has no message published at {bound.time_ms} ms or later")


def _within(held: Segments, position: Position) -> Position:
    if position == EARLIEST:
        return held.first
    if position > held.end:
        raise Invalid(f"{held.log} ends at {shown(held.end)}, before {shown(position)}")
    return position


def check_kept(broker: Broker, held: Segments, start: Position, what: str = "") -> None:
    """Raise Trimmed if entries from ``start`` on are missing, according to the broker. ``what``: describes them."""
    if start < held.first:
        try:
            for _ in broker.frames(held.log, start, held.first):
                pass
        except Trimmed as error:
            raise Trimmed(
                f"{held.log} was trimmed: it begins at {shown(held.first)}, after {what or shown(start)}"
                " (failOnDataLoss=false begins there)",
                error.first,
                error.trimmed,
            ) from None


def check_epochs(broker: Broker, held: Segments, epochs: Epochs | None) -> None:
    """Raise Trimmed if entries of the named topic epochs are missing, or may be. ``held``: the whole log."""
    lowest = None if epochs is None else epochs.lowest
    if lowest is None or lowest > held.epoch:
        return
    known = [segment for segment in held.segments if segment.epoch is not None]
    if not known or lowest < (known[0].epoch or 0):
        check_kept(broker, held, BEGINNING, f"what epoch {lowest} may have written")
        return
    wanted = next((segment for segment in known if segment.epoch in (epochs or ())), None)
    if wanted is not None and wanted.first is not None and wanted.first.entry > 1:
        raise Trimmed(
            f"{held.log} was trimmed: of epoch {wanted.epoch} it has entries after"
            f" {shown(wanted.first)} (failOnDataLoss=false begins there)",
            wanted.first,
            None,
        )


def ends_of(broker: Broker, logs: Iterable[str]) -> dict[str, Position]:
    """The position after the last committed entry of each log."""
    return {log: broker.segments(log).end for log in logs}
