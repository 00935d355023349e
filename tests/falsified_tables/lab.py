"""Tables as offloads leave them, the brokers that witnessed the offloads, and tools to falsify the tables.

Everything is on a local disk and in this process: no broker, no Java.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from onewriter_core.audit.findings import Finding
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.witnesses import Witness, WitnessPost, extended
from onewriter_pipeline.audit.audit import Audit, different, missing_between
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.audit.witnessed import KnownToBrokers, observe_brokers
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.brokers.segments import Segment, Segments
from onewriter_pipeline.errors import PipelineError
from onewriter_pipeline.jobs.offload_audit import audit_row, copied_audit
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import arrow_schema
from onewriter_pipeline.tables.digest import row_hashes, shown, total
from onewriter_pipeline.tables.files import FileWriter, write_rows
from onewriter_pipeline.tables.layout import (
    AUDIT,
    MESSAGES,
    SEGMENTS,
    Layout,
    SegmentRow,
    folder_of,
)
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.witnesses import WitnessWriter

ORDERS: Final = "persistent://public/default/orders"
PAYMENTS: Final = "persistent://public/default/payments"
ROWS: Final = 12
DAY: Final = datetime(2026, 1, 2, tzinfo=UTC)

COPIED: Final = ((ORDERS, 5), (PAYMENTS, 4), (ORDERS, 7), (PAYMENTS, 6), (ORDERS, 8))
"""The ledgers in the tables; each was copied by an offload of its own, in this order."""

CURRENT: Final = {ORDERS: 9, PAYMENTS: 11}
"""The ledgers that are still written to, and are not in the tables."""

HOLDERS: Final = {4: "dora", 5: "alice", 6: "emil", 7: "bob", 8: "carol", 9: "alice", 11: "dora"}

Change = Callable[[pa.Table], pa.Table]
Falsify = Callable[["Lab"], None]


def batch_of(log: str, ledger: int) -> pa.RecordBatch:
    """The messages of a ledger."""
    producer = HOLDERS[ledger]
    return pa.RecordBatch.from_pylist(
        [
            {
                "value": b"%s %04d" % (producer.encode(), entry),
                "__key": b"key %d" % (entry % 3),
                "__topic": log,
                "__publishTime": DAY.replace(second=entry),
                "__epoch": ledger,
                "__ledgerId": ledger,
                "__entryId": entry,
                "__batchIndex": -1,
                "__producerName": producer,
                "__sequenceId": entry,
                "__messageProperties": [("n", str(entry))],
            }
            for entry in range(1, 1 + ROWS)
        ],
        arrow_schema(),
    )


def digest_of(messages: pa.Table | pa.RecordBatch) -> str:
    """The digest of some messages."""
    found = 0
    table = pa.Table.from_batches([messages]) if isinstance(messages, pa.RecordBatch) else messages
    for batch in table.to_batches():
        found += total(row_hashes(batch, MESSAGES.columns))
    return shown(found % (1 << 64))


def row_of(log: str, ledger: int, batch: int) -> SegmentRow:
    """What an offload records of a ledger."""
    return SegmentRow(
        topic=log,
        ledger=ledger,
        epoch=ledger,
        producer=HOLDERS[ledger],
        subject=f"{HOLDERS[ledger]}@example",
        cause="grant",
        mode="exclusive",
        first=1,
        end=1 + ROWS,
        entries=ROWS,
        messages=ROWS,
        rows=ROWS,
        bytes=ROWS * 20,
        oldest_ms=round(DAY.timestamp() * 1000),
        newest_ms=round(DAY.timestamp() * 1000) + 9_000,
        digest=digest_of(batch_of(log, ledger)),
        chain=f"{ledger:032x}",
        publishes=(),
        batch=batch,
    )


def segment_of(ledger: int, *, is_open: bool) -> Segment:
    """The same ledger in the log."""
    return Segment(
        ledger=ledger,
        epoch=ledger,
        producer=HOLDERS[ledger],
        subject=f"{HOLDERS[ledger]}@example",
        cause="grant",
        mode="exclusive",
        is_open=is_open,
        is_whole=True,
        first=Position(ledger, 1),
        last=Position(ledger, ROWS),
        entries=ROWS,
        messages=ROWS,
        bytes=ROWS * 20,
        blocks=1,
        oldest_ms=round(DAY.timestamp() * 1000),
        newest_ms=round(DAY.timestamp() * 1000) + 9_000,
        chain=f"{ledger:032x}",
        block_runs=(),
    )


def ledgers_of(log: str) -> list[int]:
    """The ledgers of a log that are in the tables."""
    return [ledger for each, ledger in COPIED if each == log]


def grants() -> list[dict[str, Any]]:
    """The audit of the brokers, oldest first."""
    found = []
    for ledger in sorted(HOLDERS):
        log = next((each for each, own in COPIED if own == ledger), None)
        log = log or next(each for each, own in CURRENT.items() if own == ledger)
        before = max((each for each in ledgers_of(log) if each < ledger), default=0)
        found.append(
            {
                "id": f"{ledger}-0",
                "kind": "grant",
                "topic": log,
                "partitions": "",
                "ledger": ledger,
                "epoch": ledger,
                "oldEpoch": before,
                "broker": "b",
                "incarnation": "i",
                "timeMs": ledger,
                "producer": HOLDERS[ledger],
                "subject": f"{HOLDERS[ledger]}@example",
                "leaderlessMs": 12,
                "previous": {"-1": [f"{before}-{ROWS}", ROWS, 9]} if before else {},
            }
        )
    return found


class Brokers(Broker):
    """Brokers that keep witnesses as real ones do, before or after the logs were trimmed and their audit was cut."""

    def __init__(self) -> None:
        self.witnesses: dict[str, Witness] = {}
        self.is_trimmed = False
        self.audit_is_cut = False

    def segments(
        self, log: str, after: Position = EARLIEST, *, witnesses: bool = False
    ) -> Segments:
        """Every ledger, or after the trim the current one."""
        del after, witnesses
        copied = [] if self.is_trimmed else ledgers_of(log)
        current = CURRENT[log]
        segments = [segment_of(each, is_open=each == current) for each in [*copied, current]]
        first = Position(segments[0].ledger, 0)
        kept = self.witnesses.get(log)
        known = () if kept is None else (kept,)
        return Segments(
            log, current, current, first, segments[-1].end, tuple(segments), True, known
        )

    def add_to_witness(self, log: str, post: WitnessPost) -> Witness:
        """See the broker's ``add_to_witness``."""
        self.witnesses[log] = extended(self.witnesses.get(log), post)
        return self.witnesses[log]

    def buckets(self) -> int:
        """All topics are in one bucket."""
        return 1

    def audit(self, bucket: int, after: str = "") -> Iterator[dict[str, Any]]:
        """The audit, or its newest records."""
        del bucket, after
        yield from grants()[-2:] if self.audit_is_cut else grants()


