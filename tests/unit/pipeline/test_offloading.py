"""What offload, trim and reads of tables decide: pure functions, and the command's exit codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onewriter_core.ids import Position
from onewriter_pipeline import cli
from onewriter_pipeline.broker import Segment, Segments
from onewriter_pipeline.errors import Gap
from onewriter_pipeline.frames import Chunk
from onewriter_pipeline.jobs.trim import going
from onewriter_pipeline.table_files import by_day, covered, join
from onewriter_pipeline.table_layout import Coverage
from onewriter_pipeline.table_reading import Piece, check_whole
from onewriter_pipeline.verifying import Counted, differences
from pyspark_onewriter.tiers import divided_pieces

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
        stretches=(),
    )
    return replace(found, **changes)


def row(ledger: int, first: int, end: int, **changes: Any) -> dict[str, Any]:
    entries = end - first
    found = {"topic": LOG, "ledger": ledger, "first": first, "end": end, "entries": entries}
    return found | {"messages": entries, "rows": entries} | changes


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


def test_a_chunk_is_divided_at_midnight() -> None:
    whole = chunk([(1, 1), (1, 2), (1, 3), (2, 1)], [DAY_MS - 2, DAY_MS - 1, DAY_MS, DAY_MS + 5])
    before, behind = by_day(whole)
    assert before.payload + behind.payload == whole.payload
    assert (before.offsets.tolist(), behind.offsets.tolist()) == ([0, 2, 4], [0, 2, 4])
    assert (before.last, behind.first, behind.last) == ((1, 2), (1, 3), (2, 1))
    same = chunk([(1, 1), (1, 2)], [5, 6])
    assert list(by_day(same)) == [same]


def test_what_a_chunk_covers() -> None:
    found = list(covered(LOG, chunk([(1, 4), (1, 5), (2, 1), (2, 3)], [0] * 4), {1: 6, 2: 5}))
    assert found == [
        Coverage(LOG, 1, 4, 6, 6, 6, 4),
        Coverage(LOG, 2, 1, 2, 3, 5, 2),
        Coverage(LOG, 2, 3, 4, 3, 0, 2),
    ]
    joined: list[Coverage] = []
    for part in (Coverage(LOG, 1, 1, 4, 3, 3, 6), *found):
        join(joined, part)
    assert [(each.ledger, each.first, each.end, each.rows) for each in joined] == [
        (1, 1, 6, 9),
        (2, 1, 2, 5),
        (2, 3, 4, 0),
    ]


# ------------------------------------------------------------ trim

FINE = Counted(10, 10, 1, 10)


@pytest.mark.parametrize(
    ("rows", "counted", "what"),
    [
        ([row(5, 1, 11)], FINE, []),
        ([row(5, 1, 4), row(5, 4, 11)], FINE, []),
        ([row(5, 1, 11)], Counted(9, 9, 1, 9), ["messages", "entries", "last entries"]),
        ([row(5, 1, 11)], Counted(11, 10, 1, 10), ["messages"]),
        ([row(5, 1, 11)], Counted(10, 9, 1, 10), ["entries"]),
        ([row(5, 1, 11)], Counted(10, 10, 2, 10), ["first entries"]),
        ([row(5, 1, 11)], Counted(), ["messages", "entries", "first entries", "last entries"]),
        ([row(5, 1, 9)], FINE, ["entries offloaded"]),
        ([row(5, 1, 9), row(5, 8, 10)], FINE, ["entries offloaded"]),
        ([row(5, 1, 11, rows=4)], Counted(4, 4, 3, 10), []),
        ([row(5, 1, 11, rows=4)], Counted(3, 3, 3, 10), ["rows"]),
        ([row(5, 1, 11, rows=4, messages=9)], Counted(4, 4, 3, 10), ["messages"]),
    ],
)
def test_differences_between_a_table_and_a_log(
    rows: list[dict[str, Any]], counted: Counted, what: list[str]
) -> None:
    assert [each.what for each in differences(LOG, segment(5), rows, counted)] == what


def test_a_segment_whose_beginning_was_trimmed_is_compared_from_there() -> None:
    rest = replace(segment(5), first=Position(5, 4), entries=7, messages=7)
    counted = Counted(7, 7, 4, 10)
    assert differences(LOG, rest, [row(5, 1, 11)], counted) == []
    assert differences(LOG, segment(6, 0), [], Counted()) == []


def test_which_segments_may_go() -> None:
    segments = (segment(2), segment(3, 0), segment(4), segment(5), segment(6, is_open=True))
    held = Segments(LOG, 6, 6, Position(2, 0), Position(6, 11), segments)

    def ledgers(end: Position, youngest_ms: int | None = None) -> tuple[list[int], str | None]:
        found, limit = going(held, end, youngest_ms)
        return [each.ledger for each in found], limit

    assert ledgers(Position(6, 11)) == ([2, 3, 4, 5], "ledger")
    assert ledgers(Position(5, 10)) == ([2, 3, 4], "offload")
    assert ledgers(Position(6, 11), 4_500) == ([2, 3, 4], "keepHours")
    assert ledgers(Position(2, 3)) == ([], "offload")


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
        ([row(2, 1, 5, rows=0), row(4, 1, 3)], Position(4, 1), None),
        ([row(2, 1, 1), row(4, 1, 3)], Position(4, 1), None),
        ([row(10, 7, 9), row(2, 1, 5)], START, None),
    ],
)
def test_gaps_in_a_table_are_named(
    rows: list[dict[str, Any]], kept: Position, message: str | None
) -> None:
    if message is None:
        check_whole(LOG, rows, START, END, kept)
    else:
        with pytest.raises(Gap, match=message):
            check_whole(LOG, rows, START, END, kept)


def test_files_are_divided_in_order() -> None:
    pieces = [Piece(LOG, str(number), START, END, 10) for number in range(10)]
    tasks = divided_pieces(pieces, 5)
    assert [piece for task in tasks for piece in task] == pieces
    assert len(tasks) == 5
    assert divided_pieces([], 5) == []


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
def test_mistakes_end_with_1_and_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "secret" not in said


def test_help_names_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    said = capsys.readouterr().out
    for verb in cli.VERBS:
        assert verb in said
