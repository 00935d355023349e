"""A raw client of Pulsar's protocol, for behaviour that stock clients do not have.

It sends exactly the commands that a test asks for, and keeps the received ones in order.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.integration.raw_connection import SECONDS_MAX, RawConnection, RefusedByBroker

from onewriter_core.ids import TopicName
from onewriter_core.wire.commands import Command
from onewriter_core.wire.encoding import encode_ack, encode_flow, encode_send_header, encode_varint
from onewriter_core.wire.messages import build_entry, entry_payload, iterate_batch, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, MessageId, SendReceipt

SHARED = pb.SHARED
EXCLUSIVE = pb.EXCLUSIVE
WAIT = pb.WAIT_FOR_EXCLUSIVE
FENCING = pb.EXCLUSIVE_WITH_FENCING

BROKERS_OWN_REQUEST = 2**64 - 1
"""The request id of a CLOSE_PRODUCER that the broker sends of its own accord."""

NOTHING_STORED = (2**64 - 1, 2**64 - 1)
"""The last message id of an empty topic."""


class RawClient(RawConnection):
    """A connection that creates producers and consumers."""

    def lookup(self, topic: str) -> pb.CommandLookupResponse:
        request_id = self.next_request_id()
        self.say(pb.CommandLookup(topic=full(topic), request_id=request_id))
        return self.expect(pb.CommandLookupResponse, lambda c: c.request_id == request_id)

    def partitions(self, topic: str) -> int:
        request_id = self.next_request_id()
        self.say(pb.CommandPartitionedMetadata(topic=full(topic), request_id=request_id))
        found = self.expect(
            pb.CommandPartitionedMetadataResponse, lambda c: c.request_id == request_id
        )
        return found.partitions

    def ask_producer(
        self,
        topic: str,
        mode: Any = SHARED,
        *,
        name: str = "",
        epoch: int | None = None,
        reconnects: int = 0,
        properties: Mapping[str, str] | None = None,
        priority_field: tuple[int, int] | None = None,
        producer_id: int | None = None,
    ) -> RawProducer:
        """Send PRODUCER. The producer's ``ready`` or ``waits`` reads the answer."""
        number = next(self._producer_ids) if producer_id is None else producer_id
        command = pb.CommandProducer(
            topic=full(topic),
            producer_id=number,
            request_id=self.next_request_id(),
            producer_name=name or None,
            user_provided_producer_name=bool(name),
            producer_access_mode=mode,
            topic_epoch=epoch,
            epoch=reconnects,
            metadata=[pb.KeyValue(key=k, value=v) for k, v in (properties or {}).items()],
        )
        if priority_field is not None:
            field, value = priority_field
            tag = encode_varint(field << 3)
            command.MergeFromString(tag + encode_varint(value & (2**64 - 1)))
        self.say(command)
        return RawProducer(self, command)

    def producer(self, topic: str, mode: Any = SHARED, **options: Any) -> RawProducer:
        """Return a producer that may write. Raises RefusedByBroker if it may not."""
        return self.ask_producer(topic, mode, **options).ready()

    def waiter(self, topic: str, mode: Any = WAIT, **options: Any) -> RawProducer:
        """Return a producer that waits."""
        return self.ask_producer(topic, mode, **options).waits()

    def subscribe(
        self,
        topic: str,
        subscription: str = "test",
        kind: Any = pb.CommandSubscribe.EXCLUSIVE,
        *,
        permits: int = 1000,
        durable: bool = True,
        earliest: bool = True,
    ) -> RawConsumer:
        consumer_id = next(self._consumer_ids)
        request_id = self.next_request_id()
        start = pb.MessageIdData(ledger_id=2**64 - 1, entry_id=2**64 - 1)
        self.say(
            pb.CommandSubscribe(
                topic=full(topic),
                subscription=subscription,
                sub_type=kind,
                consumer_id=consumer_id,
                request_id=request_id,
                durable=durable,
                start_message_id=None if durable else start,
                initial_position=pb.CommandSubscribe.EARLIEST
                if earliest
                else pb.CommandSubscribe.LATEST,
            )
        )
        self.answer(pb.CommandSuccess, request_id)
        if permits:
            self.write(encode_flow(consumer_id, permits))
        return RawConsumer(self, consumer_id)


