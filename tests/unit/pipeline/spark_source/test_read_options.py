"""The options of reads: their meaning, and the errors for invalid ones."""

from __future__ import annotations

import pickle

import pytest

from onewriter_core.ids import Position
from onewriter_pipeline.errors import Invalid
from onewriter_pipeline.read.selection import Bound, Epochs, Kind
from onewriter_pipeline.schema import MESSAGE_COLUMNS, PROPERTIES
from pyspark_onewriter.options import known_options, read_options, stream_options
from pyspark_onewriter.source import TopicReader
from pyspark_onewriter.stream import TopicStreamReader

URL = {"admin.url": "http://broker:8080"}
ORDERS = {**URL, "topic": "orders"}
VALUE = {"value": "binary"}
TOPIC = {"topic": "orders"}
FULL = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEWRITER_HTTP_URL", "ONEWRITER_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_of_the_options() -> None:
    options = read_options(ORDERS)
    assert options.selection.topics == ("orders",)
    assert options.selection.starting == Bound(Kind.EARLIEST)
    assert options.selection.ending == Bound(Kind.LATEST)
    assert options.columns == tuple(MESSAGE_COLUMNS)
    assert options.reading.fail_on_loss
    assert options.reading.verify_checksums
    assert not options.reading.skip_corrupt
    assert stream_options(ORDERS, VALUE).selection.starting == Bound(Kind.LATEST)


def test_every_option_is_parsed() -> None:
    options = read_options(
        {
            "SERVICE.URL": "http://a:1,http://b:2",
            "authtoken": "t",
            "tls.verify": "false",
            "topics": "orders, tenant/ns/other",
            "startingOffsets": '{"orders": "3:17", "tenant/ns/other": "0:0"}',
            "endingTimestamp": "99",
            "maxOffsetsPerTrigger": "5",
            "maxBytesPerTrigger": "6",
            "maxMessagesPerTrigger": "4",
            "minEntriesPerTrigger": "7",
            "maxTriggerDelay": "500ms",
            "minPartitions": "8",
            "maxEntriesPerPartition": "9",
            "failOnDataLoss": "False",
            "corruptEntries": "skip",
            "verifyChecksums": "false",
            "valueFormat": "json",
            "includeProperties": "false",
            "tier": "hot",
        }
    )
    assert options.access.addresses() == ["http://a:1", "http://b:2"]
    assert options.access.headers() == {"Authorization": "Bearer t"}
    assert not options.access.verify
    assert options.selection.topics == ("orders", "tenant/ns/other")
    assert options.selection.starting.positions == {
        FULL: Position(3, 17),
        "persistent://tenant/ns/other": Position(0, 0),
    }
    assert options.selection.ending == Bound(Kind.TIME, time_ms=99, or_latest=True)
    limits = options.limits
    assert (limits.entries_max, limits.bytes_max, limits.entries_min) == (5, 6, 7)
    assert limits.messages_max == 4
    assert limits.delay_seconds == 0.5
    assert (options.partitions_min, options.partition_entries_max) == (8, 9)
    assert not options.reading.fail_on_loss
    assert options.reading.skip_corrupt
    assert not options.reading.verify_checksums
    assert options.json
    assert PROPERTIES not in options.columns


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": "3, 5"}, Epochs(frozenset({3, 5}))),
        ({"startingEpoch": "3"}, Epochs(first=3)),
        ({"startingEpoch": "3", "endingEpoch": "3"}, Epochs(first=3, last=3)),
    ],
)
def test_topic_epochs_are_lists_or_ranges(given: dict[str, str], expected: Epochs) -> None:
    epochs = read_options(ORDERS | given).selection.epochs
    assert epochs == expected
    assert 3 in expected
    assert 2 not in expected
    assert "3" not in expected


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"subscribe": "a,b"}, {"topics": "a,b"}),
        ({"SUBSCRIBEPATTERN": "a.*"}, {"topicsPattern": "a.*"}),
        ({"assign": '{"a": [0, 2]}'}, {"topics": "a-partition-0,a-partition-2"}),
        ({"maxOffsetsPerTrigger": "7", **TOPIC}, {"maxEntriesPerTrigger": "7", **TOPIC}),
        ({"minOffsetsPerTrigger": "7", **TOPIC}, {"minEntriesPerTrigger": "7", **TOPIC}),
        ({"includeHeaders": "false", **TOPIC}, {"includeProperties": "false", **TOPIC}),
    ],
)
def test_names_of_kafka_options_are_synonyms(given: dict[str, str], same: dict[str, str]) -> None:
    assert read_options(URL | given) == read_options(URL | same)
    address = {"kafka.bootstrap.servers": "http://broker:8080"}
    assert read_options(address | given) == read_options(URL | same)


