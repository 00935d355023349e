"""A program of its own: reads a topic with a task that fails once. Prints what came, as JSON.

There is one Spark in a process, and only ``local[2,3]`` tries a task again.
Arguments: a broker's HTTP address, a topic, a file that is made when the task has failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import Row
from tests.spark.conftest import session

ROWS_BEFORE_FAILURE = 100


def main(url: str, topic: str, mark: str) -> None:
    def failing_once(rows: Iterable[Row]) -> Iterator[str]:
        for number, row in enumerate(rows):
            if number == ROWS_BEFORE_FAILURE and not Path(mark).exists():
                Path(mark).touch()
                raise RuntimeError("the first attempt fails in the middle")
            yield bytes(row["value"]).decode()

    spark = session("local[2,3]")
    frame = spark.read.format("onewriter").option("admin.url", url).option("topic", topic).load()
    sys.stdout.write(json.dumps(frame.rdd.mapPartitions(failing_once).collect()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
