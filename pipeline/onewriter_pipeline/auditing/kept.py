"""Facts of tables: what their files hold, what was noted when it was offloaded, and the kept audit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onewriter_core.ids import Position
from onewriter_pipeline.auditing import facts
from onewriter_pipeline.auditing.observer import shown
from onewriter_pipeline.auditing.records import Records
from onewriter_pipeline.connection import position_of
from onewriter_pipeline.decode.words import Positions
from onewriter_pipeline.errors import TableError
from onewriter_pipeline.schema import BATCH_INDEX, ENTRY, LEDGER, PRODUCER, PUBLISH_TIME, SEQUENCE
from onewriter_pipeline.table_files import Place
from onewriter_pipeline.table_layout import AUDIT, TOPIC_PARTITION, TableFile, folder_of
from onewriter_pipeline.tables import Tables

READ_ROWS: Final = 256 * 1024
"""Rows that are observed at once."""

_COLUMNS: Final = [LEDGER, ENTRY, BATCH_INDEX, PRODUCER, SEQUENCE, PUBLISH_TIME]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of messages, all of one log; can be pickled."""

    place: Place
    path: str
    log: str


def files_of(place: Place, files: Iterable[TableFile], logs: Iterable[str]) -> list[KeptFile]:
    """The files of some logs."""
    folders = {folder_of(log): log for log in logs}
    found = [(each, folders.get(each.partition.get(TOPIC_PARTITION, ""))) for each in files]
    return [KeptFile(place, each.path, log) for each, log in found if log is not None]


def observe_file(file: KeptFile) -> Iterator[pa.RecordBatch]:
    """The facts of a file. Raises TableError for one that is gone or cannot be read."""
    try:
        opened = pq.ParquetFile(
            file.path, filesystem=file.place.files(), read_dictionary=[PRODUCER]
        )
        for batch in opened.iter_batches(READ_ROWS, columns=_COLUMNS):
            if batch.num_rows:
                yield facts.facts_of(list(_facts(file.log, batch)))
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{file.place.location}/{file.path} cannot be read: {error}") from error


