"""The data source as plain objects against a real broker: planning and reading, without a JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.integration.conftest import StockClients

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.segments import Segments
from onewriter_pipeline.errors import Invalid, NotFound, PipelineError, Trimmed
from onewriter_pipeline.read.spans import trimmable_before
from onewriter_pipeline.schema import MESSAGE_COLUMNS, column_types
from onewriter_testing.processes import LocalBrokers
from pyspark_onewriter.options import read_options, stream_options
from pyspark_onewriter.source import TopicReader
from pyspark_onewriter.stream import TopicStreamReader

FULL = "persistent://public/default/"
TYPES = {
    name: kind.replace(" ", "").lower()
    for name, kind in column_types().items()
    if name in MESSAGE_COLUMNS
}
COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}

Fill = Callable[..., None]
Values = Callable[..., list[bytes]]


@pytest.fixture
def fill(broker: LocalBrokers, stock: StockClients) -> Fill:
    """Send messages: ``fill(topic, values, **options of the producer)``.

    With ``together=N`` no block of the log has more than N of them: the sender waits for the receipts of each N.
    """
    client = stock(broker.service_url)

    def send(
        topic: str, values: Iterable[bytes], *, together: int = 100_000, **options: Any
    ) -> None:
        options.setdefault("batching_enabled", False)
        producer = client.create_producer(topic, block_if_queue_full=True, **options)
        for number, value in enumerate(values, 1):
            producer.send_async(value, None)
            if number % together == 0:
                producer.flush()
        producer.flush()
        producer.close()

    return send


@pytest.fixture
def access(broker: LocalBrokers) -> Access:
    return Access(broker.http_url)


@pytest.fixture
def values(access: Access) -> Values:
    """Read the values of a topic: ``values(topic, **options of the read)``."""

    def read(topic: str = "", **options: Any) -> list[bytes]:
        return [row["value"] for row in rows(access, topic, **options)]

    return read


def given(access: Access, topic: str, options: dict[str, Any]) -> dict[str, str]:
    named = {"topic": topic} if topic else {}
    return {"admin.url": access.url, **named} | {name: str(v) for name, v in options.items()}


def rows(access: Access, topic: str, **options: Any) -> list[dict[str, Any]]:
    reader = TopicReader(read_options(given(access, topic, options)))
    return list(rows_of(reader))


def rows_of(reader: TopicReader) -> Iterator[dict[str, Any]]:
    for task in reader.partitions():
        for batch in reader.read(task):
            yield from pa.Table.from_batches([batch]).to_pylist()


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def segments(access: Access, topic: str) -> Segments:
    with Broker(access) as broker:
        return broker.segments(topic)


def shown(*position: int) -> str:
    return "{}:{}".format(*position)


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_source_reads_every_kind_of_message(
    topic: str, fill: Fill, values: Values, compression: str, batched: bool
) -> None:
    sent = numbered(0, 700)
    codec = COMPRESSIONS[compression]
    fill(topic, sent, compression_type=codec, batching_enabled=batched, producer_name="w")
    assert values(topic) == sent


def test_the_columns(topic: str, broker: LocalBrokers, stock: StockClients, access: Access) -> None:
    client = stock(broker.service_url)
    mode = pulsar.ProducerAccessMode.Exclusive
    producer = client.create_producer(topic, producer_name="w", access_mode=mode)
    sent = producer.send(b"v", properties={"a": "b"}, partition_key="k", event_timestamp=1_500)
    producer.close()
    (row,) = rows(access, topic)
    assert list(row) == list(MESSAGE_COLUMNS)
    assert (row["value"], row["__key"], row["__topic"]) == (b"v", b"k", FULL + topic)
    assert dict(row["__messageProperties"]) == {"a": "b"}
    assert row["__eventTime"].timestamp() == 1.5
    assert (row["__ledgerId"], row["__entryId"]) == (sent.ledger_id(), sent.entry_id())
    assert row["__epoch"] == segments(access, topic).segments[-1].epoch
    assert (row["__producerName"], row["__sequenceId"]) == ("w", 0)
    read_back = pulsar.MessageId.deserialize(row["__messageId"])
    assert (read_back.ledger_id(), read_back.entry_id()) == (sent.ledger_id(), sent.entry_id())


def test_a_message_in_chunks_is_read_once_however_the_work_is_divided(
    topic: str, fill: Fill, values: Values, access: Access
) -> None:
    large = random.Random(7).randbytes(11_000_000)
    fill(topic, [b"before", large, b"behind"], chunking_enabled=True)
    assert values(topic) == [b"before", large, b"behind"]
    assert values(topic, maxEntriesPerPartition=1) == [b"before", large, b"behind"]
    with Broker(access) as broker:
        held = broker.segments(topic)
        ledger, chunks = held.end.ledger, held.segments[-1].entries - 2
        found = [
            trimmable_before(broker, topic, Position(ledger, entry)).entry
            for entry in range(2, held.end.entry + 1)
        ]
    assert chunks > 1
    assert found == [2] * chunks + [chunks + 2, chunks + 3]


def test_by_epoch(topic: str, fill: Fill, values: Values, access: Access) -> None:
    for number in range(4):
        fill(topic, [b"%d" % number] * 2, access_mode=pulsar.ProducerAccessMode.Exclusive)
    epochs = [each.epoch for each in segments(access, topic).segments if each.entries]
    assert len(set(epochs)) == 4
    assert values(topic, epochs=f"{epochs[0]},{epochs[2]}") == [b"0", b"0", b"2", b"2"]
    assert values(topic, startingEpoch=epochs[2]) == [b"2", b"2", b"3", b"3"]
    assert values(topic, startingEpoch=epochs[1], endingEpoch=epochs[1]) == [b"1", b"1"]
    assert values(topic, epochs=10**9) == []


def test_by_position(topic: str, fill: Fill, values: Values, access: Access) -> None:
    fill(topic, numbered(0, 50))
    found = rows(access, topic)
    start, end = (
        json.dumps({topic: shown(found[at]["__ledgerId"], found[at]["__entryId"])})
        for at in (10, 20)
    )
    assert values(topic, startingOffsets=start, endingOffsets=end) == numbered(10, 20)
    assert values(topic, startingOffsets=start) == numbered(10, 50)
    assert values(topic, endingOffsets=end) == numbered(0, 20)
    assert values(topic, startingOffsets=end, endingOffsets=end) == []
    assert values(topic, startingOffsets=json.dumps({topic: "0:0"})) == numbered(0, 50)
    with pytest.raises(Invalid, match="before its start"):
        values(topic, startingOffsets=end, endingOffsets=start)
    with pytest.raises(Invalid, match=r"ends at .*, before 999999:1"):
        values(topic, startingOffsets=json.dumps({topic: "999999:1"}))
    with pytest.raises(Invalid, match="startingOffsets gives no position of"):
        values(topic, startingOffsets=json.dumps({"other": "0:0"}))


def test_by_time(topic: str, fill: Fill, values: Values, access: Access) -> None:
    fill(topic, numbered(0, 5))
    between = int(rows(access, topic)[-1]["__publishTime"].timestamp() * 1000) + 1
    fill(topic, numbered(5, 9), batching_enabled=True)
    assert values(topic, startingTimestamp=between) == numbered(5, 9)
    assert values(topic, endingTimestamp=between) == numbered(0, 5)
    later = between + 10**9
    assert values(topic, endingTimestamp=later) == numbered(0, 9)
    with pytest.raises(Invalid, match="no message published at"):
        values(topic, startingTimestamp=later)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert values(topic, startingTimestamp=later, **strategy) == []


def test_several_topics_a_pattern_and_partitions(
    topic: str, broker: LocalBrokers, fill: Fill, values: Values, access: Access
) -> None:
    for number in range(3):
        fill(f"{topic}-many-{number}", numbered(10 * number, 10 * number + 5))
    parted = f"{topic}-many-parts"
    with Broker(access) as client:
        client._connection.ask(
            "PUT", f"/admin/v2/persistent/public/default/{parted}/partitions", body=b"3"
        )
    for number in range(3):
        fill(f"{parted}-partition-{number}", numbered(100 * number, 100 * number + 2))
    assert values(topics=f"{topic}-many-0, {topic}-many-2") == numbered(0, 5) + numbered(20, 25)
    assert values(parted) == [b"0", b"1", b"100", b"101", b"200", b"201"]
    assert values(f"{parted}-partition-1") == [b"100", b"101"]
    assert values(topicsPattern=f"{FULL}{topic}-many-[01]") == numbered(0, 5) + numbered(10, 15)
    assert len(values(topicsPattern=f".*/{topic}-many-.*")) == 15 + 6
    with pytest.raises(Invalid, match="not a regular expression"):
        values(topicsPattern="(")


def test_missing_topics_and_positions_are_reported(
    topic: str, fill: Fill, values: Values, access: Access
) -> None:
    with pytest.raises(NotFound):
        values(f"{topic}-never-made")
    assert values(topicsPattern="nothing-matches") == []
    fill(topic, [])
    assert values(topic) == []
    with (
        Broker(Access("http://127.0.0.1:9", patience_seconds=0.1)) as unreachable,
        pytest.raises(PipelineError),
    ):
        unreachable.segments(topic)


def test_a_plan_is_one_snapshot(topic: str, fill: Fill, access: Access) -> None:
    fill(topic, numbered(0, 5))
    reader = TopicReader(read_options(given(access, topic, {})))
    tasks = reader.partitions()
    fill(topic, numbered(5, 9))
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 5
    assert len(list(rows_of(reader))) == 9


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_work_is_divided_and_nothing_is_read_twice(
    topic: str, fill: Fill, access: Access, most: int
) -> None:
    fill(topic, numbered(0, 100))
    reader = TopicReader(read_options(given(access, topic, {"maxEntriesPerPartition": most})))
    tasks = reader.partitions()
    assert len(tasks) == -(-100 // most)
    found = [v for t in tasks for b in reader.read(t) for v in b.column("value").to_pylist()]
    assert found == numbered(0, 100)


# ------------------------------------------------------------ trimmed logs


def trimmed(access: Access, topic: str) -> Segments:
    """Trim the log to its last ledger."""
    with Broker(access) as broker:
        held = broker.segments(topic)
        last = held.segments[-1]
        epoch = int(broker.topic(topic)["epoch"])
        broker.trim(topic, Position(last.ledger, 0), epoch=epoch)
        return broker.segments(topic)


def test_trimmed_entries_are_an_error_unless_loss_is_accepted(
    topic: str, fill: Fill, values: Values, access: Access
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    fill(topic, numbered(0, 600), **exclusive)
    begin = segments(access, topic).first
    fill(topic, numbered(600, 700), **exclusive)
    reader = TopicReader(read_options(given(access, topic, {})))
    planned = reader.partitions()
    careless = TopicReader(read_options(given(access, topic, {"failOnDataLoss": "false"})))
    held = trimmed(access, topic)
    assert held.first > begin
    assert values(topic) == numbered(600, 700)
    start = json.dumps({topic: shown(*begin)})
    with pytest.raises(Trimmed, match="failOnDataLoss=false begins there"):
        values(topic, startingOffsets=start)
    assert values(topic, startingOffsets=start, failOnDataLoss="false") == numbered(600, 700)
    with pytest.raises(Trimmed):
        [batch for task in planned for batch in reader.read(task)]
    kept = [v for t in planned for b in careless.read(t) for v in b.column("value").to_pylist()]
    assert kept == numbered(600, 700)


def test_epochs_that_were_trimmed_are_an_error_unless_loss_is_accepted(
    topic: str, fill: Fill, values: Values, access: Access
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    fill(topic, numbered(0, 600), together=200, **exclusive)  # only whole blocks are trimmed
    fill(topic, numbered(600, 700), **exclusive)
    with Broker(access) as broker:
        held = broker.segments(topic)
        first, last = held.segments[-2:]
        below = json.dumps({"epochs": f"{(first.epoch or 0) - 1}"})
        assert values(topic, **json.loads(below)) == []  # there was none; nothing was trimmed
        named = [{"epochs": str(first.epoch)}, {"startingEpoch": str(first.epoch)}]
        for before in (Position(first.ledger, 400), Position(last.ledger, 0)):
            broker.trim(topic, before, epoch=held.epoch)
            for given_epochs in named:
                with pytest.raises(Trimmed, match=rf"was trimmed: .*epoch {first.epoch} "):
                    values(topic, **given_epochs)
                starting = given(access, topic, {"startingEpoch": str(first.epoch)})
                reader = TopicStreamReader(stream_options(starting, TYPES))
                with pytest.raises(Trimmed, match="was trimmed: "):
                    reader.initialOffset()
                found = values(topic, **given_epochs, failOnDataLoss="false")
                assert len(found) < (600 if "epochs" in given_epochs else 700)
    for given_epochs in ({"epochs": str(last.epoch)}, {"startingEpoch": str(last.epoch)}):
        assert values(topic, **given_epochs) == numbered(600, 700)
    assert values(topic, endingEpoch=str(last.epoch)) == numbered(600, 700)
    assert values(topic, epochs=str(10**9)) == []


# ------------------------------------------------------------ streams


def stream(access: Access, topic: str, **options: Any) -> TopicStreamReader:
    all_given = given(access, topic, {"startingOffsets": "earliest"} | options)
    return TopicStreamReader(stream_options(all_given, TYPES))


def read_stream(reader: TopicStreamReader, start: Any, end: Any) -> list[bytes]:
    tasks: Sequence[Any] = reader.partitions(start, end)
    return [v for t in tasks for b in reader.read(t) for v in b.column("value").to_pylist()]


def begun(reader: TopicStreamReader) -> Any:
    """Return the start of a new query; its first batch is empty."""
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert not reader.partitions(start, start)
    return start


def test_a_stream_reads_new_messages_in_batches_within_limits(
    topic: str, fill: Fill, access: Access
) -> None:
    fill(topic, numbered(0, 25))
    reader = stream(access, topic, maxEntriesPerTrigger=10)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    offset, batches = begun(reader), []
    while (end := reader.latestOffset(offset, limit)) != offset:
        batches.append(read_stream(reader, offset, end))
        offset = end
    assert batches == [numbered(0, 10), numbered(10, 20), numbered(20, 25)]
    assert offset == reader.reportLatestOffset()
    assert read_stream(reader, offset, offset) == []
    fill(topic, numbered(25, 50))
    end = reader.latestOffset(offset, ReadAllAvailable())
    again = stream(access, topic)
    assert read_stream(again, offset, end) == numbered(25, 50)


def test_a_stream_that_ends_with_what_is_there(topic: str, fill: Fill, access: Access) -> None:
    fill(topic, numbered(0, 5))
    reader = stream(access, topic, maxBytesPerTrigger=10**9)
    reader.prepareForTriggerAvailableNow()
    start = begun(reader)
    fill(topic, numbered(5, 9))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert read_stream(reader, start, end) == numbered(0, 5)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_stream_begins_at_the_end_by_default(topic: str, fill: Fill, access: Access) -> None:
    fill(topic, numbered(0, 5))
    reader = stream(access, topic, startingOffsets="latest")
    start = begun(reader)
    fill(topic, numbered(5, 9))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read_stream(reader, start, end) == numbered(5, 9)


def test_a_small_batch_waits(topic: str, fill: Fill, access: Access) -> None:
    fill(topic, numbered(0, 5))
    reader = stream(access, topic, minEntriesPerTrigger=3, maxTriggerDelay="1h")
    first = reader.latestOffset(begun(reader), ReadAllAvailable())
    fill(topic, numbered(5, 7))
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    fill(topic, numbered(7, 9))
    assert reader.latestOffset(first, ReadAllAvailable()) != first


def test_a_new_topic_of_a_pattern_is_read_from_its_beginning(
    topic: str, fill: Fill, access: Access
) -> None:
    fill(f"{topic}-a", numbered(0, 3))
    reader = stream(access, "", topicsPattern=f".*/{topic}-[ab]")
    first = reader.latestOffset(begun(reader), ReadAllAvailable())
    fill(f"{topic}-b", numbered(3, 6))
    second = reader.latestOffset(first, ReadAllAvailable())
    assert list(second) == [f"{FULL}{topic}-a", f"{FULL}{topic}-b"]
    assert read_stream(reader, first, second) == []
    third = reader.latestOffset(second, ReadAllAvailable())
    assert read_stream(reader, second, third) == numbered(3, 6)


def test_a_stream_that_lags_behind_a_trim_stops_unless_loss_is_accepted(
    topic: str, fill: Fill, access: Access
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    fill(topic, numbered(0, 600), **exclusive)
    reader = stream(access, topic)
    start = begun(reader)
    fill(topic, numbered(600, 700), **exclusive)
    trimmed(access, topic)
    with pytest.raises(Trimmed, match="was trimmed"):
        reader.latestOffset(start, ReadAllAvailable())
    careless = stream(access, topic, failOnDataLoss="false")
    end = careless.latestOffset(start, ReadAllAvailable())
    assert read_stream(careless, start, end) == numbered(600, 700)
