"""Pure functions of offload, trim and table reads, and exit codes of the command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onewriter_core.ids import Position
from onewriter_pipeline import cli
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.brokers.segments import Segment, Segments, Trim
from onewriter_pipeline.errors import Gap
from onewriter_pipeline.jobs.offload import Batch, segment_rows
from onewriter_pipeline.jobs.trim import TRIM_REQUESTS_MAX, LogReport, going, trim_all
from onewriter_pipeline.read.offsets import Run
from onewriter_pipeline.schema import ENTRY, LEDGER
from onewriter_pipeline.tables.digest import row_hashes, shown, total
from onewriter_pipeline.tables.layout import MESSAGES, Coverage, SegmentRow
from onewriter_pipeline.tables.log_writer import Tally, by_day, join
from onewriter_pipeline.tables.pieces import Piece
from onewriter_pipeline.tables.verification import Counted, differences
from onewriter_pipeline.tables.wholeness import check_whole
from pyspark_onewriter.options import read_options
from pyspark_onewriter.tasks import divided_pieces

LOG = "persistent://public/default/orders"
DAY_MS = 86_400_000


def segment(ledger: int, entries: int = 10, **changes: Any) -> Segment:
    found = Segment(
        ledger=ledger,
        epoch=ledger,
        producer="w",
        subject="s",
        cause="grant",
        mode="exclusive",
        is_open=False,
        is_whole=True,
        first=Position(ledger, 1) if entries else None,
        last=Position(ledger, entries) if entries else None,
        entries=entries,
        messages=entries,
        bytes=10 * entries,
        blocks=1,
        oldest_ms=1_000 * ledger,
        newest_ms=1_000 * ledger,
        chain="ab",
        block_runs=(),
    )
    return replace(found, **changes)


def row(ledger: int, first: int, end: int, **changes: Any) -> SegmentRow:
    entries = end - first
    found = SegmentRow(
        topic=LOG,
        ledger=ledger,
        first=first,
        end=end,
        entries=entries,
        messages=entries,
        rows=entries,
        bytes=10 * entries,
        digest=shown(entries),
        chain="ab" if end == 11 else None,
        publishes=(),
        batch=0,
    )
    return replace(found, **changes)


def chunk(positions: list[tuple[int, int]], times_ms: list[int]) -> Chunk:
    count = len(positions)
    return Chunk(
        bytes(range(2 * count)),
        np.arange(count + 1, dtype=np.int64) * 2,
        np.array([ledger for ledger, _ in positions], dtype=np.int64),
        np.array([entry for _, entry in positions], dtype=np.int64),
        np.full(count, 3, dtype=np.int32),
        np.array(times_ms, dtype=np.int64),
    )


# ------------------------------------------------------------ offload


def test_chunk_is_divided_at_midnight() -> None:
    whole = chunk([(1, 1), (1, 2), (1, 3), (2, 1)], [DAY_MS - 2, DAY_MS - 1, DAY_MS, DAY_MS + 5])
    before, after = by_day(whole)
    assert before.payload + after.payload == whole.payload
    assert (before.offsets.tolist(), after.offsets.tolist()) == ([0, 2, 4], [0, 2, 4])
    assert (before.last, after.first, after.last) == ((1, 2), (1, 3), (2, 1))
    same = chunk([(1, 1), (1, 2)], [5, 6])
    assert list(by_day(same)) == [same]


def messages(positions: list[tuple[int, int]]) -> pa.RecordBatch:
    rows = [{"value": b"v", LEDGER: ledger, ENTRY: entry} for ledger, entry in positions]
    return pa.RecordBatch.from_pylist(rows, MESSAGES.columns)


def test_coverage_of_a_chunk() -> None:
    whole = chunk([(1, 4), (1, 5), (2, 1), (2, 3)], [0] * 4)
    tally = Tally(replace(whole, chains={1: (6, "aa"), 2: (9, "bb")}))
    made = messages([(1, 4), (1, 5), (1, 5), (2, 1), (2, 3)])
    tally.add(made.slice(0, 2))
    tally.add(made.slice(2, 3))
    found = list(tally.coverage(LOG, "2026-01-02"))
    hashes = row_hashes(made, MESSAGES.columns)
    digests = [total(hashes[low:high]) for low, high in ((0, 3), (3, 4), (4, 5))]
    day = "2026-01-02"
    assert found == [
        Coverage(LOG, 1, 4, 6, 6, 3, 4, (), digests[0], "aa", day),
        Coverage(LOG, 2, 1, 2, 3, 1, 2, (), digests[1], "", day),
        Coverage(LOG, 2, 3, 4, 3, 1, 2, (), digests[2], "", day),
    ]
    joined: list[Coverage] = []
    for part in (Coverage(LOG, 1, 1, 4, 3, 3, 6, (), 2**64 - 1, "", day), *found):
        join(joined, part)
    assert [(each.ledger, each.first, each.end, each.rows) for each in joined] == [
        (1, 1, 6, 6),
        (2, 1, 2, 1),
        (2, 3, 4, 1),
    ]
    assert (joined[0].digest, joined[0].chain) == (digests[0] - 1, "aa")
    join(joined, replace(found[2], first=4, end=5, day="2026-01-03"))
    assert len(joined) == 4


def test_entries_trimmed_before_a_task_reads_them_are_recorded() -> None:
    runs = [Run(2, 2, 1, 5, 9, 9), Run(3, 3, 1, 5, 9, 9), Run(4, 4, 1, 9, 9, 9)]
    known = [segment(2), segment(3), segment(4)]
    held = Segments(LOG, 4, 4, Position(2, 0), Position(4, 11), tuple(known))
    starts, ends = {LOG: Position(2, 1)}, {LOG: Position(4, 9)}
    batch = Batch(0, [(LOG, runs)], ends, {LOG: held}, starts, {LOG: Position(1, 4)})
    covered = [Coverage(LOG, 2, 1, 3, 2, 2, 2), Coverage(LOG, 4, 3, 9, 6, 6, 6)]
    rows = segment_rows(batch, LOG, covered)
    lost = [(row.lost, row.ledger, row.first, row.end) for row in rows if row.lost]
    assert lost == [("1:4", 2, 1, 1), ("2:3", 2, 5, 5), ("3:1", 3, 5, 5), ("4:1", 4, 3, 3)]
    assert [row.epoch for row in rows if row.lost] == [2, 2, 3, 4]
    assert sum(row.entries for row in rows) == 8


# ------------------------------------------------------------ trim


def counted(rows: int, entries: int, first: int, last: int, *parts: tuple[int, int]) -> Counted:
    """Counts of rows read back; ``parts``: first entry and number of rows of each, which is also its digest."""
    return Counted(
        rows, entries, first, last, last, {part[0]: (part[1], part[1]) for part in parts}
    )


FINE = counted(10, 10, 1, 10, (1, 10))
CHUNKED = [row(5, 1, 11, rows=4, digest=shown(4))]


@pytest.mark.parametrize(
    ("rows", "counted", "what"),
    [
        ([row(5, 1, 11)], FINE, []),
        ([row(5, 1, 4), row(5, 4, 11)], counted(10, 10, 1, 10, (1, 3), (4, 7)), []),
        (
            [row(5, 1, 11)],
            counted(9, 9, 1, 9, (1, 9)),
            ["messages", "entries", "last entries", "rows of entries 1 to 10"],
        ),
        (
            [row(5, 1, 11)],
            counted(11, 10, 1, 10, (1, 11)),
            ["messages", "rows of entries 1 to 10"],
        ),
        ([row(5, 1, 11)], counted(10, 9, 1, 10, (1, 10)), ["entries"]),
        ([row(5, 1, 11)], counted(10, 10, 2, 10, (1, 10)), ["first entries"]),
        ([row(5, 1, 11, digest="ff")], FINE, ["contents of entries 1 to 10"]),
        ([row(5, 1, 11, chain="cd")], FINE, ["hashes"]),
        ([row(5, 1, 11, chain=None)], FINE, ["hashes"]),
        (
            [row(5, 1, 11)],
            Counted(),
            ["messages", "entries", "first entries", "last entries", "rows of entries 1 to 10"],
        ),
        (
            [row(5, 1, 9)],
            counted(10, 10, 1, 10, (1, 10)),
            ["entries offloaded", "hashes", "rows of entries 1 to 8"],
        ),
        (CHUNKED, counted(4, 4, 3, 10, (1, 4)), []),
        (CHUNKED, counted(3, 3, 3, 10, (1, 3)), ["rows of entries 1 to 10"]),
        ([replace(CHUNKED[0], messages=9)], counted(4, 4, 3, 10, (1, 4)), ["messages"]),
    ],
)
def test_differences_between_a_table_and_a_log(
    rows: list[SegmentRow], counted: Counted, what: list[str]
) -> None:
    assert [each.what for each in differences(LOG, segment(5), rows, counted)] == what


def test_segment_with_a_trimmed_beginning_is_compared_from_there() -> None:
    rest = replace(segment(5), first=Position(5, 4), entries=7, messages=7)
    found = counted(7, 7, 4, 10, (1, 10))
    assert differences(LOG, rest, [row(5, 1, 11)], found) == []
    assert differences(LOG, rest, [row(5, 1, 4), row(5, 4, 11)], counted(7, 7, 4, 10, (4, 7))) == []
    assert differences(LOG, segment(6, 0), [], Counted()) == []


def test_entries_offloaded_twice_do_not_hide_missing_entries() -> None:
    found = differences(LOG, segment(5), [row(5, 1, 6), row(5, 1, 6)], Counted())
    assert "entries offloaded" in [each.what for each in found]


def test_segments_that_may_be_trimmed() -> None:
    segments = (segment(2), segment(3, 0), segment(4), segment(5), segment(6, is_open=True))
    held = Segments(LOG, 6, 6, Position(2, 0), Position(6, 11), segments)

    def ledgers(end: Position, youngest_ms: int | None = None) -> tuple[list[int], str | None]:
        found, limit = going(held, end, youngest_ms)
        return [each.ledger for each in found], limit

    assert ledgers(Position(6, 11)) == ([2, 3, 4, 5], "ledger")
    assert ledgers(Position(5, 10)) == ([2, 3, 4], "offload")
    assert ledgers(Position(6, 11), 4_500) == ([2, 3, 4], "keepHours")
    assert ledgers(Position(2, 3)) == ([], "offload")


def test_dry_run_lists_what_would_be_trimmed() -> None:
    report = LogReport(LOG, Position(2, 1), Position(4, 5), "ledger", 2, 9)
    assert ": trimmed below 4:5" in report.line()
    assert ": would be trimmed below 4:5" in report.line(is_dry=True)


class Trimming(Broker):
    """Drops some entries with each request, like a large log."""

    def __init__(self, kept: int) -> None:
        self.first, self.kept, self.requests = 1, kept, 0

    def trim(
        self,
        log: str,
        before: Position,
        *,
        epoch: int,
        ledger: int | None = None,
        table: str | None = None,
    ) -> Trim:
        assert (log, epoch, ledger, table) == (LOG, 6, None, None)
        self.requests += 1
        self.first = max(self.first, min(self.first + 20, before.entry - self.kept))
        return Trim(before, before, Position(before.ledger, self.first), "ledger", None)


@pytest.mark.parametrize(
    ("before", "kept", "requests"), [(1, 0, 1), (21, 0, 1), (95, 0, 5), (95, 7, 6)]
)
def test_trim_is_repeated_until_nothing_more_is_trimmed(
    before: int, kept: int, requests: int
) -> None:
    broker = Trimming(kept)
    done = trim_all(broker, LOG, Position(3, before), 6)
    assert (done.first, broker.requests) == (Position(3, before - kept), requests)
    assert requests < TRIM_REQUESTS_MAX


# ------------------------------------------------------------ reading tables

START, END = Position(2, 1), Position(9, 9)


@pytest.mark.parametrize(
    ("rows", "kept", "message"),
    [
        ([row(2, 1, 5), row(2, 5, 9), row(4, 1, 3)], START, None),
        ([row(2, 1, 5), row(2, 6, 9)], START, "2:5 to 2:6 was lost or trimmed"),
        ([row(2, 1, 5), row(4, 3, 9)], START, "4:1 to 4:3 was lost or trimmed"),
        ([row(2, 4, 5)], START, "2:1 to 2:4 was lost or trimmed"),
        ([row(2, 1, 5), row(4, 1, 3)], Position(4, 1), "begins at 4:1"),
        ([row(2, 1, 5), row(4, 1, 3)], None, "is not in the table any more, which is empty"),
        ([row(2, 1, 5), row(9, 1, 99)], Position(9, 50), "begins at 9:50"),
        ([row(9, 1, 99)], Position(9, 50), None),
        ([row(9, 1, 99)], None, "which is empty"),
        ([row(2, 1, 5, rows=0), row(4, 1, 3)], Position(4, 1), None),
        ([row(2, 1, 1), row(4, 1, 3)], Position(4, 1), None),
        ([row(10, 7, 9), row(2, 1, 5)], START, None),
        ([row(2, 1, 5), row(5, 1, 3), row(5, 0, 0, lost="2:5")], START, "2:5 to 5:0 was lost"),
        ([row(5, 1, 3), row(5, 0, 0, lost="0:1")], START, "2:1 to 5:0 was lost"),
        ([row(2, 1, 5), row(2, 1, 1, lost="0:1")], START, None),
        ([row(2, 1, 5), row(9, 9, 9, lost="9:4"), row(9, 1, 4)], START, "9:4 to 9:9 was lost"),
        ([row(2, 1, 5), row(11, 0, 0, lost="9:9"), row(11, 1, 4)], START, None),
    ],
)
def test_gaps_in_a_table_are_reported(
    rows: list[SegmentRow], kept: Position | None, message: str | None
) -> None:
    in_order = sorted(rows, key=lambda row: (row.ledger, row.first))
    if message is None:
        check_whole(LOG, in_order, START, END, kept)
    else:
        with pytest.raises(Gap, match=message):
            check_whole(LOG, in_order, START, END, kept)


def test_files_are_divided_among_tasks_in_order() -> None:
    options = read_options({"tier": "cold", "table": "t", "topic": "orders", "minPartitions": "5"})
    pieces = [Piece(LOG, str(number), START, END, 10) for number in range(10)]
    tasks = divided_pieces([(piece, ()) for piece in pieces], options)
    assert [piece for task in tasks for piece in task] == pieces
    assert len(tasks) == 5
    assert divided_pieces([], options) == []


# ------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trim", "--table", "t"], "give topics with --topic, or --topics-pattern"),
        (["offload", "--topic", "a"], "Missing option '--table'"),
        (
            ["offload", "--table", "t", "--topic", "a", "--token", "s", "--token-file", "f"],
            "one of",
        ),
        (["ofload"], "No such command 'ofload'"),
        (["table", "--table", "t", "--storage-option", "secret"], "write NAME=VALUE"),
        (["table", "--table", "t", "--vacuum-hours", "1"], "not in the range"),
        (["trim", "--table", "/none", "--topic", "a"], "/none has no delta table messages"),
        (["trim", "--table", "s3://b", "--table-format", "parquet", "--topic", "a"], "local disks"),
    ],
)
def test_user_errors_exit_with_1_and_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 1
    output = capsys.readouterr().err
    assert message in output
    assert "secret" not in output


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    output = capsys.readouterr().out
    for verb in cli.VERBS:
        assert verb in output
