"""Facts about the files of a table, and the audit records in a table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onewriter_core.audit.findings import Finding
from onewriter_core.ids import NUMBER_MAX, Position
from onewriter_core.witnesses import audit_order
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.binaries import Signed
from onewriter_pipeline.schema import BATCH_INDEX, ENTRY, LEDGER, PRODUCER, PUBLISH_TIME, SEQUENCE
from onewriter_pipeline.tables.digest import DIGESTS, row_hashes, runs_of, shown, total
from onewriter_pipeline.tables.files import Place, line, opened_parquet, rows_at_once, table_errors
from onewriter_pipeline.tables.layout import AUDIT, MESSAGES, TOPIC_PARTITION, TableFile, folder_of
from onewriter_pipeline.tables.read_back import check_readable, is_within, widen
from onewriter_pipeline.tables.tables import Tables


class Offloaded(NamedTuple):
    """Entries [first, end) of a ledger that were offloaded together: they have one digest."""

    ledger: int
    first: int
    end: int


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
    rows: int = 0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Size, rows, and bounds of columns, from the commit of the file."""
    publishes: tuple[Publish, ...] = ()
    offloaded: tuple[Offloaded, ...] = ()
    """The publishes in the ledgers of the file, and what was offloaded of them, in order."""


def files_of(
    place: Place,
    files: Iterable[TableFile],
    logs: Iterable[str],
    publishes: Mapping[str, Sequence[Publish]],
    offloaded: Mapping[str, Sequence[Offloaded]],
) -> list[MessageFile]:
    """The files of some logs; ``publishes`` and ``offloaded`` by log."""
    folders = {folder_of(log): log for log in logs}
    found = []
    for each in files:
        log = folders.get(each.partition.get(TOPIC_PARTITION, ""))
        if log is not None:
            low, high = each.bounds.get(LEDGER, (0, NUMBER_MAX))
            found.append(
                MessageFile(
                    *(place, each.path, log, each.size, each.rows, each.bounds),
                    tuple(one for one in publishes.get(log, ()) if low <= one.ledger <= high),
                    tuple(one for one in offloaded.get(log, ()) if low <= one.ledger <= high),
                )
            )
    return found


def observe_file(file: MessageFile) -> Iterator[pa.RecordBatch]:
    """The facts of a file. A file that is not what was committed is a fault.

    Raises TableError if the file cannot be reached.
    """
    digests = _Digests(file.offloaded)
    seen: dict[str, tuple[int, int]] = {}
    rows = 0
    try:
        with table_errors(file.place):
            (info,) = file.place.files().get_file_info([file.path])
        if not info.is_file:
            yield _fault(file, "is gone")
            return
        if info.size != file.size:
            message = f"has {info.size} bytes, and had {file.size} when it was committed"
            yield _fault(file, message)
        names = MESSAGES.columns.names
        with opened_parquet(file.place, file.path) as opened:
            missing = [name for name in names if name not in opened.schema_arrow.names]
            if missing:
                yield _fault(file, f"has no column {missing[0]}")
                return
            for batch in opened.iter_batches(rows_at_once(opened.metadata), columns=names):
                if batch.num_rows:
                    rows += batch.num_rows
                    widen(seen, batch, file.bounds)
                    digests.add(batch)
                    yield facts.facts_of(list(_facts(file, batch)))
    except (OSError, pa.ArrowException) as error:
        check_readable(file.place, file.path, error)
        yield _fault(file, f"cannot be read as it was written: {line(error)}")
        return
    if rows != file.rows:
        yield _fault(file, f"has {rows} rows, and had {file.rows} when it was committed")
    beyond = [name for name, bounds in seen.items() if not is_within(bounds, file.bounds[name])]
    if beyond:
        yield _fault(file, f"has values of {beyond[0]} that it was not committed with")
    yield facts.facts_of([{"log": file.log} | row for row in digests.facts()])


