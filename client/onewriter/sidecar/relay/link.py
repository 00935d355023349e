"""One client of the relay and its connection to a broker: handshake, forwarding, back-pressure, and the broker's silence.

**Silence.** A client that waits would notice a silent broker after tens of seconds. The link asks after a second
without a byte from the broker: it sends a PING to the *client*, and when the client answers, a PING to the broker. So the
broker gets no byte from the relay that the client's own life has not caused, and it still detects a frozen writer.
If the broker sends nothing for ``answer_seconds`` after that, the link closes the client's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, cast

import structlog

from onewriter._config import Address
from onewriter._errors import OnewriterError
from onewriter.sidecar.relay.answers import (
    answer_to_challenge,
    closing_without_address,
    connect_to_broker,
    decoded,
    has_credentials,
    lookup_answer,
    named_broker,
)
from onewriter.sidecar.relay.splitter import PASSES, Splitter
from onewriter_core.errors import ProtocolError, ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.command_limits import HANDSHAKE_LENGTH_MAX, LENGTHS_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

READ_BYTES: Final = 32 * 1024
"""Bytes of one read from a socket."""

BUFFER_BYTES: Final = 64 * 1024
"""Bytes for one socket that it has not accepted; above them, the link stops reading from the other one."""

ANSWER_LENGTH_MAX: Final = 64 * 1024
"""Bytes of a command of a broker that the link decodes."""

CLOSE_SECONDS: Final = 2.0
"""Time for a socket to accept the rest before it is closed in any case."""

SILENT: Final = "silent"
_AT_ONCE: Final = frozenset({SILENT, "too-many", "protocol", "no-connect", "stop", "defect"})
"""Ends of a link after which nothing is sent to the broker."""

FROM_CLIENT: Final = frozenset({pb.BaseCommand.PONG})
FROM_CLIENT_BESIDE_LEADER: Final = FROM_CLIENT | {pb.BaseCommand.PRODUCER}
"""The commands of a client that are looked at if the sidecar leads a topic itself."""
FROM_BROKER: Final = frozenset(
    {
        pb.BaseCommand.PONG,
        pb.BaseCommand.LOOKUP_RESPONSE,
        pb.BaseCommand.AUTH_CHALLENGE,
        pb.BaseCommand.CLOSE_PRODUCER,
        pb.BaseCommand.CLOSE_CONSUMER,
    }
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Time limits of a link, in seconds."""

    connect_seconds: float = 5.0
    """From the client's connection to its CONNECT, and from the broker's connection to its answer."""
    ask_after_seconds: float = 1.0
    """Silence of the broker after which the link asks."""
    answer_seconds: float = 2.0
    """From the question to a byte of the broker."""


class Host(Protocol):
    """What a link uses of the relay."""

    limits: LinkLimits

    @property
    def is_tls(self) -> bool:
        """Whether the relay connects to brokers over TLS."""
        ...

    def now(self) -> float:
        """The time of a monotonic clock, in seconds."""
        ...

    def spawn(self, work: Coroutine[object, object, None]) -> object:
        """Run ``work`` in a task."""
        ...

    async def token(self) -> str | None:
        """The pod's token; None if the relay has none. Raises OnewriterError."""
        ...

    async def open(self, broker: Address | None, end: RelayEnd) -> Address:
        """Connect ``end`` to this broker, or to any; return the address. Raises OnewriterError."""
        ...

    def learned(self, broker: Address) -> None:
        """A broker named this one in an answer to a look-up."""
        ...

    @property
    def leads(self) -> bool:
        """Whether the sidecar leads a topic itself."""
        ...

    def is_led(self, topic: str) -> bool:
        """Whether the sidecar leads this topic itself, so that no client of the relay may produce to it."""
        ...

    def admits(self, link: RelayLink) -> bool:
        """Whether there may be another connection of a client."""
        ...

    def ended(self, link: RelayLink, reason: str) -> None:
        """The link is closed."""
        ...


