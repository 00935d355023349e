"""Streams: offsets of micro-batches, within limits, up to what is committed.

An offset is a JSON object: for each log (by full name) the position before which everything was read. The rows of a
batch depend only on its two offsets, so a restart reads the same rows again.

Spark stores only the end of a query's first batch, and asks again where it begins. Therefore the first batch is
empty. In the same way, a new log enters the offsets with the position where it begins, and the next batch reads it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from onewriter_core.ids import EARLIEST, NUMBER_MAX, Position
from onewriter_pipeline.brokers.names import position_of, shown
from onewriter_pipeline.read.offsets import Run, entries_of, limited
from pyspark_onewriter.backlog import AnyBacklog, backlog_of, within_messages
from pyspark_onewriter.follower import Follower
from pyspark_onewriter.options import ReadOptions
from pyspark_onewriter.tasks import read_task
from pyspark_onewriter.user_errors import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa

_ONCE: Final = (
    "trigger(once=True) runs one batch, and the first batch of a new query is empty: the query reads nothing;"
    " use trigger(availableNow=True)"
)

Offset = dict[str, Any]

log = logging.getLogger("onewriter")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._follower = Follower(options.access, options.subscription)
        self._target: dict[str, Position] | None = None
        self._begun_at: Offset | None = None
        self._has_begun = False
        self._last_batch_seconds: float | None = None

    @without_traceback()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        """Where a new query begins."""
        with backlog_of(self._options) as backlog:
            begins = backlog.initial()
        if self._target is not None:  # it was noted earlier, and logs have grown since
            self._target = {
                log: max(end, begins.get(log, end)) for log, end in self._target.items()
            }
        self._begun_at = _written(begins)
        return self._begun_at

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Whether options set limits. ``latestOffset`` applies them.

        Spark replaces it by ReadAllAvailable only for the trigger ``once``, so it is never that.
        """
        limits = self._options.limits
        if limits.bytes_max is not None and not (limits.messages_max or limits.entries_max):
            return ReadMaxBytes(limits.bytes_max)
        return ReadMaxRows(limits.messages_max or limits.entries_max or NUMBER_MAX)

    @without_traceback()
    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """The end of the next batch: what is committed, within the limits."""
        start = self.initialOffset() if start is None else start
        begins = _read(start)
        self._follower.begin(begins)
        if self._begins_at(start):
            if isinstance(limit, ReadAllAvailable):
                log.warning("%s", _ONCE)
            return start
        with backlog_of(self._options) as backlog:
            ends = backlog.ends() if self._target is None else self._target
            self._follower.meet(ends)
            known = begins | {log: backlog.first(log) for log in ends if log not in begins}
            ahead = {
                log: backlog.runs(log, begins[log], end)
                for log, end in ends.items()
                if log in begins
            }
            if self._waits(ahead):
                return _written(known)
            reached = self._reached(backlog, begins, ends, ahead, limit)
        if any(ahead.values()):
            self._last_batch_seconds = time.monotonic()
        return _written(known | reached)

    def _begins_at(self, start: Offset) -> bool:
        """Whether this is the first batch of a new query."""
        has_begun, self._has_begun = self._has_begun, True
        return not has_begun and start == self._begun_at

    def _reached(
        self,
        backlog: AnyBacklog,
        begins: Mapping[str, Position],
        ends: Mapping[str, Position],
        ahead: Mapping[str, list[Run]],
        limit: ReadLimit | None,
    ) -> dict[str, Position]:
        """How far to read each log, within the limits."""
        limits = self._options.limits
        has_limits = not isinstance(limit, ReadAllAvailable)
        bounded = limited(
            ahead,
            entries=limits.entries_max if has_limits else None,
            bytes_=limits.bytes_max if has_limits else None,
        )
        reached = {log: max(bounded[log] or ends[log], begins[log]) for log in ahead}
        if limits.messages_max is None or not has_limits:
            return reached
        return within_messages(backlog, ahead, reached, limits.messages_max)

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the ends of all logs; the query stops there."""
        with backlog_of(self._options) as backlog:
            self._target = dict(backlog.ends())

    @without_traceback()
    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """What is committed now, regardless of limits."""
        with backlog_of(self._options) as backlog:
            return _written(backlog.ends())

    @without_traceback()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of a batch."""
        begins, ends = _read(start), _read(end)
        self._has_begun = True
        # A repeated first batch begins where a new query would begin, which may be after its end.
        self._follower.begin(
            {log: min(begins.get(log, EARLIEST), end) for log, end in ends.items()}
        )
        with backlog_of(self._options) as backlog:
            return backlog.tasks(begins, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        with without_traceback():
            yield from read_task(partition, self._options)

    def commit(self, end: Offset) -> None:
        """Spark has completed the batch that ends there, so the subscription may advance."""
        self._follower.advance(_read(end))

    def _waits(self, ahead: Mapping[str, list[Run]]) -> bool:
        """Whether there is too little for a batch, and the last batch was recent."""
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
