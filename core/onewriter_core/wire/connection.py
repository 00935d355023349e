"""The order of commands: one table for both ends of a connection.

The states of a connection carry no data, so a table `(state, command) → state` is sufficient. A command that the table
does not list for a state is a protocol error in this state. Server and client mirror each other: one receives what
the other sends. ``receiving`` selects the direction, and both use the table (server.py, client.py).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.commands import Command, class_of, decode_command, type_name, type_of
from onewriter_core.wire.frames import FrameReader
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, Send

Received = tuple[Command, memoryview | None]
"""A command and, for SEND and MESSAGE, the bytes that it carries."""


class State(enum.Enum):
    """The state of a connection."""

    OPENED = "opened"
    CONNECTING = "connecting"
    """CONNECT was sent, and the broker has not answered."""
    CHALLENGED = "challenged"
    """The broker asks for (more) credentials before it answers CONNECT."""
    CONNECTED = "connected"
    CLOSED = "closed"


FROM_CLIENT = frozenset(
    {
        pb.BaseCommand.CONNECT,
        pb.BaseCommand.SUBSCRIBE,
        pb.BaseCommand.PRODUCER,
        pb.BaseCommand.SEND,
        pb.BaseCommand.ACK,
        pb.BaseCommand.FLOW,
        pb.BaseCommand.UNSUBSCRIBE,
        pb.BaseCommand.CLOSE_PRODUCER,
        pb.BaseCommand.CLOSE_CONSUMER,
        pb.BaseCommand.PING,
        pb.BaseCommand.PONG,
        pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        pb.BaseCommand.PARTITIONED_METADATA,
        pb.BaseCommand.LOOKUP,
        pb.BaseCommand.CONSUMER_STATS,
        pb.BaseCommand.SEEK,
        pb.BaseCommand.GET_LAST_MESSAGE_ID,
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE,
        pb.BaseCommand.GET_SCHEMA,
        pb.BaseCommand.AUTH_RESPONSE,
        pb.BaseCommand.GET_OR_CREATE_SCHEMA,
        pb.BaseCommand.NEW_TXN,
        pb.BaseCommand.ADD_PARTITION_TO_TXN,
        pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
        pb.BaseCommand.END_TXN,
        pb.BaseCommand.END_TXN_ON_PARTITION,
        pb.BaseCommand.END_TXN_ON_SUBSCRIPTION,
        pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        pb.BaseCommand.CHECK,
        pb.BaseCommand.SEAL,
        pb.BaseCommand.PUBLISH_TOGETHER,
        pb.BaseCommand.OWN,
        pb.BaseCommand.DISOWN,
    }
)
"""Commands that clients send."""

FROM_BROKER = frozenset(
    {
        pb.BaseCommand.CONNECTED,
        pb.BaseCommand.SEND_RECEIPT,
        pb.BaseCommand.SEND_ERROR,
        pb.BaseCommand.MESSAGE,
        pb.BaseCommand.SUCCESS,
        pb.BaseCommand.ERROR,
        pb.BaseCommand.CLOSE_PRODUCER,
        pb.BaseCommand.CLOSE_CONSUMER,
        pb.BaseCommand.PRODUCER_SUCCESS,
        pb.BaseCommand.PING,
        pb.BaseCommand.PONG,
        pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
        pb.BaseCommand.LOOKUP_RESPONSE,
        pb.BaseCommand.CONSUMER_STATS_RESPONSE,
        pb.BaseCommand.REACHED_END_OF_TOPIC,
        pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
        pb.BaseCommand.ACTIVE_CONSUMER_CHANGE,
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        pb.BaseCommand.GET_SCHEMA_RESPONSE,
        pb.BaseCommand.AUTH_CHALLENGE,
        pb.BaseCommand.ACK_RESPONSE,
        pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        pb.BaseCommand.NEW_TXN_RESPONSE,
        pb.BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
        pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        pb.BaseCommand.END_TXN_RESPONSE,
        pb.BaseCommand.END_TXN_ON_PARTITION_RESPONSE,
        pb.BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
        pb.BaseCommand.CHECK_RESPONSE,
        pb.BaseCommand.PUBLISH_TOGETHER_RESPONSE,
        pb.BaseCommand.OWN_RESPONSE,
        pb.BaseCommand.OWNERSHIP_LOST,
        pb.BaseCommand.QUEUE_CHANGED,
    }
)
"""Commands that brokers send. Stock C++ and Go clients close the connection on REACHED_END_OF_TOPIC."""

TRANSITIONS: Mapping[tuple[State, int], State] = {
    (State.OPENED, pb.BaseCommand.CONNECT): State.CONNECTING,
    (State.CONNECTING, pb.BaseCommand.CONNECTED): State.CONNECTED,
    (State.CONNECTING, pb.BaseCommand.AUTH_CHALLENGE): State.CHALLENGED,
    (State.CONNECTING, pb.BaseCommand.ERROR): State.CLOSED,
    (State.CHALLENGED, pb.BaseCommand.AUTH_RESPONSE): State.CONNECTING,
    # A challenge while connected only asks for a new token.
    **{
        (State.CONNECTED, number): State.CONNECTED
        for number in (FROM_CLIENT | FROM_BROKER)
        - {pb.BaseCommand.CONNECT, pb.BaseCommand.CONNECTED}
    },
}
"""`(state, BaseCommand.Type) → state`. A missing key is a protocol error."""


@cache
def _next_states(state: State, receiving: frozenset[int]) -> Mapping[type, State]:
    """The table's row for a state and a direction, by the class of the decoded command."""
    return {
        class_of(number): target
        for (source, number), target in TRANSITIONS.items()
        if source is state and number in receiving
    }


