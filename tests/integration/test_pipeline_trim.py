"""Trim by tables, and reads of trimmed entries, with real brokers; tables that differ from the log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.conftest import StockClients
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.offloading import Fill, filled, numbered, offload, rows, trim, values

from onewriter_core.ids import Position
from onewriter_pipeline import cli
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import NotFound
from onewriter_pipeline.jobs.trim import TrimJob
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import DELTA, MESSAGE_COLUMNS, PARQUET, VALUE
from onewriter_pipeline.tables.layout import MESSAGES, SEGMENTS
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

# ------------------------------------------------------------ trim, and both tiers


def test_trim_and_then_read_across_both_tiers(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    sent = filled(access, topic, fill, tables)
    before = rows(access, topic)
    assert rows(access, topic, tables) == before
    report = trim(access, tables, topic, is_dry=True)
    assert (report.messages, report.differences) == (2000, [])
    assert rows(access, topic) == before
    report = trim(access, tables, topic)
    assert report.limited_by == "ledger"
    assert report.first > Position(before[0]["__ledgerId"], 1)
    assert len(values(access, topic)) < 1000
    found = rows(access, topic, tables)
    assert [row["value"] for row in found] == sent
    assert found == before
    assert list(found[0]) == list(MESSAGE_COLUMNS)
    assert values(access, topic, tables, tier="cold") == sent[:2000]
    # The remaining entries are offloaded, verified and read as before.
    offload(access, tables, topic)
    assert rows(access, topic, tables) == before
    assert values(access, topic, tables, tier="cold") == sent


def test_ranges_across_both_tiers(access: Access, topic: str, fill: Fill, tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    before = rows(access, topic)
    trim(access, tables, topic)
    ledgers = sorted({row["__ledgerId"] for row in before})
    epochs = sorted({row["__epoch"] for row in before})
    some = {epochs[1], epochs[3]}
    assert rows(access, topic, tables, epochs=f"{epochs[1]},{epochs[3]}") == [
        row for row in before if row["__epoch"] in some
    ]
    start, end = Position(ledgers[0], 100), Position(ledgers[3], 20)
    bounds = {
        "startingOffsets": json.dumps({topic: f"{start.ledger}:{start.entry}"}),
        "endingOffsets": json.dumps({topic: f"{end.ledger}:{end.entry}"}),
    }
    assert rows(access, topic, tables, **bounds) == [
        row for row in before if start <= (row["__ledgerId"], row["__entryId"]) < end
    ]
    publish = before[1300]["__publishTime"]
    index = next(i for i, row in enumerate(before) if row["__publishTime"] >= publish)
    starting = {"startingTimestamp": int(publish.timestamp() * 1000)}
    assert rows(access, topic, tables, **starting) == before[index:]
    assert rows(access, topic, tables, minPartitions=5) == before


def test_trim_keeps_young_entries_and_those_that_subscriptions_need(
    broker: LocalBrokers,
    access: Access,
    topic: str,
    fill: Fill,
    stock: StockClients,
    tmp_path: Path,
) -> None:
    consumer = stock(broker.service_url).subscribe(topic, "slow")
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    assert trim(access, tables, topic, keep_hours=1).limited_by == "keepHours"
    report = trim(access, tables, topic)
    assert (report.limited_by, report.name) == ("subscription", "slow")
    assert "subscription slow has not acknowledged" in report.line()
    assert len(values(access, topic)) == 2100
    consumer.close()


def test_a_topic_whose_holder_changes_is_not_trimmed(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    filled(access, topic, fill, tables)
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC))
    (report,) = job.run(lambda line: fill(topic, [b"by another"]))
    assert "its holder changed meanwhile: run it again" in report.error
    assert "nothing was trimmed" in report.line()
    assert len(values(access, topic)) == 2101


def test_partitions_across_both_tiers(
    broker: LocalBrokers, access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    assert Http(broker.http_url)("PUT", f"{PERSISTENT}/{topic}/partitions", 2)[0] == 204
    for number in range(2):
        fill(f"{topic}-partition-{number}", [b"%d" % number] * 100)
        fill(f"{topic}-partition-{number}", [b"%d" % number] * 10)
    before = rows(access, topic)
    tables = Tables(str(tmp_path))
    assert offload(access, tables, topic).rows == 220
    assert rows(access, topic, tables, tier="cold") == before
    one = rows(access, f"{topic}-partition-1", tables, tier="cold")
    assert one == [row for row in before if row["__topic"].endswith("-partition-1")]
    job = TrimJob(access, tables, Selection(topics=(topic,)), datetime.now(UTC))
    assert [report.differences for report in job.run(lambda line: None)] == [[], []]
    assert rows(access, topic, tables) == before
    with pytest.raises(NotFound, match="the table has nothing of"):
        rows(access, f"{topic}-partition-7", tables, tier="cold")


# ------------------------------------------------------------ a table that differs from the log


def files(tables: Tables) -> list[Path]:
    """Return the files of messages, the largest first."""
    table = tables.existing(MESSAGES)
    found = sorted(table.files(), key=lambda file: -file.rows)
    return [Path(table.place.location) / file.path for file in found]


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    content = change(pq.ParquetFile(path).read())
    pq.write_table(content, path, compression="zstd", coerce_timestamps="us", store_schema=False)


def gone(tables: Tables) -> str:
    files(tables)[-1].unlink()
    return "is gone"


def cut_short(tables: Tables) -> str:
    path = files(tables)[0]
    os.truncate(path, path.stat().st_size - 1)
    return "cannot be read as it was written"


def with_a_row_less(tables: Tables) -> str:
    rewritten(files(tables)[0], lambda content: content.slice(0, len(content) - 1))
    return "rows, and had"


def with_a_row_twice_for_another(tables: Tables) -> str:
    rewritten(
        files(tables)[0], lambda all_: pa.concat_tables([all_.slice(0, len(all_) - 1), all_[:1]])
    )
    return "contents of entries"


def with_two_values_swapped(tables: Tables) -> str:
    def swap(content: pa.Table) -> pa.Table:
        places = [1, 0, *range(2, len(content))]
        return content.set_column(0, VALUE, content.column(VALUE).take(places))

    rewritten(files(tables)[0], swap)
    return "contents of entries"


def with_a_bit_of_a_value_changed(tables: Tables) -> str:
    path = files(tables)[0]
    values = pq.ParquetFile(path).read().column(VALUE).to_pylist()
    content = bytearray(path.read_bytes())
    kept = next(value for value in values if value in content)  # compression may split a value
    content[content.index(kept) + 50] ^= 1
    path.write_bytes(content)
    return "contents of entries"


def with_two_files_swapped(tables: Tables) -> str:
    one, other = files(tables)[:2]
    aside = one.with_suffix(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return "that it was not committed with"


DAMAGES = [
    gone,
    cut_short,
    with_a_row_less,
    with_a_row_twice_for_another,
    with_two_values_swapped,
    with_a_bit_of_a_value_changed,
    with_two_files_swapped,
]


@pytest.mark.parametrize(
    "kind",
    [
        DELTA,
        # the same alteration of a delta table's files
        pytest.param(PARQUET, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_table_that_was_altered_trims_nothing(
    access: Access,
    topic: str,
    fill: Fill,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Tables], str],
    kind: str,
) -> None:
    tables = Tables(str(tmp_path), kind=kind)
    sent = [os.urandom(100) for _ in range(300)]
    for first, end in ((0, 120), (120, 240), (240, 299)):
        fill(topic, sent[first:end])
        offload(access, tables, topic)
    fill(topic, sent[299:])
    answer = damage(tables)
    arguments = ["trim", "--admin-url", access.url, "--table", str(tmp_path), "--topic", topic]
    assert cli.run([*arguments, "--table-format", kind]) == 2
    reported = capsys.readouterr().out
    assert answer in reported
    assert "nothing was trimmed" in reported
    assert values(access, topic) == sent


def test_an_altered_topic_prevents_the_trim_of_all_topics(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        fill(name, numbered(0, 300))
        fill(name, [b"last"])
    offload(access, tables, *names)
    file = next(file for file in files(tables) if "-b/" in str(file))
    rewritten(file, lambda content: content.slice(1))
    job = TrimJob(access, tables, Selection(topics=tuple(names)), datetime.now(UTC))
    found = {report.log.rpartition("-")[2]: report for report in job.run(lambda line: None)}
    assert (bool(found["a"].differences), bool(found["b"].differences)) == (False, True)
    assert [len(values(access, name)) for name in names] == [301, 301]


def test_a_log_that_was_compacted_and_offloaded_in_parts_is_verified(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    sent = numbered(0, 900)
    fill(topic, sent)
    fill(topic, [b"last"])
    assert offload(access, tables, topic, batch_bytes=8_000).batches > 3
    tables.existing(MESSAGES).optimize(10**8)
    tables.existing(SEGMENTS).optimize(10**8)
    path, *rest = files(tables)
    assert len(rest) <= 1, "one for each day: midnight may pass meanwhile"
    report = trim(access, tables, topic, is_dry=True)
    assert (report.differences, report.messages) == ([], 900)
    rewritten(path, lambda all_: pa.concat_tables([all_[:1], all_[:1], all_[2:]]))
    assert any("contents of" in str(each) for each in trim(access, tables, topic).differences)
    assert values(access, topic) == [*sent, b"last"]
