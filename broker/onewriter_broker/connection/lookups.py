"""Look-ups: which broker serves a topic, how many partitions it has, which topics there are.

A bucket that is changing hands has no owner for a moment. The look-up waits for it, because the C++
and Go clients close the whole connection on a ServiceNotReady answer to a look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onewriter_broker.access import UndeclaredTopics, check_topic
from onewriter_broker.anchor.api import Addresses
from onewriter_broker.topic.topics import Topics
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

OWNER_WAIT_SECONDS = 15.0
"""How long a look-up waits for a bucket without an owner; half of the clients' usual time-out."""

OWNER_POLL_SECONDS = 0.05

NO_OWNER = "Failed to acquire ownership of the topic's bucket in time"
"""The C++ client keeps its connection when a look-up fails with these words."""

Write = Callable[[bytes], None]


class Lookups:
    """Answers look-ups over the binary protocol; HTTP asks ``owner_of`` too."""

    def __init__(self, topics: Topics, undeclared: UndeclaredTopics) -> None:
        self._topics = topics
        self._undeclared = undeclared

    def _checked(self, text: str) -> TopicName:
        name = TopicName.parse(text)
        check_topic(name, self._topics.desired.topic(name), self._undeclared)
        return name

    async def owner_of(self, name: TopicName) -> Addresses | None:
        """The broker that serves the topic; None when nobody has taken it in time."""
        bucket = self._topics.bucket_of(name)
        waited = 0.0
        while (owner := self._topics.ownership.owner_of(bucket)) is None:
            if waited >= OWNER_WAIT_SECONDS:
                return None
            await asyncio.sleep(OWNER_POLL_SECONDS)
            waited += OWNER_POLL_SECONDS
        return owner

    async def lookup(self, command: pb.CommandLookup, write: Write) -> None:
        """Answer LOOKUP: connect to the owner."""
        request_id = command.request_id
        try:
            owner = await self.owner_of(self._checked(command.topic))
        except (Refused, InvalidTopicName) as error:
            write(replies.lookup_failed(request_id, _code(error), str(error)))
            return
        if owner is None:
            write(replies.lookup_failed(request_id, ServerError.SERVICE_NOT_READY, NO_OWNER))
            return
        write(replies.lookup_connect(request_id, owner.broker_url))

    async def partitions(self, command: pb.CommandPartitionedMetadata, write: Write) -> None:
        """Answer PARTITIONED_METADATA: 0 for a topic that is none, or does not exist yet."""
        request_id = command.request_id
        try:
            name = self._checked(command.topic)
            found = await self._topics.partitions_of(name)
        except (Refused, InvalidTopicName) as error:
            write(replies.partitions_failed(request_id, _code(error), str(error)))
            return
        except OnewriterError as error:
            text = f"{NO_OWNER}: {error}"
            write(replies.partitions_failed(request_id, ServerError.SERVICE_NOT_READY, text))
            return
        if found is None and not command.metadata_auto_creation_enabled:
            text = f"{name} does not exist"
            write(replies.partitions_failed(request_id, ServerError.TOPIC_NOT_FOUND, text))
            return
        count = 0 if found is None or name.partition is not None else found
        write(replies.partitions(request_id, count))

    async def topics_of_namespace(
        self, command: pb.CommandGetTopicsOfNamespace, write: Write
    ) -> None:
        """Answer GET_TOPICS_OF_NAMESPACE with the names of all logs, filtered where asked to be."""
        request_id = command.request_id
        if command.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            write(replies.topics_of_namespace(request_id, []))
            return
        try:
            found = await self._topics.list(command.namespace)
        except OnewriterError as error:
            write(replies.error(request_id, ServerError.SERVICE_NOT_READY, str(error)))
            return
        names = [
            str(log_name)
            for text, entry in found.items()
            for log_name in entry.log_names(TopicName.parse(text))
        ]
        write(replies.topics_of_namespace(request_id, sorted(names)))


def _code(error: Refused | InvalidTopicName) -> ServerError:
    return error.code if isinstance(error, Refused) else ServerError.INVALID_TOPIC_NAME
