"""Atomic publishes of a log, as tables remember them: few rows however many there are. Pure.

A *run* of publishes is of one app, one behind the other, with versions that rise: what a stream writes in a
ledger that nobody else writes to is one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_pipeline.brokers.frames import Chunk

PUBLISH_RUNS_MAX: Final = 1_000
"""Runs that are remembered of one part of a ledger; of more, only that there were too many."""


def publish_of(name: str) -> tuple[str, int]:
    """App and version out of a block's ``publish``; -1: what no broker wrote, and so no entry's number."""
    app, _, version = name.rpartition("/")
    return app, int(version) if version.isascii() and version.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class PublishRun:
    """Entries [first, end) of a ledger: publishes of an app, from one version to another, as ``segments`` keeps them.

    ``is_open``: the last entry of the last one is not among them.
    """

    app: str
    version: int
    last_version: int
    first: int
    end: int
    is_open: bool


def publish_runs_of(chunk: Chunk, low: int, high: int) -> tuple[PublishRun, ...] | None:
    """Those of the entries [low, high) of a chunk, which follow each other. None: too many."""
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
    """Those of two parts of a ledger, one behind the other. None: too many."""
    if before is None or behind is None:
        return None
    return _few(extended(before, behind))


def extended(before: Iterable[PublishRun], behind: Iterable[PublishRun]) -> tuple[PublishRun, ...]:
    """The same, however many they are."""
    found = list(before)
    for each in behind:
        _add(found, each)
    return tuple(found)


def torn(runs: Iterable[PublishRun], end: int) -> Iterator[PublishRun]:
    """Those whose last publish is cut short: entries up to ``end`` follow, and are none of it."""
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
