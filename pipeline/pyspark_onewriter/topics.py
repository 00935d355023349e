"""Functions for programs: read a topic with the columns and the range that are needed, and write to one.

Spark 4.3 passes neither the columns of a query nor, safely, its filters to sources in Python. So a program names both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from onewriter_pipeline.engine import activate
from onewriter_pipeline.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "onewriter"


def read_topic(
    spark: SparkSession,
    topic: str,
    *,
    columns: Iterable[str] = (),
    epochs: range | Iterable[int] | None = None,
    start: Mapping[str, str] | str = "",
    end: Mapping[str, str] | str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    stream: bool = False,
    **options: object,
) -> DataFrame:
    """A DataFrame of a topic that decodes and transfers only what is named.

    ``columns``: their names; empty: all default columns. ``epochs``: topic epochs. ``start`` and ``end``: positions
    ``ledger:entry``, of one log as a text or of several by name; the end is not included. ``since`` and ``until``:
    times with a time zone, by the producers' clocks. ``stream``: a streaming DataFrame. ``options``: further options,
    with ``_`` for the dot: ``admin_url``. Raises Invalid.
    """
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    given["topic"] = topic
    if columns:
        given["columns"] = ",".join(columns)
    given |= _epochs(epochs) | _positions("startingOffsets", topic, start)
    given |= _positions("endingOffsets", topic, end)
    given |= _time("startingTimestamp", since) | _time("endingTimestamp", until)
    reader = spark.readStream if stream else spark.read
    return reader.format(FORMAT).options(**given).load()


def _epochs(epochs: range | Iterable[int] | None) -> dict[str, str]:
    if epochs is None:
        return {}
    if isinstance(epochs, range) and epochs.step == 1 and epochs:
        return {"startingEpoch": str(epochs[0]), "endingEpoch": str(epochs[-1])}
    listed = sorted(set(epochs))
    if not listed:
        raise Invalid("epochs is empty: leave it out to read all epochs")
    return {"epochs": ",".join(map(str, listed))}


def _positions(option: str, topic: str, positions: Mapping[str, str] | str) -> dict[str, str]:
    if not positions or positions in ("earliest", "latest"):
        return {option: str(positions)} if positions else {}
    by_log = {topic: positions} if isinstance(positions, str) else dict(positions)
    return {option: json.dumps(by_log)}


def _time(option: str, moment: datetime | None) -> dict[str, str]:
    if moment is None:
        return {}
    if moment.tzinfo is None:
        raise Invalid(f"{option}: {moment.isoformat()} has no time zone: use datetime.now(UTC)")
    return {option: str(round(moment.timestamp() * 1000))}


def write_topic(frame: DataFrame, topic: str, *, app: str, version: int, **options: object) -> None:
    """Write a DataFrame to a topic once, from any thread of the driver.

    ``app`` and ``version``: the options txnAppId and txnVersion. ``options``: as for ``read_topic``. In a new thread
    ``frame.write`` alone does not find the format.
    """
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    given |= {"topic": topic, "txnAppId": app, "txnVersion": str(version)}
    activate(frame.sparkSession)
    frame.write.format(FORMAT).mode("append").options(**given).save()
