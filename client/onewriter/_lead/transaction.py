"""Transactions: messages for several topics that are stored together or not at all, under one leadership.

The client sends one request to the broker that serves all the topics, which are in one bucket because of a hash
tag in their names (``{orders}-audit`` is in the bucket of ``orders``). The store compares the guard of each
topic in the call that appends, so a transaction of a deposed leader changes none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from onewriter._config import Backoff
from onewriter._errors import (
    Closed,
    ConfigurationError,
    Fenced,
    NotSent,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._lead.announcement import Announcement
from onewriter._message import MessageId
from onewriter._produce.guarded import Guarded, GuardedBy
from onewriter._produce.producer import Producer
from onewriter._produce.registration import Registration
from onewriter._transport.connection import Connection, Spawn
from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.wire.commands import Command, message_id_from_proto
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

COMMIT_SECONDS = 30.0
"""Default timeout of a commit, including retries."""


class Leader(Protocol):
    """The leadership's methods that a transaction uses."""

    producer: Producer

    @property
    def guard(self) -> GuardedBy: ...

    def check_held(self) -> None: ...

    def guarded(self, topic: str) -> Guarded: ...


@dataclass(slots=True, eq=False)
class _Message:
    """One message of a transaction."""

    topic: TopicName
    content: bytes
    key: str | None
    properties: Mapping[str, str] | None
    ordering_key: bytes | None
    event_time_ms: int
    receipt: asyncio.Future[MessageId]


