"""Records the bytes that Pulsar's Python client sends: `python tests/conformance/record_frames.py`.

A stub acts as the broker as far as one producer, one consumer and one reader need it, and writes every byte of the
client to frames/. test_golden_frames.py reads those files. Record them again only for a new client version. The
stub also delivers messages, which shows that a real client accepts our MESSAGE frames.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import ClassVar

import pulsar

from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.encoding import (
    encode_ack_response,
    encode_message_header,
    encode_send_receipt,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_core.wire.values import Ack, Flow, MessageId, Send

FRAMES = Path(__file__).parent / "frames"
LEDGER = 7
TOPIC = "persistent://public/default/orders"


class Stub(asyncio.Protocol):
    """The broker's side of one connection. All connections share the log."""

    log: ClassVar[list[tuple[Send, bytes]]] = []

    def __init__(self, url: str, recording: bytearray) -> None:
        self.url = url
        self.recording = recording
        self.wire = ServerConnection()
        self.delivered: dict[int, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.recording += data
        for command, payload in self.wire.feed(data):
            self.transport.write(self.answer(command, payload))

    def answer(self, command: object, payload: memoryview | None) -> bytes:
        match command:
            case pb.CommandConnect():
                # Small, so that a short message is sent in chunks.
                return self.wire.connected("stub", max_message_size=1024)
            case pb.CommandPartitionedMetadata():
                return replies.partitions(command.request_id, 0)
            case pb.CommandLookup():
                return replies.lookup_connect(command.request_id, self.url)
            case pb.CommandProducer():
                waiting = replies.producer_success(command.request_id, "winner", ready=False)
                ready = replies.producer_success(command.request_id, "winner", topic_epoch=3)
                return waiting + ready
            case Send():
                assert payload is not None
                self.log.append((command, bytes(payload)))
                return encode_send_receipt(
                    command.producer_id,
                    command.sequence_id,
                    LEDGER,
                    len(self.log),
                    command.highest_sequence_id,
                )
            case Flow():
                return self.deliver(command.consumer_id)
            case Ack():
                if command.request_id is None:
                    return b""
                return encode_ack_response(command.consumer_id, command.request_id)
            case pb.CommandRedeliverUnacknowledgedMessages():
                self.delivered[command.consumer_id] = 0
                return self.deliver(command.consumer_id)
            case pb.CommandGetLastMessageId():
                return replies.last_message_id(command.request_id, MessageId(LEDGER, len(self.log)))
            case pb.CommandPing():
                return replies.PONG
            case pb.CommandGetSchema():
                return encode_command(pb.CommandGetSchemaResponse(request_id=command.request_id))
            case (
                pb.CommandSubscribe()
                | pb.CommandUnsubscribe()
                | pb.CommandSeek()
                | pb.CommandCloseProducer()
                | pb.CommandCloseConsumer()
            ):
                return replies.success(command.request_id)
            case _:
                raise AssertionError(f"the stub does not know {command}")

    def deliver(self, consumer_id: int) -> bytes:
        start = self.delivered.get(consumer_id, 0)
        self.delivered[consumer_id] = len(self.log)
        frames = bytearray()
        for index in range(start, len(self.log)):
            entry = self.log[index][1]
            frames += encode_message_header(consumer_id, LEDGER, index + 1, len(entry))
            frames += entry
        return bytes(frames)


def talk(url: str) -> None:
    client = pulsar.Client(url)
    producer = client.create_producer(
        TOPIC,
        access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
        batching_enabled=False,
        properties={"onewriter.queue-priority": "7"},
    )
    producer.send(b"first", properties={"a": "b"}, partition_key="k")
    producer.send(b"second", event_timestamp=1_700_000_000_000)
    producer.close()

    batching = client.create_producer(
        TOPIC,
        producer_name="named",
        access_mode=pulsar.ProducerAccessMode.Exclusive,
        batching_enabled=True,
        batching_max_publish_delay_ms=200,
        compression_type=pulsar.CompressionType.ZLib,
    )
    for number in range(3):
        batching.send_async(b"batched %d" % number, lambda result, message_id: None)
    batching.flush()
    batching.close()

    chunking = client.create_producer(TOPIC, batching_enabled=False, chunking_enabled=True)
    chunking.send(bytes(2_000))
    chunking.close()

    consumer = client.subscribe(
        TOPIC,
        "readers",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )
    messages = [consumer.receive(5_000) for _ in range(5)]
    assert [message.data() for message in messages[:2]] == [b"first", b"second"]
    assert messages[4].data() == b"batched 2"
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.redeliver_unacknowledged_messages()
    consumer.seek(pulsar.MessageId.earliest)
    consumer.unsubscribe()

    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert reader.has_message_available()
    assert reader.read_next(5_000).data() == b"first"
    reader.close()

    tail = client.subscribe(TOPIC, "tail", consumer_type=pulsar.ConsumerType.Failover)
    tail.acknowledge_cumulative(tail.receive(5_000))
    tail.close()
    client.close()


def main() -> None:
    recording = bytearray()
    started = threading.Event()
    url = ""
    loop = asyncio.new_event_loop()

    def connection() -> Stub:
        assert not recording, "the client is expected to need one connection"
        return Stub(url, recording)

    async def serve() -> None:
        nonlocal url
        server = await loop.create_server(connection, "127.0.0.1", 0)
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await server.serve_forever()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    started.wait()
    talk(url)
    (FRAMES / f"python_{pulsar.__version__}.bin").write_bytes(recording)


if __name__ == "__main__":
    main()
