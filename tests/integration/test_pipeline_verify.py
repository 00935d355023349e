"""``onewriter-pipeline verify`` with real brokers: tables of offloads, before and after a trim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.offloading import (
    EXCLUSIVE,
    Fill,
    filled,
    numbered,
    offload,
    stored,
    trim,
)

from onewriter_pipeline import cli
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Contradicted
from onewriter_pipeline.jobs.offload import Step
from onewriter_pipeline.schema import DELTA, PARQUET
from onewriter_pipeline.tables.digest import row_hashes, shown, total
from onewriter_pipeline.tables.layout import AUDIT, MESSAGES, SEGMENTS, SegmentRow
from onewriter_pipeline.tables.tables import Tables


def verify(
    access: Access, tables: Tables, topic: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and result of the command."""
    where = [f"--admin-url={access.url}", f"--table={tables.place.location}", f"--topic={topic}"]
    capsys.readouterr()
    code = cli.run(["verify", *where, "-o", "json", *more])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else {"error": out.err}


def findings(document: dict[str, Any]) -> set[str]:
    return {each["predicate"] for audit in document["audits"] for each in audit["findings"]}


@pytest.mark.parametrize("kind", [DELTA, PARQUET])
def test_tables_hold_before_and_after_a_trim(
    access: Access,
    topic: str,
    fill: Fill,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    tables = Tables(str(tmp_path), kind=kind)
    filled(access, topic, fill, tables)
    offload(access, tables, topic, with_audit=True)
    for _ in range(2):
        code, found = verify(access, tables, topic, capsys, f"--table-format={kind}")
        assert (code, found["holds"]) == (0, True)
        live, table = found["audits"]
        assert (table["witnessed"], table["notes"]) == (True, [])
        assert any("newest blocks of a log" in each for each in live["notDetected"])
        assert any("64-bit digest" in each for each in table["notDetected"])
        assert trim(access, tables, topic).differences == []


def changed_with_digests(tables: Tables) -> None:
    """Change a value of the newest file, and the digest in segments."""
    table = tables.existing(MESSAGES)
    file = max(table.files(), key=lambda each: each.bounds["__ledgerId"])
    path = Path(table.place.location) / file.path
    content = pq.ParquetFile(path).read()
    values = content["value"].to_pylist()
    at = content.schema.get_field_index("value")
    forged = pa.array([values[0] + b"!", *values[1:]], pa.binary())
    content = content.set_column(at, content.field(at), forged)
    pq.write_table(content, path, compression="zstd", coerce_timestamps="us", store_schema=False)
    ledger = content["__ledgerId"][0].as_py()
    digest = sum(total(row_hashes(each, MESSAGES.columns)) for each in content.to_batches())
    described = tables.existing(SEGMENTS)
    for each in described.files():
        place = Path(described.place.location) / each.path
        rows = [SegmentRow.of_row(row) for row in pq.ParquetFile(place).read().to_pylist()]
        rows = [
            replace(row, digest=shown(digest % 2**64)) if row.ledger == ledger else row
            for row in rows
        ]
        pq.write_table(
            pa.Table.from_pylist([row.as_row() for row in rows], SEGMENTS.columns), place
        )


def test_rows_changed_with_their_digests_are_found_after_a_trim(
    access: Access, topic: str, fill: Fill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    assert trim(access, tables, topic).differences == []
    changed_with_digests(tables)
    code, found = verify(access, tables, topic, capsys)
    assert code == 2
    assert "S7" in findings(found)
    assert any(
        "as witnessed" in each["sentence"]
        for audit in found["audits"]
        for each in audit["findings"]
    )
    report = trim(access, tables, topic)
    assert any("as witnessed" in str(each) for each in report.differences)


def test_removed_newest_commit_is_found_and_nothing_is_copied_again(
    access: Access, topic: str, fill: Fill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    fill(topic, numbered(100, 200))
    offload(access, tables, topic)
    for layout in (MESSAGES, SEGMENTS):
        max((tmp_path / layout.name / "_delta_log").glob("*.json")).unlink()
    code, found = verify(access, Tables(str(tmp_path)), topic, capsys)
    assert (code, "S5" in findings(found)) == (2, True)
    with pytest.raises(Contradicted, match="newer commits were removed"):
        offload(access, Tables(str(tmp_path)), topic)
    where = [f"--admin-url={access.url}", f"--table={tmp_path}", f"--topic={topic}"]
    fill(topic, numbered(200, 201))
    assert cli.run(["trim", *where]) == 2


def test_removed_audit_records_are_found(
    access: Access, topic: str, fill: Fill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(str(tmp_path))
    for number in range(3):
        fill(topic, numbered(10 * number, 10 * number + 10), **EXCLUSIVE)
        offload(access, tables, topic, with_audit=True)
    with Broker(access) as broker:
        (known,) = broker.segments(topic, witnesses=True).witnesses or ()
    assert known.audit.count >= 3
    code, found = verify(access, tables, topic, capsys)
    assert (code, found["audits"][1]["notes"]) == (0, [])
    max((tmp_path / AUDIT.name / "_delta_log").glob("*.json")).unlink()
    code, found = verify(access, Tables(str(tmp_path)), topic, capsys)
    assert (code, "S4" in findings(found)) == (2, True)
    offload(access, Tables(str(tmp_path)), topic, with_audit=True)  # brokers still have them
    assert verify(access, Tables(str(tmp_path)), topic, capsys)[0] == 0


def test_offload_that_was_killed_before_its_witness_is_completed(
    access: Access, topic: str, fill: Fill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(Exception):
        pass

    def kill(step: Step, batch: object) -> None:
        del batch
        if step is Step.COMMITTED:
            raise Killed

    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 100))
    with pytest.raises(Killed):
        offload(access, tables, topic, observe=kill)
    fill(topic, numbered(100, 200))
    offload(access, tables, topic)
    with Broker(access) as broker:
        (known,) = broker.segments(topic, witnesses=True).witnesses or ()
    assert (known.rows, known.end) == (200, known.adopted)
    code, found = verify(access, tables, topic, capsys)
    assert code == 0
    assert any(
        "were witnessed as the table had them later" in n for n in found["audits"][1]["notes"]
    )
    assert stored(tables) == numbered(0, 200)


def test_dropped_days_are_a_violation_unless_they_are_allowed(
    access: Access, topic: str, fill: Fill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    deltalake.DeltaTable(str(tmp_path / "messages")).delete("true")
    assert verify(access, tables, topic, capsys)[0] == 2
    assert verify(access, tables, topic, capsys, "--keep-days=1")[0] == 2
