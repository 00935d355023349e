"""Streams as plain objects that tests call as Spark does: readers, and all that they read."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.schema import MESSAGE_COLUMNS, column_types
from onewriter_pipeline.tables.tables import Tables
from pyspark_onewriter.options import stream_options
from pyspark_onewriter.stream import TopicStreamReader

TYPES = {
    name: kind.replace(" ", "").lower()
    for name, kind in column_types().items()
    if name in MESSAGE_COLUMNS
}
COMPARED = [name for name in MESSAGE_COLUMNS if name != "__messageProperties"]


def stream(
    access: Access, name: str, /, tables: Tables | None = None, **options: Any
) -> TopicStreamReader:
    """Return a new reader, like that of a restarted query."""
    given = {"admin.url": access.url, "topic": name, "startingOffsets": "earliest"}
    if tables is not None:
        given |= {"tier": "all", "table": tables.place.location}
    given |= {name: str(value) for name, value in options.items()}
    return TopicStreamReader(stream_options(given, TYPES))


def rows(reader: TopicStreamReader, tasks: Any) -> list[dict[str, Any]]:
    return [
        row
        for task in tasks
        for batch in reader.read(task)
        for row in pa.Table.from_batches([batch]).select(COMPARED).to_pylist()
    ]


def read(reader: TopicStreamReader, start: Any, end: Any) -> list[bytes]:
    return [row["value"] for row in rows(reader, reader.partitions(start, end))]


def begun(reader: TopicStreamReader) -> Any:
    """Return the start of a new query: its first batch is empty, and Spark asks once more for the start."""
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    reader.initialOffset()
    assert not reader.partitions(start, start)
    return start


def batches(reader: TopicStreamReader, start: Any = None) -> tuple[list[list[bytes]], Any]:
    """Return all available entries, batch by batch, and the end of the last one."""
    offset, found = start or begun(reader), list[list[bytes]]()
    limit = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(offset, limit)) != offset:
        found.append(read(reader, offset, end))
        offset = end
    return found, offset


def all_of(parts: list[list[bytes]]) -> list[bytes]:
    return list(itertools.chain.from_iterable(parts))


def standing(access: Access, topic: str, name: str) -> Position:
    """Return the position before which the subscription is; asking for the beginning does not move it."""
    with Broker(access) as broker:
        return broker.acknowledge(topic, name, Position(0, 0))