class RawProducer:
    """One PRODUCER command, and the commands that are sent under its id."""

    def __init__(self, client: RawClient, command: pb.CommandProducer) -> None:
        self.client = client
        self.command = command
        self.producer_id = command.producer_id
        self.name = command.producer_name
        self.epoch: int | None = None
        self.registration = ""
        """The token that proves over HTTP who holds the epoch; empty if the broker sent none."""
        self.last_sequence_id = -1
        self._sequence = itertools.count()

    def waits(self) -> RawProducer:
        """Read the answer that it waits."""
        found = self.client.answer(pb.CommandProducerSuccess, self.command.request_id)
        assert not found.producer_ready
        self.name = found.producer_name
        return self

    def ready(self) -> RawProducer:
        """Read the answer that it may write."""
        found = self.client.answer(pb.CommandProducerSuccess, self.command.request_id)
        assert found.producer_ready, "it waits"
        return self._granted(found)

    def ready_at_last(self) -> RawProducer:
        """Read the answer that it may write, whether or not it had to wait."""
        while True:
            found = self.client.answer(pb.CommandProducerSuccess, self.command.request_id)
            if found.producer_ready:
                return self._granted(found)

    def _granted(self, found: pb.CommandProducerSuccess) -> RawProducer:
        self.name = found.producer_name
        self.last_sequence_id = found.last_sequence_id
        self.epoch = found.topic_epoch if found.HasField("topic_epoch") else None
        self.registration = found.registration
        return self

    @property
    def is_ready(self) -> bool:
        """Whether an unread answer allows it to write."""
        request_id = self.command.request_id
        return self.client.has_received(
            pb.CommandProducerSuccess, lambda c: c.request_id == request_id and c.producer_ready
        )

    def entry(self, content: bytes, sequence_id: int) -> bytes:
        metadata = pb.MessageMetadata(
            producer_name=self.name or "unnamed", sequence_id=sequence_id, publish_time=1
        )
        return build_entry(metadata, content)

    def send(self, content: bytes, sequence_id: int | None = None) -> int:
        """Send without waiting; return the sequence id."""
        number = next(self._sequence) if sequence_id is None else sequence_id
        entry = self.entry(content, number)
        self.client.write(encode_send_header(self.producer_id, number, len(entry)) + entry)
        return number

    def receipt(self, sequence_id: int) -> MessageId:
        """Return the position at which the broker stored it."""
        found = self.client.expect(
            SendReceipt,
            lambda c: (c.producer_id, c.sequence_id) == (self.producer_id, sequence_id),
        )
        assert found.message_id is not None
        return found.message_id

    def publish(self, content: bytes, sequence_id: int | None = None) -> MessageId:
        return self.receipt(self.send(content, sequence_id))

    def closed_by_broker(self) -> None:
        """Read that the broker has closed it without a request."""
        self.client.expect(
            pb.CommandCloseProducer,
            lambda c: (c.producer_id, c.request_id) == (self.producer_id, BROKERS_OWN_REQUEST),
        )

    def close(self) -> None:
        request_id = self.client.next_request_id()
        self.client.say(
            pb.CommandCloseProducer(producer_id=self.producer_id, request_id=request_id)
        )
        self.client.answer(pb.CommandSuccess, request_id)


class RawConsumer:
    """One subscription's consumer."""

    def __init__(self, client: RawClient, consumer_id: int) -> None:
        self.client = client
        self.consumer_id = consumer_id

    def receive(self, seconds: float = SECONDS_MAX) -> tuple[Delivery, bytes]:
        return self.client.expect_with_payload(
            Delivery, lambda c: c.consumer_id == self.consumer_id, seconds=seconds
        )

    def contents(self, count: int) -> list[bytes]:
        """Return the next ``count`` unbatched messages."""
        return [bytes(entry_payload(self.receive()[1])) for _ in range(count)]

    def flow(self, permits: int) -> None:
        self.client.write(encode_flow(self.consumer_id, permits))

    def acknowledge(self, message_id: MessageId) -> None:
        """Acknowledge and wait for the receipt."""
        request_id = self.client.next_request_id()
        self.client.write(encode_ack(self.consumer_id, 0, [message_id], request_id))
        found = self.client.expect(pb.CommandAckResponse, lambda c: c.request_id == request_id)
        if found.HasField("error"):
            raise RefusedByBroker(found.error, found.message)

    def close(self) -> None:
        request_id = self.client.next_request_id()
        self.client.say(
            pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=request_id)
        )
        self.client.answer(pb.CommandSuccess, request_id)


def full(topic: str) -> str:
    return str(TopicName.parse(topic))


def entries_of(address: tuple[str, int], topic: str) -> list[bytes]:
    """Read a topic up to its present end; return every entry as its producer sent it."""
    with RawClient(address) as client:
        consumer = client.subscribe(topic, "reader-of-everything", permits=0, durable=False)
        request_id = client.next_request_id()
        client.say(
            pb.CommandGetLastMessageId(consumer_id=consumer.consumer_id, request_id=request_id)
        )
        last = client.answer(pb.CommandGetLastMessageIdResponse, request_id).last_message_id
        end = (last.ledger_id, last.entry_id)
        found: list[bytes] = []
        while end != NOTHING_STORED:
            consumer.flow(1000)
            delivery, payload = consumer.receive()
            found.append(payload)
            if (delivery.message_id.ledger, delivery.message_id.entry) >= end:
                break
        return found


def contents_of(address: tuple[str, int], topic: str) -> list[bytes]:
    """Return the contents of a topic's uncompressed messages in order, with batches split."""
    found: list[bytes] = []
    for entry in entries_of(address, topic):
        metadata = parse_metadata(entry)
        payload = entry_payload(entry)
        if metadata.HasField("num_messages_in_batch"):
            batch = iterate_batch(payload, metadata.num_messages_in_batch)
            found += [bytes(content) for _, content in batch]
        else:
            found.append(bytes(payload))
    return found


def eventually(holds: Callable[[], bool], seconds: float = SECONDS_MAX, *, what: str = "") -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what or "it does not come true")
        time.sleep(0.01)


@contextlib.contextmanager
def clients(address: tuple[str, int], count: int, **options: Any) -> Iterator[list[RawClient]]:
    """Open this number of connections; they are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(RawClient(address, **options)) for _ in range(count)]


__all__ = [
    "EXCLUSIVE",
    "FENCING",
    "SHARED",
    "WAIT",
    "Command",
    "RawClient",
    "RawConsumer",
    "RawProducer",
    "RefusedByBroker",
    "clients",
    "contents_of",
    "entries_of",
    "eventually",
    "full",
]
