"""The producers of one connection: admits them, passes them to the runners of their topics, and
feeds them.

It implements ProducerChannel for each of them. The topic machine decides who may write. This module
routes a SEND to its producer, which has one flag that says whether it may write.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import structlog

from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.guards import (
    Guards,
    RequestedGuard,
    guarding_topic,
    requested_guard,
)
from onewriter_broker.connection.named_partitions import NamedPartitions
from onewriter_broker.connection.properties import (
    RequestedPriority,
    if_epoch_of,
    mode_of,
    parse_priority,
    properties_of,
    serve_seconds_of,
)
from onewriter_broker.connection.requests import Link, Opening, Requests, error_reply
from onewriter_broker.connection.schemas import schema_of, version_for_producer
from onewriter_broker.dispatch.api import check_pairs, check_printable
from onewriter_broker.log.store.api import Guard, GuardKind, Outcome
from onewriter_broker.log.topic_log.log import ENTRY_BYTES
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_broker.quotas.book import (
    CountedItems,
    Quota,
    QuotaExceeded,
    QuotaUnit,
    namespace_key,
    subject_of,
)
from onewriter_broker.topic.producers.deduplication import INVENTED_PREFIX
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.registry.loaded_topic import Detection, LoadedTopic
from onewriter_core.authorization import Action, Granted, RequestedProducer
from onewriter_core.errors import ProtocolError, Refused, ServerError, Unavailable
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.property_names import HOST_PROPERTY
from onewriter_core.topic.model import AccessMode, Request, TransitionCause
from onewriter_core.wire import replies
from onewriter_core.wire.commands import queue_priority
from onewriter_core.wire.messages import (
    METADATA_BYTES_MAX,
    entry_checksum_ok,
    metadata_is_bounded,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

CLOSED_PRODUCERS_MAX = 10_000
"""Ids of closed producers that are remembered. SENDs that arrive late for them are ignored."""

DEPARTURES_PER_TICK = 64
"""Waiters of a lost connection that leave their queues in one tick of the event loop."""

PRODUCER_NAME_LENGTH_MAX = 512
"""Characters. Markers and snapshots in the store contain the names."""

PROPERTIES_BYTES_MAX = 16 * 1024
"""Names and values of one producer's properties."""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
"""Shared by most producers: an empty dict for each would use 64 bytes."""

log = structlog.get_logger(__name__)