_CARRIERS = frozenset({Send, Delivery})
_CLOSED = State.CLOSED
"""Looked up for each command: access through the enumeration's class takes several times as long."""


class Connection:
    """The part of a connection that both sides share: it turns bytes into commands and checks their order.

    Use it like asyncio.BufferedProtocol: ``get_buffer``, then ``buffer_updated``. Iterate over the result. Or stop
    iterating, stop reading from the socket, and continue with ``received()`` later. A ProtocolError is raised after
    the valid commands before it and leaves the connection CLOSED. Later input is dropped.
    """

    __slots__ = ("_next_states", "_reader", "_receiving", "_state", "_unchecked_length_max")

    def __init__(self, reader: FrameReader, receiving: frozenset[int]) -> None:
        self._reader = reader
        self._receiving = receiving
        self._unchecked_length_max = sys.maxsize
        """Commands longer than this are checked before they are decoded."""
        self._enter(State.OPENED)

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self._state

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet yielded as commands."""
        return self._reader.buffered_bytes

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Free space to receive into; never empty."""
        return self._reader.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> Iterator[Received]:
        """Account for ``count`` received bytes. Yields the commands that are complete now."""
        self.received_bytes(count)
        return self.received()

    def received_bytes(self, count: int) -> None:
        """Account for ``count`` received bytes. ``received`` yields their commands later."""
        if self._state is not State.CLOSED:
            self._reader.buffer_updated(count)

    def received(self) -> Iterator[Received]:
        """The commands that were not yielded: continues where an abandoned iterator stopped."""
        if self.state is State.CLOSED:
            return
        try:
            for data, payload in self._reader.frames():
                if len(data) > self._unchecked_length_max:
                    self._check_undecoded(data)
                command = decode_command(data)
                kind = type(command)
                state = self._next_states.get(kind)
                if state is not self._state:
                    self._on_transition(command, state)
                if payload is None and kind in _CARRIERS:
                    raise ProtocolError(f"{type_name(type_of(kind))} without a payload")
                yield command, payload
                if self._state is _CLOSED:
                    return
        except ProtocolError:
            self.close()
            raise

    def feed(self, data: bytes | bytearray | memoryview) -> list[Received]:
        """Copy ``data`` in and return the commands that it completes, for tests and small clients."""
        received: list[Received] = []
        view = memoryview(data)
        while view and self._state is not State.CLOSED:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            received += self.buffer_updated(count)
        return received

    def close(self) -> None:
        """Close the connection. Later input is dropped."""
        self._enter(State.CLOSED)

    def _sending(self, number: int) -> None:
        """Change the state for a command that is about to be sent."""
        state = TRANSITIONS.get((self._state, number))
        if state is None:
            raise RuntimeError(f"{type_name(number)} cannot be sent while {self._state.value}")
        if state is not self._state:
            self._enter(state)

    def _on_transition(self, command: Command, state: State | None) -> None:
        """A received command changes the state, or is not allowed (None)."""
        if state is None:
            name = type_name(type_of(type(command)))
            raise ProtocolError(f"{name} is not expected while {self._state.value}")
        self._enter(state)

    def _check_undecoded(self, data: bytearray) -> None:
        """Raise ProtocolError for a command that must not be decoded (ServerConnection)."""

    def _enter(self, state: State) -> None:
        self._state = state
        self._next_states = _next_states(state, self._receiving)
