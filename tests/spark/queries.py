"""Streaming queries that are started again if Spark's time limit for the start was too short.

The Python process of a streaming source must start within ten seconds, and Spark has no setting for this. On a busy
machine this may be too short. Nothing has happened by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

IMPATIENT = "Python worker failed to connect back"
STARTS_MAX = 10
QUERY_SECONDS = 600
POLL_SECONDS = 0.05

Start = Callable[[], StreamingQuery]


def through(start: Start) -> StreamingQuery:
    """A query that has read everything. Raises StreamingQueryException if it failed."""
    return _begun(start, _ended)


def reading(start: Start) -> StreamingQuery:
    """A query that is running, and has read some rows. Raises StreamingQueryException if it failed."""
    return _begun(start, _reads)


def rows_read(query: StreamingQuery) -> int:
    """The number of rows in the query's recent progress."""
    return sum(int(each["numInputRows"]) for each in query.recentProgress)


def _begun(start: Start, comes: Callable[[StreamingQuery], None]) -> StreamingQuery:
    for _ in range(STARTS_MAX):
        query = start()
        try:
            comes(query)
        except StreamingQueryException as error:
            if IMPATIENT not in str(error):
                raise
        else:
            return query
    raise TimeoutError(f"{IMPATIENT}, {STARTS_MAX} times")


def _ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(QUERY_SECONDS)


def _reads(query: StreamingQuery) -> None:
    until = time.monotonic() + QUERY_SECONDS
    while rows_read(query) == 0:
        failed = query.exception()
        if failed is not None:
            raise failed
        assert time.monotonic() < until
        time.sleep(POLL_SECONDS)
