"""A task that fails in the middle is repeated: every row is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark.conftest import Fill

from onewriter_testing.processes import LocalBrokers

ROWS_BEFORE_FAILURE = 100

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_repeated_task_reads_the_same_rows(
    spark: SparkSession, broker: LocalBrokers, topic: str, fill: Fill, tmp_path: Path
) -> None:
    sent = [f"{number}" for number in range(2000)]
    fill(topic, [value.encode() for value in sent], batching_enabled=True)
    mark = tmp_path / "failed"

    def failing_once(rows: Iterable[Row]) -> Iterator[str]:
        for number, row in enumerate(rows):
            if number == ROWS_BEFORE_FAILURE and not mark.exists():
                mark.touch()
                raise RuntimeError("the first attempt fails in the middle")
            yield bytes(row["value"]).decode()

    frame = spark.read.format("onewriter").option("admin.url", broker.http_url)
    found = frame.option("topic", topic).load().rdd.mapPartitions(failing_once).collect()
    assert mark.exists()
    assert found == sent
