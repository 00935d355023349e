"""Reads and writes a topic through Spark Connect: ``python -m tests.spark.connected URL TOPIC``. Prints three counts.

A program of its own, because a process has either a classic Spark session or one of Spark Connect.
"""

from __future__ import annotations

import os
import sys
import tempfile

from pyspark.sql import SparkSession
from tests.spark.conftest import LOOPBACK, TUNED

from onewriter_pipeline.java_runtime import use_java
from pyspark_onewriter.topics import read_topic, write_topic


def main(url: str, topic: str) -> None:
    """Count the topic, write two rows to it, and count it as a batch and as a stream."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    builder = SparkSession.builder.remote("local[2]")
    for name, value in TUNED.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    counts = [read_topic(spark, topic, columns=["value"], admin_url=url).count()]
    rows = spark.createDataFrame([("1",), ("2",)], "value STRING")
    write_topic(rows, topic, app="connect", version=1, admin_url=url)
    counts.append(read_topic(spark, topic, admin_url=url).count())
    frame = read_topic(spark, topic, stream=True, start="earliest", admin_url=url)
    with tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        writer = frame.writeStream.format("parquet").option("path", f"{folder}/rows")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
        counts.append(spark.read.parquet(f"{folder}/rows").count())
    sys.stdout.write(" ".join(map(str, counts)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
