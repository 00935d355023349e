"""Messages for several topics that are stored all or none, under one leadership.

One request to the broker that serves them all: they lie in one bucket, by a hash tag in their names
(``{orders}-audit`` lies with ``orders``). Each topic's guard is compared in the very call that
appends, so what a leader who lost his turn tries leaves no trace in any of them.
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


class Leader(Protocol):
    """A leadership, as a transaction needs it."""

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
    """Made by ``Leadership.transaction``; ``async with`` it, or call ``commit``.

    Leaving the block in order commits; an exception in it sends nothing. ``announcement`` is the
    leader's own message, which is published with the others.
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
        self._is_asking = False
        """A request was sent whose answer has not come."""

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
            self._end(Closed("the transaction was given up"))

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
        """Add a message, for the leader's own topic unless another is named; its future receipt.

        Nothing is sent before the commit. Raises ConfigurationError for a wrong name, Closed.
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
        """Store all messages, or none; where they stand, in the order of ``send``.

        Raises Fenced (the leadership is over), Closed, Refused (among others for topics of another
        bucket) and NotSent when none is in any log, and OutcomeUnknown when all may be, or none.
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
            self._end(OutcomeUnknown("the commit was broken off"))
            raise
        self._is_over = True
        for message, message_id in zip(messages, stored, strict=True):
            if not message.receipt.done():
                message.receipt.set_result(message_id)
        return stored[: len(self._messages)]

    def _with_announcement(self) -> list[_Message]:
        said = self._announcement
        if said is None:
            return self._messages
        receipt: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        own = self._leader.producer.topic
        announcing = _Message(own, said.content, said.key, said.properties, None, 0, receipt)
        return [*self._messages, announcing]

    def _end(self, error: OnewriterError) -> None:
        self._is_over = True
        for message in self._messages:
            if not message.receipt.done():
                message.receipt.set_exception(error)
                message.receipt.exception()  # whoever handed it in may have gone

    async def _committed(self, messages: Sequence[_Message]) -> list[MessageId]:
        backoff = Backoff()
        trouble: Unavailable | None = None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    self._leader.check_held()
                    producers = await self._producers(messages)
                    links = [await producer.linked() for producer in producers.values()]
                    if len({link.connection for link in links}) == 1:
                        try:
                            return await self._asked(messages, producers)
                        except Unavailable as error:
                            trouble = error
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError as error:
            if self._is_asking:
                raise OutcomeUnknown("the commit was not answered in time") from error
            text = f"no broker took the messages within {self._timeout_seconds:g} s: {trouble}"
            raise NotSent(text) from error

    async def _producers(self, messages: Sequence[_Message]) -> dict[TopicName, Producer]:
        """A producer for each topic. Raises Refused for one of another bucket."""
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
                    f"{topic} does not lie in the bucket of {leader.producer.topic}, so nothing can"
                    " be published to both together; a name with a hash tag,"
                    f" {{{own}}}-{bare}, would",
                )
        return found

    async def _asked(
        self, messages: Sequence[_Message], producers: Mapping[TopicName, Producer]
    ) -> list[MessageId]:
        """Ask once. Unavailable: nothing was stored, and it may be asked again.

        It stands in line behind what was sent before, and has all the producers' turns until the
        answer has come: brokers append what they have gathered of a topic by then in front of it.
        """
        links = {topic: await producer.linked() for topic, producer in producers.items()}
        connection = next(iter(links.values())).connection
        command = pb.CommandPublishTogether(request_id=connection.next_request_id())
        topics = dict.fromkeys(message.topic for message in messages)
        positions = {
            topic: producers[topic].join_queue() for topic in topics
        }  # at once: see _produce/queue.py
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
        """The answer. Raises Fenced, Refused, Unavailable: definite; OutcomeUnknown.

        The turns end with the answer, also for a commit that nobody waits for any more: until then
        what is sent could be stored in front of it.
        """
        self._is_asking = True
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        asking = self._spawn(_ask(connection, command, positions, answer))
        asking.add_done_callback(
            lambda _asking: _tell(answer, OutcomeUnknown("the client was closed"))
        )
        try:
            found = await answer
        except Unavailable:
            self._is_asking = False
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
    """Ask, give back the turns, and tell ``answer``: Unavailable only if nothing was stored."""
    with positions:
        result = await _answer(connection, command)
    _tell(answer, result)


def _tell(answer: asyncio.Future[Command], result: Command | OnewriterError) -> None:
    if answer.done():
        return  # nobody waits for it any more
    if isinstance(result, OnewriterError):
        answer.set_exception(result)
        answer.exception()  # whoever asked may go
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
