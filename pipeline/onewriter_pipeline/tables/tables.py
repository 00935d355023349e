"""The tables of a place (``messages``, ``segments`` and ``audit``): opens them, brings ``segments`` up to date,
lists foreign files, and deletes files that no table uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onewriter_pipeline.errors import Invalid, Overtaken, TableError
from onewriter_pipeline.schema import DELTA, FORMATS, PARQUET
from onewriter_pipeline.tables.delta import DeltaLog
from onewriter_pipeline.tables.files import (
    discard,
    hidden,
    place_of,
    table_errors,
    write_rows,
)
from onewriter_pipeline.tables.layout import (
    LAYOUTS,
    MESSAGES,
    SEGMENTS,
    Layout,
    SegmentRow,
    is_ours,
)
from onewriter_pipeline.tables.parquet import ParquetLog
from onewriter_pipeline.tables.table import Table

FOREIGN_SHOWN: Final = 20
"""Foreign files that are listed."""

_BATCH: Final = "batch"
_HOUR_SECONDS: Final = 3600
_OPEN: Final[dict[str, Callable[..., Table | None]]] = {
    DELTA: DeltaLog.opened,
    PARQUET: ParquetLog.opened,
}


class Tables:
    """The tables of a place. Raises Invalid if the place cannot have tables."""

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, kind: str = DELTA
    ) -> None:
        self.place = place_of(location, options)
        if kind not in FORMATS:
            raise Invalid(f"unknown table format {kind!r}; use one of {', '.join(FORMATS)}")
        if kind == PARQUET and not self.place.is_local:
            raise Invalid("tables without a Delta log are kept on local disks only")
        self._kind = kind

    def opened(self, layout: Layout) -> Table | None:
        """A table; None if it does not exist. Raises TableError, Invalid."""
        return _OPEN[self._kind](self.place.within(layout.name), layout, create=False)

    def existing(self, layout: Layout) -> Table:
        """A table. Raises TableError if it does not exist."""
        found = self.opened(layout)
        if found is None:
            raise TableError(f"{self.place.location} has no {self._kind} table {layout.name}")
        return found

    def made(self, layout: Layout) -> Table:
        """A table, created if it does not exist."""
        found = _OPEN[self._kind](self.place.within(layout.name), layout, create=True)
        if found is None:
            raise TableError(f"{self.place.location}: {layout.name} could not be made")
        return found

    # ------------------------------------------------------------ segments

    def catch_up(self) -> int:
        """Add the rows that commits of ``messages`` have and ``segments`` lacks. Returns their number.

        An offload calls it before and after its work, because a job may be killed between the two commits.
        """
        messages, segments = self.existing(MESSAGES), self.made(SEGMENTS)
        state = segments.state()
        rows, newest = _rows_behind(messages, _batch_of(state.offsets))
        if newest is None:
            return 0
        row_values = [row.as_row() for row in rows]
        files = [write_rows(segments.place, SEGMENTS.columns, row_values)] if rows else []
        try:
            segments.commit(state, files, {_BATCH: str(newest)})
        except Overtaken:
            discard(segments.place, files)  # the other process has added the same rows
            return 0
        except TableError:
            discard(segments.place, files)
            raise
        return len(rows)

    def segments(self, logs: Iterable[str] | None = None) -> list[SegmentRow]:
        """What was offloaded, in the order of commits."""
        wanted = None if logs is None else set(logs)
        found, batch = self._stored_segments()
        found += _rows_behind(self.existing(MESSAGES), batch)[0]
        kept = [row for row in found if wanted is None or row.topic in wanted]
        return sorted(kept, key=lambda row: (row.batch, row.topic, row.ledger, row.first))

    def _stored_segments(self) -> tuple[list[SegmentRow], int | None]:
        """The rows of the table, and the number of the last batch in it."""
        table = self.opened(SEGMENTS)
        if table is None:
            return [], None
        state, files = table.snapshot()
        stored = table.place.files()
        found: list[SegmentRow] = []
        for file in files:
            with table_errors(table.place):
                rows = pq.ParquetFile(file.path, filesystem=stored).read().to_pylist()
            found += map(SegmentRow.of_row, rows)
        return found, _batch_of(state.offsets)

    # ------------------------------------------------------------ files

    def foreign(self) -> list[str]:
        """Files in the tables' folders that do not belong to them. They are never deleted."""
        found = []
        for path in self._listed():
            table, _, rest = path.partition("/")
            known = table in {layout.name for layout in LAYOUTS}
            if not (known and is_ours(rest)):
                found.append(path)
        return sorted(found)

    def orphans(self, hours: int) -> list[str]:
        """Our files that no commit of the last hours uses: from killed jobs, and from compaction."""
        tables = [(layout, self.opened(layout)) for layout in LAYOUTS]
        before = time.time_ns() / 1e9 - hours * _HOUR_SECONDS
        return sorted(
            f"{layout.name}/{path}"
            for layout, table in tables
            if table is not None
            for path in {*table.unused(hours), *hidden(table.place, before)}
            if is_ours(path)
        )

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files."""
        files = self.place.files()
        for path in paths:
            with table_errors(self.place.within(path)):
                files.delete_file(path)

    def _listed(self) -> Iterator[str]:
        """The paths of all files, except names that begin with a dot or an underscore, such as logs."""
        selector = pafs.FileSelector("", recursive=True, allow_not_found=True)
        with table_errors(self.place):
            found = self.place.files().get_file_info(selector)
        for each in found:
            if each.is_file and not any(part[0] in "_." for part in each.path.split("/")):
                yield each.path


def _batch_of(offsets: Mapping[str, str]) -> int | None:
    return int(offsets[_BATCH]) if _BATCH in offsets else None


def _rows_behind(messages: Table, batch: int | None) -> tuple[list[SegmentRow], int | None]:
    """The rows that ``segments`` lacks: those in the commits of ``messages`` after ``batch``.

    Also returns the number of the newest such commit; None if there is none.
    """
    rows: list[SegmentRow] = []
    newest = None
    expected = 0 if batch is None else batch + 1
    for newest, ranges in messages.coverage_since(batch):
        if newest != expected:
            raise TableError(
                f"{messages.place.location}: the log of the table does not go back to batch"
                f" {expected}; what was offloaded since is not known"
            )
        expected += 1
        rows += [SegmentRow.of_list(values, newest) for values in ranges]
    return rows, newest