class Stage(Enum):
    """With what the tables are compared."""

    ALONE = "the tables alone"
    WHOLE = "before a trim"
    TRIMMED = "after a trim"
    CUT = "after a trim, and after the brokers' audit was cut"


@dataclass
class Lab:
    """The tables below a folder, and the brokers."""

    root: Path
    brokers: Brokers = field(default_factory=Brokers)

    @property
    def tables(self) -> Tables:
        """The tables, opened again."""
        return Tables(str(self.root))

    def copy(self, root: Path) -> Lab:
        """The same tables in another folder."""
        shutil.copytree(self.root, root)
        brokers = Brokers()
        brokers.witnesses = dict(self.brokers.witnesses)
        return Lab(root, brokers)

    # -------------------------------------------------------- offload and verify

    def offload(self) -> None:
        """Copy all ledgers, one with each run, and the audit in two commits."""
        tables = self.tables
        messages = tables.made(MESSAGES)
        for number, (log, ledger) in enumerate(COPIED):
            state = messages.state()
            writer = WitnessWriter(self.brokers, tables, messages)
            writer.begin(self.brokers.segments(log), state)
            partition = {"topic": folder_of(log), "date": "2026-01-02"}
            file = FileWriter(messages.place, partition, MESSAGES.columns)
            file.write(batch_of(log, ledger))
            row = row_of(log, ledger, number)
            offsets = {**state.offsets, log: f"{ledger}:{1 + ROWS}"}
            messages.commit(state, [file.close()], offsets, [row.as_list()])
            writer.add(log, state.offsets.get(log), [row], number)
            tables.catch_up()
        audit = tables.made(AUDIT)
        records = [audit_row(0, each) for each in grants()[:-2]]
        for part in (records[:3], records[3:]):
            file_of_part = write_rows(audit.place, AUDIT.columns, part)
            audit.commit(audit.state(), [file_of_part], {"0": part[-1]["id"]})
            writer = WitnessWriter(self.brokers, tables, messages)
            for log in CURRENT:
                writer.begin(self.brokers.segments(log), messages.state())
            writer.add_audit(copied_audit(tables, CURRENT))

    def found(self, stage: Stage) -> list[str]:
        """The predicates of what is found: sorted, without repeats. ``error``: a table cannot be read."""
        return sorted({each.predicate for each in self.findings(stage)})

    def findings(self, stage: Stage) -> list[Finding]:
        """What ``verify`` finds in the tables, or ``audit --from table --no-witnesses``."""
        asks_brokers = stage is not Stage.ALONE
        self.brokers.is_trimmed = stage in {Stage.TRIMMED, Stage.CUT}
        self.brokers.audit_is_cut = stage is Stage.CUT
        logs, tables = [ORDERS, PAYMENTS], self.tables
        known = observe_brokers(self.brokers, logs) if asks_brokers else KnownToBrokers()
        job = Audit(
            Access("http://127.0.0.1:1"),
            Selection(topics=tuple(logs)),
            tables,
            keeps_rows=asks_brokers,
        )
        try:
            report = job.table(None, known if asks_brokers else None)
            found = list(report.findings)
            if asks_brokers:
                found += different(dict(known.held), tables.segments(logs))
                records = AuditRecords(buckets=dict.fromkeys(logs, 0))
                records.add(0, known.records[0])
                offsets = tables.existing(MESSAGES).state().offsets
                for log in logs:
                    end, first = position_of(offsets[log]), known.held[log].first
                    about = records.of(log).logs[log]
                    found += missing_between(log, about, end, first)
        except PipelineError as error:
            return [Finding("", "error", (), str(error))]
        return found

    # -------------------------------------------------------- tools

    def folder(self, layout: Layout) -> Path:
        """The folder of a table."""
        return self.root / layout.name

    def commits(self, layout: Layout) -> list[Path]:
        """The commits of a table, oldest first."""
        return sorted((self.folder(layout) / "_delta_log").glob("*.json"))

    def path(self, log: str, ledger: int) -> Path:
        """The file of a ledger, by the name that its commit gave it."""
        number = COPIED.index((log, ledger))
        for line in self.commits(MESSAGES)[1 + number].read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                return self.folder(MESSAGES) / str(action["add"]["path"])
        raise AssertionError(f"commit {number} adds no file")

    def edit_commit(self, path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        """Rewrite the actions of a commit; ``change`` returns the new action, or None to leave it out."""
        changed = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("\n".join(json.dumps(each) for each in changed if each) + "\n")

    def rewrite(self, log: str, ledger: int, change: Change, depth: int = 0) -> None:
        """Rewrite the file of a ledger. ``depth`` 1: with its commit; 2: also with the digests of the tables."""
        path = self.path(log, ledger)
        content = change(pq.ParquetFile(path).read())
        self.put(path, content)
        if depth >= 1:
            self.describe(log, ledger)
        if depth >= 2:
            rows = content.num_rows
            changed = {"rows": rows, "messages": rows, "digest": digest_of(content)}
            self.edit_rows(lambda row: replace(row, **changed), log, ledger)

    def put(self, path: Path, content: pa.Table) -> None:
        """Write a file of a table."""
        pq.write_table(
            content, path, compression="zstd", coerce_timestamps="us", store_schema=False
        )

    def describe(self, log: str, ledger: int) -> None:
        """Let the commit of a file describe the file as it is."""
        path = self.path(log, ledger)
        content = pq.ParquetFile(path).read()

        def change(action: dict[str, Any]) -> dict[str, Any]:
            if "add" in action:
                stats = json.loads(action["add"]["stats"])
                stats["numRecords"] = content.num_rows
                for name in ("__ledgerId", "__entryId"):
                    values = content[name].to_pylist() or [0]
                    stats["minValues"][name], stats["maxValues"][name] = min(values), max(values)
                times = content["__publishTime"].to_pylist() or [DAY]
                stats["minValues"]["__publishTime"] = f"{min(times):%Y-%m-%dT%H:%M:%S}.000Z"
                stats["maxValues"]["__publishTime"] = f"{max(times):%Y-%m-%dT%H:%M:%S}.999Z"
                action["add"]["stats"] = json.dumps(stats)
                action["add"]["size"] = path.stat().st_size
            return action

        self.edit_commit(self.commits(MESSAGES)[1 + COPIED.index((log, ledger))], change)

    def edit_rows(
        self,
        change: Callable[[SegmentRow], SegmentRow | None],
        log: str | None = None,
        ledger: int | None = None,
        *,
        in_commits: bool = True,
    ) -> None:
        """Rewrite rows of ``segments``, all or those of a ledger; and in the commits of ``messages``."""

        def changed(row: SegmentRow) -> SegmentRow | None:
            is_meant = (log is None or row.topic == log) and (
                ledger is None or row.ledger == ledger
            )
            return change(row) if is_meant else row

        def ranges(rows: Sequence[SegmentRow]) -> list[SegmentRow]:
            return [each for each in map(changed, rows) if each is not None]

        for path in self.folder(SEGMENTS).glob("*.parquet"):
            rows = [SegmentRow.of_row(each) for each in pq.ParquetFile(path).read().to_pylist()]
            values = [each.as_row() for each in ranges(rows)]
            self.put(path, pa.Table.from_pylist(values, SEGMENTS.columns))
        for path in self.commits(MESSAGES) if in_commits else ():

            def edit(action: dict[str, Any]) -> dict[str, Any]:
                info = action.get("commitInfo", {})
                if "onewriter.coverage" in info:
                    coverage = json.loads(info["onewriter.coverage"])
                    batch = coverage["batch"]
                    rows = [SegmentRow.of_list(each, batch) for each in coverage["ranges"]]
                    coverage["ranges"] = [each.as_list() for each in ranges(rows)]
                    info["onewriter.coverage"] = json.dumps(coverage)
                return action

            self.edit_commit(path, edit)

    def edit_audit(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Rewrite the audit records of the table; ``change`` returns None to leave a record out."""
        for path in self.folder(AUDIT).glob("*.parquet"):
            records = [
                json.loads(each) for each in pq.ParquetFile(path).read()["record"].to_pylist()
            ]
            kept = [each for each in map(change, records) if each is not None]
            self.put(
                path, pa.Table.from_pylist([audit_row(0, each) for each in kept], AUDIT.columns)
            )

    def remove_newest(self, layout: Layout, count: int = 1) -> None:
        """Remove the newest commits of a table."""
        for path in self.commits(layout)[-count:]:
            path.unlink()


def offloaded(root: Path) -> Lab:
    """Tables without a falsification."""
    lab = Lab(root)
    lab.offload()
    return lab
