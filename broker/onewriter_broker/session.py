"""One client connection: its commands, and what is answered to them.

Decisions about producers are the topic machine's (through the runner), about consumers the
dispatcher's. Here commands are understood, admitted and routed; SEND, ACK and FLOW take the short
way. Nothing in here blocks: what must wait for the store runs as a task, and a bounded number of
them per connection.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Protocol

import structlog

from onewriter_broker.access import AskedPriority, admit, check_topic, parse_priority
from onewriter_broker.clients import Clients
from onewriter_broker.detection import Detection
from onewriter_broker.dispatch.api import SubscribeOptions, seek_target
from onewriter_broker.dispatch.consumer import Consumer
from onewriter_broker.log.topic_log import Entry
from onewriter_broker.lookups import Lookups
from onewriter_broker.producer import Producer
from onewriter_broker.topics import LoadedTopic
from onewriter_core.errors import OnewriterError, ProtocolError, Refused, ServerError, Unavailable
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.topic.model import AccessMode, Departure, Request
from onewriter_core.wire import replies
from onewriter_core.wire.commands import (
    Command,
    encode_command,
    message_id_from_proto,
    queue_priority,
)
from onewriter_core.wire.hot import (
    Ack,
    Flow,
    Send,
    encode_ack_response,
    encode_message_header,
)
from onewriter_core.wire.messages import entry_checksum_ok
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

REQUESTS_MAX = 10_000
"""Requests of one connection that may wait for the store at once."""

CLOSED_PRODUCERS_MAX = 10_000
"""Producer ids remembered after they were closed: their late SENDs are ignored."""

NAMED_PARTITIONS_MAX = 10_000
"""Partitions that a connection asked for by name, remembered so that they compete alone."""

IF_EPOCH_PROPERTY = "onewriter.if-epoch"
"""Producer property: a takeover happens only if the topic epoch still is this number."""

ACCESS_MODE_PROPERTY = "onewriter.access-mode"
"""Producer property: ``ExclusiveWithFencing`` for clients that cannot ask for it (Go)."""

log = structlog.get_logger(__name__)


class Link(Protocol):
    """The socket as the session sees it."""

    detection: Detection | None
    """How soon it counts as silent; None: no exclusive producer depends on it."""

    @property
    def has_room(self) -> bool: ...

    def write(self, *parts: bytes | memoryview) -> None:
        """Queue for sending, in order, at the end of this turn of the event loop."""
        ...

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        ...

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run beside the connection; cancelled with the broker, not with the connection."""
        ...

    def pending_changed(self, difference: int) -> None:
        """So many bytes more, or less, are sent but unanswered."""
        ...


class _Opening:
    """A producer or consumer whose topic is still being loaded."""

    __slots__ = ("is_cancelled", "priority", "request_id")

    def __init__(self, request_id: int, priority: int = 0) -> None:
        self.request_id = request_id
        self.priority = priority
        self.is_cancelled = False