def test_named_columns_are_the_columns_of_the_read() -> None:
    options = known_options(ORDERS | {"columns": "__entryId, value,__orderingKey"})
    assert options.columns == ("__entryId", "value", "__orderingKey")
    assert read_options(ORDERS | {"columns": "value"}, VALUE).columns == ("value",)


MISTAKES = {
    "two names of one option": (
        {"subscribe": "orders", "topics": "orders"},
        "subscribe and topics: give one of them",
    ),
    "a topic and a synonym": ({"subscribe": "orders"}, "topic and topics: give one of"),
    "two addresses": (
        {"kafka.bootstrap.servers": "http://b:1"},
        "admin.url and kafka.bootstrap.servers: give one of them",
    ),
    "partitions that are none": ({"assign": "orders"}, "assign: 'orders' is not JSON such as"),
    "an option of Kafka's clients": (
        {"kafka.session.timeout.ms": "1"},
        "'kafka.session.timeout.ms': options of Kafka's clients have no meaning",
    ),
    "times by partition": ({"startingOffsetsByTimestamp": "{}"}, "use startingTimestamp: one time"),
    "a group": ({"kafka.group.id": "g"}, "use ackSubscription"),
    "no columns": ({"columns": " , "}, "columns: ',' is not a list of different columns"),
    "a column twice": ({"columns": "value,value"}, "is not a list of different columns"),
    "an unknown column": ({"columns": "valu"}, "messages have no column 'valu'"),
    "columns twice": (
        {"columns": "value", "includeProperties": "true"},
        "columns and includeProperties: give one of",
    ),
    "an unknown option": (
        {"startingOffset": "x"},
        "there is no option 'startingOffset': 'startingOffsets'\\?$",
    ),
    "nothing near": ({"qqq": "x"}, "there is no option 'qqq'$"),
    "a path": ({"path": "x"}, "load\\(\\) takes no path: name the topic"),
    "topic and topics": ({"topics": "a"}, "topic and topics: give one of"),
    "no topic": ({"topic": ""}, "^give one of topic, topics, topicsPattern$"),
    "no topics": ({"topic": "", "topics": " , "}, "^topics contains no topic name$"),
    "tokens twice": ({"authToken": "secret", "authTokenFile": "f"}, "give one of them"),
    "an address that is none": ({"admin.url": "broker:8080"}, "'broker:8080' is not an http://"),
    "start at the end": ({"startingOffsets": "latest"}, "a batch cannot start at 'latest'"),
    "end at the start": ({"endingOffsets": "earliest"}, "cannot be 'earliest'"),
    "no offsets": ({"startingOffsets": "erliest"}, "is none of 'earliest', 'latest'"),
    "no position": ({"startingOffsets": '{"a": "3-1"}'}, "'3-1' is not a position"),
    "a bad topic": ({"startingOffsets": '{"a/b": "3:1"}'}, "not a topic name"),
    "two starts": ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "give one of them"),
    "reversed times": ({"startingTimestamp": "2", "endingTimestamp": "1"}, "is before"),
    "reversed epochs": ({"startingEpoch": "2", "endingEpoch": "1"}, "is before"),
    "epochs twice": ({"epochs": "2", "endingEpoch": "1"}, "give one of them"),
    "no epochs": ({"epochs": "2-3"}, "is not a list such as 3,5"),
    "epochs and offsets": ({"epochs": "2", "startingOffsets": "earliest"}, "give one of them"),
    "a number below": ({"minPartitions": "0"}, "not a whole number of at least 1"),
    "no number": ({"maxEntriesPerTrigger": "1e3"}, "not a whole number"),
    "limits twice": (
        {"maxEntriesPerTrigger": "1", "maxOffsetsPerTrigger": "1"},
        "give one of them",
    ),
    "no time": ({"maxTriggerDelay": "soon"}, "not a time such as 500ms"),
    "no flag": ({"failOnDataLoss": "maybe"}, "'maybe' is none of true, false"),
    "a tier": ({"tier": "warm"}, "'warm' is none of hot, cold, all"),
    "a tier without a table": ({"tier": "cold"}, "tier=cold needs the option table"),
    "a table for the live log": ({"table": "t"}, "tier=hot does not"),
    "options of a table": (
        {"tier": "all", "table": "t", "table.options": "[]"},
        "is a JSON object",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_options_are_refused_by_name(mistake: str) -> None:
    given, message = MISTAKES[mistake]
    with pytest.raises(Invalid, match=message) as caught:
        read_options(ORDERS | given)
    assert "secret" not in str(caught.value)


def test_schema_names_columns_and_their_types() -> None:
    given = {"__entryId": "bigint", "__messageProperties": "map<string,string>", **VALUE}
    assert read_options(ORDERS, given).columns == tuple(given)
    with pytest.raises(Invalid, match="no column 'key'; they have value, __key, "):
        read_options(ORDERS, {"key": "binary"})
    with pytest.raises(Invalid, match="the column value is BINARY, not STRING"):
        read_options(ORDERS, {"value": "string"})
    assert read_options({**ORDERS, "valueFormat": "json"}, {"value": "string"}).json


def test_schema_is_known_before_batch_or_stream_is_chosen() -> None:
    for only_one_of_both in ({"startingOffsets": "latest"}, {"ackSubscription": "spark"}):
        assert known_options(ORDERS | only_one_of_both).columns == tuple(MESSAGE_COLUMNS)
        with pytest.raises(Invalid):
            read_options(ORDERS | only_one_of_both)
        stream_options(ORDERS | only_one_of_both, VALUE)
    with pytest.raises(Invalid, match="there is no option"):
        known_options({**ORDERS, "startingOffset": "latest"})


def test_subscriptions_follow_streams_of_the_log() -> None:
    with pytest.raises(Invalid, match="only streams acknowledge"):
        read_options({**ORDERS, "ackSubscription": "spark"})
    with pytest.raises(Invalid, match="tier=cold, which reads no log"):
        stream_options(
            {"topic": "orders", "tier": "cold", "table": "t", "ackSubscription": "spark"}, VALUE
        )
    given = {**ORDERS, "tier": "all", "table": "t", "ackSubscription": "spark"}
    assert stream_options(given, VALUE).subscription == "spark"


def test_streams_refuse_an_end() -> None:
    with pytest.raises(Invalid, match="endingOffsets: a stream has no end"):
        stream_options({**ORDERS, "endingOffsets": "latest"}, VALUE)


def test_addresses_and_tokens_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match=r"admin\.url is missing"):
        read_options({"topic": "orders", "service.url": "pulsar://broker:6650"})
    monkeypatch.setenv("ONEWRITER_HTTP_URL", "http://broker:8080")
    monkeypatch.setenv("ONEWRITER_TOKEN", "secret\n")
    access = read_options({"topic": "orders"}).access
    assert access.url == "http://broker:8080"
    assert "\n" not in access.token
    assert access.headers() == {"Authorization": "Bearer secret"}
    assert read_options({**ORDERS, "authTokenFile": "f"}).access.token == ""


def test_readers_can_be_pickled_and_their_repr_shows_no_token() -> None:
    given = {**ORDERS, "authToken": "secret"}
    for reader in (
        TopicReader(read_options(given)),
        TopicStreamReader(stream_options(given, VALUE)),
    ):
        copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
        assert copy._options == reader._options
        assert "secret" not in repr(reader) + repr(reader._options)
