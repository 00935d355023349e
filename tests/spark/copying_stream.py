"""A driver program that copies a topic to another one, batch by batch, until it is stopped.

Arguments: the master, a broker's HTTP address, the two topics, a checkpoint, a file. When the file exists, the
driver copies the remaining messages and exits with 0. If the query fails, it exits with 1, and must be started
again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.errors import PySparkException
from tests.spark.conftest import session
from tests.spark.standalone import DRIVER_SETTINGS

ENTRIES_PER_BATCH = 20
POLL_SECONDS = 0.1


def main(master: str, url: str, source: str, target: str, checkpoint: str, ends: str) -> int:
    """Run the query, and return the exit code."""
    spark = session(master, DRIVER_SETTINGS)
    named = {"admin.url": url, "topic": source, "startingOffsets": "earliest"}
    limits = {"maxEntriesPerTrigger": str(ENTRIES_PER_BATCH), "minPartitions": "2"}
    rows = spark.readStream.format("onewriter").options(**named, **limits).load()
    writer = rows.select("value").writeStream.format("onewriter")
    writer = writer.options(**{"admin.url": url, "topic": target})
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        while query.isActive and not Path(ends).exists():
            time.sleep(POLL_SECONDS)
        query.processAllAvailable()
        query.stop()
    except PySparkException as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
