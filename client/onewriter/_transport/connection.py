"""One connection to a broker: the sans-I/O codec over an asyncio socket, with keep-alive and proof of life.

This module contains the handshake with the credentials, requests and their answers, PINGs, and the dispatch
of commands to producers and consumers. The choice of the broker is in _transport/lookup.py, the reaction of
a producer in _produce/registration.py and _produce/producer.py.

**Proof.** A process that was frozen finds its sockets unchanged: data that the kernel buffered meanwhile
looks as if it had just arrived. The connection therefore counts as proved only after a round trip that *began*
recently: a PONG to our PING, a receipt for our SEND, an answer to our request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Self, cast

from google.protobuf.message import Message

from onewriter._config import Address, ClientOptions, token_of
from onewriter._errors import OnewriterError, Refused, ServerError, Unavailable, answer_of
from onewriter._transport.ends import ConsumerCallbacks, OwnershipCallbacks, ProducerCallbacks
from onewriter_core.errors import ProtocolError
from onewriter_core.wire import replies
from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX, Command, encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery, SendReceipt

REQUESTS_MAX = 10_000
"""Largest number of unanswered requests on one connection."""

TICK_SECONDS = 0.5
"""Interval at which a connection checks for silence."""

STALL_SECONDS = 1.0
"""A tick that is later than this shows that this process itself did not run."""

WRITE_BYTES_HIGH = 256 * 1024
"""Unsent bytes of a connection above which producers wait and keep their messages."""

TOKEN_RETRY_SECONDS = 1.0

ADDRESS_HEAD_START_SECONDS = 0.25
"""Delay before the next address of a host name is tried in parallel (RFC 8305)."""

_AUTH_METHOD = "token"

log = logging.getLogger("onewriter")

Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]

Request = (
    pb.CommandLookup
    | pb.CommandPartitionedMetadata
    | pb.CommandCloseProducer
    | pb.CommandSubscribe
    | pb.CommandCloseConsumer
    | pb.CommandUnsubscribe
    | pb.CommandSeek
    | pb.CommandGetLastMessageId
    | pb.CommandRedeliverUnacknowledgedMessages
    | pb.CommandCheck
    | pb.CommandSeal
    | pb.CommandPublishTogether
    | pb.CommandOwn
    | pb.CommandDisown
)
"""Commands for ``Connection.request``; each carries a request id of that connection."""


class Connection(asyncio.BufferedProtocol):
    """Create it with ``open``. Call all methods in the event loop's thread."""

    def __init__(
        self,
        address: Address,
        options: ClientOptions,
        spawn: Spawn,
        proxied_to: Address | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._proxied_to = proxied_to
        self.is_closed = False
        self.server_version = ""
        self.extensions_version = 0
        """Version of onewriter's own commands that both sides support; 0: none."""
        self.message_bytes_max = MESSAGE_LENGTH_MAX
        self._options = options
        self._limits = options.limits
        self._spawn = spawn
        self.now = now
        self._loop = asyncio.get_running_loop()
        self._wire = ClientConnection()
        self._transport: asyncio.Transport | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, asyncio.Future[Command]] = {}
        self._ends: dict[int, ProducerCallbacks] = {}
        self._asked: dict[int, ProducerCallbacks] = {}
        self._consumers: dict[int, ConsumerCallbacks] = {}
        self._expecting: dict[int, ConsumerCallbacks] = {}
        self.owners = OwnershipCallbacks()
        self._outgoing: list[bytes] = []
        self._is_paused = False
        self._received_at = self._ticked_at = now()
        self._proved_at = -math.inf
        self._ping_sent_at: float | None = None
        self._provers: list[asyncio.Future[None]] = []
        self._ticker: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        options: ClientOptions,
        spawn: Spawn,
        proxied_to: Address | None = None,
    ) -> Self:
        """Connect and authenticate. ``proxied_to`` is the broker to which a proxy has to forward.

        Raises Refused (the credentials), Unavailable, ConfigurationError (the TLS files).
        """
        context = await asyncio.to_thread(options.tls.context) if address.is_tls else None
        connection = cls(address, options, spawn, proxied_to)
        seconds = options.limits.connect_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await connection._loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=context,
                    happy_eyeballs_delay=_head_start_seconds(address.host),
                )
                await connection._shake_hands()
        except TimeoutError as error:
            connection.abort("no answer in time")
            raise Unavailable(f"{address} did not answer within {seconds:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            connection.abort("cannot connect")
            raise Unavailable(f"{address} cannot be reached: {error}") from error
        except BaseException:
            connection.abort("cannot connect")
            raise
        return connection

    @property
    def is_onewriter(self) -> bool:
        """Whether the broker is a onewriter broker, which answers every SEND before it closes a producer."""
        return self.server_version.startswith("onewriter")

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = self.now()
        try:
            for command, payload in self._wire.buffer_updated(nbytes):
                if payload is None:
                    self._take(command)
                elif isinstance(command, Delivery):
                    consumer = self._consumers.get(command.consumer_id)
                    if consumer is not None:
                        consumer.on_delivery(command, payload)
        except ProtocolError as error:
            self.abort(f"protocol error of the broker: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None else "the broker closed the connection")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._notify_writable()

    # ------------------------------------------------------------ commands

    @property
    def has_space(self) -> bool:
        """Whether the socket accepts more data now."""
        return not self._is_paused and not self.is_closed

    def write(self, *parts: bytes) -> None:
        """Send bytes, in one system call with all other writes of this event-loop tick."""
        if self.is_closed:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.extend(parts)

    def say(self, message: Message) -> None:
        """Send a command that has no answer, or whose answer goes to a producer's end."""
        if not self.is_closed:
            self.write(self._wire.encode(message))

    def next_request_id(self) -> int:
        """Return a request id that was not used before on this connection."""
        return self._wire.next_request_id()

    async def request(self, request: Request) -> Command:
        """Send a request and wait for its answer. Raises Refused, Unavailable."""
        return await self.ask(request.request_id, encode_command(request))

    async def ask(self, request_id: int, frame: bytes) -> Command:
        """As ``request``, for a frame that is encoded already."""
        if self.is_closed or len(self._requests) >= REQUESTS_MAX:
            raise Unavailable(
                f"the connection to {self.address} is closed or has too many unanswered requests"
            )
        seconds = self._limits.request_timeout_seconds
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._requests[request_id] = answer
        begun_at = self.now()
        self.write(frame)
        try:
            async with asyncio.timeout(seconds):
                command = await answer
        except TimeoutError as error:
            raise Unavailable(f"{self.address} did not answer within {seconds:g} s") from error
        finally:
            del self._requests[request_id]
        self.note_proof(begun_at)
        return command

    def attach(self, producer_id: int, request_id: int, end: ProducerCallbacks) -> None:
        """Pass all commands for the producer to ``end``."""
        self._ends[producer_id] = end
        self._asked[request_id] = end

    def detach(self, producer_id: int, request_id: int) -> None:
        """Ignore further commands for the producer."""
        self._ends.pop(producer_id, None)
        self._asked.pop(request_id, None)

    def attach_consumer(self, consumer_id: int, end: ConsumerCallbacks) -> None:
        """Pass all commands for the consumer to ``end``."""
        self._consumers[consumer_id] = end

    def detach_consumer(self, consumer_id: int) -> None:
        """Ignore further commands for the consumer."""
        self._consumers.pop(consumer_id, None)

    def expect(self, request_id: int, end: ConsumerCallbacks) -> None:
        """Pass the answer to ``end``, in order with the deliveries; a future would deliver it too late."""
        self._expecting[request_id] = end

    # ------------------------------------------------------------ proof

    @property
    def is_proved(self) -> bool:
        """Whether a round trip that began recently has succeeded."""
        return self.now() - self._proved_at <= self._limits.proof_seconds

    def note_proof(self, begun_at: float) -> None:
        """Record that the broker answered a command that was sent at ``begun_at``."""
        self._proved_at = max(self._proved_at, begun_at)

    def ask_proof(self) -> None:
        """Send a PING unless one is in flight; ``on_writable`` reports the answer."""
        if self._ping_sent_at is None:
            self._ping_sent_at = self.now()
            self.write(replies.PING)

    async def prove(self) -> None:
        """Wait for a successful round trip. Raises Unavailable if the connection is lost."""
        while not self.is_proved:
            if self.is_closed:
                raise Unavailable(f"the connection to {self.address} is lost")
            proof: asyncio.Future[None] = self._loop.create_future()
            self._provers.append(proof)
            self.ask_proof()
            await proof

    def _ponged(self) -> None:
        if self._ping_sent_at is None:
            return  # an answer to no PING of ours
        self.note_proof(self._ping_sent_at)
        self._ping_sent_at = None
        self._wake_provers()
        self._notify_writable()

    def _wake_provers(self) -> None:
        provers, self._provers = self._provers, []
        for proof in provers:
            if not proof.done():
                proof.set_result(None)

    def _tick(self) -> None:
        now = self.now()
        was_frozen = now - self._ticked_at > TICK_SECONDS + STALL_SECONDS
        self._ticked_at = now
        if was_frozen:
            self._received_at = now  # bytes that arrived meanwhile are not read yet
        silence = now - self._received_at
        if silence > self._limits.silent_after_seconds:
            self.abort(f"the broker sent nothing for {silence:.1f} s")
            return
        if was_frozen or silence > self._limits.ping_after_seconds:
            self.ask_proof()
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    # ------------------------------------------------------------ ending

    async def close(self) -> None:
        """Send what was written, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._lose("closed")
        await asyncio.sleep(0)  # the transport closes its socket in the next tick

    def abort(self, reason: str) -> None:
        """Close the connection at once; its producers and consumers connect again."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._wire.close()
        if self._ticker is not None:
            self._ticker.cancel()
        lost = Unavailable(f"the connection to {self.address} is lost: {reason}")
        if not self._connected.done():
            self._connected.set_exception(lost)
            self._connected.exception()  # mark it as retrieved: no caller may have waited for it
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(lost)
        self._wake_provers()
        ends: list[ProducerCallbacks | ConsumerCallbacks] = [
            *self._ends.values(),
            *self._consumers.values(),
        ]
        self._ends.clear()
        self._asked.clear()
        self._consumers.clear()
        self._expecting.clear()
        self.owners.lost()
        if ends:
            log.info("connection to %s is lost: %s", self.address, reason)
        for end in ends:
            end.on_lost(reason)

    # ------------------------------------------------------------ inside

    async def _shake_hands(self) -> None:
        source = self._options.token
        token = b"" if source is None else await token_of(source)
        if self.is_closed:  # the connection was lost while the token was read
            raise Unavailable(f"the connection to {self.address} was lost during the handshake")
        target = self._proxied_to
        begun_at = self.now()
        self.write(
            self._wire.connect(
                self._options.version,
                auth_method=_AUTH_METHOD if source is not None else "none",
                auth_data=token,
                proxy_to_broker_url="" if target is None else f"{target.host}:{target.port}",
            )
        )
        await self._connected
        self.note_proof(begun_at)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(outgoing)

    def _notify_writable(self) -> None:
        for end in list(self._ends.values()):
            end.on_writable()

    def _take(self, command: Command) -> None:
        match command:
            case SendReceipt():
                if (end := self._ends.get(command.producer_id)) is not None:
                    end.on_receipt(command)
            case pb.CommandPing():
                self.write(replies.PONG)
            case pb.CommandPong():
                self._ponged()
            case pb.CommandProducerSuccess():
                if (end := self._asked.get(command.request_id)) is not None:
                    end.on_success(command)
            case pb.CommandSendError():
                if (end := self._ends.get(command.producer_id)) is not None:
                    end.on_send_error(command)
            case pb.CommandCloseProducer():
                if (end := self._ends.get(command.producer_id)) is not None:
                    end.on_closed()
            case pb.CommandCloseConsumer():
                if (consumer := self._consumers.get(command.consumer_id)) is not None:
                    consumer.on_closed()
            case pb.CommandActiveConsumerChange():
                if (consumer := self._consumers.get(command.consumer_id)) is not None:
                    consumer.on_active(is_active=command.is_active)
            case pb.CommandReachedEndOfTopic():
                if (consumer := self._consumers.get(command.consumer_id)) is not None:
                    consumer.on_end_of_topic()
            case pb.CommandQueueChanged():
                if (end := self._ends.get(command.producer_id)) is not None:
                    end.on_queue_changed(command.waiting)
            case pb.CommandError():
                self._take_error(command)
            case pb.CommandSuccess() if command.request_id in self._expecting:
                self._expecting.pop(command.request_id).on_answered(None)
            case (
                pb.CommandSuccess()
                | pb.CommandLookupResponse()
                | pb.CommandPartitionedMetadataResponse()
                | pb.CommandAckResponse()
                | pb.CommandGetLastMessageIdResponse()
                | pb.CommandCheckResponse()
                | pb.CommandPublishTogetherResponse()
                | pb.CommandOwnResponse()
            ):
                answer = self._requests.get(command.request_id)
                if answer is not None and not answer.done():
                    answer.set_result(command)
            case pb.CommandOwnershipLost():
                self.owners.take(command)
            case pb.CommandConnected():
                self._accepted(command)
            case pb.CommandAuthChallenge():
                self._spawn(self._answer_challenge())
            case _:
                log.debug("%s is not for this client", type(command).__name__)

    def _take_error(self, command: pb.CommandError) -> None:
        error = answer_of(command.error, command.message)
        if not self._connected.done():
            self._connected.set_exception(error)
        elif (end := self._asked.get(command.request_id)) is not None:
            end.on_error(error)
        elif (consumer := self._expecting.pop(command.request_id, None)) is not None:
            consumer.on_answered(error)
        else:
            answer = self._requests.get(command.request_id)
            if answer is not None and not answer.done():
                answer.set_exception(error)

    def _accepted(self, command: pb.CommandConnected) -> None:
        self.server_version = command.server_version
        self.extensions_version = command.onewriter_extensions
        if command.max_message_size > 0:
            self.message_bytes_max = command.max_message_size
        if not self._connected.done():
            self._connected.set_result(None)

    async def _answer_challenge(self) -> None:
        """Read the token again and send it: the broker requests it before the old one expires."""
        source = self._options.token
        if source is None:
            refusal = Refused(ServerError.AUTHENTICATION_ERROR, "the broker asks for a token")
            if not self._connected.done():
                self._connected.set_exception(refusal)
            self.abort(str(refusal))
            return
        while not self.is_closed:
            try:
                token = await token_of(source)
            except OnewriterError as error:
                log.warning("%s", error)
                await asyncio.sleep(TOKEN_RETRY_SECONDS)
                continue
            if not self.is_closed:
                version = self._options.version
                self.write(self._wire.auth_response(version, _AUTH_METHOD, token))
            return


def _head_start_seconds(host: str) -> float | None:
    """Return the delay for a host name, None for an IP address.

    An IP address has no alternative to race, and a cancelled race may leave its socket open.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ADDRESS_HEAD_START_SECONDS
    return None
