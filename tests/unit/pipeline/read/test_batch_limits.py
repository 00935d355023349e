"""Batches with a limited number of messages: exact counts, whole entries, progress in each log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.ids import Position
from onewriter_pipeline.read.batch_limits import (
    EntryCounts,
    end_after_entries,
    end_after_messages,
    is_even,
    shares,
)
from onewriter_pipeline.read.offsets import Run, messages_of, runs_within

SIZES = [3, 1, 1, 10, 2, 2]


def run(ledger: int, first: int, end: int, messages: int) -> Run:
    return Run(ledger, None, first, end, 10, messages)


def counts(sizes: list[int], ledger: int = 5, block: int = 2) -> list[EntryCounts]:
    """Blocks of these sizes, beginning with entry 1."""
    return [
        EntryCounts(Position(ledger, 1 + at), np.array(sizes[at : at + block], np.int64))
        for at in range(0, len(sizes), block)
    ]


def test_shares_are_proportional_and_not_empty() -> None:
    ahead = {"a": [run(1, 1, 11, 900)], "b": [run(1, 1, 2, 1), run(2, 1, 3, 99)], "c": []}
    assert shares(ahead, 1000) == {"a": None, "b": None, "c": None}
    assert shares(ahead, 100) == {"a": 90, "b": 10, "c": 1}
    assert shares(ahead, 1) == {"a": 1, "b": 1, "c": 1}


def test_part_of_a_run_has_at_most_the_messages_that_other_entries_leave() -> None:
    whole = run(5, 1, 11, 100)
    assert [each.messages for each in whole.cut(4)] == [94, 96]
    assert messages_of(runs_within([whole], Position(5, 8), Position(5, 9))) == 91
    assert is_even(runs_within([run(5, 1, 11, 10)], Position(5, 4)))
    assert not is_even([run(5, 1, 11, 10), run(6, 1, 3, 3)])


@pytest.mark.parametrize(
    ("start", "messages", "end"),
    [
        (1, 3, 2),
        (1, 4, 3),
        (1, 5, 4),
        (1, 14, 4),
        (1, 15, 5),
        (1, 18, 6),
        (1, 19, None),
        (1, 1, 2),  # one entry, although it has more messages
        (4, 1, 5),
        (4, 12, 6),
        (2, 1, 3),
        (6, 2, None),
    ],
)
def test_position_after_a_number_of_entries(start: int, messages: int, end: int | None) -> None:
    found = end_after_messages(counts(SIZES), Position(5, start), messages)
    assert found == (None if end is None else Position(5, end))


def test_counting_continues_in_the_next_ledger() -> None:
    parts = [*counts([2, 2], 5), *counts([2, 2], 9)]
    assert end_after_messages(parts, Position(5, 2), 4) == Position(9, 2)
    assert end_after_messages(parts, Position(7, 1), 4) is None
    assert end_after_messages(iter(parts), Position(7, 1), 3) == Position(9, 2)


def test_single_messages_need_no_counting() -> None:
    runs = [run(5, 3, 6, 3), run(7, 1, 9, 8)]
    assert end_after_entries(runs, 2) == Position(5, 5)
    assert end_after_entries(runs, 5) == Position(7, 3)
    assert end_after_entries(runs, 11) is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 60), st.integers(1, 7))
def test_batches_stay_within_the_limit_and_lose_nothing(
    sizes: list[int], most: int, block: int
) -> None:
    start, batches = Position(5, 1), list[int]()
    while start is not None:
        end = end_after_messages(counts(sizes, block=block), start, most)
        stop = len(sizes) if end is None else end.entry - 1
        batch = sizes[start.entry - 1 : stop]
        assert sum(batch) <= most or len(batch) == 1
        batches += batch
        if end is None:
            break
        start = end
    assert batches == sizes
