"""The brokers' audit as rows, what tables are found to hold, and how balance is counted; without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onewriter_pipeline.auditing import facts, kept
from onewriter_pipeline.auditing.judging import Finding
from onewriter_pipeline.auditing.records import RECORDS, Records
from onewriter_pipeline.errors import TableError
from onewriter_pipeline.jobs.audit import Report
from onewriter_pipeline.jobs.report import write
from onewriter_pipeline.reporting.balance import balance_of
from onewriter_pipeline.schema import arrow_schema
from onewriter_pipeline.table_files import Place

LOG = "persistent://public/default/orders"


def fence(**more: Any) -> dict[str, Any]:
    known = {"id": "7-0", "kind": "grant", "topic": LOG, "partitions": "", "ledger": 7, "epoch": 7}
    said = {
        "oldEpoch": 5,
        "broker": "b",
        "timeMs": 9,
        "producer": "a",
        "previous": {"-1": ["5-9", 9, 90]},
    }
    return known | said | more


def test_a_fence_is_a_row_for_each_log() -> None:
    records = Records()
    records.add(3, [fence(partitions="0,1", previous={"0": ["5-9", 9, 90]})])
    first, second = records.rows
    assert (first["log"], first["is_first"], first["last_entry"]) == (f"{LOG}-partition-0", True, 9)
    assert (second["log"], second["is_first"], second["last_entry"]) == (
        *(f"{LOG}-partition-1", False),
        None,
    )
    assert (first["bucket"], first["slots"], first["changes_hands"]) == (3, 2, True)
    assert records.table().schema == RECORDS


def test_other_kinds_and_what_cannot_be_read() -> None:
    records = Records()
    loss = {"id": "8-0", "kind": "loss", "log": LOG, "after": "5-3", "last": "5-9"}
    ready = {"id": "9-0", "kind": "ready", "topic": LOG, "ledger": 7, "leaderlessMs": 12}
    resume = {"id": "9-1", "kind": "resume", "topic": LOG, "ledger": 7, "epoch": 7}
    records.add(
        0, [loss, ready, resume, {"id": "9-2", "kind": "own"}, fence(id="9-3", previous=[])]
    )
    assert [row["kind"] for row in records.rows] == ["loss", "ready", "resumed"]
    assert (records.rows[0]["after_entry"], records.rows[1]["leaderless_ms"]) == (3, 12)
    assert (records.unreadable, records.count) == (["9-3"], 5)


@pytest.mark.parametrize(
    ("partitions", "slots", "fits"),
    [("", None, True), ("1", None, False), ("0,1", [0], True), ("0", [0, 1], False)],
)
def test_whether_the_next_waiter_could_have_had_the_same(
    partitions: str, slots: list[int] | None, fits: bool
) -> None:
    waiter = {"priority": 1, "arrival": 2} | ({} if slots is None else {"slots": slots})
    records = Records()
    records.add(0, [fence(partitions=partitions, arrival=1, nextWaiter=waiter, previous={})])
    assert records.rows[0]["waiting"] == {"priority": 1, "arrival": 2, "load": None, "fits": fits}


# ------------------------------------------------------------ tables


def stored(folder: Path, rows: list[dict[str, Any]]) -> kept.KeptFile:
    schema = arrow_schema()
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, folder / "messages.parquet")
    return kept.KeptFile(Place(str(folder)), "messages.parquet", LOG)


def message(entry: int, sequence: int, index: int = -1, ledger: int = 5) -> dict[str, Any]:
    return {
        "__ledgerId": ledger,
        "__entryId": entry,
        "__batchIndex": index,
        "__producerName": "a",
        "__sequenceId": sequence,
        "__publishTime": datetime(2026, 1, 1, tzinfo=UTC),
    }


def rows_of(file: kept.KeptFile) -> list[dict[str, Any]]:
    return [row for batch in kept.observe_file(file) for row in batch.to_pylist()]


def test_a_file_tells_its_runs_whatever_its_order(tmp_path: Path) -> None:
    rows = [message(entry, entry) for entry in (7, 3, 1, 2)] + [message(8, 8, 1), message(8, 8, 0)]
    found = rows_of(stored(tmp_path, rows))
    runs = [
        (row["first"], row["last"], row["messages"]) for row in found if row["kind"] == facts.KEPT
    ]
    assert runs == [(1, 3, 3), (7, 8, 3)]
    (writer,) = [row for row in found if row["kind"] == facts.WRITER]
    assert (writer["sequence"], writer["last_sequence"], writer["entries"]) == (1, 8, 5)
    assert {row["kind"] for row in found} == {facts.KEPT, facts.WRITER}


def test_a_message_that_is_there_twice_and_a_number_that_falls(tmp_path: Path) -> None:
    found = rows_of(stored(tmp_path, [message(1, 4), message(1, 4), message(2, 3)]))
    kinds = [row["kind"] for row in found]
    assert (kinds.count(facts.FAULT), kinds.count(facts.FALL)) == (1, 1)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"gone\.parquet cannot be read"):
        list(kept.observe_file(kept.KeptFile(Place(str(tmp_path)), "gone.parquet", LOG)))


def segment(ledger: int, first: int, end: int) -> dict[str, Any]:
    known = {"topic": LOG, "ledger": ledger, "epoch": ledger, "producer": "a", "subject": None}
    numbers = {"entries": end - first, "messages": end - first, "rows": end - first, "bytes": 9}
    said = {"mode": "exclusive", "cause": "grant", "oldest": None, "newest": None}
    return known | numbers | said | {"first": first, "end": end}


def test_rows_of_the_files_are_compared_with_what_was_offloaded() -> None:
    rows = [segment(5, 1, 11), segment(7, 1, 6), segment(7, 6, 11)]
    assert list(kept.count_faults(rows, {(LOG, 5): (10, 1), (LOG, 7): (10, 1)})) == []
    (fault,) = kept.count_faults(rows, {(LOG, 5): (10, 1), (LOG, 7): (9, 1)})
    assert (fault["predicate"], fault["uuid"]) == ("S5", "7-1")
    assert list(kept.count_faults(rows, {(LOG, 7): (4, 7)})) == []  # its front was dropped
    assert len(list(kept.count_faults(rows, {(LOG, 5): (10, 1)}))) == 1  # its end was not


def test_segments_are_markers_and_runs_and_nothing_is_missed_in_front() -> None:
    found = list(kept.segment_facts([segment(5, 4, 11), segment(7, 1, 6)]))
    assert [(row["kind"], row["ledger"], row["first"], row["last"]) for row in found] == [
        *(("marker", 5, 0, 3), ("run", 5, 4, 10)),
        *(("marker", 7, 0, 0), ("run", 7, 1, 5)),
    ]
    ordered = kept.in_order(pa.Table.from_pylist(found[::-1], facts.FACTS)).to_pylist()
    assert [row["ordinal"] for row in ordered] == [0, 1, 2, 3]
    assert [row["kind"] for row in ordered] == ["marker", "run", "marker", "run"]


# ------------------------------------------------------------ reports


def tenure(topic: str, host: str, since: int, until: int | None) -> dict[str, Any]:
    return {
        "topic": topic,
        "producer": host,
        "host": host,
        "subject": "",
        "epoch": since,
        "since_ms": since,
        "until_ms": until,
        "cause": "ConnectionLost",
        "ended_by": None,
        "leaderless_ms": 7,
    }


TENURES = [tenure("t", "a", 10, 20), tenure("t", "b", 20, None), tenure("u", "a", 15, None)]


def test_balance_counts_what_each_host_leads() -> None:
    found = balance_of(TENURES)
    assert found.times_ms == (10, 15, 20)
    assert found.led == {"a": (1, 2, 1), "b": (0, 0, 1)}
    assert found.spread == (1, 2, 0)
    assert balance_of([]).times_ms == ()


@pytest.mark.parametrize("tenures", [TENURES, []], ids=["some", "none"])
def test_a_report_is_one_page_without_anything_from_elsewhere(
    tmp_path: Path, tenures: list[dict[str, Any]]
) -> None:
    holders = [{"producer": "a", "bytes": 10, "messages": 3, "epochs": 2}] if tenures else []
    report = Report("live", timeline=tenures, holders=holders)
    report.findings = [Finding("t<script>", "S2", ("audit 1-0",), "two & two")]
    paths = write(report, tmp_path / "report", datetime(2026, 1, 1, tzinfo=UTC))
    names = {"report.html", "timeline.png", "leaderless.png", "load.png", "balance.png"}
    assert {path.name for path in paths} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])
    text = paths[0].read_text()
    assert "1 violations" in text
    assert "t&lt;script&gt;" in text
    assert "two &amp; two" in text
    assert text.count("data:image/png;base64,") == 4
    assert "http" not in text
