"""The consumers of one connection: the commands of clients, and the channel to them.

The dispatcher decides what is delivered when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.requests import Link, Opening, Requests, code_of, error_reply
from onewriter_broker.connection.schemas import check_consumer
from onewriter_broker.dispatch.api import SubscribeOptions, seek_target
from onewriter_broker.dispatch.handle import ConsumerHandle
from onewriter_broker.log.topic_log.entries import Entry, EntryRun
from onewriter_broker.quotas.book import CountedItems, Quota, QuotaExceeded, QuotaUnit
from onewriter_broker.resources.records import OwnerEnd
from onewriter_core.authorization import Action
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.commands import MessageIds, encode_command
from onewriter_core.wire.encoding import encode_ack_response, encode_message_header, encode_messages
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, Flow

TRACK_END = ("Pulsar-Java", "DotPulsar")
"""Stock clients that understand REACHED_END_OF_TOPIC. The C++ and Go clients close their connection
when they receive it."""

PARKED_MAX = 100
"""Requests for redelivery that wait until their consumer is open, for one consumer. Further ones are refused."""


class OpeningConsumer(Opening):
    """A consumer that is being opened. It keeps requests for redelivery that arrive before
    SUBSCRIBE is answered.

    Nothing has been delivered yet, so only the epoch and the pending answers matter.
    """

    __slots__ = ("consumer_epoch", "redelivery_requests")

    def __init__(self, request_id: int) -> None:
        super().__init__(request_id)
        self.consumer_epoch: int | None = None
        self.redelivery_requests: list[int] = []

    def raise_epoch(self, epoch: int | None) -> None:
        """Set the consumer epoch if it is higher than the present one."""
        if epoch is not None:
            self.consumer_epoch = max(epoch, self.consumer_epoch or 0)


class ConsumerCommands:
    """The consumers of one connection, by the consumer ids that the client chose."""

    def __init__(
        self,
        clients: Clients,
        link: Link,
        requests: Requests,
        address: str,
        subject: str,
        *,
        client_version: str,
        identity: Identity,
        owner: OwnerEnd,
    ) -> None:
        self.peer_address = address
        self.identity = identity
        self._tracks_end = client_version.startswith(TRACK_END) or link.extensions_version > 0
        self._owner = owner
        self._clients = clients
        self._link = link
        self._requests = requests
        self._consumers: CountedItems[ConsumerHandle | OpeningConsumer] = CountedItems(
            clients.quotas
        )
        self._subject = subject
        self._partitions: dict[int, int] = {}
        """By consumer id, for consumers of a partition."""
        self._is_lost = False

    def topic_of(self, consumer_id: int) -> TopicName | None:
        """The topic of an open consumer; None if there is no consumer with this id."""
        consumer = self._consumers.get(consumer_id)
        return consumer.topic if isinstance(consumer, ConsumerHandle) else None

    def open_consumers(self) -> Iterator[tuple[int, TopicName]]:
        """The ids of the open consumers, and the topic that each one reads."""
        for consumer_id, consumer in self._consumers.items():
            if isinstance(consumer, ConsumerHandle):
                yield consumer_id, consumer.topic

    def withdraw(self, consumer_id: int) -> None:
        """Close a consumer that has lost the right to read, and notify its client."""
        consumer = self._consumers.get(consumer_id)
        if isinstance(consumer, ConsumerHandle):
            consumer.close()
            self.consumer_closed(consumer_id)

    def flow(self, command: Flow) -> None:
        """Grant the consumer more permits."""
        consumer = self._consumers.get(command.consumer_id)
        if isinstance(consumer, ConsumerHandle):
            consumer.flow(command.permits)

    def open(self, command: pb.CommandSubscribe) -> None:
        if command.consumer_id in self._consumers:
            present = self._consumers[command.consumer_id]
            if isinstance(present, ConsumerHandle):
                self._link.write(replies.success(command.request_id))
                if command.HasField("consumer_epoch"):
                    present.follow_epoch(command.consumer_epoch)
                return
            text = "Consumer is already present on the connection"
            self._link.write(replies.error(command.request_id, ServerError.SERVICE_NOT_READY, text))
            return
        if len(self._consumers) >= self._clients.settings.consumers_per_connection_max:
            limit = self._clients.settings.consumers_per_connection_max
            text = f"the connection already has {limit} consumers, which is the limit"
            self._link.write(replies.error(command.request_id, ServerError.TOO_MANY_REQUESTS, text))
            return
        try:
            self._consumers.take(
                command.consumer_id, QuotaUnit(Quota.CONSUMERS_PER_SUBJECT, self._subject)
            )
        except QuotaExceeded as exceeded:
            self._link.write(error_reply(command.request_id, exceeded))
            return
        opening = OpeningConsumer(command.request_id)
        self._consumers[command.consumer_id] = opening
        self._requests.run(command.request_id, self._open(command, opening))

    async def _open(self, command: pb.CommandSubscribe, opening: OpeningConsumer) -> None:
        try:
            name = TopicName.parse(command.topic)
            options = SubscribeOptions.from_command(command)
            if not command.force_topic_creation and not await self._clients.topics.exists(name):
                raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
            topic = await self._clients.topics.serve(name, self._subject)
            reader = (name, options.subscription, options.metadata, self._owner)
            await self._clients.ownerships.check_reader(*reader)
            subscriptions = topic.subscriptions[topic.partition_of(name)]
            await check_consumer(
                self._clients,
                topic,
                topic.partition_of(name),
                command,
                self.identity,
                self._subject,
            )
            consumer = await subscriptions.subscribe(options, self)
            try:  # meanwhile the topic may have moved to another broker, or its declaration may have changed
                self._clients.ownerships.check_reader_now(*reader)
                self._clients.authorization.require(self.identity, Action.CONSUME, name)
            except Refused:
                consumer.close()
                raise
        except BaseException:
            if self._consumers.get(command.consumer_id) is opening:
                del self._consumers[command.consumer_id]
            self._refuse_redelivery(command.consumer_id, opening.redelivery_requests)
            raise
        if opening.is_cancelled or self._is_lost:
            consumer.close()
            self._refuse_redelivery(command.consumer_id, opening.redelivery_requests)
            return
        self._consumers[command.consumer_id] = consumer
        self._partitions.pop(command.consumer_id, None)
        if name.partition is not None:
            self._partitions[command.consumer_id] = name.partition
        self._link.write(replies.success(command.request_id))
        consumer.follow_epoch(opening.consumer_epoch)
        self._link.write(*map(replies.success, opening.redelivery_requests))
        consumer.start()

    def close(self, command: pb.CommandCloseConsumer) -> None:
        consumer = self._consumers.remove(command.consumer_id)
        if isinstance(consumer, ConsumerHandle):
            consumer.close()
        elif consumer is not None:
            consumer.is_cancelled = True
        self._link.write(replies.success(command.request_id))

    def _consumer(self, consumer_id: int) -> ConsumerHandle:
        consumer = self._consumers.get(consumer_id)
        if not isinstance(consumer, ConsumerHandle):
            raise Refused(ServerError.CONSUMER_NOT_FOUND, _no_consumer(consumer_id))
        return consumer

    def acknowledge(self, ack: Ack) -> Iterator[None] | None:
        """Handle an ACK; returns the remaining steps of a large one."""
        consumer = self._consumers.get(ack.consumer_id)
        request_id = ack.request_id
        if not isinstance(consumer, ConsumerHandle):
            if request_id is not None:  # an ACK may arrive after CLOSE_CONSUMER
                self._link.write(
                    encode_ack_response(
                        ack.consumer_id,
                        request_id,
                        ServerError.CONSUMER_NOT_FOUND,
                        _no_consumer(ack.consumer_id),
                    )
                )
            return None
        if request_id is None:
            return consumer.acknowledge(ack)

        def receipt(error: OnewriterError | None) -> None:
            code = None if error is None else code_of(error)
            text = "" if error is None else str(error)
            self._link.write(encode_ack_response(ack.consumer_id, request_id, code, text))

        return consumer.acknowledge(ack, receipt)

    def redeliver(
        self, command: pb.CommandRedeliverUnacknowledgedMessages
    ) -> Iterator[None] | None:
        """Redeliver messages. The answer is sent before the redelivered messages, so it separates
        old deliveries from new ones.

        Returns the remaining steps of a large request.
        """
        consumer = self._consumers.get(command.consumer_id)
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        requests = [command.request_id] if command.HasField("request_id") else []
        match consumer:
            case ConsumerHandle():
                self._link.write(*map(replies.success, requests))
                return consumer.redeliver(MessageIds(command.message_ids), epoch)
            case OpeningConsumer() if len(consumer.redelivery_requests) < PARKED_MAX:
                consumer.raise_epoch(epoch)
                consumer.redelivery_requests += requests
            case _:
                self._refuse_redelivery(command.consumer_id, requests)
        return None

    def _refuse_redelivery(self, consumer_id: int, request_ids: Sequence[int]) -> None:
        text = _no_consumer(consumer_id)
        for request_id in request_ids:
            self._link.write(replies.error(request_id, ServerError.CONSUMER_NOT_FOUND, text))

    async def unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(command.consumer_id)
        await consumer.unsubscribe(force=command.force)
        if self._consumers.get(command.consumer_id) is consumer:
            del self._consumers[command.consumer_id]
        self._link.write(replies.success(command.request_id))

    async def seek(self, command: pb.CommandSeek) -> None:
        consumer = self._consumer(command.consumer_id)
        await consumer.seek(
            seek_target(command),
            lambda: self._link.write(replies.success(command.request_id)),
        )

    async def last_message_id(self, command: pb.CommandGetLastMessageId) -> None:
        found = await self._consumer(command.consumer_id).last_message_id()
        self._link.write(
            replies.last_message_id(command.request_id, found.message_id, found.mark_delete)
        )

    def stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if not isinstance(consumer, ConsumerHandle):
            reply = pb.CommandConsumerStatsResponse(
                request_id=command.request_id,
                error_code=replies.wire_code(ServerError.CONSUMER_NOT_FOUND),
                error_message=_no_consumer(command.consumer_id),
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

    @property
    def has_space(self) -> bool:
        return self._link.has_space

    def deliver_many(
        self, consumer_id: int, runs: Sequence[EntryRun], consumer_epoch: int | None
    ) -> None:
        partition = self._partitions.get(consumer_id, -1)
        stored = ((run.position, run.payload, run.lengths) for run in runs)
        self._link.write(*encode_messages(consumer_id, stored, consumer_epoch, partition))

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
            partition=self._partitions.get(consumer_id, -1),
            ack_set=ack_set,
            consumer_epoch=consumer_epoch,
        )
        self._link.write(header, entry.payload)

    def active_consumer_changed(self, consumer_id: int, *, is_active: bool) -> None:
        self._link.write(replies.active_consumer_change(consumer_id, is_active=is_active))

    def reached_end(self, consumer_id: int) -> None:
        if self._tracks_end:
            self._link.write(replies.reached_end_of_topic(consumer_id))

    def consumer_closed(self, consumer_id: int) -> None:
        if self._consumers.remove(consumer_id) is not None:
            self._link.write(replies.close_consumer(consumer_id))

    def space_freed(self) -> None:
        """The socket accepts data again."""
        for consumer in list(self._consumers.values()):
            if isinstance(consumer, ConsumerHandle):
                consumer.space_freed()

    def lost(self) -> None:
        """The connection is closed."""
        self._is_lost = True
        for consumer in list(self._consumers.values()):
            if isinstance(consumer, ConsumerHandle):
                consumer.close()
        self._consumers.clear()


def _no_consumer(consumer_id: int) -> str:
    return f"this connection has no consumer {consumer_id}"
