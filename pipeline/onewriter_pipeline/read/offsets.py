"""What is read: positions, half-open ranges, and how they are divided among tasks. Pure functions.

An offset is the position in front of which everything was read, as text ``ledger:entry``. A **run** is
a part of one ledger, [first, end); a **span** is what one task reads of one log in one go: runs that
follow each other in the log. Ledgers have no holes as far as a broker's index shows them, so a span says
exactly which entries have to come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_pipeline.brokers.segments import Segment

END_OF_LOG: Final = Position(NUMBER_MAX, NUMBER_MAX)
"""Behind every entry of every log."""

ENTRY_BYTES: Final = 64
"""What an entry costs beside its bytes, when work is divided."""

TASK_BYTES_MIN: Final = 4 * 1024 * 1024
"""Less is not divided: a task costs 75 ms whatever it reads."""

TASK_BYTES_MAX: Final = 128 * 1024 * 1024
"""More is divided, so that a cluster has something for each of its cores."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries [first, end) of one ledger, about how many bytes they have, and at most how many messages."""

    ledger: int
    epoch: int | None
    first: int
    end: int
    bytes: int
    messages: int

    @property
    def entries(self) -> int:
        """How many they are."""
        return self.end - self.first

    @property
    def weight(self) -> int:
        """What it costs to read them."""
        return self.bytes + ENTRY_BYTES * self.entries

    def part(self, first: int, end: int) -> Run:
        """Some of its entries, at least one. Each entry that is left out had at least one message."""
        left_out = self.entries - (end - first)
        share = self.bytes * (end - first) // self.entries
        messages = max(self.messages - left_out, end - first)
        return replace(self, first=first, end=end, bytes=share, messages=messages)

    def cut(self, entries: int) -> tuple[Run, Run]:
        """The first so many entries, at least one and not all, and the others."""
        middle = self.first + entries
        head = self.part(self.first, middle)
        return head, replace(self.part(middle, self.end), bytes=self.bytes - head.bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """What one task reads of one log in one go; never empty."""

    log: str
    runs: tuple[Run, ...]

    @property
    def start(self) -> Position:
        """The first entry."""
        return Position(self.runs[0].ledger, self.runs[0].first)

    @property
    def end(self) -> Position:
        """Behind the last entry."""
        return Position(self.runs[-1].ledger, self.runs[-1].end)

    @property
    def entries(self) -> int:
        """How many there are."""
        return sum(run.entries for run in self.runs)

    @property
    def epochs(self) -> Mapping[int, int | None]:
        """The topic epoch of each ledger."""
        return {run.ledger: run.epoch for run in self.runs}


def runs_between(
    segments: Iterable[Segment], start: Position = EARLIEST, end: Position = END_OF_LOG
) -> list[Run]:
    """The entries of [start, end), in order; a large segment in several runs."""
    return [
        run
        for segment in segments
        for whole in _runs_of(segment)
        for run in _clipped(whole, start, end)
    ]


def runs_within(runs: Iterable[Run], start: Position, end: Position = END_OF_LOG) -> list[Run]:
    """What of some runs lies in [start, end)."""
    return [part for run in runs for part in _clipped(run, start, end)]


def _runs_of(segment: Segment) -> Iterator[Run]:
    """A segment's stretches, which are measured apart."""
    if segment.first is None or segment.last is None:
        return
    behind = segment.last.entry + 1
    measured = [part for part in segment.stretches if part.entries]
    firsts = [part.first.entry for part in measured] or [segment.first.entry]
    sizes = [part.bytes for part in measured] or [segment.bytes]
    counts = [part.messages for part in measured] or [segment.messages]
    firsts[0] = segment.first.entry
    for first, end, size, count in zip(firsts, [*firsts[1:], behind], sizes, counts, strict=True):
        yield Run(segment.ledger, segment.epoch, first, end, size, max(count, end - first))


def _clipped(run: Run, start: Position, end: Position) -> Iterator[Run]:
    first, behind = run.first, run.end
    if start.ledger >= run.ledger:
        first = max(first, start.entry) if start.ledger == run.ledger else behind
    if end.ledger <= run.ledger:
        behind = min(behind, end.entry) if end.ledger == run.ledger else first
    if first < behind:
        yield run.part(first, behind)


def of_epochs(runs: Iterable[Run], epochs: Container[int]) -> list[list[Run]]:
    """The runs of some topic epochs: those that follow each other in the log together."""
    grouped = itertools.groupby(runs, lambda run: run.epoch is not None and run.epoch in epochs)
    return [list(group) for wanted, group in grouped if wanted]


def entries_of(runs: Iterable[Run]) -> int:
    """How many entries they have together."""
    return sum(run.entries for run in runs)


def messages_of(runs: Iterable[Run]) -> int:
    """How many messages they have together at most."""
    return sum(run.messages for run in runs)


def bytes_of(runs: Iterable[Run]) -> int:
    """How many bytes they have together, about."""
    return sum(run.bytes for run in runs)


# ------------------------------------------------------------ limits


def limited(
    ahead: Mapping[str, Sequence[Run]], *, entries: int | None = None, bytes_: int | None = None
) -> dict[str, Position | None]:
    """How far each log is read so that all together stay within a bound, in proportion.

    Each log that has something gets at least one entry, so that none waits for ever. None: to the
    end of its runs.
    """
    fraction = 1.0
    if entries is not None:
        fraction = min(fraction, entries / max(1, sum(map(entries_of, ahead.values()))))
    if bytes_ is not None:
        fraction = min(fraction, bytes_ / max(1, sum(map(bytes_of, ahead.values()))))
    return {
        log: None if fraction >= 1 else _advanced(runs, fraction, entries, bytes_)
        for log, runs in ahead.items()
    }


def _advanced(
    runs: Sequence[Run], fraction: float, entries: int | None, bytes_: int | None
) -> Position | None:
    """The position behind a fraction of the runs: of their entries, and of their bytes."""
    entries_left = math.inf if entries is None else max(1, int(entries_of(runs) * fraction))
    bytes_left = math.inf if bytes_ is None else bytes_of(runs) * fraction
    position: Position | None = None
    for run in runs:
        size = max(1.0, run.bytes / run.entries)
        taken = int(min(run.entries, entries_left, bytes_left // size))
        if taken < run.entries:
            if taken or position is None:
                position = Position(run.ledger, run.first + max(1, taken))
            return position
        position = Position(run.ledger, run.end)
        entries_left, bytes_left = entries_left - taken, bytes_left - run.bytes
    return position


# ------------------------------------------------------------ division


def tasks_for(weight: int, entries: int, *, cores: int, tasks_min: int, entries_max: int) -> int:
    """Into how many tasks work is divided; 0 where there is none.

    ``cores`` are those that are known of, ``tasks_min`` is what a person asked for, ``entries_max``
    bounds the entries of a task; 0: not.
    """
    if not entries:
        return 0
    by_size = max(
        min(cores, math.ceil(weight / TASK_BYTES_MIN)), math.ceil(weight / TASK_BYTES_MAX)
    )
    by_entries = math.ceil(entries / entries_max) if entries_max else 1
    return min(entries, max(by_size, tasks_min, by_entries))


def divided(
    parts: Sequence[tuple[str, Sequence[Run]]], tasks: int, *, entries_max: int = 0
) -> list[list[Span]]:
    """Divide parts of logs among about so many tasks, of about the same weight each.

    The order is kept, inside a task and from one to the next. ``parts`` name their log; runs of two
    parts are never joined. ``entries_max`` bounds the entries of a task; 0: not.
    """
    total = sum(run.weight for _, runs in parts for run in runs)
    bins = _Bins(max(1, math.ceil(total / max(1, tasks))), entries_max)
    for log, runs in parts:
        bins.begin(log)
        for run in runs:
            bins.add(run)
    return bins.closed()


class _Bins:
    """Tasks as they fill up."""

    def __init__(self, weight_max: int, entries_max: int) -> None:
        self._weight_max = weight_max
        self._entries_max = entries_max or NUMBER_MAX
        self._done: list[list[Span]] = []
        self._spans: list[Span] = []
        self._weight = self._entries = 0
        self._joins = False
        self._log = ""

    def begin(self, log: str) -> None:
        """The runs that come now are another part."""
        self._log, self._joins = log, False

    def add(self, run: Run) -> None:
        """One more run, in pieces where it does not fit."""
        while True:
            size = max(1.0, run.weight / run.entries)
            fits = math.ceil((self._weight_max - self._weight) / size)
            room = min(max(1, fits), self._entries_max - self._entries)
            if run.entries <= room:
                self._take(run)
                return
            head, run = run.cut(room)
            self._take(head)

    def _take(self, run: Run) -> None:
        if self._joins:
            last = self._spans.pop()
            self._spans.append(Span(self._log, (*last.runs[:-1], *_joined(last.runs[-1], run))))
        else:
            self._spans.append(Span(self._log, (run,)))
        self._joins = True
        self._weight += run.weight
        self._entries += run.entries
        if self._weight >= self._weight_max or self._entries >= self._entries_max:
            self._close()

    def _close(self) -> None:
        if self._spans:
            self._done.append(self._spans)
        self._spans, self._joins = [], False
        self._weight = self._entries = 0

    def closed(self) -> list[list[Span]]:
        """All tasks."""
        self._close()
        return self._done


def _joined(one: Run, other: Run) -> tuple[Run, ...]:
    """Two runs that follow each other, as one if they are of one ledger."""
    if one.ledger != other.ledger:
        return one, other
    size, messages = one.bytes + other.bytes, one.messages + other.messages
    return (replace(one, end=other.end, bytes=size, messages=messages),)