class ProducerCommands:
    """One connection's producers, by their ids on it."""

    def __init__(
        self,
        clients: Clients,
        link: Link,
        requests: Requests,
        *,
        name: str,
        address: str,
        identity: Identity,
        client_version: str,
    ) -> None:
        self.client_version = client_version
        self._clients = clients
        self._append_soon = (
            clients.appender.append_soon
        )  # shared by all producers of the connection
        self._link = link
        self._requests = requests
        self._name = name
        self._address = address
        self._peer_host = sys.intern(address.rpartition(":")[0])
        self._identity = identity
        self._producers: CountedItems[Producer | Opening] = CountedItems(clients.quotas)
        self._subject = subject_of(identity, address)
        self._topics_of: dict[int, LoadedTopic] = {}
        self._schema_versions: dict[int, bytes] = {}
        self._closed_producers: dict[int, None] = {}
        self.named_partitions = NamedPartitions()
        self._registrations = 0
        self._exclusive = 0
        self._arrived_bytes = 0
        self._must_hold_back = False
        self._is_lost = False
        self._detection_min: Detection | None = None
        """The detection that the connection's ownerships require; None before its first ownership."""
        self._guards = Guards(
            clients.topics, clients.ownerships, clients.appender.prove, clients.settings.buckets
        )

    def open(self, command: pb.CommandProducer) -> None:
        try:
            check_pairs(((each.key, each.value) for each in command.metadata), PROPERTIES_BYTES_MAX)
        except Refused as error:  # before any property is read
            self._link.write(error_reply(command.request_id, error))
            return
        requested = self._requested_priority(command)
        present = self._producers.get(command.producer_id)
        if present is not None:
            self._open_again(command, present, requested)
            return
        if len(self._producers) >= self._clients.settings.producers_per_connection_max:
            text = "too many producers on one connection"
            self._link.write(replies.error(command.request_id, ServerError.TOO_MANY_REQUESTS, text))
            return
        self._closed_producers.pop(command.producer_id, None)
        self._schema_versions.pop(command.producer_id, None)
        opening = Opening(command.request_id, requested.value or 0)
        self._producers[command.producer_id] = opening
        try:
            name = TopicName.parse(command.topic)
            guard = requested_guard(properties_of(command))
            self._check_store(name, command)
            self._producers.take(
                command.producer_id,
                QuotaUnit(Quota.PRODUCERS_PER_SUBJECT, self._subject),
                QuotaUnit(Quota.PRODUCERS_PER_NAMESPACE, namespace_key(name.namespace_name)),
            )
        except (InvalidTopicName, Refused) as error:
            del self._producers[command.producer_id]
            self._note_quota(command, error)
            self._link.write(error_reply(command.request_id, error))
            return
        topic = self._clients.topics.loaded.get(str(name.base))
        is_simple = (
            not command.initial_subscription_name and guard is None and schema_of(command) is None
        )
        if topic is not None and topic.has(name) and is_simple and not topic.requires_schema:
            self._register(command, name, topic, opening, requested)
        else:
            work = self._open_later(command, name, opening, requested, guard)
            self._requests.run(command.request_id, work)

    def _note_quota(self, command: pb.CommandProducer, error: Exception) -> None:
        """Record a refusal by a quota at a topic that is declared or served here, for its owner."""
        if isinstance(error, QuotaExceeded):
            quota = error.quota.setting
        elif (
            isinstance(error, Refused)
            and error.code is ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
        ):
            quota = error.code.name
        else:
            return
        name, topics = str(TopicName.parse(command.topic).base), self._clients.topics
        if name in topics.loaded or topics.desired.topic(TopicName.parse(name)) is not None:
            self._clients.quota_problems.refused(name, quota, str(error))

    def _check_store(self, name: TopicName, command: pb.CommandProducer) -> None:
        """Raise Refused if the store has no room for the producer."""
        topics = self._clients.topics
        is_declared = topics.desired.topic(name.base) is not None
        share = topics.shares.now(name.namespace_name, is_declared=is_declared)
        topics.shares.check(share, resumes=is_declared and command.HasField("topic_epoch"))

    def _open_again(
        self,
        command: pb.CommandProducer,
        present: Producer | Opening,
        requested: RequestedPriority,
    ) -> None:
        """Repeat the answer for the same producer id on the same connection, or refuse it."""
        priority = present.requested_priority if isinstance(present, Producer) else present.priority
        if (requested.value or 0) != priority:
            text = "the queue priority of a producer never changes after its creation"
            code = ServerError.NOT_ALLOWED_ERROR
        elif isinstance(present, Producer) and present.is_answered:
            present.request_id = command.request_id
            self.producer_ready(present, present.epoch)
            return
        else:
            text = "Producer is already present on the connection"
            code = ServerError.SERVICE_NOT_READY
        self._link.write(replies.error(command.request_id, code, text))

    async def _open_later(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        opening: Opening,
        requested: RequestedPriority,
        asked_for: RequestedGuard | None,
    ) -> None:
        guard = None
        try:
            topic = await self._clients.topics.serve(name, self._subject)
            rights = self._clients.authorization
            if command.initial_subscription_name:
                self._admission(name, mode_of(command), requested)
                rights.require(self._identity, Action.CHANGE_SUBSCRIPTION, name)
                subscriptions = topic.subscriptions[topic.partition_of(name)]
                await subscriptions.ensure(command.initial_subscription_name)
            if topic.requires_schema or schema_of(command) is not None:
                self._admission(name, mode_of(command), requested)
                version = await version_for_producer(self._clients, topic, command, self._subject)
                self._schema_versions[command.producer_id] = version
            if asked_for is not None:
                self._admission(name, mode_of(command), requested)
                guarding = guarding_topic(asked_for)
                if guarding is not None:
                    rights.require(self._identity, Action.GUARD, guarding)
                target = topic.runner.logs[topic.partition_of(name)]
                may_guard = partial(rights.require, self._identity, Action.GUARD)
                subject = self._identity.subject
                guard = await self._guards.admit(asked_for, target, subject, may_guard)
                if self._clients.topics.loaded.get(str(name.base)) is not topic:
                    raise Unavailable(f"this broker no longer serves {name}; retry")
        except BaseException:
            if self._producers.get(command.producer_id) is opening:
                del self._producers[command.producer_id]
            raise
        if not opening.is_cancelled and not self._is_lost:
            self._register(command, name, topic, opening, requested, guard)

    def _register(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        topic: LoadedTopic,
        opening: Opening,
        requested: RequestedPriority,
        guard: Guard | None = None,
    ) -> None:
        """Admit the producer and pass it to the topic's runner, which answers it."""
        try:
            request = self._request(command, name, topic, requested)
        except Refused as refused:
            del self._producers[command.producer_id]
            self._link.write(error_reply(command.request_id, refused))
            return
        producer = Producer(
            self,
            command.producer_id,
            opening.request_id,
            request,
            topic.runner.logs[request.partition],
            self._append_soon,
            requested_priority=requested.value or 0,
            properties=properties_of(command) or NO_PROPERTIES,
            guard=guard,
        )
        self._producers[command.producer_id] = producer
        self._topics_of[command.producer_id] = topic
        if producer.is_exclusive:
            self._exclusive += 1
            detection = topic.detection(self._clients.settings)
            self._link.detection = detection.sooner_of(self._link.detection)
        self._clients.quota_problems.admitted(str(name.base))
        topic.runner.request(producer)

    def _request(
        self,
        command: pb.CommandProducer,
        name: TopicName,
        topic: LoadedTopic,
        requested: RequestedPriority,
    ) -> Request:
        """The command as a request to the topic machine. Raises Refused."""
        properties = properties_of(command)
        mode = mode_of(command)
        admission = self._admission(name, mode, requested)
        if requested.note:
            log.warning("priority.unreadable", topic=str(name), note=requested.note)
        if len(command.producer_name) > PRODUCER_NAME_LENGTH_MAX:
            text = f"a producer's name has at most {PRODUCER_NAME_LENGTH_MAX} characters"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        check_printable("producer name", command.producer_name)
        partition = topic.partition_of(name)
        if terminated_at(topic.runner.logs[partition].state) is not None:
            raise Refused(ServerError.TOPIC_TERMINATED_ERROR, "Topic was already terminated")
        if_epoch = if_epoch_of(properties)
        self._registrations += 1
        registration = f"{self._name}/{command.producer_id}/{self._registrations}"
        return Request(
            registration=registration,
            connection=self._name,
            producer_name=command.producer_name or f"{INVENTED_PREFIX}{registration}",
            mode=mode,
            partition=partition,
            alone=topic.entry.partitions == 0
            or self.named_partitions.competes_alone(command.producer_id, name),
            name_given=bool(command.producer_name) and command.user_provided_producer_name,
            identity=self._identity,
            priority=admission.priority,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
            reconnects=command.epoch,
            admitted_by=admission.claim_name,
            address=self._address,
            may_take_over=admission.may_take_over,
            if_epoch=if_epoch,
            serve_seconds=serve_seconds_of(properties),
            host=self._identity.node or properties.get(HOST_PROPERTY) or self._peer_host,
        )

    def _admission(
        self, name: TopicName, mode: AccessMode, requested: RequestedPriority
    ) -> Granted:
        """The right to write. Raises Refused."""
        wanted = RequestedProducer(mode, requested.value)
        return self._clients.authorization.require(self._identity, Action.PRODUCE, name, wanted)

    def _requested_priority(self, command: pb.CommandProducer) -> RequestedPriority:
        field = self._clients.settings.queue_priority_field
        wire = queue_priority(command, field) if field else None
        return parse_priority(properties_of(command), wire)

    def close(self, command: pb.CommandCloseProducer) -> None:
        """Close the producer once everything that it sent is answered, so that a successor's
        entries come after it.
        """
        producer = self._producers.get(command.producer_id)
        if isinstance(producer, Producer):
            producer.when_idle(lambda: self._closed_by_client(producer, command.request_id))
            return
        if isinstance(producer, Opening):
            producer.is_cancelled = True
            del self._producers[command.producer_id]
        self._link.write(replies.success(command.request_id))

    def _closed_by_client(self, producer: Producer, request_id: int) -> None:
        topic = self._forget(producer)
        if topic is not None:
            topic.runner.gone(producer, TransitionCause.CLOSED)
        self._link.write(replies.success(request_id))

    def _forget(self, producer: Producer) -> LoadedTopic | None:
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
                self._link.detection = self._detection_min
        return topic

    def active(self, producer_id: int) -> Producer | None:
        """The producer with this id, if it may write."""
        producer = self._producers.get(producer_id)
        return producer if isinstance(producer, Producer) and producer.is_active else None

    async def seal(self, command: pb.CommandSeal) -> None:
        """Answer SEAL. Raises the error that answers it instead."""
        producer = self.active(command.producer_id)
        if producer is None or producer.guard is None:
            text = "only a guarded producer that may write can seal its topic"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        await self._guards.seal(producer.guard, producer.topic_log)
        self._link.write(replies.success(command.request_id))

    def send(self, send: Send, payload: memoryview) -> None:
        producer = self._producers.get(send.producer_id)
        if send.num_messages < 1:
            # Such an entry would use no permits, and could not be packed into a block.
            raise ProtocolError(f"SEND of {send.num_messages} messages")
        if isinstance(producer, Producer):
            if not entry_checksum_ok(payload):
                text = "the checksum of the message is wrong"
                self._link.write(
                    replies.send_error(
                        send.producer_id, send.sequence_id, ServerError.CHECKSUM_ERROR, text
                    )
                )
            elif len(payload) > METADATA_BYTES_MAX and not metadata_is_bounded(payload):
                text = f"the metadata of a message takes more than {METADATA_BYTES_MAX} bytes"
                self._link.write(
                    replies.send_error(
                        send.producer_id, send.sequence_id, ServerError.NOT_ALLOWED_ERROR, text
                    )
                )
            elif producer.is_active:
                self._arrived_bytes += len(payload) + ENTRY_BYTES
                producer.publish(send, payload)
                if producer.topic_log.share.is_slow:
                    self._must_hold_back = True
            # Otherwise the producer is being closed, and CLOSE_PRODUCER reports it: the entry is
            # not appended.
        elif producer is None and send.producer_id not in self._closed_producers:
            raise ProtocolError(f"SEND for producer {send.producer_id}, which does not exist")

    @property
    def is_held_back(self) -> bool:
        """Whether a log of one of its producers is held or slowed down."""
        return any(
            isinstance(producer, Producer) and producer.topic_log.share.is_slow
            for producer in self._producers.values()
        )

    def read_ended(self) -> None:
        """Account for the bytes of one read in one step, which takes a tenth of the time."""
        if self._arrived_bytes:
            self._link.pending_changed(self._arrived_bytes)
            self._arrived_bytes = 0
        if self._must_hold_back:
            self._must_hold_back = False
            self._link.hold_back()

    def producer_ready(self, producer: Producer, epoch: int | None) -> None:
        self._link.write(
            replies.producer_success(
                producer.request_id,
                producer.name,
                topic_epoch=epoch,
                last_sequence_id=producer.last_sequence_id,
                schema_version=self._schema_versions.get(producer.producer_id, b""),
                guard_is_atomic=self._is_atomic(producer.guard),
                registration=self._registration(producer, epoch),
            )
        )

    def _registration(self, producer: Producer, epoch: int | None) -> str | None:
        """The registration that proves the holder of an epoch to the HTTP API, for clients that
        know the field.
        """
        if epoch is None or not producer.is_exclusive or self._link.extensions_version == 0:
            return None
        return self._clients.registrations.of(producer.topic_log.name, epoch, self._identity)

    def _is_atomic(self, guard: Guard | None) -> bool | None:
        if guard is None or self._link.extensions_version == 0:
            return None
        return guard.kind is not GuardKind.FLOOR

    def guard_refused(self, producer: Producer, outcome: Outcome) -> None:
        log.info("producer.guard_refused", guard=producer.guard, outcome=outcome.value)
        topic = self._forget(producer)
        if topic is not None:
            topic.runner.gone(producer, TransitionCause.CONNECTION_LOST)
            self._link.write(replies.close_producer(producer.producer_id))

    def producer_waits(self, producer: Producer) -> None:
        self._link.write(replies.producer_success(producer.request_id, producer.name, ready=False))

    def producer_refused(self, producer: Producer, code: ServerError, message: str) -> None:
        self._forget(producer)
        self._link.write(replies.error(producer.request_id, code, message))

    def producer_closed(self, producer: Producer) -> None:
        topic = self._forget(producer)
        if topic is not None:
            self._link.write(replies.close_producer(producer.producer_id))
            if producer.is_exclusive and producer.epoch is not None:
                self._link.spawn(self._await_sign(topic, producer.epoch))

    async def _await_sign(self, topic: LoadedTopic, epoch: int) -> None:
        """Check whether a client that was notified that its epoch ended still gives a sign of life."""
        told_at = self._clients.now()
        self._link.write(replies.PING)
        await asyncio.sleep(topic.detection(self._clients.settings).silent_after_seconds)
        if not self._is_lost and self._link.is_silent_since(told_at):
            topic.runner.history.unanswered(epoch)

    def send_answered(self, frames: bytes, size: int) -> None:
        self._link.write(frames)
        self._link.pending_changed(-size)

    def send_dropped(self, size: int) -> None:
        self._link.pending_changed(-size)

    def drop(self, reason: str) -> None:
        self._link.close(reason)

    def probe(self) -> None:
        self._link.write(replies.PING)

    @property
    def last_inbound(self) -> float:
        return self._link.last_inbound

    @property
    def receives_queue_notices(self) -> bool:
        return self._link.extensions_version > 0

    def queue_changed(self, producer: Producer, waiting: int) -> None:
        self._link.write(replies.queue_changed(producer.producer_id, waiting))

    def watch_closely(self, detection: Detection) -> None:
        """Tighten the silence detection for an ownership. The connection then counts as silent no
        later than ``detection`` says.
        """
        self._detection_min = detection
        self._link.detection = detection.sooner_of(self._link.detection)

    def declarations_changed(self) -> None:
        """Recompute when this connection counts as silent, from the present declarations of its
        topics.
        """
        self._link.detection = self._detection_min
        for producer_id, topic in self._topics_of.items():
            producer = self._producers.get(producer_id)
            if isinstance(producer, Producer) and producer.is_exclusive:
                detection = topic.detection(self._clients.settings)
                self._link.detection = detection.sooner_of(self._link.detection)

    def depart(self, cause: TransitionCause) -> None:
        """Let all producers leave: active ones at once, waiting ones a few per tick."""
        waiting: list[tuple[LoadedTopic, Producer]] = []
        for producer in list(self._producers.values()):
            if isinstance(producer, Producer):
                topic = self._forget(producer)
                if topic is not None and producer.is_granted:
                    topic.runner.gone(producer, cause)
                elif topic is not None:
                    waiting.append((topic, producer))
        self._producers.clear()
        for topic, producer in waiting[:DEPARTURES_PER_TICK]:
            topic.runner.gone(producer, cause)
        if len(waiting) > DEPARTURES_PER_TICK:
            self._link.spawn(_depart_later(waiting[DEPARTURES_PER_TICK:], cause))

    def lost(self) -> None:
        """The connection is closed."""
        self._is_lost = True
        self.depart(TransitionCause.CONNECTION_LOST)


async def _depart_later(
    waiting: list[tuple[LoadedTopic, Producer]], cause: TransitionCause
) -> None:
    """Let waiters leave in steps. Each departure goes through its topic's whole queue, so thousands
    at once would block the event loop.
    """
    for index, (topic, producer) in enumerate(waiting):
        if index % DEPARTURES_PER_TICK == 0:
            await asyncio.sleep(0)
        topic.runner.gone(producer, cause)
