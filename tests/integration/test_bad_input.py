"""Every input of a peer gets a defined answer, and affects no other client."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    WAIT,
    RawClient,
    RawProducer,
    RefusedByBroker,
    contents_of,
    full,
)

from onewriter_core.errors import ServerError
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId, SendReceipt
from onewriter_testing.processes import LocalBrokers

FUZZ_EXAMPLES = 20 * ROUNDS
CONNECTS = 200 * ROUNDS


@pytest.fixture
def other_client(broker: LocalBrokers, raw: RawClients, topic: str) -> Iterator[RawProducer]:
    """A holder with a waiter during the test. At the end nothing has happened to them."""
    process_id = broker.pid()
    producer = raw(broker.address()).producer(f"{topic}-bystander", EXCLUSIVE)
    waiter = raw(broker.address()).waiter(f"{topic}-bystander")
    producer.publish(b"before")
    yield producer
    producer.publish(b"after")
    assert not waiter.is_ready
    assert broker.pid() == process_id, "the broker has died of it"
    assert "Traceback" not in broker.log()
    assert "connection.failed" not in broker.log()


def unconnected(broker: LocalBrokers) -> RawClient:
    return RawClient(broker.address(), connects=False)


def frame(total: int, size: int, rest: bytes = b"") -> bytes:
    return struct.pack(">II", total, size) + rest


BROKEN_STREAMS = {
    "garbage": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "zeros": bytes(64),
    "a frame beyond any limit": frame(2**31, 10),
    "a frame just beyond the limit": frame(5_253_121, 10),
    "a command longer than its frame": frame(20, 1000, bytes(20)),
    "a command of two megabytes": frame(2_000_004, 2_000_000, bytes(100)),
    "a command that is no protobuf": frame(8, 4, b"\xff\xff\xff\xff"),
    "a command without a type": frame(6, 2, b"\x10\x01"),
    "a type that nobody knows": frame(7, 3, b"\x08\xff\x07"),
    "a CONNECT without its version": frame(8, 4, b"\x08\x02\x12\x00"),
}


@pytest.mark.parametrize("stream", BROKEN_STREAMS.values(), ids=BROKEN_STREAMS)
@pytest.mark.parametrize("is_connected", [False, True], ids=["before CONNECT", "after"])
@pytest.mark.usefixtures("other_client")
def test_a_broken_stream_ends_its_connection(
    broker: LocalBrokers, stream: bytes, is_connected: bool
) -> None:
    with RawClient(broker.address(), connects=is_connected) as client:
        client.write(stream)
        client.wait_closed()


OUT_OF_ORDER: dict[str, Callable[[], bytes]] = {
    "a second CONNECT": lambda: encode_command(pb.CommandConnect(client_version="again")),
    "a broker's own command": lambda: encode_command(pb.CommandSuccess(request_id=1)),
    "a SEND for a producer that is not there": lambda: (
        encode_send_header(77, 0, 8) + b"\x00\x00\x00\x04abcd"
    ),
    "a SEND without a payload": lambda: encode_send_header(77, 0, 0),
}


@pytest.mark.parametrize("command", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
@pytest.mark.usefixtures("other_client")
def test_a_command_out_of_order_ends_its_connection(
    broker: LocalBrokers, raw: RawClients, command: Callable[[], bytes]
) -> None:
    client = raw(broker.address())
    client.write(command())
    client.wait_closed()


@pytest.mark.usefixtures("other_client")
def test_every_command_before_connect_is_refused(broker: LocalBrokers) -> None:
    for command in (pb.CommandPing(), pb.CommandLookup(topic="t", request_id=1)):
        with unconnected(broker) as client:
            client.write(encode_command(command))
            client.wait_closed()


@pytest.mark.usefixtures("other_client")
def test_requests_for_what_is_not_there_are_answered(broker: LocalBrokers, raw: RawClients) -> None:
    client = raw(broker.address())
    no_such: list[Any] = [
        pb.CommandUnsubscribe(consumer_id=5, request_id=101),
        pb.CommandSeek(consumer_id=5, request_id=102, message_publish_time=1),
        pb.CommandGetLastMessageId(consumer_id=5, request_id=103),
    ]
    for command in no_such:
        client.say(command)
        with pytest.raises(RefusedByBroker) as found:
            client.answer(pb.CommandSuccess, command.request_id)
        assert found.value.code is ServerError.CONSUMER_NOT_FOUND
    for closing in (
        pb.CommandCloseProducer(producer_id=5, request_id=104),
        pb.CommandCloseConsumer(consumer_id=5, request_id=105),
    ):
        client.say(closing)
        client.answer(pb.CommandSuccess, closing.request_id)
    client.write(encode_flow(5, 100))
    client.write(encode_ack(5, 0, [MessageId(1, 1)]))
    client.write(encode_ack(5, 0, [MessageId(1, 1)], 106))
    answer = client.expect(pb.CommandAckResponse)
    assert answer.error == pb.CONSUMER_NOT_FOUND
    client.say(pb.CommandNewTxn(request_id=107))
    assert client.expect(pb.CommandNewTxnResponse).HasField("error")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ServerError.INVALID_TOPIC_NAME),
        ("persistent://a/b", ServerError.INVALID_TOPIC_NAME),
        ("http://a/b/c", ServerError.INVALID_TOPIC_NAME),
        ("persistent://public/default/" + "x" * 5000, ServerError.INVALID_TOPIC_NAME),
        ("persistent://nobody/nowhere/t", ServerError.TOPIC_NOT_FOUND),
        ("non-persistent://public/default/t", ServerError.NOT_ALLOWED_ERROR),
    ],
)
@pytest.mark.usefixtures("other_client")
def test_a_topic_that_cannot_be_is_refused_by_name(
    broker: LocalBrokers, raw: RawClients, name: str, code: ServerError
) -> None:
    client = raw(broker.address())
    client.say(pb.CommandProducer(topic=name, producer_id=1, request_id=11))
    with pytest.raises(RefusedByBroker) as found:
        client.answer(pb.CommandProducerSuccess, 11)
    assert found.value.code is code
    client.say(pb.CommandLookup(topic=name, request_id=12))
    answer = client.expect(pb.CommandLookupResponse)
    assert (answer.request_id, answer.error) == (12, int(code))
    client.say(
        pb.CommandSubscribe(
            topic=name,
            subscription="s",
            sub_type=pb.CommandSubscribe.EXCLUSIVE,
            consumer_id=1,
            request_id=13,
        )
    )
    with pytest.raises(RefusedByBroker) as found:
        client.answer(pb.CommandSuccess, 13)
    assert found.value.code is code
    client.ping()


def test_a_wrong_checksum_is_refused_and_the_producer_continues(
    broker: LocalBrokers, raw: RawClients, topic: str, other_client: RawProducer
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    producer.publish(b"good", 0)
    entry = bytearray(producer.entry(b"bad", 1))
    entry[-1] ^= 1
    producer.client.write(encode_send_header(producer.producer_id, 1, len(entry)) + entry)
    error = producer.client.expect(pb.CommandSendError)
    assert (error.sequence_id, error.error) == (1, pb.CHECKSUM_ERROR)
    producer.publish(b"better", 1)
    assert contents_of(broker.address(), topic) == [b"good", b"better"]


DAMAGED_ENTRIES = {
    "no metadata": b"\x00\x00\x00\x00",
    "metadata longer than the entry": b"\x00\x01\x00\x00abc",
    "a checksum cut short": b"\x0e\x01\x00\x00",
    "metadata that is no protobuf": b"\x00\x00\x00\x03\xff\xff\xffabc",
}


@pytest.mark.parametrize("entry", DAMAGED_ENTRIES.values(), ids=DAMAGED_ENTRIES)
@pytest.mark.parametrize("is_chunk", [False, True], ids=["whole", "chunk"])
@pytest.mark.usefixtures("other_client")
def test_a_damaged_entry_hurts_only_its_sender(
    broker: LocalBrokers, raw: RawClients, topic: str, entry: bytes, is_chunk: bool
) -> None:
    """The broker stores it verbatim or closes its connection. Other clients are not affected."""
    producer = raw(broker.address()).producer(topic, EXCLUSIVE, name="p")
    header = encode_send_header(producer.producer_id, 0, len(entry), is_chunk=is_chunk)
    producer.client.write(header + entry)
    with contextlib.suppress(TimeoutError, OSError):
        producer.client.expect(SendReceipt, seconds=1)
    producer.client.close()
    # A resume reads all pending and stored entries.
    back = raw(broker.address())
    resumed = back.producer(topic, EXCLUSIVE, name="p", epoch=producer.epoch, reconnects=1)
    with contextlib.suppress(OSError):
        back.write(
            encode_send_header(resumed.producer_id, 0, len(entry), is_chunk=is_chunk) + entry
        )
        resumed.publish(b"and on", 1)
    taker = raw(broker.address()).producer(topic, FENCING)
    taker.publish(b"the topic lives")


@pytest.mark.usefixtures("other_client")
def test_duplicate_ids_are_refused_and_disturb_nothing(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    producer = client.producer(topic, EXCLUSIVE, producer_id=1)
    waiter = client.waiter(topic, producer_id=2)
    with pytest.raises(RefusedByBroker):
        client.producer(topic, WAIT, producer_id=2)
    client.producer(f"{topic}-another", EXCLUSIVE, producer_id=1)  # answered like the first request
    consumer = client.subscribe(topic, "s")
    client.say(
        pb.CommandSubscribe(
            topic=full(topic),
            subscription="s",
            sub_type=pb.CommandSubscribe.SHARED,
            consumer_id=consumer.consumer_id,
            request_id=900,
        )
    )
    client.answer(pb.CommandSuccess, 900)
    producer.publish(b"one")
    assert consumer.contents(1) == [b"one"]
    producer.close()
    waiter.ready()


@pytest.mark.usefixtures("other_client")
def test_late_sends_of_a_closed_producer_are_ignored(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    producer.close()
    producer.send(b"late")
    producer.client.ping()
    assert contents_of(broker.address(), topic) == []


@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
@pytest.mark.usefixtures("other_client")
def test_thousands_connect_and_drop(broker: LocalBrokers, topic: str) -> None:
    hello = encode_command(pb.CommandConnect(client_version="hasty"))
    ask = encode_command(
        pb.CommandProducer(
            topic=full(topic),
            producer_id=1,
            request_id=1,
            producer_access_mode=pb.WAIT_FOR_EXCLUSIVE,
        )
    )
    answer = (b"", hello[:7], hello, hello + ask, hello + ask[:9])
    for number in range(CONNECTS):
        with socket.create_connection(broker.address()) as link:
            link.sendall(answer[number % len(answer)])
            if number % 2:  # half of them reset, the others close
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with RawClient(broker.address()) as client:
        client.producer(topic, WAIT).publish(b"nobody of them is left in the way")


# ---------------------------------------------------------------- fuzz


def _frames(topic: str) -> list[bytes]:
    """Return valid frames: the commands of a client's life."""
    entry = RawProducer.entry(
        RawProducer(None, pb.CommandProducer(topic="t", producer_id=1, request_id=1)),  # type: ignore[arg-type]  # says nothing
        b"content",
        0,
    )
    name = full(topic)
    return [
        encode_command(pb.CommandProducer(topic=name, producer_id=1, request_id=1)),
        encode_command(
            pb.CommandProducer(
                topic=name, producer_id=2, request_id=2, producer_access_mode=pb.WAIT_FOR_EXCLUSIVE
            )
        ),
        encode_send_header(1, 0, len(entry)) + entry,
        encode_command(
            pb.CommandSubscribe(
                topic=name,
                subscription="fuzz",
                sub_type=pb.CommandSubscribe.SHARED,
                consumer_id=1,
                request_id=3,
            )
        ),
        encode_flow(1, 100),
        encode_ack(1, 0, [MessageId(3, 1)], 4),
        encode_command(pb.CommandSeek(consumer_id=1, request_id=5, message_publish_time=0)),
        encode_command(pb.CommandGetLastMessageId(consumer_id=1, request_id=6)),
        encode_command(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)),
        encode_command(pb.CommandCloseProducer(producer_id=1, request_id=7)),
        encode_command(pb.CommandUnsubscribe(consumer_id=1, request_id=8)),
        encode_command(pb.CommandLookup(topic=name, request_id=9)),
        encode_command(pb.CommandPartitionedMetadata(topic=name, request_id=10)),
        encode_command(pb.CommandPing()),
    ]


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw valid frames in any order, some with changed bytes, and random bytes in between."""
    good = _frames("fuzzed")
    pieces: list[bytes] = []
    for _ in range(draw(st.integers(1, 12))):
        piece = bytearray(draw(st.sampled_from(good)))
        for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
            piece[draw(st.integers(0, len(piece) - 1))] = draw(st.integers(0, 255))
        pieces.append(bytes(piece))
        if draw(st.integers(0, 9)) == 0:
            pieces.append(draw(st.binary(max_size=40)))
    return pieces


@given(pieces=streams())
@settings(
    max_examples=FUZZ_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.campaign
@pytest.mark.timeout(360 + 10 * ROUNDS)
@pytest.mark.usefixtures("other_client")
def test_after_any_stream_the_broker_still_serves(
    broker: LocalBrokers, pieces: list[bytes]
) -> None:
    with socket.create_connection(broker.address()) as link:
        hello = encode_command(pb.CommandConnect(client_version="fuzz", protocol_version=20))
        with contextlib.suppress(OSError):
            link.sendall(hello)
            for piece in pieces:
                link.sendall(piece)
            link.shutdown(socket.SHUT_WR)
            link.settimeout(0.02)
            while link.recv(65536):
                pass
    with RawClient(broker.address()) as client:
        client.ping()
