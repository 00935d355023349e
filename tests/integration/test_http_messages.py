"""Single messages over Pulsar's admin API: by id, by time, after a cursor."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.raw import RawProducer

from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

TEXT = b"a sentence that is long enough to be compressed " * 20


@pytest.fixture
def http(broker: LocalBrokers) -> Http:
    return Http(broker.http_url)


def path_of(topic: str, message_id: Any) -> str:
    return f"{PERSISTENT}/{topic}/ledger/{message_id.ledger_id()}/entry/{message_id.entry_id()}"


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
)
def test_a_message_is_shown_uncompressed(
    broker: LocalBrokers, http: Http, stock: StockClients, topic: str, compression: Any
) -> None:
    producer = stock(broker.service_url).create_producer(
        topic, compression_type=compression, batching_enabled=False
    )
    message_id = producer.send(
        TEXT, properties={"colour": "grün"}, partition_key="key", event_timestamp=1_700_000_000_005
    )
    assert http("GET", path_of(topic, message_id)) == (200, TEXT.decode())
    assert http.headers["X-Pulsar-Message-ID"] == (
        f"{message_id.ledger_id()}:{message_id.entry_id()}"
    )
    assert http.headers["X-Pulsar-PROPERTY"] == '{"colour": "gr\\u00fcn"}'
    assert http.headers["X-Pulsar-partition-key"] == "key"
    assert http.headers["X-Pulsar-event-time"] == "2023-11-14T22:13:20.005Z"
    assert http.headers["X-Pulsar-sequence-id"] == "0"


def test_a_batch_is_shown_whole(
    broker: LocalBrokers, http: Http, stock: StockClients, topic: str
) -> None:
    producer = stock(broker.service_url).create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    ids: list[Any] = []
    for content in (b"one", b"two"):
        producer.send_async(content, lambda _, message_id: ids.append(message_id))
    producer.flush()
    status, body = http("GET", path_of(topic, ids[0]))
    assert status == 200
    assert "one" in body
    assert "two" in body
    assert http.headers["X-Pulsar-num-batch-message"] == "2"


def test_missing_messages_are_not_found(
    broker: LocalBrokers, http: Http, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    ledger, entry = producer.publish(b"x").position
    for path in (
        f"ledger/{ledger}/entry/{entry + 1}",
        f"ledger/{ledger}/entry/0",
        "ledger/0/entry/1",
    ):
        assert http("GET", f"{PERSISTENT}/{topic}/{path}") == (
            404,
            {"reason": "Message id not found"},
        )
    assert http("GET", f"{PERSISTENT}/{topic}/ledger/{ledger}/entry/-1")[0] == 400


def send_entry(
    producer: RawProducer, metadata: pb.MessageMetadata, content: bytes
) -> tuple[int, int]:
    """Send an entry with any metadata; return its position."""
    entry = build_entry(metadata, content)
    header = encode_send_header(producer.producer_id, metadata.sequence_id, len(entry))
    producer.client.write(header + entry)
    return tuple(producer.receipt(metadata.sequence_id).position)  # type: ignore[return-value]  # two numbers


def test_hostile_metadata_does_not_break_a_response(
    broker: LocalBrokers, http: Http, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    metadata = pb.MessageMetadata(
        producer_name="x\r\nSet-Cookie: a=b",
        sequence_id=0,
        publish_time=2**63,
        partition_key="a\nb",
    )
    ledger, entry = send_entry(producer, metadata, b"x")
    assert http("GET", f"{PERSISTENT}/{topic}/ledger/{ledger}/entry/{entry}") == (200, "x")
    assert "Set-Cookie" not in http.headers
    assert "X-Pulsar-partition-key" not in http.headers
    assert http.headers["X-Pulsar-publish-time"] == str(2**63)

    bomb = pb.MessageMetadata(
        producer_name="x",
        sequence_id=1,
        publish_time=1,
        compression=pb.MessageMetadata.ZLIB,
        uncompressed_size=2**31,
    )
    ledger, entry = send_entry(producer, bomb, b"as it is stored")
    assert http("GET", f"{PERSISTENT}/{topic}/ledger/{ledger}/entry/{entry}") == (
        200,
        "as it is stored",
    )
    bomb.sequence_id, bomb.uncompressed_size = 2, 10
    ledger, entry = send_entry(producer, bomb, b"no zlib")
    assert http("GET", f"{PERSISTENT}/{topic}/ledger/{ledger}/entry/{entry}")[0] == 422


def test_a_peek_begins_after_the_acknowledged_messages(
    broker: LocalBrokers, http: Http, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    producer = client.producer(topic)
    ids = [producer.publish(b"%d" % number) for number in range(4)]
    path = f"{PERSISTENT}/{topic}/subscription/audit/position"
    assert http("GET", f"{path}/1") == (200, 0), "one that does not exist has had nothing"
    consumer = client.subscribe(topic, "audit")
    consumer.acknowledge(ids[0])
    consumer.acknowledge(ids[2])
    assert [http("GET", f"{path}/{number}") for number in (1, 2)] == [(200, 1), (200, 3)]
    assert http("GET", f"{path}/3") == (404, {"reason": "Message not found"})
    assert http("GET", f"{path}/0")[0] == 400


def test_a_message_is_found_by_its_time(
    broker: LocalBrokers, http: Http, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    producer = client.producer(topic)
    ledger, entry = producer.publish(b"x").position
    status, found = http("GET", f"{PERSISTENT}/{topic}/messageid/1")
    assert status == 200
    assert (found["ledgerId"], found["entryId"]) == (ledger, entry)
    assert http("GET", f"{PERSISTENT}/{topic}/messageid/9999999999999")[1]["ledgerId"] == -1
