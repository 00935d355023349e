"""Writes to topics: tasks stage rows, and the driver publishes each batch as a whole, once.

A batch is identified by app and version: Spark's query and batch ids for a stream, options for a batch write.
However often it is published, by any attempt or driver, it is in the log once. Under an epoch that is over, nothing
is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onewriter_pipeline.errors import Invalid, PipelineError
from onewriter_pipeline.publish import transfer
from onewriter_pipeline.publish.transfer import StagedLog
from pyspark_onewriter.sink_options import WriteOptions, write_options
from pyspark_onewriter.user_errors import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Staged", "TopicStreamWriter", "TopicWriter", "WriteOptions", "begun", "write_options"]

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged, possibly nothing."""

    app: str
    version: int
    logs: tuple[StagedLog, ...]
    epochs: dict[str, int]
    """The epochs of the topics when the batch began."""


def _stage(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows can be written only by a task of Spark")
    app = options.app or context.getLocalProperty(_QUERY_ID) or ""
    version = options.version
    if version is None:
        text = context.getLocalProperty(_BATCH_ID) or ""
        version = int(text) if text.isdecimal() else None
    if not app or version is None:
        raise Invalid(
            "this version of Spark does not pass the query and the batch to its tasks"
            f" ({_QUERY_ID}, {_BATCH_ID}): write with foreachBatch, txnAppId and txnVersion"
        )
    task = context.partitionId(), context.taskAttemptId()
    rows = _row_columns(batches, options.null_columns)
    logs = transfer.stage(options.target, app, version, task, rows)
    epochs = {topic: grant.epoch for topic, grant in options.target.grants.items()}
    return Staged(app, version, logs, epochs)


def _row_columns(
    batches: Iterable[pa.RecordBatch], null_columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The batches without the columns that must be null. Raises Invalid if one is not."""
    for batch in batches:
        for name in null_columns:
            if batch.column(name).null_count != batch.num_rows:
                raise Invalid(
                    f"rows cannot set the column {name}, which brokers write: name the columns, as in"
                    " INSERT INTO orders (value, __key) SELECT ..."
                )
        yield batch.drop_columns(list(null_columns)) if null_columns else batch


def _publish(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], *, is_over: bool
) -> None:
    """Publish what all tasks of a batch have staged; ``is_over``: no other batch follows."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if len(staged) != len(messages):
        raise PipelineError("a task ended without reporting what it staged; nothing is published")
    batches = {(message.app, message.version) for message in staged}
    if len(batches) > 1:
        raise PipelineError(f"tasks of several batches at once: {sorted(batches)}")
    for app, version in batches:
        logs = [log for message in staged for log in message.logs]
        if options.lead_session is None:
            transfer.publish(options.target, app, version, logs)
        else:
            begun_under = {k: epoch for each in staged for k, epoch in each.epochs.items()}
            options.lead_session.publish(options.target, app, version, logs, begun_under)
    if options.lead_session is not None:
        options.lead_session.end(is_over=is_over)


def _discard(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop staged rows. Spark also calls this after a failed commit whose batch may be published; published rows
    stay.

    Rows that other drivers staged for the batch stay, too.
    """
    try:
        for each in messages:
            if isinstance(each, Staged):
                transfer.discard(options.target, each.app, each.version, each.logs)
    finally:
        if options.lead_session is not None:
            options.lead_session.end(is_over=True)


def begun(options: WriteOptions) -> WriteOptions:
    """Options with the epochs under which a batch begins. From now on its driver leads the topics.

    Raises PipelineError.
    """
    if options.lead_session is None:
        return options
    return replace(options, target=options.lead_session.begin(options.target, options.app))


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all of them, once, however often it is called."""
        _publish(self._options, messages, is_over=True)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop staged rows; published rows stay."""
        _discard(self._options, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish all of them, once, however often and by however many drivers it is called."""
        wrong = [m.version for m in messages if isinstance(m, Staged) and m.version != batchId]
        if wrong:
            raise PipelineError(f"batch {batchId} is committed with rows of batch {wrong[0]}")
        _publish(self._options, messages, is_over=False)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop staged rows; published rows stay."""
        del batchId
        _discard(self._options, messages)
