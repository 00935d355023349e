"""Look-ups: which broker serves a topic, how many partitions it has, which topics there are.

While a bucket moves, it has no owner for a moment. The look-up waits for the new owner, because
clients retry refused look-ups with growing delays. It also waits while the heartbeat of the owner is late, because a
dead broker must not be named (owner_waits.py). If waiting would not help or takes too long, the
answer is MetadataError, on which all clients retry. If a look-up is answered with ServiceNotReady,
clients close the whole connection, and with it every producer that leads on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection.listings import Listings, write_topics
from onewriter_broker.ownership.owner_waits import OWNER_WAIT_SECONDS
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

NO_OWNER = "Failed to acquire ownership of the topic's bucket in time"
"""The C++ client keeps its connection if a look-up fails with these words, whatever the code is."""

WAITING_MAX = 1_000
"""Look-ups of one connection that wait for an owner while its other commands are handled."""

Write = Callable[..., None]
"""Takes a frame, possibly in parts."""


async def wait_for_owner(
    topics: Topics, name: TopicName, wait_seconds: float = OWNER_WAIT_SECONDS
) -> Addresses | None:
    """The broker that serves the topic; None if there is no known owner in time."""
    return await wait_for_bucket(topics, topics.bucket_of(name), wait_seconds)


async def wait_for_bucket(
    topics: Topics, bucket: int, wait_seconds: float = OWNER_WAIT_SECONDS
) -> Addresses | None:
    """The broker that serves a bucket; None if there is no known owner in time."""
    return await topics.owner_waits.wait(bucket, wait_seconds)


def why_not_served(topics: Topics, name: TopicName) -> str:
    """A sentence for a topic whose bucket has no known owner."""
    bucket = topics.bucket_of(name)
    reason = topics.ownership.waiting_reason(bucket)
    return f"bucket {bucket} of {name.base} has no owner now" + (reason and f": {reason}")


def check_listener(name: str) -> None:
    """Raise Refused for a named listener, because brokers here have one set of addresses.

    Pulsar does the same if no such listener is configured. The C++ client looks for these words.
    """
    if name:
        raise Refused(
            ServerError.NOT_ALLOWED_ERROR, f"the broker do not have {name[:100]} listener"
        )


class Lookups:
    """Answers look-ups of the binary protocol. The session has checked the right (rights.py)."""

    def __init__(
        self,
        topics: Topics,
        authorization: Authorization,
        identity: Identity,
        over_tls: Callable[[Addresses], Addresses] = lambda _plain: Addresses(),
        over_plain: Callable[[Addresses], Addresses] = lambda plain: plain,
        listings: Listings | None = None,
    ) -> None:
        self._topics = topics
        self._listings = listings or Listings(topics)
        self._listing = asyncio.Lock()
        self._waiting = 0
        self._authorization = authorization
        self._identity = identity
        self._over_tls = over_tls
        self._over_plain = over_plain

    def answer(self, command: pb.CommandLookup, write: Write) -> bool:
        """Answer LOOKUP, now or as soon as the owner is known, without a task. False: ``lookup`` answers it.

        After the death of a broker, its clients send many look-ups. At WAITING_MAX, or if too many look-ups of this
        broker wait, a broker whose heartbeat is late is named at once.
        """
        name = self._named(command, write)
        if name is None:
            return True
        bucket, waits = self._topics.bucket_of(name), self._topics.owner_waits
        owner = waits.known(bucket)
        if owner is None and self._waiting < WAITING_MAX:
            answer = partial(self._found, command.request_id, name, write)
            if waits.call(bucket, answer):
                self._waiting += 1
                return True
        owner = owner or self._topics.ownership.owner_of(bucket)
        if owner is None:
            return False
        self._connect(command.request_id, owner, write)
        return True

    def _found(
        self, request_id: int, name: TopicName, write: Write, owner: Addresses | None
    ) -> None:
        """Answer a look-up that has waited."""
        self._waiting -= 1
        self._answer(request_id, name, write, owner)

    async def lookup(self, command: pb.CommandLookup, write: Write) -> None:
        """Answer LOOKUP: connect to the owner."""
        name = self._named(command, write)
        if name is not None:
            self._answer(command.request_id, name, write, await wait_for_owner(self._topics, name))

    def _named(self, command: pb.CommandLookup, write: Write) -> TopicName | None:
        """The topic of a look-up; None if the look-up was refused."""
        try:
            name = TopicName.parse(command.topic)
            check_listener(command.advertised_listener_name)
        except (Refused, InvalidTopicName) as error:
            write(replies.lookup_failed(command.request_id, _code(error), str(error)))
            return None
        return name

    def _answer(
        self, request_id: int, name: TopicName, write: Write, owner: Addresses | None
    ) -> None:
        if owner is None:
            text = f"{NO_OWNER}: {why_not_served(self._topics, name)}"
            write(replies.lookup_failed(request_id, ServerError.METADATA_ERROR, text))
        else:
            self._connect(request_id, owner, write)

    def _connect(self, request_id: int, owner: Addresses, write: Write) -> None:
        plain, tls = self._over_plain(owner).broker_url, self._over_tls(owner).broker_url
        write(replies.lookup_connect(request_id, plain, broker_url_tls=tls))

    async def partitions(self, command: pb.CommandPartitionedMetadata, write: Write) -> None:
        """Answer PARTITIONED_METADATA: 0 for a topic that is not partitioned, or does not exist
        yet.
        """
        request_id = command.request_id
        try:
            name = TopicName.parse(command.topic)
            found = await self._topics.partitions_of(name)
        except (Refused, InvalidTopicName) as error:
            write(replies.partitions_failed(request_id, _code(error), str(error)))
            return
        except OnewriterError as error:
            write(replies.partitions_failed(request_id, *self._unreadable(error)))
            return
        if found is None and not command.metadata_auto_creation_enabled:
            text = f"{name} does not exist"
            write(replies.partitions_failed(request_id, ServerError.TOPIC_NOT_FOUND, text))
            return
        count = 0 if found is None or name.partition is not None else found
        write(replies.partitions(request_id, count))

    def _unreadable(self, error: OnewriterError) -> tuple[ServerError, str]:
        """The answer to a client if the store does not return the record of its topic.

        A broker that serves no bucket lets the client reconnect: no producer leads on that
        connection, and if only this broker has lost the store, a Service routes the client to
        another broker.
        """
        if self._topics.ownership.held():
            return ServerError.METADATA_ERROR, f"{NO_OWNER}: {error}"
        return ServerError.SERVICE_NOT_READY, str(error)

    async def topics_of_namespace(
        self,
        command: pb.CommandGetTopicsOfNamespace,
        write: Write,
        wait_for_space: Callable[[], Awaitable[None]],
    ) -> None:
        """Answer GET_TOPICS_OF_NAMESPACE with the names of the logs that the client may see.

        ``wait_for_space`` returns once the client has read what it was sent. The answers of one connection
        are sent one after another.
        """
        request_id = command.request_id
        if command.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            write(replies.topics_of_namespace(request_id, []))
            return
        async with self._listing:
            await wait_for_space()
            try:
                listed = await self._listings.logs_of(command.namespace)
                names = await self._authorization.seen(self._identity, listed)
            except OnewriterError as error:
                write(replies.error(request_id, ServerError.SERVICE_NOT_READY, str(error)))
                return
            await write_topics(request_id, names, write, self._listings.names_per_step)


def _code(error: Refused | InvalidTopicName) -> ServerError:
    return error.code if isinstance(error, Refused) else ServerError.INVALID_TOPIC_NAME
