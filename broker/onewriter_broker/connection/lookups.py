"""Look-ups: which broker serves a topic, how many partitions it has, which topics there are.

A bucket that is changing hands has no owner for a moment. The look-up waits for it: clients that are
sent away come back later and later. Where that would not help, or takes too long, the answer is
MetadataError, on which all clients try again. On ServiceNotReady, as an answer to a look-up, clients
close the whole connection, and with it every producer that leads on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.auth.authorization import Authorization
from onewriter_broker.connection.listings import Listings, write_topics
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

OWNER_WAIT_SECONDS = 5.0
"""How long a look-up waits for a bucket without an owner: a dead broker is found dead after 2 s, and
its buckets are taken within another one."""

HINDERED_WAIT_SECONDS = 1.0
"""The same where this broker knows what keeps it from taking the bucket."""

OWNER_POLL_SECONDS = 0.05

NO_OWNER = "Failed to acquire ownership of the topic's bucket in time"
"""The C++ client keeps its connection when a look-up fails with these words, whatever the code."""

Write = Callable[..., None]
"""Takes a frame, perhaps in parts."""


async def wait_for_owner(
    topics: Topics, name: TopicName, wait_seconds: float = OWNER_WAIT_SECONDS
) -> Addresses | None:
    """The broker that serves the topic; None when nobody is known to, in time."""
    return await wait_for_bucket(topics, topics.bucket_of(name), wait_seconds)


async def wait_for_bucket(
    topics: Topics, bucket: int, wait_seconds: float = OWNER_WAIT_SECONDS
) -> Addresses | None:
    """The broker that serves a bucket; None when nobody is known to, in time."""
    waited = 0.0
    while (owner := topics.ownership.owner_of(bucket)) is None:
        is_hindered = bool(topics.ownership.waiting_reason(bucket))
        if waited >= min(wait_seconds, HINDERED_WAIT_SECONDS if is_hindered else wait_seconds):
            return None
        await asyncio.sleep(OWNER_POLL_SECONDS)
        waited += OWNER_POLL_SECONDS
    return owner


def why_not_served(topics: Topics, name: TopicName) -> str:
    """A sentence for a topic whose bucket has no known owner."""
    bucket = topics.bucket_of(name)
    reason = topics.ownership.waiting_reason(bucket)
    return f"bucket {bucket} of {name.base} has no owner now" + (reason and f": {reason}")


def check_listener(name: str) -> None:
    """Raise Refused for a listener by name: brokers here have one set of addresses.

    As in Pulsar where no such listener is configured; these are its words, which C++ looks for.
    """
    if name:
        raise Refused(
            ServerError.NOT_ALLOWED_ERROR, f"the broker do not have {name[:100]} listener"
        )


class Lookups:
    """Answers look-ups over the binary protocol, which the session let through (rights.py)."""

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
        self._authorization = authorization
        self._identity = identity
        self._over_tls = over_tls
        self._over_plain = over_plain

    async def lookup(self, command: pb.CommandLookup, write: Write) -> None:
        """Answer LOOKUP: connect to the owner."""
        request_id = command.request_id
        try:
            name = TopicName.parse(command.topic)
            check_listener(command.advertised_listener_name)
            owner = await wait_for_owner(self._topics, name)
        except (Refused, InvalidTopicName) as error:
            write(replies.lookup_failed(request_id, _code(error), str(error)))
            return
        if owner is None:
            text = f"{NO_OWNER}: {why_not_served(self._topics, name)}"
            write(replies.lookup_failed(request_id, ServerError.METADATA_ERROR, text))
            return
        plain, tls = self._over_plain(owner).broker_url, self._over_tls(owner).broker_url
        write(replies.lookup_connect(request_id, plain, broker_url_tls=tls))

    async def partitions(self, command: pb.CommandPartitionedMetadata, write: Write) -> None:
        """Answer PARTITIONED_METADATA: 0 for a topic that is none, or does not exist yet."""
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
        """What a client is told when the store says nothing of its topic.

        A broker that serves nothing has it connect anew: nobody leads on that connection, and where
        this broker alone has lost the store a Service leads to another one.
        """
        if self._topics.ownership.held():
            return ServerError.METADATA_ERROR, f"{NO_OWNER}: {error}"
        return ServerError.SERVICE_NOT_READY, str(error)

    async def topics_of_namespace(
        self,
        command: pb.CommandGetTopicsOfNamespace,
        write: Write,
        room: Callable[[], Awaitable[None]],
    ) -> None:
        """Answer GET_TOPICS_OF_NAMESPACE with the names of the logs that the client may see.

        ``room`` returns once the client has read what it was sent. The answers of one connection are
        made one after another.
        """
        request_id = command.request_id
        if command.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            write(replies.topics_of_namespace(request_id, []))
            return
        async with self._listing:
            await room()
            try:
                listed = await self._listings.logs_of(command.namespace)
                names = await self._authorization.seen(self._identity, listed)
            except OnewriterError as error:
                write(replies.error(request_id, ServerError.SERVICE_NOT_READY, str(error)))
                return
            await write_topics(request_id, names, write)


def _code(error: Refused | InvalidTopicName) -> ServerError:
    return error.code if isinstance(error, Refused) else ServerError.INVALID_TOPIC_NAME