def _facts(log: str, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    rows = _Rows(batch)
    for start, stop in rows.runs():
        yield {"log": log} | rows.run(start, stop)
    yield from ({"log": log} | each for each in rows.faults())
    for mine in rows.by_writer():
        for row in rows.writer(mine):
            yield {"log": log} | row


class _Rows:
    """Some messages of a log, in its order. ``ordinal``s are given later: by position."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.column(PRODUCER)
        codes = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
        self.names: list[str] = codes.dictionary.to_pylist()
        numbers = {
            "ledger": batch.column(LEDGER),
            "entry": batch.column(ENTRY),
            "index": batch.column(BATCH_INDEX),
            "code": codes.indices,
            "sequence": batch.column(SEQUENCE),
            "published": batch.column(PUBLISH_TIME).cast(pa.int64()),
        }
        arrays = {name: _numbers(column) for name, column in numbers.items()}
        steps = (np.diff(arrays["ledger"]), np.diff(arrays["entry"]), np.diff(arrays["index"]))
        rises = (steps[0] > 0) | (
            (steps[0] == 0) & ((steps[1] > 0) | ((steps[1] == 0) & (steps[2] > 0)))
        )
        if not rises.all():
            order = np.lexsort((arrays["index"], arrays["entry"], arrays["ledger"]))
            arrays = {name: array[order] for name, array in arrays.items()}
        self.ledger, self.entry, self.index = arrays["ledger"], arrays["entry"], arrays["index"]
        self.code, self.sequence = arrays["code"], arrays["sequence"]
        self.published_ms = arrays["published"] // 1000

    def runs(self) -> Iterator[tuple[int, int]]:
        """Rows [start, stop) of one ledger whose entries follow each other."""
        breaks = (np.diff(self.ledger) != 0) | (np.diff(self.entry) > 1)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(self.ledger)]
        yield from itertools.pairwise(edges)

    def run(self, start: int, stop: int) -> dict[str, Any]:
        """A run; ``chunk`` and ``last_chunk`` are batch indexes here."""
        first, last = int(self.entry[start]), int(self.entry[stop - 1])
        return {
            "kind": facts.KEPT,
            "ledger": int(self.ledger[start]),
            "first": first,
            "last": last,
            "chunk": int(self.index[start]),
            "last_chunk": int(self.index[stop - 1]),
            "entries": last - first + 1,
            "messages": stop - start,
        }

    def faults(self) -> Iterator[dict[str, Any]]:
        """Messages that are there twice."""
        same = (np.diff(self.ledger) == 0) & (np.diff(self.entry) == 0) & (np.diff(self.index) == 0)
        for index in np.flatnonzero(same)[:10].tolist():
            place = shown(int(self.ledger[index]), int(self.entry[index]))
            sentence = (
                f"message {int(self.index[index])} of entry {place} stands twice in the table"
            )
            yield {"kind": facts.FAULT, "predicate": "S5", "uuid": place, "sentence": sentence}

    def by_writer(self) -> Iterator[Positions]:
        """The first message of each entry, by ledger and producer."""
        fresh = np.concatenate([[True], (np.diff(self.entry) != 0) | (np.diff(self.ledger) != 0)])
        order = np.flatnonzero(fresh)
        if len(self.names) > 1:
            order = order[np.lexsort((self.code[order], self.ledger[order]))]
        breaks = (np.diff(self.ledger[order]) != 0) | (np.diff(self.code[order]) != 0)
        yield from np.split(order, np.flatnonzero(breaks) + 1)

    def writer(self, mine: Positions) -> Iterator[dict[str, Any]]:
        """What one wrote, and where its numbers fall."""
        who = {"ledger": int(self.ledger[mine[0]]), "producer": self.names[self.code[mine[0]]]}
        yield who | {"kind": facts.WRITER, "entries": len(mine)} | self._numbers(mine[0], mine[-1])
        falls = (np.diff(self.sequence[mine]) <= 0) & (np.diff(self.published_ms[mine]) <= 0)
        if falls.any():
            here = int(np.flatnonzero(falls)[0])
            before, after = mine[here], mine[here + 1]
            places = {"first": int(self.entry[before]), "last": int(self.entry[after])}
            count = {"kind": facts.FALL, "entries": int(falls.sum())}
            yield who | self._numbers(after, before) | places | count

    def _numbers(self, first: int, last: int) -> dict[str, Any]:
        return {
            "first": int(self.entry[first]),
            "last": int(self.entry[last]),
            "sequence": int(self.sequence[first]),
            "last_sequence": int(self.sequence[last]),
            "chunk": 0,
            "last_chunk": 0,
            "published_ms": int(self.published_ms[first]),
            "last_published_ms": int(self.published_ms[last]),
            "uuid": "",
            "last_uuid": "",
        }


def _numbers(column: pa.Array) -> Positions:
    filled = column.fill_null(-1) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def segment_facts(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of the table ``segments`` as markers, and what was offloaded as runs.

    Where a log begins in the table nothing in front of it is missed.
    """
    begun: set[str] = set()
    for (log, ledger), parts in _by_ledger(rows).items():
        first = parts[0]
        yield {
            "log": log,
            "kind": facts.MARKER,
            "ledger": ledger,
            "first": 0,
            "last": 0 if log in begun else first["first"] - 1,
            "epoch": first["epoch"],
            "mode": first["mode"],
            "cause": first["cause"],
            "producer": first["producer"],
            "subject": first["subject"] or "",
        }
        begun.add(log)
        for part in parts:
            if part["entries"]:
                yield {
                    "log": log,
                    "kind": facts.RUN,
                    "ledger": ledger,
                    "first": part["first"],
                    "last": part["end"] - 1,
                    "time_ms": _milliseconds(part["oldest"]),
                    "newest_ms": _milliseconds(part["newest"]),
                    "entries": part["entries"],
                    "messages": part["messages"],
                    "bytes": part["bytes"],
                }


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def count_faults(
    rows: Sequence[Mapping[str, Any]], counted: Mapping[tuple[str, int], tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Where the files hold other numbers of rows than were offloaded.

    ``counted``: rows and first entry of the files, by log and ledger. What was dropped from the front of a
    table by its retention is no fault.
    """
    kept: dict[str, int] = {}
    for log, ledger in counted:
        kept[log] = min(ledger, kept.get(log, ledger))
    for (log, ledger), parts in _by_ledger(rows).items():
        offloaded = sum(part["rows"] for part in parts)
        found, first = counted.get((log, ledger), (0, None))
        was_dropped = ledger < kept.get(log, ledger + 1) or (
            ledger == kept.get(log) and first is not None and first > parts[0]["first"]
        )
        if found != offloaded and not (was_dropped and found < offloaded):
            yield {
                "log": log,
                "kind": facts.FAULT,
                "predicate": "S5",
                "uuid": shown(ledger, parts[0]["first"]),
                "sentence": f"{offloaded} messages of ledger {ledger} were offloaded, the table has"
                f" {found}",
            }


def _by_ledger(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda each: (each["topic"], each["ledger"], each["first"])):
        found.setdefault((row["topic"], row["ledger"]), []).append(row)
    return found


def in_order(table: pa.Table) -> pa.Table:
    """Facts of tables with ordinals: the order of positions is that of the log there."""
    kinds = pc.if_else(pc.equal(table["kind"], facts.MARKER), 0, 1)
    keys = table.select(["log", "ledger", "first", "chunk"]).append_column("place", kinds)
    names = ("log", "ledger", "place", "first", "chunk")
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
    ordered = table.take(order)
    at = ordered.schema.get_field_index("ordinal")
    return ordered.set_column(at, "ordinal", pa.array(np.arange(len(ordered)), pa.int64()))


def counted_of(table: pa.Table) -> dict[tuple[str, int], tuple[int, int]]:
    """Rows, and the first entry, of each log and ledger."""
    runs = table.filter(pc.equal(table["kind"], facts.KEPT))
    grouped = runs.group_by(["log", "ledger"]).aggregate([("messages", "sum"), ("first", "min")])
    return {
        (row["log"], row["ledger"]): (row["messages_sum"], row["first_min"])
        for row in grouped.to_pylist()
    }


def kept_records(tables: Tables) -> Records:
    """The audit that was offloaded, bucket by bucket, in order."""
    records = Records()
    table = tables.opened(AUDIT)
    if table is None:
        return records
    rows: list[tuple[int, tuple[int, int], str]] = []
    files = table.place.files()
    for file in table.files():
        read = pq.read_table(file.path, columns=["bucket", "id", "record"], filesystem=files)
        rows += [(row["bucket"], _order(row["id"]), row["record"]) for row in read.to_pylist()]
    by_bucket: dict[int, list[Mapping[str, Any]]] = {}
    for bucket, _, record in sorted(rows):
        by_bucket.setdefault(bucket, []).append(json.loads(record))
    for bucket, found in by_bucket.items():
        records.add(bucket, found)
    return records


def _order(record_id: str) -> tuple[int, int]:
    time, _, number = record_id.partition("-")
    return int(time), int(number or 0)


def logs_of(
    offsets: Mapping[str, str], buckets: Mapping[str, int], logs: Iterable[str]
) -> list[dict[str, Any]]:
    """Rows of LOGS: up to where a table goes its fences must have left markers."""
    found = []
    for log in logs:
        end: Position = position_of(offsets[log])
        settled = end.ledger if end.entry > 1 else end.ledger - 1
        found.append({"log": log, "bucket": buckets.get(log, 0), "settled": settled})
    return found
