"""PUBLISH_TOGETHER: messages for several topics of one bucket; either all are stored or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onewriter_broker.connection.requests import Link
from onewriter_broker.log.appender import AppendPath
from onewriter_broker.log.joint_append import JointAppend, JointEntry
from onewriter_broker.log.topic_log.log import ENTRY_BYTES
from onewriter_broker.topic.producers.producer import Producer
from onewriter_core.errors import Refused, ServerError, Undecided
from onewriter_core.ids import Position, TopicName, bucket_of
from onewriter_core.log_format.limits import BLOCK_ENTRIES_MAX
from onewriter_core.wire import replies
from onewriter_core.wire.messages import entry_checksum_ok
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId, Send

PARTS_MAX = BLOCK_ENTRIES_MAX
"""Messages of one request."""


class TogetherRequests:
    """The requests of one connection. ``producer`` finds an active producer of it by its id."""

    def __init__(
        self,
        link: Link,
        appender: AppendPath,
        producer: Callable[[int], Producer | None],
        buckets: int,
    ) -> None:
        self._link = link
        self._appender = appender
        self._producer = producer
        self._buckets = buckets

    async def publish(self, command: pb.CommandPublishTogether) -> None:
        """Publish, and answer PUBLISH_TOGETHER.

        If it raises, nothing was stored, and the caller answers with the exception. If the result cannot be
        determined any more, it closes the connection.
        """
        producers = self._producers(command)
        parts = [
            _part(part, producer) for part, producer in zip(command.parts, producers, strict=True)
        ]
        request = JointAppend(parts, lambda: all(producer.is_active for producer in producers))
        size = sum(len(part.payload) + ENTRY_BYTES for part in parts)
        self._link.pending_changed(size)
        for producer in producers:
            producer.begin_work()
        try:
            positions = await self._appender.append_jointly(request)
        except Undecided as undecided:
            self._link.close(str(undecided))
            return
        finally:
            self._link.pending_changed(-size)
            for producer in producers:
                producer.end_work()
        self._link.write(replies.published_together(command.request_id, _ids(positions, producers)))

    def _producers(self, command: pb.CommandPublishTogether) -> list[Producer]:
        """The producer of each part. Raises Refused."""
        if not 0 < len(command.parts) <= PARTS_MAX:
            text = f"together 1 to {PARTS_MAX} messages are published"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        producers = []
        for part in command.parts:
            producer = self._producer(part.producer_id)
            if producer is None:
                text = f"producer {part.producer_id} may not write now"
                raise Refused(ServerError.SERVICE_NOT_READY, text)
            if producer.topic_log.share.is_held:
                text = f"{producer.topic_log.name} has no room in the store; retry later"
                raise Refused(ServerError.SERVICE_NOT_READY, text)
            if producer.filter is not None:
                text = f"{producer.topic_log.name} is deduplicated: nothing is published together"
                raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
            producers.append(producer)
        check_bucket([producer.topic_log.name for producer in producers], self._buckets)
        return producers


def check_bucket(topics: Sequence[TopicName], buckets: int) -> None:
    """Raise Refused for topics of different buckets."""
    first = topics[0]
    for name in topics:
        bare = name.base.local.replace("{", "").replace("}", "")
        if bucket_of(name, buckets) != bucket_of(first, buckets):
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"{name} and {first} are in different buckets, so one publish cannot write to both"
                f" together; a name with a hash tag, as {{{first.base.local}}}-{bare},"
                f" is in the bucket of {first.base.local}",
            )


def _part(part: pb.CommandPublishTogether.Part, producer: Producer) -> JointEntry:
    payload = memoryview(part.entry)
    if not entry_checksum_ok(payload):
        raise Refused(ServerError.CHECKSUM_ERROR, "the checksum of a message is wrong")
    send = Send(part.producer_id, part.sequence_id, max(1, part.num_messages))
    return JointEntry(producer.topic_log, send, payload, producer.guard)


def _ids(positions: Sequence[Position], producers: Sequence[Producer]) -> list[MessageId]:
    found = []
    for position, producer in zip(positions, producers, strict=True):
        partition = producer.topic_log.name.partition
        found.append(MessageId(*position, partition=-1 if partition is None else partition))
    return found
