"""Facts about the files of a table, and the audit records in a table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onewriter_core.audit.findings import Finding
from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.kept import Kept
from onewriter_pipeline.binaries import Signed
from onewriter_pipeline.errors import TableError
from onewriter_pipeline.schema import BATCH_INDEX, ENTRY, LEDGER, PRODUCER, PUBLISH_TIME, SEQUENCE
from onewriter_pipeline.tables.files import Place, line, opened_parquet, table_errors
from onewriter_pipeline.tables.layout import AUDIT, TOPIC_PARTITION, TableFile, folder_of
from onewriter_pipeline.tables.tables import Tables

OBSERVED_ROWS: Final = 256 * 1024
"""Rows that are read at once."""

_COLUMNS: Final = [LEDGER, ENTRY, BATCH_INDEX, PRODUCER, SEQUENCE, PUBLISH_TIME]


class Publish(NamedTuple):
    """Entries [first, end) of a ledger that were published atomically.

    ``app`` None: the table does not say which entries, or by which app. ``name`` is for messages.
    """

    ledger: int
    first: int
    end: int
    app: str | None
    name: str


@dataclass(frozen=True, slots=True)
class MessageFile:
    """A file of messages, all of one log; can be pickled."""

    place: Place
    path: str
    log: str
    size: int = 0
    publishes: tuple[Publish, ...] = ()
    """The publishes in the ledgers of the file."""


def files_of(
    place: Place,
    files: Iterable[TableFile],
    logs: Iterable[str],
    publishes: Mapping[str, Sequence[Publish]],
) -> list[MessageFile]:
    """The files of some logs; ``publishes`` by log."""
    folders = {folder_of(log): log for log in logs}
    found = []
    for each in files:
        log = folders.get(each.partition.get(TOPIC_PARTITION, ""))
        if log is not None:
            low, high = each.bounds.get(LEDGER, (0, NUMBER_MAX))
            inside = (one for one in publishes.get(log, ()) if low <= one.ledger <= high)
            found.append(MessageFile(place, each.path, log, each.size, tuple(inside)))
    return found


def observe_file(file: MessageFile) -> Iterator[pa.RecordBatch]:
    """The facts of a file. Raises TableError if it is missing or cannot be read."""
    try:
        with opened_parquet(file.place, file.path, read_dictionary=(PRODUCER,)) as opened:
            for batch in opened.iter_batches(OBSERVED_ROWS, columns=_COLUMNS):
                if batch.num_rows:
                    yield facts.facts_of(list(_facts(file, batch)))
    except (OSError, pa.ArrowException) as error:
        where = f"{file.place.location}/{file.path}"
        raise TableError(f"{where} cannot be read: {line(error)}") from error


def _facts(file: MessageFile, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    rows = _Rows(batch)
    for start, stop in rows.runs():
        yield {"log": file.log} | rows.run(start, stop)
    found = [*rows.faults(), *rows.foreign(file.publishes)]
    for mine in rows.by_writer():
        found += rows.writer(mine)
    for row in found:
        yield {"log": file.log} | row


class _Rows:
    """Some messages of a log, in its order. They get ``ordinal``s later, by position."""

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
        self.is_atomic = np.zeros(len(self.ledger), np.bool_)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Ranges [start, stop) of rows with consecutive entries of one ledger."""
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
        """Messages that are stored twice."""
        same = (np.diff(self.ledger) == 0) & (np.diff(self.entry) == 0) & (np.diff(self.index) == 0)
        for index in np.flatnonzero(same)[:10].tolist():
            place = str(Position(int(self.ledger[index]), int(self.entry[index])))
            sentence = (
                f"message {int(self.index[index])} of entry {place} is stored twice in the table"
            )
            yield {"kind": facts.FAULT, "predicate": "S5", "place": place, "sentence": sentence}

    def foreign(self, publishes: Iterable[Publish]) -> Iterator[dict[str, Any]]:
        """Messages within atomic publishes that belong to another app; marks the rows of all publishes."""
        for publish in publishes:
            low, high = np.searchsorted(self.ledger, [publish.ledger, publish.ledger + 1]).tolist()
            edges = np.searchsorted(self.entry[low:high], [publish.first, publish.end])
            here = slice(*(edges + low).tolist())
            self.is_atomic[here] = True
            if publish.app is None:
                continue
            codes = [code for code, name in enumerate(self.names) if name == publish.app]
            wrong = np.flatnonzero(~np.isin(self.code[here], codes))
            if len(wrong):
                at = int(here.start + wrong[0])
                place = str(Position(publish.ledger, int(self.entry[at])))
                sentence = f"an entry among those of publish {publish.name} is not its own"
                yield {
                    "kind": facts.FAULT,
                    "predicate": "S15",
                    "place": place,
                    "sentence": sentence,
                }

    def by_writer(self) -> Iterator[Signed]:
        """The first message of each entry, by ledger and producer, without atomic publishes."""
        fresh = np.concatenate([[True], (np.diff(self.entry) != 0) | (np.diff(self.ledger) != 0)])
        order = np.flatnonzero(fresh & ~self.is_atomic)
        if not len(order):
            return
        if len(self.names) > 1:
            order = order[np.lexsort((self.code[order], self.ledger[order]))]
        breaks = (np.diff(self.ledger[order]) != 0) | (np.diff(self.code[order]) != 0)
        yield from np.split(order, np.flatnonzero(breaks) + 1)

    def writer(self, mine: Signed) -> Iterator[dict[str, Any]]:
        """The entries of one producer, and where its numbers fall."""
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


def _numbers(column: pa.Array) -> Signed:
    filled = column.fill_null(-1) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)


def kept_records(tables: Tables) -> Kept:
    """The audit records in the tables, by bucket, in order. Raises TableError."""
    kept = Kept()
    table = tables.opened(AUDIT)
    if table is None:
        return kept
    rows: list[tuple[int, tuple[int, int], str]] = []
    files = table.place.files()
    for file in table.files():
        with table_errors(table.place):
            read = pq.read_table(file.path, columns=["bucket", "id", "record"], filesystem=files)
        rows += [(row["bucket"], _order(row["id"]), row["record"]) for row in read.to_pylist()]
    for bucket, of_bucket in itertools.groupby(sorted(rows), key=itemgetter(0)):
        kept.add(bucket, (json.loads(record) for _, _, record in of_bucket))
    kept.buckets = {log: bucket for bucket, audit in kept.audits.items() for log in audit.logs}
    return kept


def _order(record_id: str) -> tuple[int, int]:
    time, _, number = record_id.partition("-")
    return int(time), int(number or 0)


def twice_in(observed: pa.Table) -> Iterator[Finding]:
    """Entries whose messages are in several files, from facts of files."""
    kept = observed.filter(pc.equal(observed["kind"], facts.KEPT))
    columns = ("log", "ledger", "first", "chunk", "last", "last_chunk")
    rows = sorted(zip(*(kept[name].to_pylist() for name in columns), strict=True))
    for (log, ledger), of_ledger in itertools.groupby(rows, key=itemgetter(0, 1)):
        end = (-1, -1)
        for _, _, first, chunk, last, last_chunk in of_ledger:
            if (first, chunk) <= end:
                place = str(Position(ledger, first))
                sentence = f"messages of entry {place} are stored twice in the table"
                yield Finding(log, "S5", (place,), sentence)
            end = max(end, (last, last_chunk))
