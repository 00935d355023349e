"""How far streams are behind their topics, in entries, messages and seconds.

Sources in Python cannot add metrics to ``lastProgress`` (Spark 4.3). Its offsets suffice: brokers know what follows them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.frames import BlockFrame
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.errors import NotFound, PipelineError
from onewriter_pipeline.read.offsets import entries_of, messages_of, runs_between
from pyspark_onewriter.options import ACCESS_OPTIONS, Given, access_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from onewriter_pipeline.brokers.connection import Access

_SOURCE: Final = "onewriter"

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Lag:
    """What of a log a stream has not read. ``seconds``: since the broker stored the first of these entries; 0 if
    there is none. ``messages`` may be a little too high: brokers count messages by stretches of a ledger.
    """

    entries: int = 0
    messages: int = 0
    seconds: float = 0.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def lag_of(
    offsets: Mapping[str, str], access: Access, now_ms: Callable[[], int] = _now_ms
) -> dict[str, Lag]:
    """The lag of each log behind the offsets of a stream, as ``lastProgress`` and checkpoints have them.

    Deleted topics are left out. Raises PipelineError.
    """
    found: dict[str, Lag] = {}
    with Broker(access) as broker:
        for name, text in offsets.items():
            try:
                found[name] = _lag(broker, name, position_of(str(text)), now_ms())
            except NotFound:
                log.info("%s does not exist any more", name)
    return found


def _lag(broker: Broker, name: str, at: Position, now_ms: int) -> Lag:
    runs = runs_between(broker.segments(name, after=at.previous).segments, at)
    if not runs:
        return Lag()
    first = Position(runs[0].ledger, runs[0].first)
    stored_ms = next(
        (
            frame.time_ms
            for frame in broker.frames(name, first, first.next, payload=False)
            if isinstance(frame, BlockFrame)
        ),
        None,
    )
    seconds = 0.0 if stored_ms is None else max(0, now_ms - stored_ms) / 1000
    return Lag(entries_of(runs), messages_of(runs), seconds)


Report = Callable[[str, str, Lag], object]
"""Gets the name (or id) of a query, the name of a log, and the lag."""


class LagListener(StreamingQueryListener):
    """Determines the lag of all queries that read topics, after each of their batches.

    ``options``: those of the connection, as for ``spark.read``. ``report`` gets each lag; by default the listener
    keeps them in ``lags`` only. Add the listener with ``spark.streams.addListener``.
    """

    def __init__(self, options: Mapping[str, str], report: Report | None = None) -> None:
        self._access = access_of(Given(options, ACCESS_OPTIONS))
        self._report = report
        self.lags: dict[str, dict[str, Lag]] = {}
        """By the query's name, or its id if it has none, and by log."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name, as those below
        """A query without a batch has no offsets yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Determine the lag. An error is logged, because a listener must not stop a query."""
        progress = event.progress
        query = str(progress.name or progress.id)
        try:
            for source in progress.sources:
                found = lag_of(_offsets(source.endOffset), self._access)
                self.lags.setdefault(query, {}).update(found)
                if self._report is not None:
                    for name, lag in found.items():
                        self._report(query, name, lag)
        except PipelineError as error:
            log.warning("the lag of the query %s is unknown: %s", query, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """An idle query has read everything since its last batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Drop the lags of queries that have ended: their names are free again."""


def _offsets(text: Any) -> dict[str, str]:
    """The offsets of a source of ours; empty for other sources."""
    try:
        document = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    is_ours = all(
        isinstance(name, str) and name.startswith("persistent://") and isinstance(position, str)
        for name, position in document.items()
    )
    return document if is_ours else {}
