"""The atomic publishes of a log, summarized for tables. Pure.

A *run* of publishes belongs to one app. Its publishes follow each other, with rising versions. If a stream is the
only writer of a ledger, all its publishes are one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.publishers import publish_of
from onewriter_pipeline.brokers.frames import Chunk

PUBLISH_RUNS_MAX: Final = 1_000
"""Runs that are stored for a part of a ledger. If there are more, the table stores only that fact."""


@dataclass(frozen=True, slots=True)
class PublishRun:
    """Entries [first, end) of a ledger: publishes of one app with a range of versions, as ``segments`` stores them.

    ``is_open``: the last entry of the last publish is not included.
    """

    app: str
    version: int
    last_version: int
    first: int
    end: int
    is_open: bool


def publish_runs_of(chunk: Chunk, low: int, high: int) -> tuple[PublishRun, ...] | None:
    """The runs among the entries [low, high) of a chunk, which are consecutive. None: too many."""
    found: list[PublishRun] = []
    for part in chunk.publishes:
        start, stop = max(part.start, low), min(part.stop, high)
        if start < stop:
            app, version = publish_of(part.name)
            first, end = int(chunk.entry[start]), int(chunk.entry[stop - 1]) + 1
            is_open = not (part.ends and stop == part.stop)
            _add(found, PublishRun(app, version, version, first, end, is_open))
    return _few(tuple(found))


def joined(
    before: Sequence[PublishRun] | None, behind: Sequence[PublishRun] | None
) -> tuple[PublishRun, ...] | None:
    """The runs of two consecutive parts of a ledger. None: too many."""
    if before is None or behind is None:
        return None
    return _few(extended(before, behind))


def extended(before: Iterable[PublishRun], behind: Iterable[PublishRun]) -> tuple[PublishRun, ...]:
    """The runs of consecutive parts, without a limit."""
    found = list(before)
    for each in behind:
        _add(found, each)
    return tuple(found)


def torn(runs: Iterable[PublishRun], end: int) -> Iterator[PublishRun]:
    """Runs whose last publish is incomplete although other entries follow, up to ``end``."""
    return (each for each in runs if each.is_open and each.end < end)


def _add(found: list[PublishRun], run: PublishRun) -> None:
    last = found[-1] if found else None
    if last is None or not _goes_on(last, run):
        found.append(run)
        return
    found[-1] = replace(last, last_version=run.last_version, end=run.end, is_open=run.is_open)


def _goes_on(last: PublishRun, run: PublishRun) -> bool:
    if (last.app, last.end) != (run.app, run.first):
        return False
    if last.is_open:
        return run.version == last.last_version
    return run.version > last.last_version


def _few(found: tuple[PublishRun, ...]) -> tuple[PublishRun, ...] | None:
    return found if len(found) <= PUBLISH_RUNS_MAX else None
