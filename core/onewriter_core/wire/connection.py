"""What may be said when: one table for both ends of a connection.

A connection's states carry no data, so they are a table `(state, command) → state`, from which the
documentation draws its diagram. A command that the table does not list in a state is a protocol
error there. Server and client are mirror images: what one sends is what the other receives, so
`receiving` names the direction and the table serves both (server.py, client.py).
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
    """Where a connection stands."""

    OPENED = "opened"
    CONNECTING = "connecting"
    """CONNECT was sent; the broker has yet to make up its mind."""
    CHALLENGED = "challenged"
    """The broker wants (more) credentials before it answers CONNECT."""
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
"""What clients send."""

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
"""What brokers send. Stock C++ and Go clients close the connection on REACHED_END_OF_TOPIC."""

TRANSITIONS: Mapping[tuple[State, int], State] = {
    (State.OPENED, pb.BaseCommand.CONNECT): State.CONNECTING,
    (State.CONNECTING, pb.BaseCommand.CONNECTED): State.CONNECTED,
    (State.CONNECTING, pb.BaseCommand.AUTH_CHALLENGE): State.CHALLENGED,
    (State.CONNECTING, pb.BaseCommand.ERROR): State.CLOSED,
    (State.CHALLENGED, pb.BaseCommand.AUTH_RESPONSE): State.CONNECTING,
    # A challenge while connected asks for a fresh token and changes nothing else.
    **{
        (State.CONNECTED, number): State.CONNECTED
        for number in (FROM_CLIENT | FROM_BROKER)
        - {pb.BaseCommand.CONNECT, pb.BaseCommand.CONNECTED}
    },
}
"""`(state, BaseCommand.Type) → state`; what is missing is a protocol error."""


@cache
def _next_states(state: State, receiving: frozenset[int]) -> Mapping[type, State]:
    """The table's row for a state and a direction, by the class that decoding gives."""
    return {
        class_of(number): target
        for (source, number), target in TRANSITIONS.items()
        if source is state and number in receiving
    }


_CARRIERS = frozenset({Send, Delivery})
_CLOSED = State.CLOSED
"""Looked up once per command; through the enumeration's class it costs several times as much."""


class Connection:
    """The half of a connection that both sides share: bytes in, commands in their order out.

    Feed it as asyncio.BufferedProtocol is fed: ``get_buffer``, then ``buffer_updated``. Iterate
    what that returns, or stop iterating, stop reading from the socket and go on with ``received()``
    later. A ProtocolError comes after the good commands before it and leaves the connection CLOSED;
    whatever arrives in that state is dropped.
    """

    __slots__ = ("_next_states", "_reader", "_receiving", "_state", "_unchecked_length_max")

    def __init__(self, reader: FrameReader, receiving: frozenset[int]) -> None:
        self._reader = reader
        self._receiving = receiving
        self._unchecked_length_max = sys.maxsize
        """Longer commands are checked before they are decoded."""
        self._enter(State.OPENED)

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._state

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet yielded as commands."""
        return self._reader.buffered_bytes

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Free space to receive into; never empty."""
        return self._reader.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> Iterator[Received]:
        """Take note of ``count`` received bytes; yields the commands that are complete now."""
        self.received_bytes(count)
        return self.received()

    def received_bytes(self, count: int) -> None:
        """Take note of ``count`` received bytes, whose commands ``received`` yields later."""
        if self._state is not State.CLOSED:
            self._reader.buffer_updated(count)

    def received(self) -> Iterator[Received]:
        """Commands not yet yielded: goes on where an abandoned iterator stopped."""
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
        """Copy ``data`` in and return the commands that it completes; for tests, small clients."""
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
        """The connection is over; later input is dropped."""
        self._enter(State.CLOSED)

    def _sending(self, number: int) -> None:
        """Take the transition of a command that is about to be sent."""
        state = TRANSITIONS.get((self._state, number))
        if state is None:
            raise RuntimeError(f"{type_name(number)} cannot be sent while {self._state.value}")
        if state is not self._state:
            self._enter(state)

    def _on_transition(self, command: Command, state: State | None) -> None:
        """A received command leads to another state, or nowhere (None)."""
        if state is None:
            name = type_name(type_of(type(command)))
            raise ProtocolError(f"{name} is not expected while {self._state.value}")
        self._enter(state)

    def _check_undecoded(self, data: bytearray) -> None:
        """Raise ProtocolError for a command that must not be decoded (ServerConnection)."""

    def _enter(self, state: State) -> None:
        self._state = state
        self._next_states = _next_states(state, self._receiving)
