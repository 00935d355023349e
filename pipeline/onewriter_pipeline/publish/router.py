"""Chooses the log of each row: by the topic that it names, and by its key among the topic's partitions.

The choice depends only on the row, the app and the version, not on the task or the place of the row. A repeated
batch is routed in the same way, however Spark divides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from onewriter_core.ids import TopicName
from onewriter_pipeline.binaries import Binaries, Signed, binaries
from onewriter_pipeline.brokers.names import log_name
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.publish.hashing import murmur3_32, partitions_of
from onewriter_pipeline.publish.messages import bytes_column, column_of, key_texts
from onewriter_pipeline.schema import KEY, TOPIC

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_TOPICS_MAX: Final = 100
"""Topics of one batch."""

LOGS_MAX: Final = 1_000
"""Logs of one batch: topics without partitions, and partitions that have rows."""

Partitions = Callable[[TopicName], int]
"""The number of partitions of a topic; 0: none. Raises PipelineError."""


class Router:
    """Routes the rows of one version of one app. ``topic`` empty: each row names its own."""

    def __init__(
        self,
        topic: str,
        app: str,
        version: int,
        scheme: str,
        partitions: Partitions,
        *,
        topics_max: int = BATCH_TOPICS_MAX,
    ) -> None:
        self._topics_max = topics_max
        self._topic = topic
        self._scheme = scheme
        self._partitions = partitions
        self._without_key = partition_without_key(app, version)
        self._topics: dict[str, Signed] = {}
        self._logs: dict[str, int] = {}

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each log, in order, without the topic column. Raises PipelineError."""
        import pyarrow as pa  # noqa: PLC0415 - Spark imports this module where pyarrow may be missing

        if not batch.num_rows:
            return
        which = self._which(batch)
        batch = batch.select([name for name in batch.schema.names if name != TOPIC])
        names = list(self._logs)
        if (which == which[0]).all():
            yield names[which[0]], batch
            return
        order = np.argsort(which, kind="stable")
        batch, which = batch.take(pa.array(order)), which[order]
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(which)], strict=True):
            yield names[which[start]], batch.slice(start, stop - start)

    def _which(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The number of each row's log."""
        if self._topic:
            logs, codes = [self._logs_of(self._topic)], np.zeros(batch.num_rows, np.int64)
        else:
            names, codes = _topics_of(batch, self._topics_max)
            logs = [self._logs_of(name) for name in names]
        counts = np.array([len(each) for each in logs])
        firsts = np.cumsum(counts) - counts
        found: NDArray[np.int64] = np.concatenate(logs)[
            firsts[codes] + self._chosen(batch, counts[codes])
        ]
        return found

    def _chosen(self, batch: pa.RecordBatch, counts: Signed) -> Signed:
        """The partition of each row; 0 if the topic has none."""
        if (counts == 1).all():
            return np.zeros(len(counts), np.int64)
        column = bytes_column(batch, KEY)
        without_key: Signed = self._without_key % counts
        if column is None:
            return without_key
        keys, _ = key_texts(column)
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        return np.where(has_key, partitions_of(binaries(keys), counts, self._scheme), without_key)

    def _logs_of(self, text: str) -> Signed:
        """The numbers of a topic's logs, by partition."""
        found = self._topics.get(text)
        if found is None:
            name = log_name(text)
            count = 0 if name.partition is not None else self._partitions(name)
            names = [str(name.with_partition(each)) for each in range(count)] or [str(name)]
            found = np.array([self._logs.setdefault(each, len(self._logs)) for each in names])
            self._topics[text] = found
            check_topics(self._topics, self._topics_max)
        return found


def check_topics(topics: Sized, topics_max: int = BATCH_TOPICS_MAX) -> None:
    """Raise Invalid for a batch with too many topics."""
    if len(topics) > topics_max:
        raise Invalid(
            f"rows of one batch are for more than {topics_max} topics: write it in several, or with"
            " one topic and keys"
        )


def partition_without_key(app: str, version: int) -> int:
    """A number that determines the partition of a batch's rows without a key, modulo the number of partitions.

    All of them go to one partition, another one for each batch. So they keep their order, whichever tasks have
    them.
    """
    text = np.frombuffer(f"{app}/{version}".encode(), np.uint8)
    return int(murmur3_32(Binaries(text, np.array([0, len(text)])))[0])


def _topics_of(batch: pa.RecordBatch, topics_max: int) -> tuple[list[str], NDArray[Any]]:
    """The topics that rows name, and the topic of each row. Raises Invalid."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    column = column_of(batch, TOPIC)
    if column is None or column.null_count:
        raise Invalid(f"a row names no topic: its {TOPIC} is null, and no option topic is given")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise Invalid(f"the column {TOPIC} is a string, not {column.type}")
    encoded = column.dictionary_encode()
    check_topics(encoded.dictionary, topics_max)
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
