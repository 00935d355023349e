"""Tables with a Delta log over Parquet files, by ``deltalake``.

One commit adds files, records up to which positions all logs were read (``onewriter.offsets``), and has a number (a
Delta transaction id). A commit from an outdated state is refused, so only one of two concurrent jobs succeeds. A
job that was killed leaves files that no reader uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from onewriter_pipeline.errors import Overtaken, TableError
from onewriter_pipeline.schema import PUBLISH_TIME
from onewriter_pipeline.tables.files import BOUNDED, Place, line, made_folder, reveal, synced
from onewriter_pipeline.tables.layout import (
    DATE_PARTITION,
    TABLE_VERSION,
    Layout,
    TableFile,
    check_version,
)
from onewriter_pipeline.tables.table import State

APPLICATION: Final = "onewriter-offload"
"""Application of the transaction ids of commits."""

OFFSETS: Final = "onewriter.offsets"
COVERAGE: Final = "onewriter.coverage"
VERSION: Final = "onewriter.tableVersion"

ATTEMPTS_MAX: Final = 15
"""Retries of a commit after another one that does not conflict, such as a compaction."""

HISTORY_STEPS: Final = (1, 100, None)
"""How many commits are searched for one of ours, in turn; None: all that the log has."""

T = TypeVar("T")


def guarded(place: Place, what: Callable[[], T]) -> T:
    """Run a function; errors of the table library and of the disk become one short sentence."""
    try:
        return what()
    except CommitFailedError as error:
        if "transaction" in str(error).lower() or "concurrent" in str(error).lower():
            raise Overtaken(
                f"another process wrote to {place.location} at the same time: nothing was committed;"
                " run it again"
            ) from error
        raise TableError(f"{place.location} could not be written: {line(error)}") from error
    except (DeltaError, OSError) as error:
        raise TableError(f"{place.location}: {line(error)}") from error


def opened_delta(place: Place) -> DeltaTable | None:
    """The Delta table at a place; None: there is none. Raises TableError."""

    def opened() -> DeltaTable | None:
        try:
            return DeltaTable(place.location, storage_options=dict(place.options))
        except TableNotFoundError:
            return None

    return guarded(place, opened)


class DeltaLog:
    """A table with a Delta log. Open it with ``opened``."""

    def __init__(self, place: Place, layout: Layout, delta: DeltaTable) -> None:
        self.place = place
        self.layout = layout
        self._delta = delta

    @classmethod
    def opened(cls, place: Place, layout: Layout, *, create: bool) -> DeltaLog | None:
        """The table at a place; None if there is none and ``create`` is false.

        Raises TableError, and Invalid for a table that is not ours, or newer than this code.
        """
        delta = opened_delta(place)
        if delta is None:
            if not create:
                return None
            delta = guarded(place, lambda: _created(place, layout))
        check_version(place.location, delta.metadata().configuration.get(VERSION))
        return cls(place, layout, delta)

    # ------------------------------------------------------------ reading

    def identity(self) -> str:
        """See Table."""
        return str(self._delta.metadata().id)

    def state(self) -> State:
        """See Table. Includes commits of other processes."""
        return self._newest(self._state)

    def files(self) -> list[TableFile]:
        """See Table."""
        return self._newest(self._files)

    def snapshot(self) -> tuple[State, list[TableFile]]:
        """See Table."""
        return self._newest(lambda: (self._state(), self._files()))

    def _newest(self, what: Callable[[], T]) -> T:
        """A result from the newest commit. All of it is from the same commit."""

        def attempt() -> T:
            self._delta.update_incremental()
            return what()

        return guarded(self.place, attempt)

    def _state(self) -> State:
        batch = self._delta.transaction_version(APPLICATION)
        if batch is None:
            return State()
        for commits in self._history():
            newest = next((commit for commit in commits if OFFSETS in commit), None)
            if newest is not None:
                return State(batch, _object(newest[OFFSETS]))
        raise TableError(
            f"{self.place.location} no longer has its offsets: other programs committed to it for"
            " longer than its log is kept"
        )

    def _history(self) -> Iterator[list[dict[str, Any]]]:
        """The newest commits, the newest one first, in windows that grow until the caller has found enough."""
        for limit in HISTORY_STEPS:
            yield guarded(self.place, partial(self._delta.history, limit))

    def _files(self) -> list[TableFile]:
        return [
            TableFile(
                row["path"],
                row["size_bytes"],
                row["num_records"] or 0,
                {name: str(row[f"partition.{name}"]) for name in self.layout.partition_by},
                _bounds(row),
            )
            for row in _rows(self._delta.get_add_actions(flatten=True))
        ]

    def coverage_since(self, batch: int | None) -> Iterator[tuple[int, list[list[Any]]]]:
        """See Table."""
        newest = self.state().batch
        if newest is None or newest == batch:
            return iter(())
        found: dict[int, list[list[Any]]] = {}
        for commits in self._history():
            for commit in commits:
                if COVERAGE in commit:
                    coverage = _object(commit[COVERAGE])
                    found[coverage["batch"]] = coverage["ranges"]
            if min(found, default=newest) <= (-1 if batch is None else batch):
                break
        return iter(sorted(each for each in found.items() if batch is None or each[0] > batch))

    def unused(self, hours: int) -> list[str]:
        """See Table."""
        return guarded(
            self.place,
            lambda: self._delta.vacuum(
                hours, dry_run=True, enforce_retention_duration=False, full=True
            ),
        )

    # ------------------------------------------------------------ writing

    def commit(
        self,
        state: State,
        files: Sequence[TableFile],
        offsets: Mapping[str, str],
        coverage: Sequence[Sequence[object]] = (),
    ) -> State:
        """See Table."""
        done = State(state.next_batch, dict(offsets))
        if self.state().batch != state.batch:
            raise Overtaken(
                f"another process wrote to {self.place.location} at the same time: nothing was"
                " committed; run it again"
            )
        metadata = {
            OFFSETS: json.dumps(done.offsets, sort_keys=True),
            COVERAGE: json.dumps({"batch": done.batch, "ranges": coverage}),
        }
        properties = CommitProperties(
            custom_metadata=metadata,
            max_commit_retries=ATTEMPTS_MAX,
            app_transactions=[Transaction(APPLICATION, state.next_batch)],
        )
        reveal(self.place, files)
        actions: list[AddAction | RemoveAction] = [action(file) for file in files]
        guarded(
            self.place,
            lambda: self._delta.create_write_transaction(
                actions,
                "append",
                self._delta.schema(),
                list(self.layout.partition_by) or None,
                commit_properties=properties,
            ),
        )
        synced(self.place, "_delta_log")
        return done

    # ------------------------------------------------------------ keeping house

    def optimize(self, target_bytes: int) -> tuple[int, int]:
        """See Table."""
        metrics: dict[str, Any] = guarded(
            self.place,
            lambda: self._delta.optimize.compact(
                target_size=target_bytes, commit_properties=self._again()
            ),
        )
        synced(self.place, "_delta_log")
        return int(metrics["numFilesAdded"]), int(metrics["numFilesRemoved"])

    def expire(self, before: date) -> int:
        """See Table."""
        count = len(self.files())
        predicate = f"{DATE_PARTITION} < '{before.isoformat()}'"
        guarded(
            self.place,
            lambda: self._delta.delete(predicate, commit_properties=self._again()),
        )
        return count - len(self.files())

    def _again(self) -> CommitProperties:
        """The metadata of a commit that adds no messages: the offsets of the previous commit."""
        state = self.state()
        metadata = (
            {} if state.batch is None else {OFFSETS: json.dumps(state.offsets, sort_keys=True)}
        )
        return CommitProperties(custom_metadata=metadata, max_commit_retries=ATTEMPTS_MAX)


def _created(place: Place, layout: Layout) -> DeltaTable:
    made_folder(place)
    return DeltaTable.create(
        place.location,
        layout.schema,
        mode="ignore",  # if two processes create it concurrently, one succeeds
        partition_by=list(layout.partition_by) or None,
        name=f"onewriter {layout.name}",
        configuration={VERSION: str(TABLE_VERSION)} | statistics_of(layout.schema),
        storage_options=dict(place.options),
        raise_if_key_not_exists=False,
    )


def statistics_of(schema: pa.Schema) -> dict[str, str]:
    """The table properties that name the columns with known bounds.

    Without them, delta-rs assumes that all columns have bounds. For a column without bounds it passes "at least
    null" to pyarrow, so filters on it drop every file. It also does not know which columns of a file have nulls.
    """
    names = [name for name in BOUNDED if name in schema.names]
    if names:
        return {"delta.dataSkippingStatsColumns": ",".join(names)}
    return {"delta.dataSkippingNumIndexedCols": "0"}


def action(file: TableFile) -> AddAction:
    """The description of a new file in a commit."""
    stats = {
        "numRecords": file.rows,
        "minValues": {name: _shown(name, low, 0) for name, (low, _) in file.bounds.items()},
        "maxValues": {name: _shown(name, high, 1) for name, (_, high) in file.bounds.items()},
        "nullCount": {},
    }
    return AddAction(
        file.path, file.size, dict(file.partition), file.modified_ms, True, json.dumps(stats)
    )


def _shown(column: str, value: int, more: int) -> int | str:
    """A bound as Delta writes it. Times are in milliseconds, rounded away from the values."""
    if column != PUBLISH_TIME:
        return value
    seconds, milliseconds = divmod(value // 1000 + more, 1000)
    return f"{_utc(seconds)}.{milliseconds:03}Z"


def _utc(seconds: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else dict(value)
    return found


def _rows(columns: Any) -> list[dict[str, Any]]:
    """The log's description of files. Times are in microseconds, as in the bounds of files."""
    table = pa.table(columns)
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            times = table.column(number).cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            table = table.set_column(number, field.name, times)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _bounds(row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    found = {}
    for name, low in row.items():
        high = row.get(f"max.{name.removeprefix('min.')}")
        if name.startswith("min.") and isinstance(low, int) and isinstance(high, int):
            found[name.removeprefix("min.")] = (low, high)
    return found
