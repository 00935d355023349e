"""Checks: the broker of a topic proves that it serves the topic, and returns the current epoch and the end.

The broker answers from a guarded read of the store, so a deposed broker cannot confirm anything. Calls for one
topic share a request where that is correct: a call that arrives while a request is in flight uses the
next request, which begins after the call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from onewriter._config import Backoff, Limits
from onewriter._errors import Closed, OnewriterError, Refused, ServerError, Unavailable
from onewriter._message import MessageId
from onewriter._transport.connection import Connection, Spawn
from onewriter._transport.lookup import Directory
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import TopicName
from onewriter_core.wire.commands import message_id_from_proto
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID

CONNECTIONS_REMEMBERED_MAX = 1_024
"""Topics whose broker is asked without a look-up; the least recently used one is forgotten."""


class Check(NamedTuple):
    """The state of a topic at one moment between the call and its return.

    ``epoch`` is the highest topic epoch ever granted, 0 if none was. ``is_current`` is true if the epoch that
    was checked (default: ``epoch``) belongs to the tenure that may write now or may still resume.
    ``last_message_id`` is at or after every message that was acknowledged before the call; None if the
    topic contains no message.
    """

    epoch: int
    is_current: bool
    last_message_id: MessageId | None


@dataclass(slots=True, eq=False)
class _Line:
    """The calls for one topic and one epoch."""

    requested: asyncio.Future[Check] | None = None
    """The answer to the request in flight, or to the last one."""
    following: asyncio.Future[Check] | None = None
    """The answer to the next request."""


_Key = tuple[TopicName, int | None]


class Checks:
    """The checks of one client."""

    def __init__(self, directory: Directory, limits: Limits, spawn: Spawn) -> None:
        self._directory = directory
        self._limits = limits
        self._spawn = spawn
        self._lines: dict[_Key, _Line] = {}
        self._connections: dict[TopicName, Connection] = {}

    async def check(self, topic: TopicName, epoch: int | None = None) -> Check:
        """Return a Check. Raises Refused (no such topic, or the broker lacks the command), Unavailable."""
        key = (topic, epoch)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            task = self._spawn(self._ask_for(key, line))
            task.add_done_callback(lambda _task: self._left(key, line))
        if line.following is None:
            line.following = asyncio.get_running_loop().create_future()
        return await asyncio.shield(line.following)

    async def _ask_for(self, key: _Key, line: _Line) -> None:
        """Send requests until no call waits any more."""
        while (answer := line.following) is not None:
            line.requested, line.following = answer, None
            try:
                answer.set_result(await self._ask(*key))
            except OnewriterError as error:
                answer.set_exception(error)
                answer.exception()  # mark it as retrieved: the caller may have been cancelled
        self._lines.pop(key, None)

    def _left(self, key: _Key, line: _Line) -> None:
        """Forget the line after its task ended; calls that still wait end with Closed."""
        if self._lines.get(key) is line:
            del self._lines[key]
        for answer in (line.requested, line.following):
            if answer is not None and not answer.done():
                answer.set_exception(Closed("the client was closed"))
                answer.exception()

    async def _ask(self, topic: TopicName, epoch: int | None) -> Check:
        """Ask one broker after the other until one answers or the time limit has passed."""
        backoff = Backoff()
        seconds = self._limits.operation_timeout_seconds
        trouble: Unavailable | ProtocolError | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self._ask_once(topic, epoch)
                    except (Unavailable, ProtocolError) as error:
                        self._connections.pop(topic, None)
                        trouble = error
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError as error:
            raise Unavailable(f"{topic} was not checked in {seconds:g} s: {trouble}") from error

    async def _ask_once(self, topic: TopicName, epoch: int | None) -> Check:
        connection = await self._connection(topic)
        answer = await connection.request(
            pb.CommandCheck(request_id=connection.next_request_id(), topic=str(topic), epoch=epoch)
        )
        if not isinstance(answer, pb.CommandCheckResponse):
            raise ProtocolError(f"CHECK was answered with {type(answer).__name__}")
        last = message_id_from_proto(answer.last_message_id)
        is_empty = not answer.HasField("last_message_id") or last == EARLIEST_ID
        return Check(answer.epoch, answer.is_current, None if is_empty else MessageId.of(last))

    async def _connection(self, topic: TopicName) -> Connection:
        """Return the connection of the last check; a broker that no longer serves the topic says so."""
        connection = self._connections.pop(topic, None)
        if connection is None or connection.is_closed:
            connection = await self._directory.owner_of(topic)
        if connection.extensions_version == 0:
            raise Refused(
                ServerError.UNSUPPORTED_VERSION_ERROR,
                f"the broker at {connection.address} is not a onewriter broker: it cannot prove leadership",
            )
        self._connections[topic] = connection
        if len(self._connections) > CONNECTIONS_REMEMBERED_MAX:
            del self._connections[next(iter(self._connections))]
        return connection