class Transaction:
    """Created by ``Leadership.transaction``. Use it in an ``async with`` block, or call ``commit``.

    Leaving the block commits; an exception in the block discards all messages. ``announcement`` is the leader's
    announcement, which is published with the messages.
    """

    def __init__(
        self,
        leader: Leader,
        announcement: Announcement | None,
        *,
        spawn: Spawn,
        timeout_seconds: float = COMMIT_SECONDS,
    ) -> None:
        self._leader = leader
        self._spawn = spawn
        self._announcement = announcement
        self._timeout_seconds = timeout_seconds
        self._messages: list[_Message] = []
        self._is_over = False
        self._is_unanswered = False
        """Whether a request was sent and has no answer yet."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            if not self._is_over:
                await self.commit()
        else:
            self._end(
                Closed("the transaction was discarded, because its block raised an exception")
            )

    def send(
        self,
        content: bytes,
        *,
        topic: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
    ) -> asyncio.Future[MessageId]:
        """Add a message, and return the future of its receipt. The default topic is the leader's own.

        Nothing is sent before the commit. Raises ConfigurationError for an invalid name, Closed.
        """
        if self._is_over:
            raise Closed("the transaction is over")
        own = self._leader.producer.topic
        try:
            name = own if topic is None else TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ConfigurationError(str(error)) from error
        receipt: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        self._messages.append(
            _Message(name, content, key, properties, ordering_key, event_time_ms, receipt)
        )
        return receipt

    async def commit(self) -> list[MessageId]:
        """Store all messages or none, and return their ids in the order of ``send``.

        Raises Fenced (the leadership is over), Closed, Refused (for example, a topic in another bucket) or
        NotSent if no message is in any log, and OutcomeUnknown if either all or none are.
        """
        if self._is_over:
            raise Closed("the transaction is over")
        messages = self._with_announcement()
        try:
            stored = await self._committed(messages) if messages else []
        except OnewriterError as error:
            self._end(error)
            raise
        except BaseException:
            self._end(OutcomeUnknown("the commit was cancelled before its answer arrived"))
            raise
        self._is_over = True
        for message, message_id in zip(messages, stored, strict=True):
            if not message.receipt.done():
                message.receipt.set_result(message_id)
        return stored[: len(self._messages)]

    def _with_announcement(self) -> list[_Message]:
        first = self._announcement
        if first is None:
            return self._messages
        receipt: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        own = self._leader.producer.topic
        announcing = _Message(own, first.content, first.key, first.properties, None, 0, receipt)
        return [*self._messages, announcing]

    def _end(self, error: OnewriterError) -> None:
        self._is_over = True
        for message in self._messages:
            if not message.receipt.done():
                message.receipt.set_exception(error)
                message.receipt.exception()  # mark it as retrieved: no task may wait for it

    async def _committed(self, messages: Sequence[_Message]) -> list[MessageId]:
        backoff = Backoff()
        last_error: Unavailable | None = None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    self._leader.check_held()
                    producers = await self._producers(messages)
                    links = [await producer.linked() for producer in producers.values()]
                    if len({link.connection for link in links}) == 1:
                        try:
                            return await self._send_once(messages, producers)
                        except Unavailable as error:
                            last_error = error
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError as error:
            if self._is_unanswered:
                text = f"the commit was not answered within {self._timeout_seconds:g} s"
                raise OutcomeUnknown(text) from error
            reason = last_error or "the producers of its topics are on different connections"
            text = (
                f"no broker accepted the transaction within {self._timeout_seconds:g} s: {reason}"
            )
            raise NotSent(text) from error

    async def _producers(self, messages: Sequence[_Message]) -> dict[TopicName, Producer]:
        """Return a producer for each topic. Raises Refused for a topic in another bucket."""
        leader = self._leader
        found = {leader.producer.topic: leader.producer}
        for topic in dict.fromkeys(message.topic for message in messages):
            if topic in found:
                continue
            found[topic] = await leader.guarded(str(topic)).producer()
            if not found[topic].guard_is_atomic:
                own = leader.producer.topic.base.local
                bare = topic.base.local.replace("{", "").replace("}", "")
                raise Refused(
                    ServerError.NOT_ALLOWED_ERROR,
                    f"{topic} is not in the bucket of {leader.producer.topic}, so one transaction cannot"
                    f" publish to both; use a name with a hash tag, such as {{{own}}}-{bare}",
                )
        return found

    async def _send_once(
        self, messages: Sequence[_Message], producers: Mapping[TopicName, Producer]
    ) -> list[MessageId]:
        """Send the request once. Raises Unavailable if nothing was stored: the caller may repeat it.

        The request follows all messages sent before. It keeps the first queue position of every producer until
        the answer arrives, because brokers append messages that arrive meanwhile before the transaction.
        """
        links = {topic: await producer.linked() for topic, producer in producers.items()}
        connection = next(iter(links.values())).connection
        command = pb.CommandPublishTogether(request_id=connection.next_request_id())
        topics = dict.fromkeys(message.topic for message in messages)
        positions = {
            topic: producers[topic].join_queue() for topic in topics
        }  # in one step: see _produce/queue.py
        with ExitStack() as held:
            for position in positions.values():
                held.callback(position.leave)
            for topic, position in positions.items():
                await position.reached()
                await producers[topic].written(links[topic])
            if any(
                link.connection is not connection or not link.is_open for link in links.values()
            ):
                raise Unavailable("the connection to the topics' broker was lost")
            for message in messages:
                command.parts.append(_part(message, producers[message.topic], links[message.topic]))
            answer = await self._answered(connection, command, held.pop_all())
        return [MessageId.of(message_id_from_proto(each)) for each in answer.message_ids]

    async def _answered(
        self,
        connection: Connection,
        command: pb.CommandPublishTogether,
        positions: ExitStack,
    ) -> pb.CommandPublishTogetherResponse:
        """Return the answer. Raises Fenced, Refused or Unavailable (definite), or OutcomeUnknown.

        The queue positions are kept until the answer, also if the commit was cancelled: until then, messages
        that are sent could be stored before the transaction.
        """
        self._is_unanswered = True
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        asking = self._spawn(_ask(connection, command, positions, answer))
        asking.add_done_callback(
            lambda _asking: _resolve(answer, OutcomeUnknown("the client was closed"))
        )
        try:
            found = await answer
        except Unavailable:
            self._is_unanswered = False
            raise
        except Fenced as fenced:
            epoch, current = self._leader.guard.number, fenced.current_epoch
            raise Fenced(fenced.message, epoch=epoch, current_epoch=current) from fenced
        if not isinstance(found, pb.CommandPublishTogetherResponse):
            raise OutcomeUnknown(f"the commit was answered with {type(found).__name__}")
        return found


async def _ask(
    connection: Connection,
    command: pb.CommandPublishTogether,
    positions: ExitStack,
    answer: asyncio.Future[Command],
) -> None:
    """Send the request, leave the queues, and set ``answer``: Unavailable only if nothing was stored."""
    with positions:
        result = await _answer(connection, command)
    _resolve(answer, result)


def _resolve(answer: asyncio.Future[Command], result: Command | OnewriterError) -> None:
    if answer.done():
        return  # the commit was cancelled
    if isinstance(result, OnewriterError):
        answer.set_exception(result)
        answer.exception()  # mark it as retrieved: the commit may be cancelled
    else:
        answer.set_result(result)


async def _answer(
    connection: Connection, command: pb.CommandPublishTogether
) -> Command | OnewriterError:
    if connection.is_closed:
        return Unavailable("the connection to the topics' broker was lost")
    try:
        return await connection.request(command)
    except Unavailable as error:
        if connection.is_closed or isinstance(error.__cause__, TimeoutError):
            return OutcomeUnknown(f"the commit was not answered: {error}")
        return error
    except OnewriterError as error:
        return error


def _part(
    message: _Message, producer: Producer, link: Registration
) -> pb.CommandPublishTogether.Part:
    number, entry = producer.pack(
        message.content,
        key=message.key,
        properties=message.properties,
        ordering_key=message.ordering_key,
        event_time_ms=message.event_time_ms,
    )
    return pb.CommandPublishTogether.Part(
        producer_id=link.producer_id, sequence_id=number, entry=entry
    )
