"""Copies the brokers' audit records to the table ``audit``: each once, by bucket, in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onewriter_core.ids import TopicName
from onewriter_core.witnesses import audit_order
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.errors import Overtaken, TableError
from onewriter_pipeline.tables.files import discard, table_errors, write_rows
from onewriter_pipeline.tables.layout import AUDIT
from onewriter_pipeline.tables.table import State, Table
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.witnesses import CopiedAudit

RECORDS_MAX: Final = 50_000
"""Records in one commit."""

_NUMBERS: Final = ("ledger", "epoch", "oldEpoch", "leaderlessMs")
_TEXTS: Final = ("kind", "topic", "cause", "broker", "producer", "subject")


def offload_audit(broker: Broker, tables: Tables) -> int:
    """Copy new records, and return their number. Raises PipelineError."""
    table = tables.made(AUDIT)
    state = table.state()
    offsets = dict(state.offsets)
    rows: list[dict[str, Any]] = []
    total = 0
    try:
        for bucket in range(broker.buckets()):
            for row in _rows(broker, bucket, offsets.get(str(bucket), "")):
                rows.append(row)
                offsets[str(bucket)] = row["id"]
                if len(rows) >= RECORDS_MAX:
                    state = _commit(table, state, rows, offsets)
                    total, rows = total + len(rows), []
        if rows:
            _commit(table, state, rows, offsets)
    except Overtaken:
        return total  # another process has copied the same records; the next run continues there
    return total + len(rows)


def copied_audit(tables: Tables, logs: Iterable[str]) -> dict[str, list[CopiedAudit]]:
    """The audit records about some logs that the table has, oldest first. Raises TableError."""
    topics = {log: str(TopicName.parse(log).base) for log in logs}
    of_topic: dict[str, list[CopiedAudit]] = {topic: [] for topic in topics.values()}
    columns = ["id", "topic", "record"]
    table = tables.made(AUDIT)
    for file in table.files():
        with table_errors(table.place):
            read = pq.read_table(file.path, columns=columns, filesystem=table.place.files())
        for row in read.filter(pc.is_in(read["topic"], pa.array(list(of_topic)))).to_pylist():
            of_topic[row["topic"]].append((row["id"], row["record"]))
    for records in of_topic.values():
        records.sort(key=lambda each: audit_order(each[0]))
    return {log: of_topic[topic] for log, topic in topics.items()}


def _commit(
    table: Table, state: State, rows: list[dict[str, Any]], offsets: Mapping[str, str]
) -> State:
    files = [write_rows(table.place, AUDIT.columns, rows)]
    try:
        return table.commit(state, files, offsets)
    except TableError:
        discard(table.place, files)
        raise


def _rows(broker: Broker, bucket: int, after: str) -> Iterator[dict[str, Any]]:
    for record in broker.audit(bucket, after):
        yield audit_row(bucket, record)


def audit_row(bucket: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """An audit record as a row; ``record`` is the whole record as JSON."""
    time_ms = record.get("timeMs")
    row: dict[str, Any] = {
        "bucket": bucket,
        "id": str(record["id"]),
        "time": None if time_ms is None else datetime.fromtimestamp(int(time_ms) / 1000, UTC),
        "record": json.dumps(record, sort_keys=True),
    }
    for name in _NUMBERS:
        value = record.get(name)
        row[name] = value if isinstance(value, int) else None
    for name in _TEXTS:
        value = record.get(name)
        row[name] = value if isinstance(value, str) else None
    return row
