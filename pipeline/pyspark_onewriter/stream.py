"""Streams: offsets of micro-batches within limits, up to what is committed.

An offset is a JSON object, full name of a log to the position in front of which it was read. What a
batch reads follows from its two offsets alone: a restart reads the same rows again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.broker import Broker
from onewriter_pipeline.connection import position_of
from onewriter_pipeline.errors import LogEnds
from onewriter_pipeline.offsets import Run, entries_of, limited, runs_between
from onewriter_pipeline.planning import (
    check_kept,
    check_names,
    ends_of,
    logs_of,
    resolved,
    shown,
)
from pyspark_onewriter.options import ReadOptions
from pyspark_onewriter.source import read_task, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, Position] | None = None
        self._last_batch_seconds: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        """Where a new query begins."""
        selection = self._options.selection
        with Broker(self._options.access) as broker:
            logs = logs_of(broker, selection)
            check_names("startingOffsets", selection.starting, logs)
            begins = {
                log: resolved(broker, log, broker.segments(log), selection.starting) for log in logs
            }
        return _written(begins)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """That there are limits, where options set some; which ones, ``latestOffset`` knows itself."""
        limits = self._options.limits
        if limits.entries_max is not None:
            return ReadMaxRows(limits.entries_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """How far the next batch reads: to what is committed, or as far as limits allow."""
        begins = _read(start or self.initialOffset())
        with Broker(self._options.access) as broker:
            ends = self._ends(broker)
            ahead = {
                log: self._ahead(broker, log, begins.get(log, EARLIEST), end)
                for log, end in ends.items()
            }
        if self._waits(ahead):
            return _written(begins)
        limits = self._options.limits
        bounded = limited(
            ahead,
            entries=None if isinstance(limit, ReadAllAvailable) else limits.entries_max,
            bytes_=None if isinstance(limit, ReadAllAvailable) else limits.bytes_max,
        )
        reached = {
            log: max(bounded[log] or end, begins.get(log, EARLIEST)) for log, end in ends.items()
        }
        if any(ahead.values()):
            self._last_batch_seconds = time.monotonic()
        return _written(begins | reached)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where everything ends now: the query goes so far."""
        with Broker(self._options.access) as broker:
            self._target = ends_of(broker, logs_of(broker, self._options.selection))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """What is committed now, whatever the limits."""
        with Broker(self._options.access) as broker:
            return _written(ends_of(broker, logs_of(broker, self._options.selection)))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of a batch."""
        begins, ends = _read(start), _read(end)
        parts: list[tuple[str, list[Run]]] = []
        with Broker(self._options.access) as broker:
            for log, behind in ends.items():
                begin = begins.get(log, EARLIEST)
                if begin < behind:
                    parts.append((log, self._ahead(broker, log, begin, behind)))
        return tasks_of(parts, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        return read_task(partition, self._options)

    # ------------------------------------------------------------ inside

    def _ends(self, broker: Broker) -> Mapping[str, Position]:
        if self._target is not None:
            return self._target
        return ends_of(broker, logs_of(broker, self._options.selection))

    def _ahead(self, broker: Broker, log: str, begin: Position, end: Position) -> list[Run]:
        """The runs of [begin, end); what was trimmed is an error unless loss is accepted."""
        if end <= begin:
            if end < begin and self._options.reading.fail_on_loss:
                raise LogEnds(
                    f"{log} ends at {shown(end)}, in front of {shown(begin)}, which was read:"
                    " its tail was lost (failOnDataLoss=false waits until it is there again)",
                    end,
                )
            return []
        held = broker.segments(log, after=begin.previous)
        if begin != EARLIEST and self._options.reading.fail_on_loss:
            check_kept(broker, log, held, begin)
        return runs_between(held.segments, begin, end)

    def _waits(self, ahead: Mapping[str, list[Run]]) -> bool:
        """Whether there is too little for a batch, and not for too long."""
        least = self._options.limits.entries_min
        if least is None or self._target is not None or self._last_batch_seconds is None:
            return False
        waited = time.monotonic() - self._last_batch_seconds
        few = sum(map(entries_of, ahead.values())) < least
        return few and waited < self._options.limits.delay_seconds


def _written(positions: Mapping[str, Position]) -> Offset:
    return {log: shown(positions[log]) for log in sorted(positions)}


def _read(offset: Offset) -> dict[str, Position]:
    return {log: position_of(str(text)) for log, text in offset.items()}