class Session:
    """One authenticated connection. ``handle`` takes its commands; ``lost`` ends it."""

    def __init__(
        self,
        clients: Clients,
        link: Link,
        *,
        name: str,
        address: str,
        identity: Identity,
        client_version: str,
    ) -> None:
        self.name = name
        self.peer_address = address
        self.identity = identity
        self.client_version = client_version
        self.connected_at_ms = clients.wall_ms()
        self._clients = clients
        self._link = link
        self._producers: dict[int, Producer | _Opening] = {}
        self._topics_of: dict[int, LoadedTopic] = {}
        self._closed_producers: dict[int, None] = {}
        self._consumers: dict[int, Consumer | _Opening] = {}
        self._named_partitions: dict[str, None] = {}
        self._registrations = 0
        self._requests = 0
        self._exclusive = 0
        self._is_lost = False
        self._lookups = Lookups(clients.topics, clients.undeclared)

    # ------------------------------------------------------------ commands

    def handle(self, command: Command, payload: memoryview | None) -> None:
        """Take one command. Raises ProtocolError when the connection cannot go on."""
        kind = type(command)
        if kind is Send:
            self._send(command, payload)  # type: ignore[arg-type]  # checked by the codec
        elif kind is Ack:
            self._ack(command)  # type: ignore[arg-type]  # its own type
        elif kind is Flow:
            consumer = self._consumers.get(command.consumer_id)  # type: ignore[union-attr]
            if isinstance(consumer, Consumer):
                consumer.flow(command.permits)  # type: ignore[union-attr]
        else:
            self._other(command)

    def _other(self, command: Command) -> None:
        match command:
            case pb.CommandPing():
                self._link.write(replies.PONG)
            case pb.CommandPong():
                pass  # the link has noted that the client lives
            case pb.CommandProducer():
                self._producer(command)
            case pb.CommandCloseProducer():
                self._close_producer(command)
            case pb.CommandSubscribe():
                self._subscribe(command)
            case pb.CommandCloseConsumer():
                self._close_consumer(command)
            case pb.CommandUnsubscribe():
                self._run(command.request_id, self._unsubscribe(command))
            case pb.CommandRedeliverUnacknowledgedMessages():
                self._redeliver(command)
            case pb.CommandSeek():
                self._run(command.request_id, self._seek(command))
            case pb.CommandGetLastMessageId():
                self._run(command.request_id, self._last_message_id(command))
            case pb.CommandConsumerStats():
                self._consumer_stats(command)
            case pb.CommandPartitionedMetadata():
                self._remember_partition(command.topic)
                self._link.spawn(self._lookups.partitions(command, self._link.write))
            case pb.CommandLookup():
                self._link.spawn(self._lookups.lookup(command, self._link.write))
            case pb.CommandGetTopicsOfNamespace():
                self._link.spawn(self._lookups.topics_of_namespace(command, self._link.write))
            case pb.CommandGetSchema():
                self._link.write(_no_schema(command))
            case pb.CommandGetOrCreateSchema():
                self._link.write(_schema_refused(command))
            case (
                pb.CommandNewTxn()
                | pb.CommandAddPartitionToTxn()
                | pb.CommandAddSubscriptionToTxn()
                | pb.CommandEndTxn()
                | pb.CommandEndTxnOnPartition()
                | pb.CommandEndTxnOnSubscription()
                | pb.CommandTcClientConnectRequest()
            ):
                text = "transactions are not supported; see onewriter's guarded writes"
                self._link.write(
                    replies.transaction_refused(command, ServerError.NOT_ALLOWED_ERROR, text)
                )
            case _:
                raise ProtocolError(f"unexpected {type(command).__name__}")

    def _run(self, request_id: int, work: Coroutine[object, object, None]) -> None:
        """Run a request's work; what it raises is its answer."""
        if self._requests >= REQUESTS_MAX:
            work.close()
            text = f"{REQUESTS_MAX} requests are being worked on"
            self._link.write(replies.error(request_id, ServerError.TOO_MANY_REQUESTS, text))
            return
        self._requests += 1
        self._link.spawn(self._answered(request_id, work))

    async def _answered(self, request_id: int, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (OnewriterError, InvalidTopicName) as error:
            self._link.write(error_reply(request_id, error))
        finally:
            self._requests -= 1

    # ------------------------------------------------------------ producers

    def _producer(self, command: pb.CommandProducer) -> None:
        asked = self._asked_priority(command)
        present = self._producers.get(command.producer_id)
        if present is not None:
            self._producer_again(command, present, asked)
            return
        if len(self._producers) >= self._clients.settings.producers_per_connection_max:
            text = "too many producers on one connection"
            self._link.write(replies.error(command.request_id, ServerError.TOO_MANY_REQUESTS, text))
            return
        self._closed_producers.pop(command.producer_id, None)
        opening = _Opening(command.request_id, asked.value or 0)
        self._producers[command.producer_id] = opening
        try:
            name = TopicName.parse(command.topic)
        except InvalidTopicName as error:
            del self._producers[command.producer_id]
            self._link.write(error_reply(command.request_id, error))
            return
        topic = self._clients.topics.loaded.get(str(name.base))
        if topic is not None and topic.has(name):
            self._register(command, name, topic, opening, asked)
        else:
            self._run(command.request_id, self._open_producer(command, name, opening, asked))

    def _producer_again(
        self,
        command: pb.CommandProducer,
        present: Producer | _Opening,
        asked: AskedPriority,
    ) -> None:
        """The same producer id on the same connection: repeat the answer, or refuse."""
        priority = present.asked_priority if isinstance(present, Producer) else present.priority
        if (asked.value or 0) != priority:
            text = "the queue priority of a producer never changes after its creation"
            code = ServerError.NOT_ALLOWED_ERROR
        elif isinstance(present, Producer) and present.is_granted:
            present.request_id = command.request_id
            self.producer_ready(present, present.epoch)
            return
        else:
            text = "Producer is already present on the connection"
            code = ServerError.SERVICE_NOT_READY
        self._link.write(replies.error(command.request_id, code, text))

    async def _open_producer(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        opening: _Opening,
        asked: AskedPriority,
    ) -> None:
        try:
            check_topic(name, self._clients.topics.desired.topic(name), self._clients.undeclared)
            topic = await self._clients.topics.serve(name)
        except BaseException:
            if self._producers.get(command.producer_id) is opening:
                del self._producers[command.producer_id]
            raise
        if not opening.is_cancelled and not self._is_lost:
            self._register(command, name, topic, opening, asked)

    def _register(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        topic: LoadedTopic,
        opening: _Opening,
        asked: AskedPriority,
    ) -> None:
        """Admit the producer and hand it to the topic's runner, which answers it."""
        try:
            request = self._request(command, name, topic, asked)
        except Refused as refused:
            del self._producers[command.producer_id]
            self._link.write(error_reply(command.request_id, refused))
            return
        producer = Producer(
            self,
            command.producer_id,
            opening.request_id,
            request,
            topic.runner.logs[request.slot],
            self._clients.appender.gathered,
            asked_priority=asked.value or 0,
        )
        self._producers[command.producer_id] = producer
        self._topics_of[command.producer_id] = topic
        if producer.is_exclusive:
            self._exclusive += 1
            detection = topic.detection(self._clients.settings)
            self._link.detection = detection.sooner_of(self._link.detection)
        topic.runner.request(producer)

    def _request(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        topic: LoadedTopic,
        asked: AskedPriority,
    ) -> Request:
        """The command as the topic machine understands it. Raises Refused."""
        properties = {item.key: item.value for item in command.metadata}
        mode = AccessMode(command.producer_access_mode)
        if (
            mode is AccessMode.EXCLUSIVE
            and properties.get(ACCESS_MODE_PROPERTY) == "ExclusiveWithFencing"
        ):
            mode = AccessMode.EXCLUSIVE_WITH_FENCING
        desired = self._clients.topics.desired
        declared = topic.declared
        admission = admit(
            name,
            declared,
            desired.claims_for(declared) if declared is not None else (),
            self.identity,
            mode,
            asked.value,
            self._clients.undeclared,
        )
        if asked.note:
            log.warning("priority.unreadable", topic=str(name), note=asked.note)
        if_epoch = properties.get(IF_EPOCH_PROPERTY)
        if if_epoch is not None and not if_epoch.isdecimal():
            raise Refused(ServerError.NOT_ALLOWED_ERROR, f"{IF_EPOCH_PROPERTY} must be a number")
        self._registrations += 1
        registration = f"{self.name}/{command.producer_id}/{self._registrations}"
        return Request(
            registration=registration,
            connection=self.name,
            producer_name=command.producer_name or f"onewriter-{registration}",
            mode=mode,
            slot=topic.slot_of(name),
            alone=topic.entry.partitions == 0 or str(name) in self._named_partitions,
            name_given=bool(command.producer_name) and command.user_provided_producer_name,
            identity=self.identity,
            priority=admission.priority,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            reconnects=command.epoch,
            claim=admission.claim_name,
            address=self.peer_address,
            may_take_over=admission.may_take_over,
            if_epoch=None if if_epoch is None else int(if_epoch),
        )

    def _asked_priority(self, command: pb.CommandProducer) -> AskedPriority:
        field = self._clients.settings.queue_priority_field
        wire = queue_priority(command, field) if field else None
        return parse_priority({item.key: item.value for item in command.metadata}, wire)

    def _close_producer(self, command: pb.CommandCloseProducer) -> None:
        """Leave once everything handed in is answered, so that a successor comes behind it."""
        producer = self._producers.get(command.producer_id)
        if isinstance(producer, Producer):
            producer.when_idle(lambda: self._closed_by_client(producer, command.request_id))
            return
        if isinstance(producer, _Opening):
            producer.is_cancelled = True
            del self._producers[command.producer_id]
        self._link.write(replies.success(command.request_id))

    def _closed_by_client(self, producer: Producer, request_id: int) -> None:
        topic = self._forget_producer(producer)
        if topic is not None:
            topic.runner.gone(producer, Departure.CLOSED)
        self._link.write(replies.success(request_id))

    def _forget_producer(self, producer: Producer) -> LoadedTopic | None:
        if self._producers.get(producer.producer_id) is not producer:
            return None
        del self._producers[producer.producer_id]
        self._closed_producers[producer.producer_id] = None
        while len(self._closed_producers) > CLOSED_PRODUCERS_MAX:
            del self._closed_producers[next(iter(self._closed_producers))]
        topic = self._topics_of.pop(producer.producer_id)
        if producer.is_exclusive:
            self._exclusive -= 1
            if self._exclusive == 0:
                self._link.detection = None
        return topic

    def _send(self, send: Send, payload: memoryview) -> None:
        producer = self._producers.get(send.producer_id)
        if isinstance(producer, Producer):
            if not entry_checksum_ok(payload):
                text = "the checksum of the message is wrong"
                self._link.write(
                    replies.send_error(
                        send.producer_id, send.sequence_id, ServerError.CHECKSUM_ERROR, text
                    )
                )
            elif producer.is_active:
                self._link.pending_changed(len(payload))
                producer.publish(send, payload)
            # Otherwise it is being closed, and learns so by CLOSE_PRODUCER: not appended.
        elif producer is None and send.producer_id not in self._closed_producers:
            raise ProtocolError(f"SEND for producer {send.producer_id}, which does not exist")

    # ProducerChannel

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        self._link.write(
            replies.producer_success(producer.request_id, producer.name, topic_epoch=epoch)
        )

    def producer_waits(self, producer: Producer) -> None:
        self._link.write(replies.producer_success(producer.request_id, producer.name, ready=False))

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        self._forget_producer(producer)
        self._link.write(replies.error(producer.request_id, code, message))

    def producer_closed(self, producer: Producer) -> None:
        if self._forget_producer(producer) is not None:
            self._link.write(replies.close_producer(producer.producer_id))

    def send_answered(self, frame: bytes, size: int) -> None:
        self._link.write(frame)
        self._link.pending_changed(-size)

    def send_dropped(self, size: int) -> None:
        self._link.pending_changed(-size)

    def drop(self, reason: str) -> None:
        self._link.close(reason)

    def probe(self) -> None:
        self._link.write(replies.PING)

    # ------------------------------------------------------------ consumers

    def _subscribe(self, command: pb.CommandSubscribe) -> None:
        if command.consumer_id in self._consumers:
            present = self._consumers[command.consumer_id]
            if isinstance(present, Consumer):
                self._link.write(replies.success(command.request_id))
                return
            text = "Consumer is already present on the connection"
            self._link.write(replies.error(command.request_id, ServerError.SERVICE_NOT_READY, text))
            return
        if len(self._consumers) >= self._clients.settings.consumers_per_connection_max:
            text = "too many consumers on one connection"
            self._link.write(replies.error(command.request_id, ServerError.TOO_MANY_REQUESTS, text))
            return
        opening = _Opening(command.request_id)
        self._consumers[command.consumer_id] = opening
        self._run(command.request_id, self._open_consumer(command, opening))

    async def _open_consumer(self, command: pb.CommandSubscribe, opening: _Opening) -> None:
        try:
            name = TopicName.parse(command.topic)
            options = SubscribeOptions.from_command(command)
            check_topic(name, self._clients.topics.desired.topic(name), self._clients.undeclared)
            if not command.force_topic_creation and not await self._clients.topics.exists(name):
                raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
            topic = await self._clients.topics.serve(name)
            subscriptions = topic.subscriptions[topic.slot_of(name)]
            consumer = await subscriptions.subscribe(options, self)
        except BaseException:
            if self._consumers.get(command.consumer_id) is opening:
                del self._consumers[command.consumer_id]
            raise
        if opening.is_cancelled or self._is_lost:
            consumer.close()
            return
        self._consumers[command.consumer_id] = consumer
        self._link.write(replies.success(command.request_id))
        consumer.start()

    def _close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        consumer = self._consumers.pop(command.consumer_id, None)
        if isinstance(consumer, Consumer):
            consumer.close()
        elif isinstance(consumer, _Opening):
            consumer.is_cancelled = True
        self._link.write(replies.success(command.request_id))

    def _consumer(self, consumer_id: int) -> Consumer:
        consumer = self._consumers.get(consumer_id)
        if not isinstance(consumer, Consumer):
            raise Refused(ServerError.CONSUMER_NOT_FOUND, "no such consumer on this connection")
        return consumer

    def _ack(self, ack: Ack) -> None:
        consumer = self._consumers.get(ack.consumer_id)
        request_id = ack.request_id
        if not isinstance(consumer, Consumer):
            if request_id is not None:  # an ACK may arrive after CLOSE_CONSUMER
                self._link.write(
                    encode_ack_response(
                        ack.consumer_id,
                        request_id,
                        ServerError.CONSUMER_NOT_FOUND,
                        "no such consumer on this connection",
                    )
                )
            return
        if request_id is None:
            consumer.acknowledge(ack)
            return

        def receipt(error: OnewriterError | None) -> None:
            code = None if error is None else code_of(error)
            text = "" if error is None else str(error)
            self._link.write(encode_ack_response(ack.consumer_id, request_id, code, text))

        consumer.acknowledge(ack, receipt)

    def _redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if isinstance(consumer, Consumer):
            consumer.redeliver(
                [message_id_from_proto(message_id) for message_id in command.message_ids],
                command.consumer_epoch if command.HasField("consumer_epoch") else None,
            )

    async def _unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(command.consumer_id)
        await consumer.unsubscribe(force=command.force)
        if self._consumers.get(command.consumer_id) is consumer:
            del self._consumers[command.consumer_id]
        self._link.write(replies.success(command.request_id))

    async def _seek(self, command: pb.CommandSeek) -> None:
        consumer = self._consumer(command.consumer_id)
        await consumer.seek(
            seek_target(command),
            lambda: self._link.write(replies.success(command.request_id)),
        )

    async def _last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        found = await self._consumer(command.consumer_id).last_message_id()
        self._link.write(
            replies.last_message_id(command.request_id, found.message_id, found.mark_delete)
        )

    def _consumer_stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if not isinstance(consumer, Consumer):
            reply = pb.CommandConsumerStatsResponse(
                request_id=command.request_id,
                error_code=replies.wire_code(ServerError.CONSUMER_NOT_FOUND),
                error_message="no such consumer on this connection",
            )
        else:
            stats = consumer.stats(self._clients.now())
            reply = pb.CommandConsumerStatsResponse(
                request_id=command.request_id,
                msg_rate_out=stats.messages_per_second,
                msg_throughput_out=stats.bytes_per_second,
                msg_rate_redeliver=stats.redelivered_per_second,
                consumer_name=stats.name,
                available_permits=max(stats.permits, 0),
                unacked_messages=stats.unacknowledged,
                blocked_consumer_on_unacked_msgs=stats.is_blocked,
                address=stats.address,
                connected_since=str(stats.connected_since),
                type=stats.kind,
                msg_backlog=stats.backlog,
                message_ack_rate=stats.acknowledged_per_second,
            )
        self._link.write(encode_command(reply))

    # dispatch.Channel

    @property
    def has_room(self) -> bool:
        return self._link.has_room

    def deliver_many(
        self, consumer_id: int, entries: Sequence[Entry], consumer_epoch: int | None
    ) -> None:
        parts: list[bytes | memoryview] = []
        for (ledger, number), payload, _ in entries:
            parts.append(
                encode_message_header(
                    consumer_id,
                    ledger,
                    number,
                    len(payload),
                    consumer_epoch=consumer_epoch,
                )
            )
            parts.append(payload)
        self._link.write(*parts)

    def deliver(
        self,
        consumer_id: int,
        entry: Entry,
        *,
        redelivery_count: int,
        ack_set: tuple[int, ...],
        consumer_epoch: int | None,
    ) -> None:
        header = encode_message_header(
            consumer_id,
            entry.position.ledger,
            entry.position.entry,
            len(entry.payload),
            redelivery_count=redelivery_count,
            ack_set=ack_set,
            consumer_epoch=consumer_epoch,
        )
        self._link.write(header, entry.payload)

    def active_consumer_changed(self, consumer_id: int, *, is_active: bool) -> None:
        self._link.write(replies.active_consumer_change(consumer_id, is_active=is_active))

    def consumer_closed(self, consumer_id: int) -> None:
        if self._consumers.pop(consumer_id, None) is not None:
            self._link.write(replies.close_consumer(consumer_id))

    # ------------------------------------------------------------ the connection

    def room_made(self) -> None:
        """The socket takes data again."""
        for consumer in list(self._consumers.values()):
            if isinstance(consumer, Consumer):
                consumer.room_made()

    def silent(self) -> None:
        """The holder's connection has not been heard for too long: its topics change hands now."""
        self._depart(Departure.SILENT)
        self._link.close("silent")

    def progress(self, now: float) -> None:
        """Close exclusive producers that have passed their topic's progress deadline."""
        for producer_id, producer in list(self._producers.items()):
            if not isinstance(producer, Producer) or not producer.is_active:
                continue
            deadline = self._topics_of[producer_id].progress_deadline_seconds
            if deadline and producer.is_exclusive and producer.idle_seconds(now) > deadline:
                topic = self._forget_producer(producer)
                self._link.write(replies.close_producer(producer_id))
                if topic is not None:
                    topic.runner.gone(producer, Departure.PROGRESS_DEADLINE)

    def lost(self) -> None:
        """The socket is closed."""
        self._is_lost = True
        self._depart(Departure.CONNECTION_LOST)
        for consumer in list(self._consumers.values()):
            if isinstance(consumer, Consumer):
                consumer.close()
        self._consumers.clear()

    def _depart(self, departure: Departure) -> None:
        for producer in list(self._producers.values()):
            if isinstance(producer, Producer):
                topic = self._forget_producer(producer)
                if topic is not None:
                    topic.runner.gone(producer, departure)
        self._producers.clear()

    def _remember_partition(self, topic: str) -> None:
        """Clients ask for the metadata of what the user named, not of a topic's own partitions."""
        try:
            name = TopicName.parse(topic)
        except InvalidTopicName:
            return  # answered by the look-up itself
        if name.partition is not None and len(self._named_partitions) < NAMED_PARTITIONS_MAX:
            self._named_partitions[str(name)] = None


def code_of(error: Exception) -> ServerError:
    """The wire code of an error that answers a request."""
    match error:
        case Refused():
            return error.code
        case InvalidTopicName():
            return ServerError.INVALID_TOPIC_NAME
        case Unavailable():
            return ServerError.SERVICE_NOT_READY
        case _:
            return ServerError.SERVICE_NOT_READY


def error_reply(request_id: int, error: Exception) -> bytes:
    """The ERROR frame for an exception."""
    return replies.error(request_id, code_of(error), str(error))


def _no_schema(command: pb.CommandGetSchema) -> bytes:
    return encode_command(
        pb.CommandGetSchemaResponse(
            request_id=command.request_id,
            error_code=replies.wire_code(ServerError.TOPIC_NOT_FOUND),
            error_message="no schema is kept",
        )
    )


def _schema_refused(command: pb.CommandGetOrCreateSchema) -> bytes:
    return encode_command(
        pb.CommandGetOrCreateSchemaResponse(
            request_id=command.request_id,
            error_code=replies.wire_code(ServerError.NOT_ALLOWED_ERROR),
            error_message="schemas are not supported yet",
        )
    )
