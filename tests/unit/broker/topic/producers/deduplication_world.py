"""Shared parts of the tests of deduplication: producers that send, and their receipts."""

from __future__ import annotations

import struct

from tests.unit.broker.topic.fence_path_world import FakeChannel, World, until

from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.producers.resends import POSITION_UNKNOWN
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.topic.model import AccessMode
from onewriter_core.wire.decoding import decode_send_receipt
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send, SendReceipt

DUPLICATE = tuple(POSITION_UNKNOWN)


def receipts(channel: FakeChannel) -> list[SendReceipt]:
    """The receipts of a connection, in their order."""
    found, data = [], bytes(channel.frames)
    while data:
        total, size = struct.unpack(">II", data[:8])
        receipt = decode_send_receipt(bytearray(data[8 : 8 + size]))
        assert receipt is not None
        found.append(receipt)
        data = data[4 + total :]
    return found


def answers(channel: FakeChannel) -> list[tuple[int, bool]]:
    """Each receipt's sequence id, and whether it marks the entry as a duplicate."""
    return [
        (
            receipt.sequence_id,
            receipt.message_id is not None and receipt.message_id.position == DUPLICATE,
        )
        for receipt in receipts(channel)
    ]


async def ready(
    world: World,
    runner: TopicRunner,
    mode: AccessMode = AccessMode.SHARED,
    name: str = "writer",
    *,
    topic_epoch: int | None = None,
    reconnects: int = 0,
) -> tuple[Producer, FakeChannel]:
    producer, channel = await world.granted(
        runner, mode, name, topic_epoch=topic_epoch, reconnects=reconnects
    )
    return producer, channel


def send_batch(producer: Producer, first: int, last: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name=producer.name,
        sequence_id=first,
        highest_sequence_id=last,
        publish_time=1,
        num_messages_in_batch=last - first + 1,
    )
    send = Send(1, first, num_messages=last - first + 1, highest_sequence_id=last)
    producer.publish(send, memoryview(build_entry(metadata, b"batch")))


def send_chunk(producer: Producer, sequence_id: int, chunk: int, chunks: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name=producer.name,
        sequence_id=sequence_id,
        publish_time=1,
        uuid=f"message-{sequence_id}",
        chunk_id=chunk,
        num_chunks_from_msg=chunks,
    )
    producer.publish(
        Send(1, sequence_id, is_chunk=True), memoryview(build_entry(metadata, b"part"))
    )


async def stored_entries(world: World) -> int:
    return sum((await world.entries_by_ledger()).values())


async def answered(channel: FakeChannel, count: int) -> list[tuple[int, bool]]:
    await until(lambda: len(receipts(channel)) >= count)
    return answers(channel)
