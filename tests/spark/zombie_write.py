"""A program of its own: a driver that writes a batch on a cluster, and another one when it is told to.

Arguments: the master, the address that tasks write to, a topic, a folder where each attempt of the first
partition leaves a file: its name is the attempt, its content the process id of its executor.
It prints ``committed`` behind each batch, and begins the second one when it reads a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.functions import udf
from tests.spark.conftest import session
from tests.spark.standalone import DRIVER_SETTINGS

ROWS = 2_000
ROWS_MORE = 10


def main(master: str, url: str, topic: str, folder: str) -> None:
    def leaving_a_trace(number: int) -> str:
        import os

        context = TaskContext.get()
        assert context is not None
        trace = Path(folder, str(context.attemptNumber()))
        if context.partitionId() == 0 and not trace.exists():
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            trace.write_text(daemon[1])
        return str(number)

    spark = session(master, DRIVER_SETTINGS)
    for version, (start, end) in enumerate([(0, ROWS), (ROWS, ROWS + ROWS_MORE)]):
        if version:
            sys.stdin.readline()
        rows = spark.range(start, end, 1, 2)
        named = {"admin.url": url, "topic": topic, "txnAppId": "job", "txnVersion": str(version)}
        traced = rows.select(udf(leaving_a_trace, "string")("id").alias("value"))
        traced.write.format("onewriter").options(**named).mode("append").save()
        print("committed", flush=True)  # noqa: T201 - heard by who started it
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
