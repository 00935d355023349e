"""One topic of the scripted broker that delivers, remembers what is acknowledged, and rewinds."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.unit.client.fake_broker import FakeBroker, FakeLink

from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.encoding import encode_ack_response, encode_message_header
from onewriter_core.wire.messages import build_batch, build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID, Ack, Flow, MessageId

LEDGER = 7
NOON_MS = 1_700_000_000_000
SHARED = pb.CommandSubscribe.SHARED


@dataclass
class Subscriber:
    """A consumer, seen from the broker."""

    link: FakeLink
    command: pb.CommandSubscribe
    next: int
    epoch: int | None
    permits: int = 0
    mark: int = -1
    """A reader's: up to where it has acknowledged."""
    is_end_notified: bool = False


@dataclass
class Entry:
    """What is stored, and what its consumers still owe."""

    payload: bytes
    messages: int = 1
    remaining: int = 1


@dataclass
class FakeTopic:
    """Entries are numbered from 0."""

    broker: FakeBroker
    entries: list[Entry] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    is_silent: bool = False
    """Nothing is delivered, whatever is asked for."""
    ack_error: ServerError | None = None
    is_terminated: bool = False

    def __post_init__(self) -> None:
        self.broker.answers.update(
            {
                pb.CommandSubscribe: self.subscribe,
                Flow: self.flow,
                Ack: self.acknowledge,
                pb.CommandRedeliverUnacknowledgedMessages: self.redeliver,
                pb.CommandSeek: self.seek,
                pb.CommandGetLastMessageId: self.last_message_id,
                pb.CommandCloseConsumer: self.close,
                pb.CommandUnsubscribe: self.close,
            }
        )

    # ------------------------------------------------------------ what a test does

    def publish(self, *contents: bytes) -> None:
        """Each an entry of its own."""
        for content in contents:
            number = len(self.entries)
            metadata = pb.MessageMetadata(
                producer_name="writer",
                sequence_id=number,
                publish_time=NOON_MS + number,
                partition_key="key",
                properties=[pb.KeyValue(key="shop", value="7")],
            )
            self.store(build_entry(metadata, content))

    def publish_batch(self, *contents: bytes) -> None:
        """All of them one entry."""
        number, count = len(self.entries), len(contents)
        metadata = pb.MessageMetadata(
            producer_name="writer",
            sequence_id=number,
            publish_time=NOON_MS + number,
            num_messages_in_batch=count,
        )
        parts = [(pb.SingleMessageMetadata(payload_size=0), content) for content in contents]
        self.store(build_entry(metadata, build_batch(parts)), count)

    def publish_chunk(self, uuid: str, chunk: int, count: int, content: bytes) -> None:
        """A part of a message."""
        metadata = pb.MessageMetadata(
            producer_name="writer",
            sequence_id=0,
            publish_time=NOON_MS,
            uuid=uuid,
            chunk_id=chunk,
            num_chunks_from_msg=count,
        )
        self.store(build_entry(metadata, content))

    def store(self, payload: bytes, messages: int = 1) -> None:
        """An entry as it is."""
        self.entries.append(Entry(payload, messages, (1 << messages) - 1))
        self.deliver()

    def deliver(self) -> None:
        """What permits allow."""
        for subscriber in self.subscribers:
            while (
                not self.is_silent
                and subscriber.permits > 0
                and not subscriber.link.is_lost
                and subscriber.next < len(self.entries)
            ):
                self.send(subscriber, subscriber.next)
                subscriber.next += 1

    def send(self, subscriber: Subscriber, number: int, epoch: int | None = None) -> None:
        """One entry, unless it is acknowledged."""
        entry = self.entries[number]
        if not entry.remaining:
            return
        is_whole = entry.remaining == (1 << entry.messages) - 1
        subscriber.permits -= entry.remaining.bit_count()
        command = subscriber.command
        says_epoch = command.HasField("consumer_epoch") and command.sub_type != SHARED
        subscriber.link.write(
            encode_message_header(
                command.consumer_id,
                LEDGER,
                number,
                len(entry.payload),
                ack_set=() if is_whole else (entry.remaining,),
                consumer_epoch=(subscriber.epoch if epoch is None else epoch)
                if says_epoch
                else None,
            )
            + entry.payload
        )

    def terminate(self) -> None:
        """Nothing more is written; whoever has acknowledged everything is told."""
        self.is_terminated = True
        self.notify_end()

    def notify_end(self) -> None:
        for subscriber in self.subscribers:
            command, last = subscriber.command, len(self.entries) - 1
            mark = self.first_unacknowledged() - 1 if command.durable else subscriber.mark
            if self.is_terminated and mark >= last and not subscriber.is_end_notified:
                subscriber.is_end_notified = True
                subscriber.link.write(replies.reached_end_of_topic(command.consumer_id))

    def close_consumers(self) -> None:
        """As when the topic moves."""
        for subscriber in self.subscribers:
            subscriber.link.write(replies.close_consumer(subscriber.command.consumer_id))
        self.subscribers.clear()

    @property
    def acknowledged(self) -> list[int]:
        """Entries that are, wholly."""
        return [number for number, entry in enumerate(self.entries) if not entry.remaining]

    def first_unacknowledged(self) -> int:
        numbers = (number for number, entry in enumerate(self.entries) if entry.remaining)
        return next(numbers, len(self.entries))

    # ------------------------------------------------------------ what a client asks

    def subscribe(self, link: FakeLink, command: pb.CommandSubscribe) -> None:
        start = self.first_unacknowledged()
        if not command.durable:
            first = command.start_message_id
            wanted = MessageId(first.ledger_id, first.entry_id)
            start = len(self.entries)
            if wanted == EARLIEST_ID or first.ledger_id < LEDGER:
                start = 0
            elif first.ledger_id == LEDGER:
                start = first.entry_id
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        self.subscribers = [each for each in self.subscribers if not each.link.is_lost]
        self.subscribers.append(Subscriber(link, command, start, epoch, mark=start - 1))
        link.write(replies.success(command.request_id))
        self.notify_end()

    def find(self, link: FakeLink, consumer_id: int) -> Subscriber | None:
        """Nobody, where the consumer was closed and has not heard of it yet."""
        own = (each for each in self.subscribers if each.link is link)
        return next((each for each in own if each.command.consumer_id == consumer_id), None)

    def of(self, link: FakeLink, consumer_id: int) -> Subscriber:
        found = self.find(link, consumer_id)
        assert found is not None, f"there is no consumer {consumer_id}"
        return found

    def flow(self, link: FakeLink, command: Flow) -> None:
        subscriber = self.find(link, command.consumer_id)
        if subscriber is not None:
            subscriber.permits += command.permits
            self.deliver()

    def acknowledge(self, link: FakeLink, ack: Ack) -> None:
        self.acks.append(ack)
        subscriber = self.find(link, ack.consumer_id)
        if subscriber is None:
            if ack.request_id is not None:
                error = ServerError.CONSUMER_NOT_FOUND
                link.write(encode_ack_response(ack.consumer_id, ack.request_id, error, "gone"))
            return
        if not subscriber.command.durable:  # a reader's progress is its own
            subscriber.mark = ack.message_ids[0].entry
            self.notify_end()
            return
        for message_id in ack.message_ids:
            if ack.ack_type == 1:
                for entry in self.entries[: message_id.entry]:
                    entry.remaining = 0
            kept = message_id.ack_set[0] if message_id.ack_set else 0
            self.entries[message_id.entry].remaining &= kept
        self.notify_end()
        if ack.request_id is not None:
            link.write(encode_ack_response(ack.consumer_id, ack.request_id, self.ack_error, "no"))

    def redeliver(self, link: FakeLink, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        is_gone = self.find(link, command.consumer_id) is None
        if command.HasField("request_id"):
            error = replies.error(command.request_id, ServerError.CONSUMER_NOT_FOUND, "gone")
            link.write(error if is_gone else replies.success(command.request_id))
        if not is_gone:
            self.rewind(link, command)

    def rewind(self, link: FakeLink, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        """Take it, without an answer."""
        subscriber = self.of(link, command.consumer_id)
        if command.HasField("consumer_epoch"):
            subscriber.epoch = command.consumer_epoch
        if command.message_ids:
            for message_id in command.message_ids:
                self.send(subscriber, message_id.entry_id)
            return
        subscriber.next = self.first_unacknowledged()
        self.deliver()

    def seek(self, link: FakeLink, command: pb.CommandSeek) -> None:
        target = command.message_id.entry_id
        if command.HasField("message_publish_time"):
            target = command.message_publish_time - NOON_MS
        for number, entry in enumerate(self.entries):
            entry.remaining = 0 if number < target else (1 << entry.messages) - 1
        self.close_consumers()
        link.write(replies.success(command.request_id))

    def last_message_id(self, link: FakeLink, command: pb.CommandGetLastMessageId) -> None:
        last = MessageId(LEDGER, len(self.entries) - 1) if self.entries else EARLIEST_ID
        subscriber = self.of(link, command.consumer_id)
        is_durable = subscriber.command.durable
        mark = (self.first_unacknowledged() if is_durable else subscriber.next) - 1
        position = MessageId(LEDGER, mark) if mark >= 0 else MessageId(LEDGER - 1, 0)
        link.write(replies.last_message_id(command.request_id, last, position))

    def close(
        self, link: FakeLink, command: pb.CommandCloseConsumer | pb.CommandUnsubscribe
    ) -> None:
        self.subscribers = [
            each
            for each in self.subscribers
            if each.link is not link or each.command.consumer_id != command.consumer_id
        ]
        link.write(replies.success(command.request_id))
