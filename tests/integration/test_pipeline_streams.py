"""Streams as plain objects against a real broker: limits, tiers, and the subscription that follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.integration.conftest import StockClients
from tests.integration.offloading import FULL, Fill, filled, numbered, offload, trim
from tests.integration.streaming import (
    TYPES,
    all_of,
    batches,
    begun,
    read,
    rows,
    standing,
    stream,
)

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.names import position_of
from onewriter_pipeline.errors import (
    Conflict,
    Gap,
    Invalid,
    NotFound,
    PipelineError,
    TableError,
    Trimmed,
)
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers
from pyspark_onewriter.lag import Lag, lag_of
from pyspark_onewriter.options import stream_options

# ------------------------------------------------------------ messages per batch


def test_a_batch_has_a_maximum_number_of_messages(access: Access, topic: str, fill: Fill) -> None:
    batched = {"batching_enabled": True, "batching_max_publish_delay_ms": 100}
    fill(topic, numbered(0, 300))
    fill(topic, numbered(300, 2300), batching_max_messages=40, **batched)
    fill(topic, numbered(2300, 2400), batching_max_messages=7, **batched)
    fill(topic, numbered(2400, 2500))
    reader = stream(access, topic, maxMessagesPerTrigger=100)
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    found, _ = batches(reader)
    assert all_of(found) == numbered(0, 2500)
    assert max(map(len, found)) == 100
    assert len(found) < 2500 / 60  # each except the last one is almost full


def test_lag_is_what_follows_the_offsets_of_a_stream(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 100))
    reader = stream(access, topic)
    start = begun(reader)
    ((log, lag),) = lag_of(start, access).items()
    assert (log, lag.entries, lag.messages) == (next(iter(start)), 100, 100)
    with Broker(access) as broker:
        times = [each.oldest_ms for each in broker.segments(topic).segments if each.oldest_ms]
    stored_ms = min(times)
    (later,) = lag_of(start, access, lambda: stored_ms + 7_000).values()
    assert later.seconds == 7
    end = reader.latestOffset(start)
    assert lag_of(end, access) == {log: Lag()}
    gone = {"persistent://public/default/never": "3:1"}
    assert lag_of(gone, access) == {}


def test_an_entry_with_more_messages_than_a_batch_may_have_is_a_batch(
    access: Access, topic: str, fill: Fill
) -> None:
    options: dict[str, Any] = {"batching_max_messages": 50, "batching_max_publish_delay_ms": 100}
    fill(topic, numbered(0, 200), batching_enabled=True, **options)
    found, _ = batches(stream(access, topic, maxMessagesPerTrigger=1))
    assert all_of(found) == numbered(0, 200)
    assert len(found) >= 4


def test_the_limits_hold_together_and_among_topics(access: Access, topic: str, fill: Fill) -> None:
    fill(f"{topic}-a", numbered(0, 90))
    fill(
        f"{topic}-b",
        numbered(100, 190),
        batching_enabled=True,
        batching_max_messages=9,
        batching_max_publish_delay_ms=100,
    )
    given: dict[str, Any] = {"topic": "", "topics": f"{topic}-a,{topic}-b"}
    found, _ = batches(stream(access, topic, **given, maxMessagesPerTrigger=60))
    assert sorted(all_of(found)) == sorted([*numbered(0, 90), *numbered(100, 190)])
    assert max(map(len, found)) <= 60
    found, _ = batches(
        stream(access, topic, **given, maxMessagesPerTrigger=60, maxEntriesPerTrigger=10)
    )
    assert max(map(len, found)) <= 60
    assert len(found) >= 9


# ------------------------------------------------------------ epochs


def test_a_stream_from_an_epoch_on(access: Access, topic: str, fill: Fill, tmp_path: Path) -> None:
    for number in range(4):
        fill(topic, [b"%d" % number] * 2)
    with Broker(access) as broker:
        held = broker.segments(topic).segments
    epochs = [each.epoch for each in held if each.entries]
    given: dict[str, Any] = {"startingOffsets": "", "startingEpoch": epochs[2]}
    found, end = batches(stream(access, topic, **given, maxEntriesPerTrigger=1))
    assert found == [[b"2"], [b"2"], [b"3"], [b"3"]]
    fill(topic, [b"nobody's alone"], access_mode=pulsar.ProducerAccessMode.Shared)
    fill(topic, [b"4"])
    assert batches(stream(access, topic, **given), end)[0] == [[b"4"]]
    tables = Tables(str(tmp_path))
    whole = [[b"2", b"2", b"3", b"3", b"4"]]
    assert batches(stream(access, topic, **given))[0] == whole
    offload(access, tables, topic)
    assert [all_of(batches(stream(access, topic, tables, **given))[0])] == whole


# ------------------------------------------------------------ tiers


@pytest.mark.parametrize(
    "limit", ["maxEntriesPerTrigger", "maxMessagesPerTrigger", "maxBytesPerTrigger"]
)
def test_a_stream_begins_in_the_tables_and_continues_in_the_log(
    access: Access, topic: str, fill: Fill, tmp_path: Path, limit: str
) -> None:
    tables = Tables(str(tmp_path))
    expected = filled(access, topic, fill, tables)
    trim(access, tables, topic)
    with pytest.raises(Trimmed):
        batches(stream(access, topic), {FULL + topic: "1:1"})
    most = 20_000 if limit.startswith("maxBytes") else 170
    found, end = batches(stream(access, topic, tables, **{limit: most}))
    assert all_of(found) == expected
    assert len(found) >= 4
    if limit == "maxMessagesPerTrigger":  # one entry has 700 messages
        assert max({len(each) for each in found} - {700}) <= most
    fill(topic, numbered(2100, 2200))
    assert all_of(batches(stream(access, topic, tables), end)[0]) == numbered(2100, 2200)


def test_a_batch_has_the_same_rows_whichever_tier_gives_them(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 300), batching_enabled=True)
    offload(access, tables, topic)
    fill(topic, numbered(300, 700))
    reader = stream(access, topic, tables)
    start = begun(reader)
    end = reader.latestOffset(start, ReadAllAvailable())
    hot = stream(access, topic)
    before = rows(reader, reader.partitions(start, end))
    assert before == rows(hot, hot.partitions(start, end))
    fill(topic, numbered(700, 900))
    offload(access, tables, topic)
    again = stream(access, topic, tables)
    assert rows(again, again.partitions(start, end)) == before
    trim(access, tables, topic)
    assert rows(again, again.partitions(start, end)) == before
    with pytest.raises(PipelineError):
        hot.partitions(start, end)


def test_a_trim_while_a_batch_is_read_changes_no_row(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    for number in range(1, 5):
        fill(topic, numbered(100 * number, 100 * number + 100))
    reader = stream(access, topic, tables, maxEntriesPerPartition=60)
    start = begun(reader)
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    with Broker(access) as broker:
        before = broker.segments(topic).first
        offload(access, tables, topic)
        trim(access, tables, topic)
        assert broker.segments(topic).first > before
    assert [row["value"] for row in rows(reader, tasks)] == numbered(0, 500)


def test_a_stream_of_the_tables_alone_follows_the_offload(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    with pytest.raises(TableError, match="no delta table"):
        stream(Access(""), topic, tables, tier="cold").initialOffset()
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    cold = {"tier": "cold", "admin.url": ""}
    found, end = batches(stream(access, topic, tables, **cold, maxMessagesPerTrigger=30))
    assert list(map(len, found)) == [30, 30, 30, 10]
    fill(topic, numbered(100, 130))
    assert batches(stream(access, topic, tables, **cold), end) == ([], end)
    offload(access, tables, topic)
    assert all_of(batches(stream(access, topic, tables, **cold), end)[0]) == numbered(100, 130)
    with pytest.raises(NotFound, match="was not offloaded yet"):
        stream(access, f"{topic}-other", tables, **cold).initialOffset()


def test_a_log_that_comes_later_is_read_from_where_its_table_begins(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 600))
    fill(topic, numbered(600, 700))
    with Broker(access) as broker:
        held = broker.segments(topic)
        broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
    offload(access, tables, topic)
    fill(topic, numbered(700, 710))
    reader = stream(access, topic, tables)
    start = reader.latestOffset({}, ReadAllAvailable())
    assert read(reader, {}, start) == []
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader, start, end)[-110:] == numbered(600, 710)


def test_entries_missing_in_both_tiers_are_named(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 300))
    offload(access, tables, topic)
    fill(topic, numbered(300, 600))
    fill(topic, numbered(600, 610))
    with Broker(access) as broker:
        held = broker.segments(topic)
        broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
    reader = stream(access, topic, tables)
    start = begun(reader)
    with pytest.raises(Gap, match="neither in the table nor in the log"):
        reader.latestOffset(start, ReadAllAvailable())
    careless = stream(access, topic, tables, failOnDataLoss="false")
    found = all_of(batches(careless)[0])
    assert found[:300] == numbered(0, 300)
    assert found[-10:] == numbered(600, 610)


# ------------------------------------------------------------ the subscription that follows


def trimmed(access: Access, topic: str) -> tuple[str | None, str | None]:
    """Trim all that may be trimmed; return the kind and the name of what retained the rest."""
    with Broker(access) as broker:
        held = broker.segments(topic)
        done = broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
        return done.limited_by, done.name


def test_the_subscription_keeps_what_the_stream_has_not_read(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 600))
    fill(topic, numbered(600, 650))
    options: dict[str, Any] = {"ackSubscription": "spark", "maxEntriesPerTrigger": 300}
    reader = stream(access, topic, **options)
    start = begun(reader)
    first = reader.latestOffset(start, ReadAllAvailable())
    assert trimmed(access, topic) == ("subscription", "spark")
    assert read(reader, start, first) == numbered(0, 650)


def test_the_subscription_follows_sparks_commits_and_never_goes_back(
    access: Access, topic: str, fill: Fill
) -> None:
    fill(topic, numbered(0, 100))
    log = FULL + topic
    reader = stream(access, topic, ackSubscription="spark", maxEntriesPerTrigger=40)
    limit = reader.getDefaultReadLimit()
    start = begun(reader)
    first = reader.latestOffset(start, limit)
    reader.partitions(start, first)
    second = reader.latestOffset(first, limit)  # Spark commits after this
    began = position_of(start[log])
    assert standing(access, topic, "spark") == Position(began.ledger, 1)  # a marker is not an entry
    reader.commit(first)
    assert standing(access, topic, "spark") == position_of(first[log])
    reader.commit(start)  # a retry
    reader.commit(first)
    assert standing(access, topic, "spark") == position_of(first[log])
    again = stream(access, topic, ackSubscription="spark", maxEntriesPerTrigger=40)
    again.partitions(first, second)  # repeated: only what is before it is certain
    again.latestOffset(second, limit)
    assert standing(access, topic, "spark") == position_of(first[log])
    once_more = stream(access, topic, ackSubscription="spark")
    once_more.latestOffset(second, limit)  # it repeats nothing, so Spark has recorded it
    assert standing(access, topic, "spark") == position_of(second[log])


def test_later_topics_are_kept_from_their_beginning(access: Access, topic: str, fill: Fill) -> None:
    fill(f"{topic}-a", numbered(0, 3))
    named = {"topic": "", "topicsPattern": f".*/{topic}-[ab]"}
    given: dict[str, Any] = {**named, "ackSubscription": "spark"}
    reader = stream(access, topic, **given)
    first = reader.latestOffset(begun(reader), ReadAllAvailable())
    fill(f"{topic}-b", numbered(0, 3))
    fill(f"{topic}-b", numbered(3, 6))
    reader.latestOffset(first, ReadAllAvailable())
    assert trimmed(access, f"{topic}-b") == ("subscription", "spark")


def test_a_subscription_that_consumers_use_is_left_to_them(
    access: Access, topic: str, fill: Fill, broker: LocalBrokers, stock: StockClients
) -> None:
    fill(topic, numbered(0, 10))
    consumer = stock(broker.service_url).subscribe(
        topic, "taken", initial_position=pulsar.InitialPosition.Earliest
    )
    reader = stream(access, topic, ackSubscription="taken")
    with pytest.raises(Conflict, match="consumers read with the subscription taken"):
        reader.latestOffset(begun(reader), ReadAllAvailable())
    assert consumer.receive(60_000).data() == b"0"


def test_a_move_that_fails_is_made_up_for(
    access: Access, topic: str, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topic, numbered(0, 10))
    reader = stream(access, topic, ackSubscription="spark", maxEntriesPerTrigger=5)
    start = begun(reader)
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    follower = reader._follower
    follower._access = Access("http://127.0.0.1:1", patience_seconds=0.1)
    reader.commit(first)
    assert "the subscription spark stays where it is: no broker served this" in caplog.text
    follower._access = access
    reader.commit(first)
    assert standing(access, topic, "spark") == position_of(first[FULL + topic])


def test_a_source_that_no_subscription_can_follow_reports_that() -> None:
    given = {"topic": "orders", "ackSubscription": "spark", "table": "t", "tier": "cold"}
    with pytest.raises(Invalid, match="tier=cold, which reads no log"):
        stream_options(given, TYPES)


def test_offsets_are_checked(access: Access, topic: str, fill: Fill) -> None:
    fill(topic, numbered(0, 10))
    reader = stream(access, topic)
    end = reader.latestOffset(begun(reader), ReadAllAvailable())
    behind = {FULL + topic: "999999:1"}
    with pytest.raises(PipelineError, match="its tail was lost"):
        reader.latestOffset(behind, ReadAllAvailable())
    assert read(reader, end, json.loads(json.dumps(end))) == []
