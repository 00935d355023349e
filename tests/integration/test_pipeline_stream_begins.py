"""The start of streams, and repeated batches: nothing is lost or skipped silently."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.integration.http_calls import Http
from tests.integration.offloading import FULL, Fill, numbered, offload
from tests.integration.streaming import all_of, batches, begun, read, standing, stream

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.errors import LogEnds, Trimmed
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

ALL = ReadAllAvailable()


def trim(access: Access, topic: str) -> str | None:
    """Trim all before the current ledger; return what retained some of it."""
    with Broker(access) as broker:
        held = broker.segments(topic)
        return broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch).limited_by


def now_ms() -> int:
    return time.time_ns() // 10**6


# ------------------------------------------------------------ the first batch


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"%s": "0:0"}'}, 0),
        ({"startingTimestamp": 1}, 0),
        ({"startingTimestamp": 10**15, "startingOffsetsByTimestampStrategy": "latest"}, 10),
    ],
    ids=str,
)
def test_a_first_batch_that_is_repeated_loses_nothing(
    access: Access, topic: str, fill: Fill, given: dict[str, Any], first: int
) -> None:
    """Spark asks again for the start of a query when it repeats its first batch."""
    options = {"startingOffsets": ""} | given
    if "%s" in str(options["startingOffsets"]):
        options["startingOffsets"] %= topic
    fill(topic, numbered(0, 10))
    reader = stream(access, topic, **options)
    start = reader.initialOffset()
    fill(topic, numbered(10, 20))  # between the two calls
    end = reader.latestOffset(start, ALL)
    assert end == start
    fill(topic, numbered(20, 30))
    again = stream(access, topic, **options)
    assert read(again, again.initialOffset(), end) == []
    found, end = batches(again, end)
    assert all_of(found) == numbered(first, 30)


def test_a_first_batch_that_is_repeated_after_a_trim_is_empty(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 5))
    fill(topic, numbered(5, 9))
    reader = stream(access, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    trim(access, topic)
    again = stream(access, topic)
    assert read(again, again.initialOffset(), end) == []
    with pytest.raises(Trimmed, match="was trimmed"):
        again.latestOffset(end, ALL)


@pytest.mark.parametrize("by_time", [False, True], ids=["latest", "timestamp"])
def test_available_now_of_a_topic_that_grows_before_the_query_begins(
    access: Access, topic: str, fill: Fill, by_time: bool
) -> None:
    fill(topic, numbered(0, 5))
    given: dict[str, Any] = {"startingOffsets": "latest"}
    if by_time:
        given = {"startingOffsets": "", "startingTimestamp": now_ms() + 1}
        time.sleep(0.01)
    reader = stream(access, topic, **given)
    reader.prepareForTriggerAvailableNow()
    fill(topic, numbered(5, 9))
    start = reader.initialOffset()
    assert [reader.latestOffset(start, ALL) for _ in range(3)] == [start] * 3
    fill(topic, numbered(9, 12))
    lost = stream(access, topic, **given)
    lost.prepareForTriggerAvailableNow()
    with pytest.raises(LogEnds, match="its tail was lost"):
        lost.latestOffset({FULL + topic: "999999:1"}, ALL)


# ------------------------------------------------------------ new and deleted logs


def pattern_of(topic: str) -> dict[str, Any]:
    return {"topic": "", "topicsPattern": f".*/{topic}-[ab]"}


def test_a_log_that_comes_later_and_is_trimmed_before_it_is_read(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(f"{topic}-a", numbered(0, 5))
    reader = stream(access, "", **pattern_of(topic))
    start = reader.latestOffset(begun(reader), ALL)
    fill(f"{topic}-b", numbered(0, 5))
    fill(f"{topic}-b", numbered(5, 9))
    first = reader.latestOffset(start, ALL)
    assert read(reader, start, first) == []
    second = reader.latestOffset(first, ALL)
    trim(access, f"{topic}-b")
    again = stream(access, "", **pattern_of(topic))
    assert read(again, start, first) == []
    with pytest.raises(Trimmed, match="was trimmed"):
        again.partitions(first, second)
    with pytest.raises(Trimmed, match="was trimmed"):
        again.latestOffset(first, ALL)


def test_a_pattern_that_matches_nothing_at_first_keeps_its_limits(
    access: Access, topic: str, fill: Fill
) -> None:
    given = {**pattern_of(topic), "startingOffsets": "latest", "maxEntriesPerTrigger": 10}
    reader = stream(access, "", **given, ackSubscription="spark")
    assert begun(reader) == {}
    fill(f"{topic}-a", numbered(0, 10))
    fill(f"{topic}-a", numbered(10, 25))
    reader.initialOffset()
    start = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert list(start) == [f"{FULL}{topic}-a"]
    assert trim(access, f"{topic}-a") == "subscription"
    assert read(reader, {}, start) == []
    found, _ = batches(reader, start)
    assert found == [numbered(0, 10), numbered(10, 20), numbered(20, 25)]


def test_a_later_log_does_not_wait_for_earlier_ones(access: Access, topic: str, fill: Fill) -> None:
    fill(f"{topic}-a", numbered(0, 5))
    given = {**pattern_of(topic), "minEntriesPerTrigger": 3, "maxTriggerDelay": "1h"}
    reader = stream(access, "", **given)
    start = reader.latestOffset(begun(reader), ALL)
    fill(f"{topic}-b", numbered(5, 9))
    first = reader.latestOffset(start, ALL)
    assert read(reader, start, first) == []
    assert read(reader, first, reader.latestOffset(first, ALL)) == numbered(5, 9)


# ------------------------------------------------------------ the subscription that follows


def test_a_repeated_first_batch_acknowledges_nothing_after_its_end(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 5))
    given: dict[str, Any] = {"startingOffsets": "latest", "ackSubscription": "spark"}
    end = begun(stream(access, topic, **given))
    fill(topic, numbered(5, 1000))
    again = stream(access, topic, **given)
    assert read(again, again.initialOffset(), end) == []
    assert standing(access, topic, "spark") == position_of(end[FULL + topic])
    fill(topic, numbered(1000, 1010))
    assert trim(access, topic) == "subscription"
    assert all_of(batches(again, end)[0]) == numbered(5, 1010)


def test_a_repeated_first_batch_acknowledges_no_later_log(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(f"{topic}-a", numbered(0, 5))
    given = pattern_of(topic) | {"startingOffsets": "latest", "ackSubscription": "spark"}
    end = begun(stream(access, "", **given))
    fill(f"{topic}-b", numbered(0, 50))
    fill(f"{topic}-b", numbered(50, 60))
    again = stream(access, "", **given)
    assert read(again, again.initialOffset(), end) == []
    start = again.latestOffset(end, ALL)
    assert trim(access, f"{topic}-b") == "subscription"
    assert all_of(batches(again, start)[0]) == numbered(0, 60)


def test_a_log_that_was_deleted_has_no_subscription(
    access: Access, topic: str, fill: Fill, broker: LocalBrokers
) -> None:
    for log in "ab":
        fill(f"{topic}-{log}", numbered(0, 5))
    given = {**pattern_of(topic), "ackSubscription": "spark"}
    reader = stream(access, "", **given)
    start = reader.latestOffset(begun(reader), ALL)
    path = f"/admin/v2/persistent/public/default/{topic}-a?force=true"
    assert Http(broker.http_url)("DELETE", path)[0] == 204
    fill(f"{topic}-b", numbered(5, 8))
    again = stream(access, "", **given)
    end = again.latestOffset(start, ALL)
    assert read(again, start, end) == numbered(5, 8)
    again.latestOffset(end, ALL)
    again.commit(end)
    assert standing(access, f"{topic}-b", "spark") == position_of(end[f"{FULL}{topic}-b"])
    fill(f"{topic}-a", numbered(0, 5))  # another topic of the same name
    fill(f"{topic}-a", numbered(5, 9))
    with pytest.raises(Trimmed, match="failOnDataLoss=false begins there"):
        again.latestOffset(end, ALL)
    assert trim(access, f"{topic}-a") == "subscription"
    found, _ = batches(stream(access, "", **given, failOnDataLoss="false"), end)
    assert found == [numbered(0, 9)]


# ------------------------------------------------------------ lost tails


@pytest.mark.parametrize("tier", ["hot", "all", "cold"])
def test_a_batch_whose_tail_was_lost_is_not_repeated_without_it(
    access: Access, topic: str, fill: Fill, tmp_path: Path, tier: str
) -> None:
    fill(topic, numbered(0, 90))
    fill(topic, numbered(90, 100))
    tables = None if tier == "hot" else Tables(str(tmp_path))
    if tables is not None:
        offload(access, tables, topic)
    log = FULL + topic
    with Broker(access) as broker:
        ledger = next(each.ledger for each in broker.segments(topic).segments if each.entries)
    start, end = {log: f"{ledger}:1"}, {log: f"{ledger}:101"}  # as if it had had ten more
    with pytest.raises(LogEnds, match=f"nothing of {ledger}:91 to {ledger}:101.*its tail was lost"):
        stream(access, topic, tables, tier=tier).partitions(start, end)
    careless = stream(access, topic, tables, tier=tier, failOnDataLoss="false")
    assert read(careless, start, end) == numbered(0, 90)
    whole = {log: f"{ledger}:91"}
    assert read(stream(access, topic, tables, tier=tier), start, whole) == numbered(0, 90)
