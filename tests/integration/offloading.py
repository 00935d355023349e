"""Offload, trim and tables without a JVM, for tests of the pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq

from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.jobs.offload import Offload, OffloadReport
from onewriter_pipeline.jobs.trim import LogReport, TrimJob
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.layout import MESSAGES
from onewriter_pipeline.tables.tables import Tables
from pyspark_onewriter.options import read_options
from pyspark_onewriter.source import TopicReader

FULL = "persistent://public/default/"
EXCLUSIVE = {"access_mode": pulsar.ProducerAccessMode.Exclusive}

Fill = Callable[..., None]
"""Sends messages: ``fill(topic, values, **options of the producer)``."""


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def offload(access: Access, tables: Tables, *topics: str, **options: Any) -> OffloadReport:
    observe = options.pop("observe", lambda step, batch: None)
    options.setdefault("with_audit", False)
    job = Offload(access, tables, Selection(topics=topics), **options)
    return job.run(in_process, 2, observe)


def trim(access: Access, tables: Tables, topic: str, **options: Any) -> LogReport:
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC), **options)
    (report,) = job.run(lambda line: None)
    return report


def stored(tables: Tables) -> list[bytes]:
    """Return the values in the table, in the log's order."""
    table = tables.existing(MESSAGES)
    files = [pq.ParquetFile(file.path, filesystem=table.place.files()) for file in table.files()]
    rows = pa.concat_tables([file.read() for file in files]).to_pylist() if files else []
    rows.sort(
        key=lambda row: (row["__topic"], row["__ledgerId"], row["__entryId"], row["__batchIndex"])
    )
    return [row["value"] for row in rows]


def rows(access: Access, topic: str, tables: Tables | None = None, **options: Any) -> list[Any]:
    """Return the rows that the data source reads."""
    given = {"admin.url": access.url, "topic": topic} | {k: str(v) for k, v in options.items()}
    if tables is not None:
        given |= {"tier": options.get("tier", "all"), "table": tables.place.location}
        given |= (
            {"table.options": json.dumps(dict(tables.place.options))}
            if tables.place.options
            else {}
        )
    reader = TopicReader(read_options(given))
    return [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in pa.Table.from_batches([batch]).to_pylist()
    ]


def values(access: Access, topic: str, tables: Tables | None = None, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(access, topic, tables, **options)]


def filled(access: Access, topic: str, fill: Fill, tables: Tables) -> list[bytes]:
    """Write four tenures, and offload the first three of them."""
    fill(topic, numbered(0, 600))
    fill(topic, numbered(600, 1300), batching_enabled=True)
    fill(topic, numbered(1300, 2000))
    offload(access, tables, topic)
    fill(topic, numbered(2000, 2100))
    return numbered(0, 2100)
