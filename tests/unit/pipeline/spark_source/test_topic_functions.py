"""The functions for programs choose the options of a read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from onewriter_pipeline.errors import Invalid
from pyspark_onewriter.options import read_options
from pyspark_onewriter.topics import read_topic


class Recorder:
    """A Spark session that returns the options of a read."""

    def __init__(self) -> None:
        self.read = self.readStream = self
        self.given: dict[str, str] = {}

    def format(self, name: str) -> Recorder:
        assert name == "onewriter"
        return self

    def options(self, **options: str) -> Recorder:
        self.given = options
        return self

    def load(self) -> dict[str, str]:
        return self.given


def options(**words: Any) -> dict[str, str]:
    spark = cast("Any", Recorder())
    found = cast("dict[str, str]", read_topic(spark, "orders", admin_url="http://b:1", **words))
    read_options(found)
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"columns": ["value", "__epoch"]}, {"columns": "value,__epoch"}),
        ({"epochs": range(3, 6)}, {"startingEpoch": "3", "endingEpoch": "5"}),
        ({"epochs": [7, 3]}, {"epochs": "3,7"}),
        ({"start": "3:17"}, {"startingOffsets": '{"orders": "3:17"}'}),
        ({"start": {"orders": "3:17"}}, {"startingOffsets": '{"orders": "3:17"}'}),
        (
            {"start": "earliest", "end": "latest"},
            {"startingOffsets": "earliest", "endingOffsets": "latest"},
        ),
        (
            {"since": datetime(2026, 1, 1, tzinfo=UTC), "until": datetime(2026, 1, 2, tzinfo=UTC)},
            {"startingTimestamp": "1767225600000", "endingTimestamp": "1767312000000"},
        ),
        ({"failOnDataLoss": False}, {"failOnDataLoss": "False"}),
    ],
)
def test_arguments_become_options(words: dict[str, Any], expected: dict[str, str]) -> None:
    assert options(**words) == {"admin.url": "http://b:1", "topic": "orders", **expected}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"epochs": []}, "epochs is empty"),
        ({"since": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - the mistake
    ],
)
def test_wrong_arguments_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        options(**words)
