"""Runs, limits and the division of work among tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.segments import BlockRun, Segment
from onewriter_pipeline.read.offsets import (
    Run,
    Span,
    divided,
    entries_of,
    limited,
    of_epochs,
    runs_between,
    tasks_for,
)


def segment(
    ledger: int,
    first: int,
    last: int,
    *,
    epoch: int | None = None,
    block_runs: tuple[int, ...] = (),
) -> Segment:
    """Entries of 10 bytes, in stretches that begin at these entries."""
    empty = last < first
    behind = [*block_runs[1:], last + 1]
    return Segment(
        ledger=ledger,
        epoch=epoch,
        producer=None,
        subject=None,
        cause=None,
        mode=None,
        is_open=False,
        is_whole=True,
        first=None if empty else Position(ledger, first),
        last=None if empty else Position(ledger, last),
        entries=last - first + 1,
        messages=last - first + 1,
        bytes=10 * (last - first + 1),
        blocks=1,
        oldest_ms=None,
        newest_ms=None,
        chain=None,
        block_runs=tuple(
            BlockRun(Position(ledger, at), end - at, end - at, 10 * (end - at), 0)
            for at, end in zip(block_runs, behind, strict=False)
        ),
    )


def run(ledger: int, first: int, end: int, epoch: int | None = None) -> Run:
    return Run(ledger, epoch, first, end, 10 * (end - first), end - first)


def test_runs_are_the_entries_between_two_positions() -> None:
    segments = [segment(2, 1, 9), segment(5, 1, 0), segment(6, 1, 20, block_runs=(1, 11))]
    assert runs_between(segments) == [run(2, 1, 10), run(6, 1, 11), run(6, 11, 21)]
    assert runs_between(segments, Position(2, 4), Position(6, 11)) == [run(2, 4, 10), run(6, 1, 11)]
    assert runs_between(segments, Position(3, 0), Position(6, 15)) == [
        run(6, 1, 11),
        run(6, 11, 15),
    ]
    assert runs_between(segments, Position(2, 10), Position(6, 1)) == []
    assert runs_between(segments, Position(7, 0)) == []


def test_runs_of_nonadjacent_epochs_stay_separate() -> None:
    runs = [run(1, 1, 5, 3), run(2, 1, 5, 3), run(3, 1, 5), run(4, 1, 5, 7), run(5, 1, 2, 3)]
    assert of_epochs(runs, {3}) == [runs[:2], runs[4:]]
    assert of_epochs(runs, {4}) == []


def test_limits_are_shared_proportionally_without_starvation() -> None:
    ahead = {"a": [run(1, 1, 101)], "b": [run(1, 1, 11), run(2, 1, 291)], "c": []}
    assert limited(ahead) == {"a": None, "b": None, "c": None}
    assert limited(ahead, entries=400) == {"a": None, "b": None, "c": None}
    assert limited(ahead, entries=40) == {"a": Position(1, 11), "b": Position(2, 21), "c": None}
    assert limited(ahead, entries=1) == {"a": Position(1, 2), "b": Position(1, 2), "c": None}
    assert limited(ahead, bytes_=400) == {"a": Position(1, 11), "b": Position(2, 21), "c": None}
    assert limited(ahead, bytes_=1)["a"] == Position(1, 2)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 500)), min_size=1, max_size=6),
    st.integers(1, 60),
)
def test_limited_batches_reach_the_end_in_bounded_steps(
    sizes: list[tuple[int, int]], most: int
) -> None:
    runs = [
        Run(n, None, 1, 1 + entries, size, entries) for n, (entries, size) in enumerate(sizes, 1)
    ]
    total = entries_of(runs)
    for _ in range(total):
        end = limited({"log": runs}, entries=most)["log"]
        if end is None:
            assert entries_of(runs) <= most
            return
        left = [
            Run(each.ledger, None, first, each.end, 0, each.end - first)
            for each in runs
            if (first := end.entry if each.ledger == end.ledger else each.first) < each.end
            and each.ledger >= end.ledger
        ]
        assert 1 <= entries_of(runs) - entries_of(left) <= most
        runs = left
    assert runs == []


@pytest.mark.parametrize(
    ("weight", "entries", "expected"),
    [(0, 0, 0), (1, 1, 1), (2**20, 9, 1), (2**30, 9, 8), (2**33, 1000, 64), (2**40, 3, 3)],
)
def test_number_of_tasks(weight: int, entries: int, expected: int) -> None:
    assert tasks_for(weight, entries, cores=4, tasks_min=0, entries_max=0) == expected


def test_requested_number_of_tasks() -> None:
    assert tasks_for(10, 100, cores=4, tasks_min=7, entries_max=0) == 7
    assert tasks_for(10, 100, cores=4, tasks_min=200, entries_max=0) == 100
    assert tasks_for(10, 100, cores=4, tasks_min=2, entries_max=30) == 4


def test_thousands_of_small_ledgers_make_few_spans() -> None:
    runs = [run(ledger, 1, 3) for ledger in range(1, 3001)]
    tasks = divided([("log", runs)], 4)
    assert [len(spans) for spans in tasks] == [1, 1, 1, 1]
    assert [len(spans[0].runs) for spans in tasks] == [750] * 4


def test_parts_of_several_logs_are_divided_in_order() -> None:
    tasks = divided([("a", [run(1, 1, 11)]), ("b", [run(1, 1, 11), run(2, 1, 11)])], 2)
    assert tasks == [
        [Span("a", (run(1, 1, 11),)), Span("b", (run(1, 1, 6),))],
        [Span("b", (run(1, 6, 11), run(2, 1, 11)))],
    ]
    assert tasks[1][0].start == Position(1, 6)
    assert tasks[1][0].end == Position(2, 11)


def test_parts_of_one_log_are_not_joined_over_a_gap() -> None:
    tasks = divided([("a", [run(1, 1, 4)]), ("a", [run(9, 1, 4)])], 1)
    assert tasks == [[Span("a", (run(1, 1, 4),)), Span("a", (run(9, 1, 4),))]]


parts = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.lists(
            st.tuples(
                st.integers(1, 3), st.integers(1, 5), st.integers(1, 50), st.integers(0, 999)
            ),
            max_size=5,
        ),
    ),
    max_size=4,
)


def test_requested_number_of_tasks_is_kept_beside_large_entries() -> None:
    small = [Run(number, 1, 1, 1001, 100_000, 1000) for number in range(1, 4)]
    chunk = Run(9, 1, 1, 5, 4 * 5 * 1024 * 1024, 4)
    log = ("a", [*small, chunk])
    assert len(divided([log], 30)) < 10
    made = divided([log], 30, tasks_min=30)
    assert len(made) == 30
    assert [len(each) for each in divided([("a", [run(1, 1, 4)])], 9, tasks_min=9)] == [1, 1, 1]


@given(parts, st.integers(1, 9), st.integers(0, 20), st.integers(1, 40))
def test_every_entry_is_in_one_task_in_order(
    drawn: list[tuple[str, list[tuple[int, int, int, int]]]], tasks: int, most: int, least: int
) -> None:
    given_parts, ledger = [], 0
    for log, sizes in drawn:
        runs = []
        for step, first, count, size in sizes:
            ledger += step
            runs.append(Run(ledger, ledger % 3, first, first + count, size, count))
        given_parts.append((log, runs))
    wanted = [
        (log, each.ledger, n)
        for log, runs in given_parts
        for each in runs
        for n in range(each.first, each.end)
    ]
    made = divided(given_parts, tasks, entries_max=most, tasks_min=least)
    assert len(made) >= min(least, len(wanted))
    assert [
        (span.log, each.ledger, n)
        for spans in made
        for span in spans
        for each in span.runs
        for n in range(each.first, each.end)
    ] == wanted
    assert all(spans for spans in made)
    if most:
        assert all(sum(span.entries for span in spans) <= most for spans in made)
    else:
        assert len(made) <= max(tasks, least)