class RelayEnd(asyncio.BufferedProtocol):
    """One of the two sockets of a link. It passes on back-pressure to ``other``."""

    def __init__(self, on_data: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: RelayEnd | None = None
        self.is_read_paused = False
        self.is_write_paused = False
        self._on_data = on_data
        self._on_lost = on_lost
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._on_data(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._on_lost()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self.other is not None:
            self.other.resume_reading()

    def pause_reading(self) -> None:
        """Leave further bytes in the socket."""
        self.is_read_paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo ``pause_reading``."""
        self.is_read_paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send bytes, after those that wait."""
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Send what waits, then close; abort after CLOSE_SECONDS."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


class _ClientEnd(RelayEnd):
    """The client's socket: it exists before the broker's."""

    def __init__(self, link: RelayLink) -> None:
        super().__init__(link.from_client, link.client_lost)
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.begun()


class RelayLink:
    """Create one for each connection; ``client`` is the protocol of its socket."""

    def __init__(self, host: Host) -> None:
        self.client: RelayEnd = _ClientEnd(self)
        self.address: Address | None = None
        """The address at which the broker was reached; None before."""
        self._host = host
        self._broker = RelayEnd(self._from_broker, self._broker_lost)
        self._wanted_of_client = FROM_CLIENT_BESIDE_LEADER if host.leads else FROM_CLIENT
        """The commands of the client that are looked at, also if they arrive together with CONNECT."""
        self._client_frames = Splitter(
            self._wanted_of_client | {pb.BaseCommand.CONNECT}, HANDSHAKE_LENGTH_MAX
        )
        self._broker_frames = Splitter(FROM_BROKER, ANSWER_LENGTH_MAX)
        self._connect: pb.CommandConnect | None = None
        self._early: list[tuple[int, bytes]] = []
        self._is_forwarding = False
        self._is_closed = False
        self._uses_token = False
        self._owed = b""
        self._pings_to_client = 0
        self._pings_to_broker = 0
        self._heard_at = host.now()
        self._deadline: float | None = self._heard_at + host.limits.connect_seconds

    # ------------------------------------------------------------ the client

    def begun(self) -> None:
        """The client has connected."""
        if not self._host.admits(self):
            self.close("too-many")

    def from_client(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._is_closed:
            return
        try:
            if self._is_forwarding:
                self._forward(data)
            else:
                self._before_forwarding(data)
        except ProtocolError as error:
            self._refuse(error)

    def client_lost(self) -> None:
        """The client's socket is closed."""
        self.close("client")

    def _before_forwarding(self, data: bytes) -> None:
        parts = self._client_frames.feed(data)
        if self._connect is None and parts:
            kind, frame = parts.pop(0)
            command = decoded(frame) if kind != PASSES else None
            if not isinstance(command, pb.CommandConnect):
                raise ProtocolError("the first command is not CONNECT")
            self._connect = command
            self._deadline = None
            self._client_frames.wanted = self._wanted_of_client
            self._client_frames.wanted_length_max = LENGTHS_MAX[pb.BaseCommand.PRODUCER]
            self.client.pause_reading()
            self._host.spawn(self._guarded(self._open(command, named_broker(command))))
        elif self._connect is None and self._client_frames.left:
            raise ProtocolError("the first command is not CONNECT")
        self._early += parts

    def _forward(self, data: bytes) -> None:
        boundary = self._client_frames.left
        if self._owed and boundary <= len(data):
            self._forward_parts(self._client_frames.feed(data[:boundary]))
            self._pay()
            data = data[boundary:]
        self._forward_parts(self._client_frames.feed(data))

    def _forward_parts(self, parts: Iterable[tuple[int, bytes]]) -> None:
        for kind, part in parts:
            if kind == pb.BaseCommand.PRODUCER and self._refuses_producer(part):
                continue
            if kind != pb.BaseCommand.PONG or not self._pings_to_client:
                self._broker.write(part)
                continue
            self._pings_to_client -= 1
            self._pings_to_broker += 1
            self._broker.write(replies.PING)
            if self._deadline is None:
                self._deadline = self._host.now() + self._host.limits.answer_seconds

    def _refuses_producer(self, frame: bytes) -> bool:
        """Answer the request for a producer of the topic that the sidecar leads; return whether it is one.

        Every process of the pod knows the name and the epoch of the sidecar's producer. With the pod's token it could resume
        this producer and close it, which would release the topic. Raises ProtocolError.
        """
        command = decoded(frame)
        if not isinstance(command, pb.CommandProducer):
            raise ProtocolError("not a request for a producer")
        if not self._host.is_led(command.topic):
            return False
        log.info("relay.led_topic", topic=command.topic)
        reason = "the sidecar of this pod leads the topic: publish through its API"
        self.client.write(replies.error(command.request_id, ServerError.NOT_ALLOWED_ERROR, reason))
        return True

    def _pay(self) -> None:
        """Send the broker what the relay owes it; the bytes before are whole frames."""
        owed, self._owed = self._owed, b""
        self._broker.write(owed)

    # ------------------------------------------------------------ the broker

    async def _open(self, connect: pb.CommandConnect, broker: Address | None) -> None:
        try:
            token = None if has_credentials(connect) else await self._host.token()
            if self._is_closed:
                return
            self.address = await self._host.open(broker, self._broker)
        except OnewriterError as error:
            if not self._is_closed:
                log.info("relay.no_broker", broker=broker and str(broker), reason=str(error))
            self.close("unreachable")
            return
        if self._is_closed:
            self._broker.abort()
            return
        self._uses_token = token is not None
        self._heard_at = self._host.now()
        self._deadline = self._heard_at + self._host.limits.connect_seconds
        self.client.other, self._broker.other = self._broker, self.client
        self._is_forwarding = True
        self._broker.write(connect_to_broker(connect, token))
        early, self._early = self._early, []
        try:
            self._forward_parts(early)
        except ProtocolError as error:
            self._refuse(error)
            return
        if not self._broker.is_write_paused:
            self.client.resume_reading()

    def _from_broker(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._heard_at = self._host.now()
        self._deadline = None
        try:
            for kind, part in self._broker_frames.feed(data):
                self.client.write(part if kind == PASSES else self._changed(kind, part))
        except ProtocolError as error:
            self._refuse(error)

    def _changed(self, kind: int, frame: bytes) -> bytes:
        """What the client gets in place of a broker's command. Raises ProtocolError."""
        match kind:
            case pb.BaseCommand.PONG if self._pings_to_broker:
                self._pings_to_broker -= 1
                return b""
            case pb.BaseCommand.LOOKUP_RESPONSE:
                frame, broker = lookup_answer(frame, is_tls=self._host.is_tls)
                if broker is not None:
                    self._host.learned(broker)
                return frame
            case pb.BaseCommand.CLOSE_PRODUCER | pb.BaseCommand.CLOSE_CONSUMER:
                return closing_without_address(frame)
            case pb.BaseCommand.AUTH_CHALLENGE if self._uses_token:
                self._host.spawn(self._guarded(self._answer_challenge()))
                return b""
            case _:
                return frame

    async def _answer_challenge(self) -> None:
        try:
            token = await self._host.token()
        except OnewriterError as error:
            # The broker asks again, or closes the connection when the present token expires.
            log.warning("relay.no_token", reason=str(error))
            return
        if self._is_closed or token is None or self._connect is None:
            return
        self._owed = answer_to_challenge(self._connect.client_version, token)
        if not self._client_frames.left:
            self._pay()

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        """A defect ends this link alone."""
        try:
            await work
        except Exception:
            log.exception("relay.defect")
            self.close("defect")

    def _broker_lost(self) -> None:
        self.close("broker")

    # ------------------------------------------------------------ the watch

    def check(self, now: float, *, was_frozen: bool = False) -> None:
        """Ask a silent broker through the client, or end the link of one that does not answer in time."""
        if self._is_closed or (self._connect is not None and not self._is_forwarding):
            return  # opening has limits of its own
        if was_frozen or (self._is_forwarding and self._broker.is_read_paused):
            # Bytes of the broker may wait that were not read.
            self._heard_at = now
            self._deadline = None if self._is_forwarding else self._deadline
            return
        limits = self._host.limits
        if self._deadline is not None:
            if now >= self._deadline:
                self.close(SILENT if self._is_forwarding else "no-connect")
        elif now - self._heard_at >= limits.ask_after_seconds:
            if self.client.is_read_paused:
                # The broker accepts nothing, so a question would not reach it: no byte of it is an answer too.
                self._deadline = now + limits.answer_seconds
            elif not self._pings_to_client and not self._broker_frames.left:
                self._pings_to_client += 1
                self.client.write(replies.PING)

    # ------------------------------------------------------------ the end

    def _refuse(self, error: ProtocolError) -> None:
        log.info("relay.broken", reason=str(error))
        self.close("protocol")

    def close(self, reason: str) -> None:
        """End both connections. What was received is still forwarded, except to a silent broker."""
        if self._is_closed:
            return
        self._is_closed = True
        if reason in _AT_ONCE:
            self._broker.abort()
        else:
            self._broker.close()
        if reason in _AT_ONCE - {SILENT}:
            self.client.abort()
        else:
            self.client.close()
        self._host.ended(self, reason)
