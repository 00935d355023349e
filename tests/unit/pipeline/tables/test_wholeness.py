"""Reads of tables from which days are dropped: missing rows are an error, and existing rows are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from onewriter_core.ids import Position
from onewriter_pipeline.errors import Gap, TableError
from onewriter_pipeline.read.batch_limits import EntryCounts
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables import wholeness
from onewriter_pipeline.tables.files import FileWriter, by_folder
from onewriter_pipeline.tables.layout import MESSAGES, SegmentRow, TableFile, folder_of
from onewriter_pipeline.tables.pieces import Piece, position_at
from onewriter_pipeline.tables.table import Table
from onewriter_pipeline.tables.tables import Tables
from onewriter_pipeline.tables.wholeness import first_kept
from pyspark_onewriter import snapshot as snapshot_module
from pyspark_onewriter.backlog import backlog_of
from pyspark_onewriter.options import ReadOptions, read_options
from pyspark_onewriter.snapshot import TableSnapshot
from pyspark_onewriter.tasks import counted, read_pieces

LOG = "persistent://public/default/orders"
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"
SECOND_MS = 1_767_312_000_000

Range = tuple[int, int, int]
"""Entries [first, end) of a ledger."""


def offloaded(table: Table, *files: tuple[str, Sequence[Range]], group_rows: int = 99) -> None:
    """One batch: for each day a file with these entries. Each message encodes its position."""
    ranges = [each for _, of_day in files for each in of_day]
    rows = [
        SegmentRow(
            topic=LOG,
            ledger=ledger,
            epoch=ledger,
            first=first,
            end=end,
            entries=end - first,
            messages=end - first,
            rows=end - first,
            bytes=10 * (end - first),
            digest="",
            publishes=(),
            batch=0,
        )
        for ledger, first, end in ranges
    ]
    last = max((ledger, end) for ledger, _, end in ranges)
    table.commit(
        table.state(),
        [written(table, day, of_day, group_rows) for day, of_day in files],
        {LOG: f"{last[0]}:{last[1]}"},
        [row.as_list() for row in rows],
    )


def written(table: Table, day: str, ranges: Sequence[Range], group_rows: int) -> TableFile:
    writer = FileWriter(table.place, {"topic": folder_of(LOG), "date": day}, MESSAGES.columns)
    values = [(ledger, entry) for ledger, first, end in ranges for entry in range(first, end)]
    moment = pa.scalar(day).cast(pa.timestamp("us")).as_py()
    rows = [
        {
            "value": b"%d:%d" % (ledger, entry),
            "__topic": LOG,
            "__publishTime": moment,
            "__ledgerId": ledger,
            "__entryId": entry,
        }
        for ledger, entry in values
    ]
    for begin in range(0, len(rows), group_rows):
        writer.write(pa.RecordBatch.from_pylist(rows[begin : begin + group_rows], MESSAGES.columns))
        writer._flush()
    return writer.close()


def planned(options: ReadOptions) -> list[Piece]:
    """The parts of files that a batch read of the table reads."""
    with backlog_of(options) as backlog:
        return [piece for task in backlog.tasks(*backlog.selected_range()) for piece in task.value]


class Reader:
    """Reads the table at a place, without brokers."""

    def __init__(self, tmp_path: Path) -> None:
        self.given = {"tier": "cold", "table": str(tmp_path), "topic": "orders"}

    def values(self, **options: str) -> list[str]:
        found = read_options(self.given | options)
        batches = read_pieces(planned(found), found)
        return [value.decode() for each in batches for value in each.column("value").to_pylist()]

    def kept(self, **options: str) -> TableSnapshot:
        return TableSnapshot(read_options(self.given | options))


def named(*ranges: Range) -> list[str]:
    return [f"{ledger}:{entry}" for ledger, first, end in ranges for entry in range(first, end)]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Tables(str(tmp_path)).made(MESSAGES)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def expire(table: Table, day: str) -> None:
    """Drop the days before one."""
    assert table.expire(date.fromisoformat(day)) > 0


def from_(position: str) -> dict[str, str]:
    return {"startingOffsets": f'{{"orders": "{position}"}}'}


OVER_MIDNIGHT = (FIRST, [(3, 1, 5), (4, 1, 4)]), (SECOND, [(4, 4, 6), (5, 1, 3)])
LEFT = (4, 4, 6), (5, 1, 3)


def test_ledger_over_midnight_is_incomplete_without_its_first_day(
    table: Table, reader: Reader
) -> None:
    offloaded(table, *OVER_MIDNIGHT)
    assert reader.values(**from_("4:1")) == named((4, 1, 4), *LEFT)
    expire(table, SECOND)
    with pytest.raises(Gap, match=r"4:1 to 4:4 is not in the table any more, which begins at 4:4"):
        reader.values(**from_("4:1"))
    with pytest.raises(Gap, match=r"3:1 to 3:5 is not in the table any more"):
        reader.values(**from_("3:4"))
    assert reader.values(**from_("4:4")) == named(*LEFT)
    assert reader.values() == named(*LEFT)
    assert reader.values(failOnDataLoss="false", **from_("3:1")) == named(*LEFT)
    assert reader.kept().first(LOG) == Position(4, 4)


def test_table_without_any_day_is_incomplete(table: Table, reader: Reader) -> None:
    offloaded(table, *OVER_MIDNIGHT)
    expire(table, THIRD)
    assert reader.values() == []
    assert reader.kept().first(LOG) is None
    for end in ("5:3", "5:2"):
        with pytest.raises(Gap, match=r"5:1 to 5:3 is not in the table any more, which is empty"):
            reader.values(endingOffsets=f'{{"orders": "{end}"}}', **from_("5:1"))


def test_dropped_day_is_missed_if_it_continues_after_the_next_one_begins(
    table: Table, reader: Reader
) -> None:
    """Ledger 4 belongs to a broker with a slow clock, which took over at midnight."""
    offloaded(table, (SECOND, [(3, 1, 5)]), (FIRST, [(4, 1, 4)]), (SECOND, [(4, 4, 6), (5, 1, 3)]))
    assert reader.values() == named((3, 1, 5), (4, 1, 4), *LEFT)
    expire(table, SECOND)
    lacks = r"3 of 3 messages that were offloaded of 4:1 to 4:4 are not in the table any more"
    for begin in ("3:1", "4:2"):
        with pytest.raises(Gap, match=lacks):
            reader.values(**from_(begin))
    with pytest.raises(Gap, match=lacks):
        reader.values()
    assert reader.values(**from_("4:4")) == named(*LEFT)
    assert reader.values(endingOffsets='{"orders": "4:1"}') == named((3, 1, 5))
    assert reader.values(failOnDataLoss="false") == named((3, 1, 5), *LEFT)


# ------------------------------------------------------------ division among tasks


@pytest.mark.parametrize("group_rows", [3, 99])
@pytest.mark.parametrize("tasks", [1, 2, 7, 20])
def test_files_are_divided_among_as_many_tasks_as_requested(
    table: Table, reader: Reader, tasks: int, group_rows: int
) -> None:
    ranges = (3, 1, 12), (4, 1, 2), (6, 1, 10)
    offloaded(table, (FIRST, ranges[:2]), (SECOND, ranges[2:]), group_rows=group_rows)
    options = read_options(reader.given | {"minPartitions": str(tasks)})
    with backlog_of(options) as backlog:
        found = [task.value for task in backlog.tasks(*backlog.selected_range())]
    assert len(found) == tasks
    values = [
        value.decode()
        for pieces in found
        for batch in read_pieces(pieces, options)
        for value in batch.column("value").to_pylist()
    ]
    assert values == named(*ranges)


def test_tasks_for_a_range_of_a_file_read_that_range(table: Table, reader: Reader) -> None:
    offloaded(table, (FIRST, [(3, 1, 12), (6, 1, 10)]), group_rows=4)
    ends = {"endingOffsets": '{"orders": "6:3"}', "minPartitions": "5"}
    assert reader.values(**from_("3:9"), **ends) == named((3, 9, 12), (6, 1, 3))
    assert reader.values(**from_("3:9"), **ends, maxEntriesPerPartition="1") == named(
        (3, 9, 12), (6, 1, 3)
    )


def test_rows_beyond_what_was_offloaded_are_read_too(table: Table, reader: Reader) -> None:
    """Another program wrote the file: the last task of a file reads to its end."""
    offloaded(table, (FIRST, [(3, 1, 5)]))
    table.commit(table.state(), [written(table, FIRST, [(4, 1, 9)], 99)], {LOG: "4:9"}, [])
    found = reader.values(minPartitions="3", failOnDataLoss="false", **from_("3:1"))
    assert found == named((3, 1, 5), (4, 1, 9))


# ------------------------------------------------------------ while it is read


def test_days_dropped_between_check_and_plan_are_read(
    table: Table, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    offloaded(table, *OVER_MIDNIGHT)
    real = wholeness.check_whole

    def dropped(*arguments: object) -> None:
        monkeypatch.undo()
        real(*arguments)  # type: ignore[arg-type] # as it is called
        expire(table, SECOND)

    monkeypatch.setattr(snapshot_module, "check_whole", dropped)
    assert reader.values(**from_("3:1")) == named((3, 1, 5), (4, 1, 4), *LEFT)
    with pytest.raises(Gap):
        reader.values(**from_("3:1"))


@pytest.mark.parametrize("kind", ["pieces", "runs", "counts"])
def test_all_answers_of_a_snapshot_use_the_same_files(
    table: Table, reader: Reader, kind: str
) -> None:
    offloaded(table, *OVER_MIDNIGHT)
    start, end = Position(3, 1), Position(5, 3)
    options = read_options(reader.given)
    kept = reader.kept()
    requests: dict[str, Callable[[], int]] = {
        "pieces": lambda: sum(
            each.num_rows for each in read_pieces(kept.pieces(LOG, start, end), options)
        ),
        "runs": lambda: sum(run.entries for run in kept.runs(LOG, start, end)),
        "counts": lambda: messages(list(counted(options, kept.pieces(LOG, start, end)))),
    }
    assert requests[kind]() == 11
    expire(table, SECOND)
    assert requests[kind]() == 11
    assert kept.first(LOG) == start
    kept.renew()
    assert kept.first(LOG) == Position(4, 4)
    with pytest.raises(Gap):
        kept.pieces(LOG, start, end)


def messages(counts: Sequence[EntryCounts]) -> int:
    return sum(int(each.messages.sum()) for each in counts)


def test_files_deleted_after_planning_are_an_error(table: Table, reader: Reader) -> None:
    offloaded(table, *OVER_MIDNIGHT)
    options = read_options(reader.given)
    pieces = planned(options)
    expire(table, SECOND)
    assert len(list(read_pieces(pieces, options))) == 2
    (
        Path(table.place.location) / pieces[0].path
    ).unlink()  # as ``table --vacuum-hours`` does, a day later
    with pytest.raises(TableError, match="cannot be read"):
        list(read_pieces(pieces, options))


@pytest.mark.parametrize("kind", FORMATS)
def test_snapshot_belongs_to_one_commit_despite_later_commits(
    reader: Reader, tmp_path: Path, kind: str
) -> None:
    table = Tables(str(tmp_path), kind=kind).made(MESSAGES)
    offloaded(table, *OVER_MIDNIGHT)
    other = Tables(str(tmp_path), kind=kind).existing(MESSAGES)
    kept = reader.kept(**{"table.format": kind})
    offloaded(other, (THIRD, [(6, 1, 3)]))
    assert kept.offsets == {LOG: Position(5, 3)}
    assert len(kept.pieces(LOG, Position(3, 1), Position(9, 1))) == 2
    assert kept.runs(LOG, Position(5, 1), Position(9, 1))[-1].ledger == 5
    state, files = table.snapshot()
    assert (state.batch, len(files)) == (1, 3)


# ------------------------------------------------------------ where files begin


def test_plan_reads_no_file_while_nothing_was_dropped(
    table: Table, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    offloaded(table, (FIRST, [(3, 1, 5), (4, 1, 4)]), (SECOND, [(4, 4, 6)]))
    looked: list[object] = []
    monkeypatch.setattr(snapshot_module, "first_kept", lambda *arguments: looked.append(arguments))
    assert reader.values(**from_("3:2")) == named((3, 2, 5), (4, 1, 6))
    assert looked == []


def test_joined_files_begin_with_their_first_message(table: Table) -> None:
    """As compaction may leave them: the third, second and first part of a day in one file."""
    offloaded(
        table, (SECOND, [(4, 1, 4), (3, 7, 9), (3, 1, 4)]), (SECOND, [(3, 4, 7)]), group_rows=3
    )
    (files,) = by_folder(table.files()).values()
    assert [file.bounds["__ledgerId"] for file in files] == [(3, 3), (3, 4)]
    assert first_kept(table.place, files) == Position(3, 1)
    assert first_kept(table.place, files[1:]) == Position(3, 1)
    assert first_kept(table.place, files[:1]) == Position(3, 4)
    assert position_at(table.place, files, SECOND_MS) == Position(3, 1)
    assert position_at(table.place, files, SECOND_MS + 1) is None


def test_only_files_with_ambiguous_bounds_are_read(table: Table) -> None:
    offloaded(table, (FIRST, [(3, 1, 5)]), (SECOND, [(3, 5, 9), (4, 1, 3)]), (THIRD, [(5, 1, 3)]))
    (files,) = by_folder(table.files()).values()
    for file in files[1:]:
        (Path(table.place.location) / file.path).unlink()
    assert first_kept(table.place, files) == Position(3, 1)
    with pytest.raises(TableError, match="cannot be read"):
        first_kept(table.place, files[1:])
