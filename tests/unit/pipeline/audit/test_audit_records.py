"""Audit records, facts about tables, the history of holders, and the balance of hosts. Without a JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onewriter_core.audit.findings import Finding
from onewriter_core.audit.records import FenceRecord, parse_record
from onewriter_core.ids import Position
from onewriter_pipeline.audit import facts, history, live, table_files, table_segments
from onewriter_pipeline.audit.audit import BOTH, LIVE, TABLE, Audit, AuditReport, judge
from onewriter_pipeline.audit.audit_records import AuditRecords
from onewriter_pipeline.audit.tasks import Repeat, gathered, repeated
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Invalid, TableError, Trimmed
from onewriter_pipeline.jobs.offload_audit import audit_row
from onewriter_pipeline.jobs.report import write
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.report.balance import balance_of
from onewriter_pipeline.schema import arrow_schema
from onewriter_pipeline.tables.files import Place, write_rows
from onewriter_pipeline.tables.layout import AUDIT, SegmentRow
from onewriter_pipeline.tables.publishes import PublishRun
from onewriter_pipeline.tables.tables import Tables

LOG = "persistent://public/default/orders"


def fence(**more: Any) -> dict[str, Any]:
    known = {"id": "7-0", "kind": "grant", "topic": LOG, "partitions": "", "ledger": 7, "epoch": 7}
    answer = {
        "oldEpoch": 5,
        "broker": "b",
        "incarnation": "i",
        "timeMs": 9,
        "producer": "a",
        "previous": {"-1": ["5-9", 9, 90]},
    }
    return known | answer | more


def test_records_of_brokers_and_of_the_store_are_read_alike() -> None:
    waiter = {"priority": 1, "arrival": 2, "slots": [0]}
    record = fence(partitions="0,1", arrival=1, load=3, nextWaiter=waiter, pod="p:1", previous={})
    shown = parse_record("7-0", record)
    stored = {
        name: json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in record.items()
        if name not in {"id", "timeMs"}
    }
    assert shown == parse_record("7-0", stored | {"t": "9"})
    assert isinstance(shown, FenceRecord)
    assert (shown.host, shown.time_ms, shown.partitions) == ("p", 9, (0, 1))
    assert shown.next_waiter is not None
    assert shown.next_waiter.partitions == (0,)


def test_other_kinds_and_unreadable_records() -> None:
    kept = AuditRecords()
    loss = {"id": "8-0", "kind": "loss", "log": LOG, "after": "5-3", "last": "5-9"}
    ready = {"id": "9-0", "kind": "ready", "topic": LOG, "ledger": 7, "leaderlessMs": 12}
    resume = {"id": "9-1", "kind": "resume", "topic": LOG, "ledger": 7, "epoch": 7}
    wrong = [fence(id=f"9-{number}", previous=[]) for number in (3, 4)]
    kept.add(0, [loss, ready, resume, {"id": "9-2", "kind": "own"}, *wrong])
    kept.buckets[LOG] = 0
    assert (kept.records, kept.of(LOG).last_id, kept.findings) == (6, "9-4", [])
    assert kept.of(LOG).ready == {(LOG, 7): 12}
    assert [str(each.after) for each in kept.of(LOG).logs[LOG].losses] == ["5-3"]
    first, count = kept.notes()
    assert "audit record 9-3 cannot be read" in first
    assert count == "bucket 0: 2 audit records cannot be read"


# ------------------------------------------------------------ tables


def stored(
    folder: Path, rows: list[dict[str, Any]], *publishes: table_files.Publish
) -> table_files.MessageFile:
    schema = arrow_schema()
    table = pa.Table.from_pylist(rows, schema)
    path = folder / "messages.parquet"
    pq.write_table(table, path)
    place = Place(str(folder))
    return table_files.MessageFile(
        place, path.name, LOG, path.stat().st_size, len(rows), publishes=publishes
    )


def message(
    entry: int, sequence: int, index: int = -1, ledger: int = 5, producer: str = "a"
) -> dict[str, Any]:
    return {
        "__ledgerId": ledger,
        "__entryId": entry,
        "__batchIndex": index,
        "__producerName": producer,
        "__sequenceId": sequence,
        "__publishTime": datetime(2026, 1, 1, tzinfo=UTC),
    }


def rows_of(file: table_files.MessageFile) -> list[dict[str, Any]]:
    return [row for batch in table_files.observe_file(file) for row in batch.to_pylist()]


def test_runs_of_a_file_do_not_depend_on_its_order(tmp_path: Path) -> None:
    rows = [message(entry, entry) for entry in (7, 3, 1, 2)] + [message(8, 8, 1), message(8, 8, 0)]
    found = rows_of(stored(tmp_path, rows))
    runs = [
        (row["first"], row["last"], row["messages"]) for row in found if row["kind"] == facts.KEPT
    ]
    assert runs == [(1, 3, 3), (7, 8, 3)]
    (writer,) = [row for row in found if row["kind"] == facts.WRITER]
    assert (writer["sequence"], writer["last_sequence"], writer["entries"]) == (1, 8, 5)
    assert {row["kind"] for row in found} == {facts.KEPT, facts.WRITER}


def test_duplicate_messages_and_falling_numbers_are_found(tmp_path: Path) -> None:
    found = rows_of(stored(tmp_path, [message(1, 4), message(1, 4), message(2, 3)]))
    kinds = [row["kind"] for row in found]
    assert (kinds.count(facts.FAULT), kinds.count(facts.FALL)) == (1, 1)


def test_atomic_publishes_do_not_count_as_entries_of_the_holder(tmp_path: Path) -> None:
    other = [message(entry, 9, producer="app") for entry in (2, 3)]
    rows = [message(1, 1), *other, message(4, 2), message(2, 5, ledger=6, producer="app")]
    publish = table_files.Publish(5, 2, 4, "app", "app/9")
    found = rows_of(stored(tmp_path, rows, publish))
    writers = [row for row in found if row["kind"] == facts.WRITER]
    assert [(row["ledger"], row["producer"], row["entries"]) for row in writers] == [
        *((5, "a", 2), (6, "app", 1))
    ]
    assert {row["kind"] for row in found} == {facts.KEPT, facts.WRITER}
    unknown = table_files.Publish(6, 1, 3, None, "")
    found = rows_of(stored(tmp_path, rows, publish, unknown))
    assert [row["ledger"] for row in found if row["kind"] == facts.WRITER] == [5]


def test_foreign_messages_within_a_publish_are_reported(tmp_path: Path) -> None:
    rows = [message(1, 9, producer="app"), message(2, 9, producer="mallory")]
    publish = table_files.Publish(5, 1, 3, "app", "app/9")
    (fault,) = (
        row for row in rows_of(stored(tmp_path, rows, publish)) if row["kind"] == facts.FAULT
    )
    assert (fault["predicate"], fault["place"]) == ("S15", "5-2")
    assert fault["sentence"] == "an entry among those of publish app/9 is not its own"


def test_missing_and_unreadable_files_are_faults(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    (gone,) = rows_of(table_files.MessageFile(place, "gone.parquet", LOG))
    assert (gone["predicate"], gone["sentence"]) == ("S7", "the file gone.parquet is gone")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and nothing behind it" * 9)
    changed, torn = rows_of(table_files.MessageFile(place, "torn.parquet", LOG, 9))
    assert "has 234 bytes, and had 9 when it was committed" in changed["sentence"]
    assert "torn.parquet cannot be read as it was written: Parquet magic" in torn["sentence"]
    assert "\n" not in torn["sentence"]


def test_missing_file_of_the_audit_table_is_a_table_error(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    assert table_files.audit_records(table_files.audit_rows(tables)[0]).records == 0
    table = tables.made(AUDIT)
    file = write_rows(table.place, AUDIT.columns, [audit_row(0, fence())])
    table.commit(table.state(), [file], {"0": "7-0"})
    assert table_files.audit_records(table_files.audit_rows(tables)[0]).buckets == {LOG: 0}
    (tmp_path / "audit" / file.path).unlink()
    with pytest.raises(TableError, match=f"{tmp_path}/audit: "):
        table_files.audit_records(table_files.audit_rows(tables)[0])


def segment(ledger: int, first: int, end: int, *publishes: PublishRun) -> SegmentRow:
    return SegmentRow(
        topic=LOG,
        ledger=ledger,
        epoch=ledger,
        producer="a",
        first=first,
        end=end,
        entries=end - first,
        messages=end - first,
        rows=end - first,
        bytes=9,
        digest="00",
        publishes=publishes,
        batch=0,
    )


def test_rows_of_the_files_are_compared_with_what_was_offloaded() -> None:
    rows = [segment(5, 1, 11), segment(7, 1, 6), segment(7, 6, 11)]
    assert list(table_segments.count_faults(rows, {(LOG, 5): (10, 1), (LOG, 7): (10, 1)})) == []
    (fault,) = table_segments.count_faults(rows, {(LOG, 5): (10, 1), (LOG, 7): (9, 1)})
    assert (fault["predicate"], fault["place"]) == ("S5", "7-1")
    assert (
        list(table_segments.count_faults(rows, {(LOG, 7): (4, 7)})) == []
    )  # its beginning was dropped
    assert (
        len(list(table_segments.count_faults(rows, {(LOG, 5): (10, 1)}))) == 1
    )  # its end was not dropped


def test_segments_become_markers_and_runs_without_a_missing_beginning() -> None:
    found = list(table_segments.segment_facts([segment(5, 4, 11), segment(7, 1, 6)]))
    assert [(row["kind"], row["ledger"], row["first"], row["last"]) for row in found] == [
        *(("marker", 5, 0, 3), ("run", 5, 4, 10)),
        *(("marker", 7, 0, 0), ("run", 7, 1, 5)),
    ]
    lost = replace(segment(5, 0, 0), lost="0:1")  # not a part of what was offloaded
    again = table_segments.segment_facts([lost, segment(5, 4, 11), segment(7, 1, 6)])
    assert list(again) == found
    ordered = table_segments.in_order(pa.Table.from_pylist(found[::-1], facts.FACTS)).to_pylist()
    assert [row["ordinal"] for row in ordered] == [0, 1, 2, 3]
    assert [row["kind"] for row in ordered] == ["marker", "run", "marker", "run"]


def test_publishes_of_segments_are_combined_and_incomplete_ones_reported() -> None:
    begun, ended = (
        PublishRun("app", 1, 4, 3, 11, is_open=True),
        PublishRun("app", 4, 6, 11, 15, False),
    )
    rows = [segment(5, 1, 11, begun), segment(5, 11, 15, ended), segment(7, 1, 6)]
    end = {LOG: Position(7, 6)}
    assert table_segments.publishes_of(rows)[LOG] == [
        table_files.Publish(5, 3, 15, "app", "app/1 to 6")
    ]
    (publish,) = table_segments.publish_facts(rows, end)
    assert (publish["first"], publish["sequence"], publish["last_sequence"]) == (3, 1, 6)
    assert (
        len(list(table_segments.publish_facts(rows[:1], {LOG: Position(5, 11)}))) == 1
    )  # it may continue
    _, fault = table_segments.publish_facts([rows[0], rows[2]], end)
    assert (fault["predicate"], fault["place"]) == ("S15", "5-3,5-11")
    assert fault["sentence"] == "only a part of publish app/4 is before 5-11"


def test_unknown_publishes_are_noted() -> None:
    rows = [replace(segment(5, 1, 11), publishes=None)]
    assert table_segments.publishes_of(rows)[LOG] == [table_files.Publish(5, 1, 11, None, "")]
    (note,) = table_segments.unknown_publishes(rows)
    assert "5-1 to 5-10" in note


# ------------------------------------------------------------ what is judged


def test_unreadable_entries_are_noted_by_log() -> None:
    other = {"log": f"{LOG}-2", "kind": facts.UNREAD, "entries": 3}
    own = {"log": LOG, "kind": facts.UNREAD, "entries": 1}
    observed = pa.Table.from_pylist([own, other, own], facts.FACTS)
    report = AuditReport(LIVE)
    judge(report, [LOG, f"{LOG}-2"], observed, AuditRecords())
    sentence = "entries have metadata that cannot be read: their order was not checked"
    assert report.notes == [f"{LOG}: 2 {sentence}", f"{LOG}-2: 3 {sentence}"]


def test_repeats_count_in_ledgers_without_a_single_holder() -> None:
    held = {"log": LOG, "kind": facts.MARKER, "ledger": 5, "epoch": 5, "producer": "a", "last": 0}
    shared = {"log": LOG, "kind": facts.MARKER, "ordinal": 1, "ledger": 6, "last": 0}
    observed = pa.Table.from_pylist([held, shared], facts.FACTS)
    places = (Position(5, 1), Position(6, 1), Position(6, 10), Position(6, 11))
    report = AuditReport(LIVE)
    judge(report, [LOG], observed, AuditRecords(), [Repeat(LOG, "x", 7, places)])
    assert [(each.predicate, each.where) for each in report.findings] == [
        ("S6", ("6-1", "6-10")),
        ("S6", ("6-1", "6-11")),
    ]
    assert report.findings[0].sentence == "sequence id 7 of x is stored twice"


def test_findings_beyond_the_limit_are_counted() -> None:
    fault = {"log": LOG, "kind": facts.FAULT, "predicate": "S5", "place": "5-1", "sentence": "s"}
    report = AuditReport(LIVE)
    judge(
        report,
        [LOG],
        pa.Table.from_pylist([fault] * 3, facts.FACTS),
        AuditRecords(),
        findings_max=2,
    )
    assert len(report.findings) == 2
    assert report.notes == ["there are more findings than the 2 that are listed"]


def test_messages_of_two_files_are_stored_twice() -> None:
    def kept(first: int, last: int, chunk: int = -1, last_chunk: int = -1) -> dict[str, Any]:
        places = {"first": first, "last": last, "chunk": chunk, "last_chunk": last_chunk}
        return {"log": LOG, "kind": facts.KEPT, "ledger": 5} | places

    apart = pa.Table.from_pylist([kept(4, 9, 2, -1), kept(1, 4, -1, 1)], facts.FACTS)
    assert list(table_files.twice_in(apart)) == []
    again = pa.Table.from_pylist([kept(5, 9), kept(1, 9), kept(10, 11)], facts.FACTS)
    (finding,) = table_files.twice_in(again)
    assert (finding.predicate, finding.where) == ("S5", ("5-5",))


def test_part_with_too_many_holes_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def holes(*_: object) -> Iterator[pa.RecordBatch]:
        yield from ()
        raise Trimmed("gone", Position(5, 7), Position(5, 9))

    monkeypatch.setattr(live, "_observed", holes)
    part = live.LogPart(LOG, 0, Position(5, 1), Position(6, 1), is_first=True, exclusive={})
    (found,) = live.observe(Access("http://127.0.0.1:1"), part)
    fault = found.to_pylist()[-1]
    assert (fault["predicate"], fault["place"]) == ("S5", "5-7")
    assert "were not checked" in fault["sentence"]


def test_an_audit_of_tables_without_a_place_is_refused_immediately() -> None:
    job = Audit(Access("http://127.0.0.1:1"), Selection(topics=("orders",)))
    job.check(LIVE)
    for tier in (TABLE, BOTH):
        with pytest.raises(Invalid, match="--table is missing"):
            job.check(tier)


def test_small_logs_are_observed_in_process_and_errors_keep_their_type() -> None:
    batch = facts.facts_of([{"log": LOG, "kind": facts.RUN}, {"log": LOG, "kind": facts.MARKER}])
    spark = cast("Any", None)
    observed = gathered(spark, lambda count: iter([batch] * count), [1, 2], 9)
    assert (len(observed), observed.schema) == (6, facts.FACTS)
    assert repeated(spark, lambda _: iter([batch]), [1], 9, 1) == []

    def broken(_: int) -> Iterator[pa.RecordBatch]:
        yield batch
        raise TableError("a file is gone")

    with pytest.raises(TableError, match="a file is gone"):
        gathered(spark, broken, [1], 9)


def test_timeline_has_the_grants_of_each_log() -> None:
    kept = AuditRecords(buckets={LOG: 3})
    ready = {"id": "8-0", "kind": "ready", "topic": LOG, "ledger": 8, "leaderlessMs": 12}
    roll = fence(id="7-1", kind="roll", ledger=6, epoch=5, oldEpoch=5)
    grants = [fence(ledger=5, epoch=5, oldEpoch=0), roll, fence(ledger=8, epoch=8, timeMs=20)]
    kept.add(3, [*grants, ready])
    rows = history.timeline(kept, [LOG, "another"])
    assert [(row["epoch"], row["since_ms"], row["until_ms"]) for row in rows] == [
        (5, 9, 20),
        (8, 20, None),
    ]
    assert [row["leaderless_ms"] for row in rows] == [None, 12]
    marker = {"log": LOG, "kind": facts.MARKER, "ledger": 5, "epoch": 5, "producer": "a"}
    run = {"log": LOG, "kind": facts.RUN, "ledger": 5, "entries": 1, "messages": 2, "bytes": 3}
    observed = pa.Table.from_pylist([marker, run, run, run | {"ledger": 9}], facts.FACTS)
    assert history.load(observed) == [
        {
            "topic": LOG,
            "producer": "a",
            "epoch": 5,
            "ledger": 5,
            "entries": 2,
            "messages": 4,
            "bytes": 6,
        }
    ]


def test_periods_without_a_writer_and_load_of_holders_are_summed() -> None:
    rows = [{"cause": "Fenced", "leaderless_ms": each} for each in (1, 3, None, 2)]
    (window,) = history.leaderless(rows)
    assert (window["windows"], window["p50_ms"], window["max_ms"]) == (3, 2.0, 3)
    sizes = {"entries": 1, "messages": 2, "bytes": 3}
    load = [
        {"topic": topic, "epoch": epoch, "producer": producer, **sizes}
        for topic, epoch, producer in [
            ("t", 5, "a"),
            ("t", 5, "a"),
            ("u", 7, "a"),
            ("u", None, "b"),
        ]
    ]
    assert history.holders(load) == [
        {"producer": "a", "topics": 2, "epochs": 2, "entries": 3, "messages": 6, "bytes": 9},
        {"producer": "b", "topics": 1, "epochs": 0, "entries": 1, "messages": 2, "bytes": 3},
    ]


def test_the_extent_of_logs() -> None:
    place = {"log": LOG, "kind": facts.RUN, "ordinal": 2, "ledger": 5, "first": 1, "last": 4}
    marker = {"log": LOG, "kind": facts.MARKER, "ordinal": 1, "ledger": 5, "first": 0, "last": 0}
    observed = pa.Table.from_pylist([place | {"entries": 4, "messages": 9}, marker], facts.FACTS)
    nothing, found = history.extents(observed, [LOG, "another"])
    assert nothing == {
        "topic": "another",
        "first": None,
        "last": None,
        "ledgers": 0,
        "entries": None,
        "messages": None,
    }
    assert found == {
        "topic": LOG,
        "first": "5-0",
        "last": "5-4",
        "ledgers": 1,
        "entries": 4,
        "messages": 9,
    }


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


def test_balance_counts_the_topics_of_each_host() -> None:
    found = balance_of(TENURES)
    assert found.times_ms == (10, 15, 20)
    assert found.led == {"a": (1, 2, 1), "b": (0, 0, 1)}
    assert found.spread == (1, 2, 0)
    assert balance_of([]).times_ms == ()


def test_pictures_do_not_change_the_callers_backend() -> None:
    """``cli.run`` can be called in a notebook, which draws its own pictures with another backend."""
    words = "import matplotlib as m; m.use('svg'); import onewriter_pipeline.report.pictures; "
    done = subprocess.run(
        [sys.executable, "-c", words + "print(m.get_backend())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "svg"


@pytest.mark.parametrize("tenures", [TENURES, []], ids=["some", "none"])
def test_report_is_one_self_contained_page(tmp_path: Path, tenures: list[dict[str, Any]]) -> None:
    holders = [{"producer": "a", "bytes": 10, "messages": 3, "epochs": 2}] if tenures else []
    report = AuditReport("live", timeline=tenures, holders=holders)
    report.findings = [Finding("t<script>", "S2", ("audit 1-0",), "two & two")]
    paths = write(report, tmp_path / "report", datetime(2026, 1, 1, tzinfo=UTC))
    names = {"report.html", "timeline.png", "leaderless.png", "load.png", "balance.png"}
    assert {path.name for path in paths} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])
    text = paths[0].read_text()
    assert "1 violations" in text
    assert "<td>S2</td><td>t&lt;script&gt;</td><td>audit 1-0</td><td>two &amp; two</td>" in text
    assert text.count("data:image/png;base64,") == 4
    assert "http" not in text
