"""Writing to a topic: rows are staged by tasks and published by the driver, all of a batch and once.

A batch is known by an app and a version: Spark's query and batch ids for a stream, options for a batch.
Whatever attempt, driver or restart publishes it again, it is in the log once; under an epoch that is
over nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onewriter_pipeline.errors import Invalid, PipelineError
from onewriter_pipeline.packing import FRAME_ROWS, check_columns
from onewriter_pipeline.staging import Part, Publication, Staging
from pyspark_onewriter.options import ACCESS_OPTIONS, Given, access_of

if TYPE_CHECKING:
    import pyarrow as pa

    from onewriter_pipeline.connection import Access

WRITE_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "topic",
    "txnAppId",
    "txnVersion",
    "epoch",
    "rowsPerEntry",
    "deliveryGuarantee",
)

_OF_STREAMS: Final = ("queryName", "checkpointLocation", "path")
"""What Spark itself adds to the options of a streaming sink."""

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All that a write needs to know; picklable. ``app`` and ``version`` are empty and None where
    Spark's query and batch say them.
    """

    access: Access
    topic: str
    app: str
    version: int | None
    epoch: int | None
    rows_per_entry: int

    def staging(self, app: str, version: int) -> Staging:
        """Where the parts of one batch go."""
        return Staging(self.access, self.topic, app, version)


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged, perhaps nothing."""

    app: str
    version: int
    parts: tuple[Part, ...]


def write_options(
    options: Mapping[str, str], columns: Sequence[str], *, is_stream: bool, overwrites: bool
) -> WriteOptions:
    """The options of a write of these columns. Raises Invalid."""
    added = {name.lower() for name in _OF_STREAMS} if is_stream else set()
    given = Given(
        {name: value for name, value in options.items() if name.lower() not in added},
        WRITE_OPTIONS,
    )
    if overwrites:
        raise Invalid("a topic cannot be overwritten: use mode('append')")
    if not given.text("topic"):
        raise Invalid("topic is missing: the topic, or the partition of one, to write to")
    check_columns(columns)
    given.one_of("deliveryGuarantee", ("exactly-once",))
    app, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if is_stream and version is not None:
        raise Invalid("txnVersion: of a stream it is the number of the batch")
    if not is_stream and (not app or version is None):
        raise Invalid(
            "txnAppId and txnVersion are missing: a name for what writes, and a number that rises"
            " with each batch; a batch that is written again under the same two is there once"
        )
    written = WriteOptions(
        access_of(given),
        given.text("topic"),
        app,
        version,
        given.number("epoch"),
        given.number("rowsPerEntry") or FRAME_ROWS,
    )
    with written.staging(app or "query", version or 0):
        return written  # whose names were checked


def _stage(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows are staged by Spark's tasks, and this is none")
    app = options.app or context.getLocalProperty(_QUERY_ID) or ""
    version = options.version
    if version is None:
        text = context.getLocalProperty(_BATCH_ID) or ""
        version = int(text) if text.isdecimal() else None
    if not app or version is None:
        raise Invalid(
            "this Spark does not tell its tasks which query and batch they are of"
            f" ({_QUERY_ID}, {_BATCH_ID}): write with foreachBatch, txnAppId and txnVersion"
        )
    with options.staging(app, version) as staging:
        parts = staging.stage(
            context.partitionId(),
            context.taskAttemptId(),
            batches,
            frame_rows=options.rows_per_entry,
        )
    return Staged(app, version, tuple(parts))


def _publish(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None]
) -> Publication | None:
    staged = [message for message in messages if isinstance(message, Staged)]
    if len(staged) != len(messages):
        raise PipelineError("a task ended without saying what it has staged: nothing is published")
    batches = {(message.app, message.version) for message in staged}
    if not batches:
        return None
    if len(batches) > 1:
        raise PipelineError(f"tasks of several batches at once: {sorted(batches)}")
    ((app, version),) = batches
    with options.staging(app, version) as staging:
        return staging.publish(
            [part for message in staged for part in message.parts], options.epoch
        )


def _discard(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Spark calls it behind a commit that failed, too, whose batch may be published: that stays.

    So does what other drivers have staged of the batch.
    """
    batches: dict[tuple[str, int], list[Part]] = {}
    for each in messages:
        if isinstance(each, Staged):
            batches.setdefault((each.app, each.version), []).extend(each.parts)
    for (app, version), parts in sorted(batches.items()):
        with options.staging(app, version) as staging:
            staging.discard(parts)


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all of them; once, however often it is called."""
        _publish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what is staged; nothing that is published."""
        _discard(self._options, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish all of them; once, however often, and by however many drivers, it is called."""
        wrong = [m.version for m in messages if isinstance(m, Staged) and m.version != batchId]
        if wrong:
            raise PipelineError(f"batch {batchId} is committed with rows of batch {wrong[0]}")
        _publish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop what is staged; nothing that is published."""
        del batchId
        _discard(self._options, messages)
