"""The interface of a table, for both formats: files are added atomically."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from onewriter_pipeline.tables.files import Place
from onewriter_pipeline.tables.layout import Layout, TableFile


@dataclass(frozen=True, slots=True)
class State:
    """A table after one commit.

    ``batch``: the number of our newest commit; None: none yet. ``offsets``: the position up to which the table is
    complete, by log or bucket.
    """

    batch: int | None = None
    offsets: Mapping[str, str] = field(default_factory=dict)

    @property
    def next_batch(self) -> int:
        """The number of the next commit."""
        return 0 if self.batch is None else self.batch + 1


class Table(Protocol):
    """What jobs need of a table, in any format."""

    place: Place
    layout: Layout

    def identity(self) -> str:
        """The id of the table, which its copies share; empty: it has none before its first commit."""

    def state(self) -> State:
        """The state now. Raises TableError."""

    def commit(
        self,
        state: State,
        files: Sequence[TableFile],
        offsets: Mapping[str, str],
        coverage: Sequence[Sequence[object]] = (),
    ) -> State:
        """Add files after a state. Returns the new state.

        A table that stores its offsets with its files (``ParquetLog``) commits nothing without files, and returns
        the given state. Raises Overtaken if the given state is not the newest.
        """

    def files(self) -> list[TableFile]:
        """All files of the newest commit."""

    def snapshot(self) -> tuple[State, list[TableFile]]:
        """State and files of the same commit. Separate calls may see different commits."""

    def coverage_since(self, batch: int | None) -> Iterator[tuple[int, list[list[Any]]]]:
        """Number and coverage of the commits after ``batch``, oldest first, as far as the log has them."""

    def unused(self, hours: int) -> list[str]:
        """Files, including foreign ones, that no commit of the last hours uses or used."""

    def optimize(self, target_bytes: int) -> tuple[int, int]:
        """Join small files into larger ones without changing rows. Returns the numbers of added and removed files."""

    def expire(self, before: date) -> int:
        """Drop what was stored on the days before a date. Returns the number of removed files."""