def _fault(file: MessageFile, what: str) -> pa.RecordBatch:
    low, first = file.bounds.get(LEDGER, (0, 0)), file.bounds.get(ENTRY, (0, 0))
    fault = {
        "log": file.log,
        "kind": facts.FAULT,
        "predicate": "S7",
        "place": str(Position(low[0], first[0] if low[0] == low[1] else 0)),
        "sentence": f"the file {file.path} {what}",
    }
    return facts.facts_of([fault])


class _Digests:
    """Rows and digest of each part that was offloaded, as a file has it."""

    def __init__(self, offloaded: Sequence[Offloaded]) -> None:
        self._parts: dict[int, list[Offloaded]] = {}
        for each in sorted(offloaded):
            self._parts.setdefault(each.ledger, []).append(each)
        self._found: dict[Offloaded, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows in the order of the file. Rows that no part covers are counted elsewhere."""
        ledgers, entries = batch.column(LEDGER).to_numpy(), batch.column(ENTRY).to_numpy()
        hashes = row_hashes(batch, MESSAGES.columns)
        for ledger, low, high in runs_of(ledgers):
            parts = self._parts.get(ledger, [])
            firsts = np.array([each.first for each in parts], np.int64)
            which = np.searchsorted(firsts, entries[low:high], "right") - 1
            for number, begin, end in runs_of(which):
                if number >= 0:
                    rows, digest = self._found.get(parts[number], (0, 0))
                    digest = (digest + total(hashes[low + begin : low + end])) % DIGESTS
                    self._found[parts[number]] = rows + end - begin, digest

    def facts(self) -> Iterator[dict[str, Any]]:
        """What was found, by part."""
        for each, (rows, digest) in self._found.items():
            yield {
                "kind": facts.DIGEST,
                "ledger": each.ledger,
                "first": each.first,
                "last": each.end - 1,
                "messages": rows,
                "uuid": shown(digest),
            }


def _facts(file: MessageFile, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    rows = _Rows(batch)
    for start, stop in rows.runs():
        yield {"log": file.log} | rows.run(start, stop)
    found = [*rows.faults(), *rows.foreign(file.publishes)]
    for own_rows in rows.by_writer():
        found += rows.writer(own_rows)
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

    def writer(self, own_rows: Signed) -> Iterator[dict[str, Any]]:
        """The entries of one producer, and where its numbers fall."""
        who = {
            "ledger": int(self.ledger[own_rows[0]]),
            "producer": self.names[self.code[own_rows[0]]],
        }
        yield (
            who
            | {"kind": facts.WRITER, "entries": len(own_rows)}
            | self._numbers(own_rows[0], own_rows[-1])
        )
        falls = (np.diff(self.sequence[own_rows]) <= 0) & (
            np.diff(self.published_ms[own_rows]) <= 0
        )
        if falls.any():
            here = int(np.flatnonzero(falls)[0])
            before, after = own_rows[here], own_rows[here + 1]
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


def audit_rows(tables: Tables) -> tuple[dict[int, list[dict[str, Any]]], Mapping[str, str]]:
    """The audit records in the tables, by bucket, in order; and the last one that was copied of each bucket.

    Raises TableError.
    """
    table = tables.opened(AUDIT)
    if table is None:
        return {}, {}
    rows: list[tuple[int, tuple[int, int], str]] = []
    state, stored = table.snapshot()
    files = table.place.files()
    for file in stored:
        with table_errors(table.place):
            read = pq.read_table(file.path, columns=["bucket", "id", "record"], filesystem=files)
        rows += [(row["bucket"], audit_order(row["id"]), row["record"]) for row in read.to_pylist()]
    found = {
        bucket: [json.loads(record) for _, _, record in of_bucket]
        for bucket, of_bucket in itertools.groupby(sorted(rows), key=itemgetter(0))
    }
    return found, state.offsets


def audit_records(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> AuditRecords:
    """The audit records in the tables."""
    kept = AuditRecords()
    for bucket, of_bucket in rows.items():
        kept.add(bucket, of_bucket)
    kept.buckets = {log: bucket for bucket, audit in kept.audits.items() for log in audit.logs}
    return kept


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
