"""The checks of the sink's long runs (tests/spark) find a lost, duplicated or reordered row."""

from __future__ import annotations

import pytest
from tests.spark.stored import faults

COUNT = 100
WHOLE = list(range(COUNT))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (WHOLE[:40] + WHOLE[41:], "1 rows are lost: 40"),
        (WHOLE[:-1], "1 rows are lost: 99"),
        (WHOLE[1:], "1 rows are lost: 0"),
        ([*WHOLE[:41], 40, *WHOLE[41:]], "1 rows are doubled: 40"),
        ([*WHOLE, *WHOLE[:20]], "20 rows are doubled: 0, 1, 2"),
        ([*WHOLE[:40], 41, 40, *WHOLE[42:]], "1 rows are behind a later one: 40"),
        (WHOLE[50:] + WHOLE[:50], "1 rows are behind a later one: 0"),
        ([*WHOLE, COUNT], "1 rows are from nowhere: 100"),
        ([], "100 rows are lost"),
    ],
)
def test_errors_name_the_wrong_value(found: list[int], message: str) -> None:
    assert any(each.startswith(message) for each in faults(found, COUNT))


def test_every_row_once_in_order_is_right() -> None:
    assert faults(WHOLE, COUNT) == []
    assert faults([], 0) == []
