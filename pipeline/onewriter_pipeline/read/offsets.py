"""Offsets, half-open ranges of entries, and their division among tasks. Pure.

An offset is a position, as text ``ledger:entry``; everything before it was read. A **run** is a part of one ledger,
[first, end). A **span** is what a task reads of one log in one request: runs that follow each other in the log. A
broker's index shows no holes within a ledger, so a span determines exactly which entries must arrive.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_pipeline.brokers.segments import Segment

END_OF_LOG: Final = Position(NUMBER_MAX, NUMBER_MAX)
"""After every entry of every log."""

ENTRY_BYTES: Final = 64
"""The cost of an entry, in addition to its bytes, when work is divided."""

TASK_BYTES_MIN: Final = 4 * 1024 * 1024
"""Smaller work is not divided, because any task costs 75 ms."""

TASK_BYTES_MAX: Final = 128 * 1024 * 1024
"""Larger work is divided, so that a cluster has work for each of its cores."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries [first, end) of one ledger, their approximate size, and the maximum of their messages."""

    ledger: int
    epoch: int | None
    first: int
    end: int
    bytes: int
    messages: int

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.end - self.first

    @property
    def weight(self) -> int:
        """The cost of reading the entries."""
        return self.bytes + ENTRY_BYTES * self.entries

    def part(self, first: int, end: int) -> Run:
        """Some of the entries, at least one. Each omitted entry counts as at least one message."""
        left_out = self.entries - (end - first)
        share = self.bytes * (end - first) // self.entries
        messages = max(self.messages - left_out, end - first)
        return replace(self, first=first, end=end, bytes=share, messages=messages)

    def cut(self, entries: int) -> tuple[Run, Run]:
        """Split after the first ``entries`` entries: at least one, and fewer than all."""
        middle = self.first + entries
        head = self.part(self.first, middle)
        return head, replace(self.part(middle, self.end), bytes=self.bytes - head.bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """What a task reads of one log in one request; never empty."""

    log: str
    runs: tuple[Run, ...]

    @property
    def start(self) -> Position:
        """The position of the first entry."""
        return Position(self.runs[0].ledger, self.runs[0].first)

    @property
    def end(self) -> Position:
        """The position after the last entry."""
        return Position(self.runs[-1].ledger, self.runs[-1].end)

    @property
    def entries(self) -> int:
        """The number of entries."""
        return sum(run.entries for run in self.runs)

    @property
    def epochs(self) -> Mapping[int, int | None]:
        """The topic epoch of each ledger."""
        return {run.ledger: run.epoch for run in self.runs}


def runs_between(
    segments: Iterable[Segment], start: Position = EARLIEST, end: Position = END_OF_LOG
) -> list[Run]:
    """The entries of [start, end), in order; a large segment becomes several runs."""
    return [
        run
        for segment in segments
        for whole in _runs_of(segment)
        for run in _clipped(whole, start, end)
    ]


def runs_within(runs: Iterable[Run], start: Position, end: Position = END_OF_LOG) -> list[Run]:
    """The parts of runs within [start, end)."""
    return [part for run in runs for part in _clipped(run, start, end)]


def _runs_of(segment: Segment) -> Iterator[Run]:
    """The stretches of a segment, whose sizes are known."""
    if segment.first is None or segment.last is None:
        return
    behind = segment.last.entry + 1
    measured = [part for part in segment.block_runs if part.entries]
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
    """The runs of some topic epochs, grouped by adjacency in the log."""
    grouped = itertools.groupby(runs, lambda run: run.epoch is not None and run.epoch in epochs)
    return [list(group) for wanted, group in grouped if wanted]


def entries_of(runs: Iterable[Run]) -> int:
    """The total number of entries."""
    return sum(run.entries for run in runs)


def messages_of(runs: Iterable[Run]) -> int:
    """The maximum of the total number of messages."""
    return sum(run.messages for run in runs)


def bytes_of(runs: Iterable[Run]) -> int:
    """The approximate total size."""
    return sum(run.bytes for run in runs)


# ------------------------------------------------------------ limits


def limited(
    ahead: Mapping[str, Sequence[Run]], *, entries: int | None = None, bytes_: int | None = None
) -> dict[str, Position | None]:
    """How far to read each log so that all together stay within a limit, in proportion.

    Each log with unread entries gets at least one, so that no log starves. None: to the end of its runs.
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
    """The position after a fraction of the runs, by entries and by bytes."""
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
    """The number of tasks for some work; 0 if there is no work.

    ``cores``: the known cores; ``tasks_min``: the number that the user requested; ``entries_max``: limit of the
    entries of a task, 0: none.
    """
    if not entries:
        return 0
    by_size = max(
        min(cores, math.ceil(weight / TASK_BYTES_MIN)), math.ceil(weight / TASK_BYTES_MAX)
    )
    by_entries = math.ceil(entries / entries_max) if entries_max else 1
    return min(entries, max(by_size, tasks_min, by_entries))


def divided(
    parts: Sequence[tuple[str, Sequence[Run]]],
    tasks: int,
    *,
    entries_max: int = 0,
    tasks_min: int = 1,
) -> list[list[Span]]:
    """Divide parts of logs among approximately ``tasks`` tasks of similar weight, at least ``tasks_min`` if there are
    enough entries.

    The order is kept, within a task and from one task to the next. Each part names its log. Runs of different parts
    are never joined. ``entries_max`` limits the entries of a task; 0: no limit.
    """
    total = sum(run.weight for _, runs in parts for run in runs)
    bins = _Bins(max(1, math.ceil(total / max(1, tasks))), entries_max)
    for log, runs in parts:
        bins.begin(log)
        for run in runs:
            bins.add(run)
    return _at_least(bins.closed(), tasks_min)


def _at_least(tasks: list[list[Span]], tasks_min: int) -> list[list[Span]]:
    """Halve the heaviest tasks until there are enough. An entry of several megabytes fills a task, and the small
    entries share the others.
    """
    if len(tasks) >= tasks_min:
        return tasks
    heap: list[tuple[int, tuple[int, ...], list[Span]]] = [
        (-_weight(spans), (place,), spans) for place, spans in enumerate(tasks)
    ]
    heapq.heapify(heap)
    whole: list[tuple[tuple[int, ...], list[Span]]] = []
    while heap and len(heap) + len(whole) < tasks_min:
        _, place, spans = heapq.heappop(heap)
        if sum(span.entries for span in spans) == 1:
            whole.append((place, spans))
            continue
        for number, half in enumerate(_halves(spans)):
            heapq.heappush(heap, (-_weight(half), (*place, number), half))
    found = [*whole, *((place, spans) for _, place, spans in heap)]
    return [spans for _, spans in sorted(found, key=lambda each: each[0])]


def _weight(spans: Sequence[Span]) -> int:
    return sum(run.weight for span in spans for run in span.runs)


def _halves(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Two tasks of similar weight, each with at least one entry."""
    runs = [(number, run) for number, span in enumerate(spans) for run in span.runs]
    target, before = _weight(spans) / 2, 0.0
    for place, (_, run) in enumerate(runs):
        if before + run.weight >= target or place == len(runs) - 1:
            break
        before += run.weight
    taken = round((target - before) / max(1.0, run.weight / run.entries))
    is_first, is_last = place == 0, place == len(runs) - 1
    taken = min(max(taken, int(is_first)), run.entries - int(is_last))
    number = runs[place][0]
    first, second = runs[:place], runs[place + 1 :]
    if taken == run.entries:
        first.append((number, run))
    elif taken == 0:
        second.insert(0, (number, run))
    else:
        head, tail = run.cut(taken)
        first.append((number, head))
        second.insert(0, (number, tail))
    return _spans(spans, first), _spans(spans, second)


def _spans(spans: Sequence[Span], runs: Sequence[tuple[int, Run]]) -> list[Span]:
    """Runs with the numbers of their spans, as spans again."""
    return [
        Span(spans[number].log, tuple(run for _, run in group))
        for number, group in itertools.groupby(runs, lambda each: each[0])
    ]


class _Bins:
    """Fills tasks one after the other."""

    def __init__(self, weight_max: int, entries_max: int) -> None:
        self._weight_max = weight_max
        self._entries_max = entries_max or NUMBER_MAX
        self._done: list[list[Span]] = []
        self._spans: list[Span] = []
        self._weight = self._entries = 0
        self._joins = False
        self._log = ""

    def begin(self, log: str) -> None:
        """Start the next part."""
        self._log, self._joins = log, False

    def add(self, run: Run) -> None:
        """Add a run, in pieces if it does not fit."""
        while True:
            size = max(1.0, run.weight / run.entries)
            fits = math.ceil((self._weight_max - self._weight) / size)
            available = min(max(1, fits), self._entries_max - self._entries)
            if run.entries <= available:
                self._take(run)
                return
            head, run = run.cut(available)
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
    """Two consecutive runs, as one if they are of the same ledger."""
    if one.ledger != other.ledger:
        return one, other
    size, messages = one.bytes + other.bytes, one.messages + other.messages
    return (replace(one, end=other.end, bytes=size, messages=messages),)
