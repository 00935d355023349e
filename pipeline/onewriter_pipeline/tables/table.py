"""What jobs need of a table, whatever keeps it: files that are added, and counted, as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from onewriter_pipeline.tables.files import Place
from onewriter_pipeline.tables.layout import Layout, TableFile


@dataclass(frozen=True, slots=True)
class State:
    """A table as one commit left it.

    ``batch``: the number of the newest commit of ours, None before the first. ``offsets``: up to where
    it holds everything, by log or bucket.
    """

    batch: int | None = None
    offsets: Mapping[str, str] = field(default_factory=dict)

    @property
    def next_batch(self) -> int:
        """The number of the next commit."""
        return 0 if self.batch is None else self.batch + 1


class Table(Protocol):
    """What jobs need of a table, whatever keeps it."""

    place: Place
    layout: Layout

    def state(self) -> State:
        """As it is now; raises TableError."""

    def commit(
        self,
        state: State,
        files: Sequence[TableFile],
        offsets: Mapping[str, str],
        coverage: Sequence[Sequence[object]] = (),
    ) -> State:
        """Add files behind a state; answers the one that the table has then.

        A table that keeps its offsets with its files (``ParquetLog``) commits nothing without files, and
        answers the state that it was given. Raises Overtaken if that is not the newest one any more.
        """

    def files(self) -> list[TableFile]:
        """All files that count now."""

    def snapshot(self) -> tuple[State, list[TableFile]]:
        """Both as one and the same commit left them: what each alone says may be of another one."""

    def coverage_since(self, batch: int | None) -> Iterator[tuple[int, list[list[Any]]]]:
        """Number and coverage of the commits behind one, oldest first, as far as they are kept."""

    def unused(self, hours: int) -> list[str]:
        """Files, also foreign ones, that no commit of the last hours counts or counted."""

    def optimize(self, target_bytes: int) -> tuple[int, int]:
        """Join small files to larger ones; rows stay as they are. Answers how many came and went."""

    def expire(self, before: date) -> int:
        """Drop what was stored on the days before one; answers how many files went."""
