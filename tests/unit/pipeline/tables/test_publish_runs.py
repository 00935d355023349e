"""Summaries of atomic publishes in tables: combined where they continue, separate otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onewriter_core.ids import Position
from onewriter_core.publishers import publish_of
from onewriter_pipeline.brokers.frames import BlockFrame, Chunk, Gatherer
from onewriter_pipeline.jobs.offload import PUBLISHES_MAX, within_publishes_max
from onewriter_pipeline.tables.layout import SegmentRow
from onewriter_pipeline.tables.log_writer import by_day
from onewriter_pipeline.tables.publishes import (
    PUBLISH_RUNS_MAX,
    PublishRun,
    joined,
    publish_runs_of,
    torn,
)


def block(first: int, entries: int, publish: str = "", *, ends: bool = False) -> BlockFrame:
    lengths = np.ones(entries, "<u4")
    payload = memoryview(bytes(entries))
    return BlockFrame(Position(5, first), 1, lengths, None, publish, bytes(16), payload, ends)


def chunk(*blocks: BlockFrame, start: int = 1, end: int = 1000) -> Chunk:
    gatherer = Gatherer(Position(5, start), Position(5, end))
    for each in blocks:
        gatherer.add(each)
    found = gatherer.chunk()
    assert found is not None
    return found


def runs(whole: Chunk) -> tuple[PublishRun, ...]:
    found = publish_runs_of(whole, 0, len(whole))
    assert found is not None
    return found


LOG = (
    block(1, 2),
    block(3, 2, "app/1"),
    block(5, 1, "app/1", ends=True),
    block(6, 2, "app/4", ends=True),
    block(8, 1),
    block(9, 1, "app/5", ends=True),
    block(10, 2, "other/1", ends=True),
)
FOUND = (
    PublishRun("app", 1, 4, 3, 8, is_open=False),
    PublishRun("app", 5, 5, 9, 10, is_open=False),
    PublishRun("other", 1, 1, 10, 12, is_open=False),
)


def test_consecutive_publishes_of_an_app_are_one_run() -> None:
    whole = chunk(*LOG)
    assert runs(whole) == FOUND
    assert [publish_of(each)[1] for each in ("a:b/7", "a/x", "7")] == [7, -1, 7]
    assert publish_of("a:b/7")[0] == "a:b"


@pytest.mark.parametrize("cut", range(2, 12))
def test_runs_do_not_depend_on_the_division_of_a_log(cut: int) -> None:
    before, after = chunk(*LOG, end=cut), chunk(*LOG, start=cut)
    assert joined(runs(before), runs(after)) == FOUND
    inside = {3, 4, 5, 6, 7, 10, 11} - {3, 6, 10}
    open_ones = [each for each in runs(before) if each.is_open]
    assert bool(open_ones) == (cut in inside)
    assert list(torn(FOUND, 12)) == []


def test_days_keep_their_own_publishes() -> None:
    whole = chunk(*LOG)
    times = np.where(whole.entry < 8, 1, 1 + 86_400_000)
    before, after = by_day(replace(whole, time_ms=times))
    assert (*runs(before), *runs(after)) == FOUND


def test_falling_versions_and_incomplete_publishes_stay_separate() -> None:
    twice = chunk(block(1, 1, "app/2", ends=True), block(2, 1, "app/2", ends=True))
    assert [(each.version, each.first) for each in runs(twice)] == [(2, 1), (2, 2)]
    short = runs(chunk(block(1, 1, "app/2"), block(2, 1, "app/3", ends=True)))
    assert [each.is_open for each in short] == [True, False]
    assert list(torn(short, 3)) == [short[0]]
    assert list(torn(short[:1], 2)) == []


def test_too_many_runs_become_unknown() -> None:
    many = tuple(replace(FOUND[0], first=n, end=n + 1) for n in range(0, 2 * PUBLISH_RUNS_MAX, 2))
    assert joined(many, ()) == many
    assert joined(many, (replace(FOUND[0], first=9999, end=10000),)) is None
    assert joined(None, ()) is None


def test_publishes_beyond_the_limit_of_a_commit_are_unknown() -> None:
    row = SegmentRow(
        topic="orders",
        ledger=5,
        first=1,
        end=9,
        entries=8,
        messages=8,
        rows=8,
        bytes=80,
        digest="00",
        publishes=(FOUND[0],) * (PUBLISHES_MAX - 1),
        batch=0,
    )
    others = [replace(row, publishes=FOUND[:2]), replace(row, publishes=None)]
    assert list(within_publishes_max([row, *others])) == [row, *[replace(row, publishes=None)] * 2]
