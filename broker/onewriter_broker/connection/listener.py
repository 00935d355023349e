"""Sockets of clients: bytes in and out of a connection, its handshake and its back-pressure.

The broker stops reading from one connection while too many of its bytes or requests are unanswered,
while its peer does not read, and while it has received more than its share of the event loop can
handle (rounds.py). Frames are views into the slabs in which they arrived; nothing is copied here.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine
from typing import cast

import structlog

from onewriter_broker.auth.authentication import PEER, Authenticated
from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.session import Session
from onewriter_broker.connection.withdrawals import ConnectionConsumers
from onewriter_broker.quotas.book import QuotaExceeded, QuotaUnit, connection_units
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_core.errors import ProtocolError, Refused, ServerError, Unavailable
from onewriter_core.wire import replies
from onewriter_core.wire.commands import MESSAGE_LENGTH_MAX, Command
from onewriter_core.wire.frames import FRAME_LENGTH_MAX
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.server import ServerConnection
from onewriter_http.addresses import address_of
from onewriter_http.certificate import ServerCertificate

SERVER_VERSION = "onewriter 0.1.0"

FRAME_OVERHEAD_BYTES = FRAME_LENGTH_MAX - MESSAGE_LENGTH_MAX
"""Bytes of a frame besides its message."""

NONCE_LENGTH = 9
"""Characters of the incarnation, after the broker's name, in the names of connections."""

HOLD_BACK_SECONDS = 1.0
"""Pause in reading from a connection after each message for a log whose share of the store is used up."""

HELD_BACK_DIVISOR = 4
"""All connections that are held back together may have ``pending_bytes_max`` divided by this. The other
connections may have ``pending_bytes_max`` in addition."""

CHALLENGE_SECONDS_MAX = 60.0
"""The broker asks a client for a new token this long before the present one expires, or when half of the
remaining time is over, whichever is later. If the client sends the same token, the broker asks again after
half of the remaining time. When the token expires, the broker closes the connection."""

CHALLENGE_SECONDS_MIN = 1.0
"""If less time is left until the token expires, the broker does not ask again."""

REFRESH_SECONDS = 20.0
"""Time to answer an AUTH_CHALLENGE if the present token is valid for more than ``CHALLENGE_SECONDS_MAX``."""

RETRY_SECONDS = 20.0
"""Interval between two challenges while no authenticator can check the client's new token."""

NO_TOKEN = f"the client sent no new token within {REFRESH_SECONDS:.0f} s"
EXPIRED = "the token has expired"

log = structlog.get_logger(__name__)


def _challenge_time(expires_at: float, now: float) -> float:
    """When to ask for another token, if the present one expires at ``expires_at``. All in Unix seconds."""
    lead = min(CHALLENGE_SECONDS_MAX, (expires_at - now) / 2)
    return expires_at if lead < CHALLENGE_SECONDS_MIN / 2 else expires_at - lead


class ClientProtocol(asyncio.BufferedProtocol):
    """One client's socket. It implements Link for its session, and Watched for the watch."""

    def __init__(
        self,
        clients: Clients,
        name: str,
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        self.detection: Detection | None = None
        self.may_only_resume = False
        self.last_inbound = clients.now()
        self.last_ping = self.last_inbound
        self.asked_at = 0.0
        self._clients = clients
        self._name = name
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._wire = ServerConnection(
            frame_length_max=clients.settings.message_bytes_max + FRAME_OVERHEAD_BYTES
        )
        self._session: Session | None = None
        self._rounds = clients.rounds
        self._waits_for_round = False
        self._is_stalled = False
        self._transport: asyncio.Transport
        self._descriptor: int | None = None
        self._outgoing: list[bytes | memoryview] = []
        self._outgoing_bytes = 0
        self._outgoing_bytes_max = clients.settings.outgoing_bytes_per_connection_max
        self._is_flushing = False
        self._written_bytes = 0
        self._accepted_bytes = 0
        self._accepted_at = self.last_inbound
        self._is_write_paused = False
        self._is_read_paused = False
        self._is_hang_up_watched = False
        self._is_closing = False
        self._pending_bytes = 0
        self._is_held_back = False
        self._hold_back_timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._expires_at: float | None = None
        self._is_refreshing = False
        self._challenge_timer: asyncio.TimerHandle | None = None
        self._connect_timer: asyncio.TimerHandle | None = None
        self._counted: tuple[QuotaUnit, ...] = ()

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._outgoing_bytes_max)
        connected = transport.get_extra_info("socket")
        self._descriptor = None if connected is None else connected.fileno()
        clients = self._clients
        clients.opened += 1
        if len(clients.connections) >= clients.settings.connections_max:
            log.warning("connection.refused", reason="too many connections")
            self._transport.abort()
            return
        clients.connections[self] = None
        self._connect_timer = self._loop.call_later(
            clients.settings.connect_timeout_seconds, self._connect_timed_out
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        now = self.last_inbound = self._clients.now()
        if self._is_closing:
            return
        self._wire.received_bytes(nbytes)
        if self._waits_for_round or self._is_stalled:
            return  # earlier commands are waiting
        if self._rounds.has_time:
            self._handle_commands(now)
            self._rounds.spent(self._clients.now() - now)
        else:
            self._wait_for_round()

    def work(self) -> None:
        """Handle waiting commands, in this connection's round (Rounds)."""
        self._waits_for_round = False
        if not self._is_closing and not self._is_stalled:
            self._handle_commands(self._clients.now())
            self._update_reading()

    def _handle_commands(self, now: float) -> None:
        """Handle received commands until none is left or this connection's share of the time is used up."""
        if self._expires_at is not None and self._clients.token_seconds() >= self._expires_at:
            self.close(EXPIRED)  # commands that arrived after the expiry are not handled
            return
        try:
            has_more = self._handle_until(now + self._rounds.limits.connection_seconds)
            if self._session is not None:
                self._session.read_ended()
            if has_more:
                self._handle_rest_later()
        except ProtocolError as error:
            log.info("connection.broken", address=self._address, reason=str(error))
            self.close(str(error))
        except Exception:
            log.exception("connection.failed", address=self._address)
            self._abort()

    def _handle_until(self, ends: float) -> bool:
        """Handle commands until ``ends``, in the clock of ``Clients.now``. Returns whether some may be left."""
        session = self._session
        if session is not None:
            while session.has_steps:
                session.step()
                if self._clients.now() >= ends:
                    return True
        limits = self._rounds.limits
        frames_left, readings_left = limits.frames_between_readings, limits.readings_max
        for command, payload in self._wire.received():
            if session is None:
                self._before_session(command)
                session = self._session
            elif session.handle(command, payload):
                frames_left = 1  # read the clock after this command
            frames_left -= 1
            if frames_left:
                continue
            frames_left = limits.frames_between_readings
            readings_left -= 1
            if session is not None and (session.must_wait or not self.has_space):
                return True
            if not readings_left or self._clients.now() >= ends:
                return True
        return session is not None and session.has_steps

    def _handle_rest_later(self) -> None:
        session = self._session
        if session is not None and not session.has_steps:
            self._is_stalled = session.must_wait or not self.has_space
        if self._is_stalled:
            self._update_reading()
        else:
            self._wait_for_round()

    def _wait_for_round(self) -> None:
        self._waits_for_round = True
        self._rounds.wait(self)
        self._update_reading()

    def resume(self) -> None:
        """Handle commands again in the next round if they need not wait any more."""
        session = self._session
        if self._is_stalled and session is not None:
            self._is_stalled = session.must_wait or not self.has_space
            if not self._is_stalled:
                self._wait_for_round()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._is_closing = True
        self._clients.connections.pop(self, None)
        self._clients.quotas.give_back(*self._counted)
        self._counted = ()
        self._rounds.leave(self)
        self._wake_waiters()
        self._watch_peer(is_unread=False)
        for timer in (self._challenge_timer, self._connect_timer, self._hold_back_timer):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.lost()  # subtracts the bytes of its unanswered messages
            self._session = None
        self._count_pending(-self._pending_bytes)
        self._pending_bytes = 0

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._note_accepted(self._clients.now())
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._update_reading()
        self._space_freed()

    def _space_freed(self) -> None:
        self._wake_waiters()
        if self._session is not None:
            self._session.space_freed()
        self.resume()

    # ------------------------------------------------------------ the handshake

    def _before_session(self, command: Command) -> None:
        match command:
            case pb.CommandConnect():
                self.spawn(self._connect(command))
            case pb.CommandAuthResponse():
                raise ProtocolError("AUTH_RESPONSE without a challenge")
            case _:
                raise ProtocolError(f"{type(command).__name__} before CONNECT")

    async def _authenticate(self, method: str, data: bytes) -> Authenticated:
        """Check a proof of this peer's identity. Raises Refused, Unavailable."""
        PEER.set(address_of(self._transport.get_extra_info("peername")))
        return await self._clients.authenticator.authenticate(method, data)

    async def _connect(self, command: pb.CommandConnect) -> None:
        try:
            proof = await self._authenticate(command.auth_method_name or "none", command.auth_data)
        except Refused as refused:
            log.info("connection.refused", address=self._address, reason=refused.message)
            self.write(self._wire.refuse(refused.code, refused.message))
            self.close("not authenticated")
            return
        except Unavailable as unavailable:
            self.write(self._wire.refuse(ServerError.SERVICE_NOT_READY, str(unavailable)))
            self.close("authentication is not available now; retry later")
            return
        if self._is_closing:
            return
        units = connection_units(proof.identity, self._address)
        try:
            self._clients.quotas.take(*units)
        except QuotaExceeded as exceeded:
            log.info("connection.refused", address=self._address, reason=exceeded.message)
            self.write(self._wire.refuse(exceeded.code, exceeded.message))
            self.close("too many connections")
            return
        self._counted = units
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        self.write(
            self._wire.connected(
                SERVER_VERSION, max_message_size=self._clients.settings.message_bytes_max
            )
        )
        self._session = Session(
            self._clients,
            self,
            name=self._name,
            address=self._address,
            identity=proof.identity,
            client_version=command.client_version,
        )
        self._schedule_challenge(proof)

    def _schedule_challenge(self, proof: Authenticated) -> None:
        """Schedule the next challenge: before the proof of identity expires, or when it should be renewed."""
        self.may_only_resume = proof.may_only_resume
        self._expires_at = proof.expires_at
        now = self._clients.token_seconds()
        times = [] if proof.renew_at is None else [proof.renew_at]
        if proof.expires_at is not None:
            times.append(_challenge_time(proof.expires_at, now))
        if times:
            self._set_challenge_timer(min(times), proof.expires_at)
        elif self._challenge_timer is not None:
            self._challenge_timer.cancel()
            self._challenge_timer = None

    def _set_challenge_timer(self, unix_seconds: float, expires_at: float | None) -> None:
        if self._challenge_timer is not None:
            self._challenge_timer.cancel()
        seconds = max(0.0, unix_seconds - self._clients.token_seconds())
        self._challenge_timer = self._loop.call_later(seconds, self._challenge, expires_at)

    def _challenge(self, expires_at: float | None) -> None:
        """Ask the client for a new token. If it sends none, the broker closes the connection when the present
        token expires, or after ``REFRESH_SECONDS`` if that is much later.
        """
        left = math.inf if expires_at is None else expires_at - self._clients.token_seconds()
        if left <= 0:
            self.close(EXPIRED)
            return
        peer = self._wire.peer
        if peer is not None and peer.feature_flags.supports_auth_refresh:
            self.write(self._wire.challenge(SERVER_VERSION, peer.auth_method_name))
            if left > CHALLENGE_SECONDS_MAX:
                self._challenge_timer = self._loop.call_later(REFRESH_SECONDS, self.close, NO_TOKEN)
            else:
                self._challenge_timer = self._loop.call_later(left, self.close, EXPIRED)
        elif expires_at is not None:
            self._set_challenge_timer(expires_at, expires_at)
        else:
            self.close(EXPIRED)

    def auth_response(self, command: pb.CommandAuthResponse) -> None:
        if not self._is_refreshing:  # one token is checked at a time
            self._is_refreshing = True
            self.spawn(self._refresh(command))

    async def _refresh(self, command: pb.CommandAuthResponse) -> None:
        """Check the token that answers a challenge. The connection ends if it is invalid or for another identity.

        If no authenticator can check the new token now, the connection stays open until the present token expires,
        and the broker sends another challenge.
        """
        try:
            proof = await self._authenticate(
                command.response.auth_method_name, command.response.auth_data
            )
        except Refused as error:
            self.close(f"the new token was refused: {error}")
            return
        except Unavailable as error:
            log.info("connection.not_renewed", address=self._address, reason=str(error))
            if not self._is_closing:
                retry_at = self._clients.token_seconds() + RETRY_SECONDS
                ends_at = math.inf if self._expires_at is None else self._expires_at
                self._set_challenge_timer(min(retry_at, ends_at), self._expires_at)
            return
        finally:
            self._is_refreshing = False
        if self._session is None or proof.identity != self._session.identity:
            self.close("the new token is for another subject")
            return
        self._schedule_challenge(proof)

    def _connect_timed_out(self) -> None:
        if self._session is None:
            seconds = self._clients.settings.connect_timeout_seconds
            self.close(f"the client sent no valid CONNECT within {seconds:g} s")

    # ------------------------------------------------------------ Link

    @property
    def extensions_version(self) -> int:
        return self._wire.extensions_version

    @property
    def has_space(self) -> bool:
        return not self._is_write_paused and self._outgoing_bytes < self._outgoing_bytes_max

    async def wait_for_space(self) -> None:
        while not self.has_space and not self._is_closing:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def is_silent_since(self, moment: float) -> bool:
        return not self._is_read_paused and self.last_inbound <= moment

    def write(self, *parts: bytes | memoryview) -> None:
        if self._is_closing:
            return
        self._outgoing.extend(parts)
        self._outgoing_bytes += sum(map(len, parts))
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        outgoing, self._outgoing = self._outgoing, []
        flushed, self._outgoing_bytes = self._outgoing_bytes, 0
        was_full = flushed >= self._outgoing_bytes_max
        if outgoing and not self._transport.is_closing():
            self._written_bytes += flushed
            self._transport.writelines(outgoing)
        if was_full and not self._is_write_paused:
            self._space_freed()

    def close(self, reason: str) -> None:
        if self._is_closing:
            return
        log.info("connection.closed", address=self._address, reason=reason)
        self._flush()
        self._is_closing = True
        self._wire.close()
        self._transport.close()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        self._spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("connection.failed", address=self._address)
            self._abort()

    def _abort(self) -> None:
        """End this connection after an unexpected error. Other connections continue."""
        self._is_closing = True
        self._transport.abort()

    def pending_changed(self, difference: int) -> None:
        if self._session is None:
            return  # its bytes were subtracted when it was lost
        self._pending_bytes += difference
        self._count_pending(difference)
        self._update_reading()

    def _count_pending(self, difference: int) -> None:
        if self._is_held_back:
            self._clients.held_back_bytes += difference
        else:
            self._clients.pending_bytes += difference

    def hold_back(self) -> None:
        """Read slowly from now on: a message arrived for a log whose share of the store is used up."""
        if self._session is None:
            return
        if not self._is_held_back:
            self._clients.pending_bytes -= self._pending_bytes
            self._clients.held_back_bytes += self._pending_bytes
            self._is_held_back = True
        if self._hold_back_timer is None:
            # Reading never stops completely: acknowledgements on the same connection free memory.
            self._hold_back_timer = self._loop.call_later(HOLD_BACK_SECONDS, self._hold_back_ended)
        self._update_reading()

    def _hold_back_ended(self) -> None:
        """Read again, until the next message for such a log."""
        self._hold_back_timer = None
        self._update_reading()

    def store_has_changed(self) -> None:
        if self._session is not None and self._session.is_held_back:
            return  # a log of this connection belongs to another share, which is still used up
        if self._is_held_back:
            self._clients.held_back_bytes -= self._pending_bytes
            self._clients.pending_bytes += self._pending_bytes
            self._is_held_back = False
        if self._hold_back_timer is not None:
            self._hold_back_timer.cancel()
            self._hold_back_ended()

    @property
    def _limited_pending_bytes(self) -> int:
        """The number to compare with ``pending_bytes_max``: the pending bytes of all connections of this kind.

        Connections that are held back have a smaller limit of their own (HELD_BACK_DIVISOR).
        """
        clients = self._clients
        return (
            HELD_BACK_DIVISOR * clients.held_back_bytes
            if self._is_held_back
            else clients.pending_bytes
        )

    @property
    def consumers(self) -> ConnectionConsumers | None:
        return None if self._session is None else self._session.consumers

    def declarations_changed(self) -> None:
        if self._session is not None:
            self._session.declarations_changed()

    def _update_reading(self) -> None:
        """Stop reading above a limit, and continue below half of it."""
        settings = self._clients.settings
        factor = 0.5 if self._is_read_paused else 1.0
        is_unread = (
            self._is_write_paused
            or self._is_stalled
            or self._hold_back_timer is not None
            or self._pending_bytes > settings.pending_bytes_per_connection_max * factor
            or (
                self._pending_bytes > 0
                and self._limited_pending_bytes > settings.pending_bytes_max * factor
            )
        )
        pause = is_unread or self._waits_for_round
        if pause and not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()
        elif not pause and self._is_read_paused:
            self._is_read_paused = False
            self.last_inbound = self._clients.now()
            self._transport.resume_reading()
        self._watch_peer(is_unread=is_unread)

    def _watch_peer(self, *, is_unread: bool) -> None:
        """While the connection is not read, let the kernel report that the peer has closed it.

        A connection that only waits for its round is read again soon, so it needs no such report.
        """
        if self._descriptor is None or is_unread is self._is_hang_up_watched:
            return
        self._is_hang_up_watched = is_unread
        if is_unread:
            self._clients.hang_ups.watch(self._descriptor, self._peer_gone)
        else:
            self._clients.hang_ups.forget(self._descriptor)

    def _peer_gone(self) -> None:
        """End the connection at once if it holds a topic, so that a waiter does not wait longer than necessary.

        The unread messages are lost, but none of them was acknowledged. Other connections are read to their end.
        """
        if self.detection is not None and not self._is_closing:
            log.info("connection.gone", address=self._address)
            self._transport.abort()

    # ------------------------------------------------------------ Watched

    def ping(self) -> None:
        # If the peer accepts no data, a ping would only be queued after that data (see ``_accepts_nothing``).
        if self._session is not None and not self._is_closing and not self._is_write_paused:
            self.write(replies.PING)

    def silent(self) -> None:
        if self._is_read_paused and not self._accepts_nothing():
            return  # this broker has stopped reading
        if self._session is not None:
            self._session.silent()
        self._transport.abort()

    def _accepts_nothing(self) -> bool:
        """Whether the peer has accepted no byte of the queued data for the time after which it counts as gone.

        The broker does not read from such a peer, so bytes from it cannot prove that it is alive.
        """
        if not self._is_write_paused or self.detection is None:
            return False
        return self._clients.now() - self._accepted_at > self.detection.silent_after_seconds

    def _note_accepted(self, now: float) -> None:
        taken = self._written_bytes - self._transport.get_write_buffer_size()
        if taken != self._accepted_bytes:
            self._accepted_bytes, self._accepted_at = taken, now

    def check(self, now: float) -> None:
        if self._is_write_paused:
            self._note_accepted(now)

    @property
    def _address(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "local")


async def listen(
    clients: Clients,
    spawn: Callable[[Coroutine[object, object, None]], object],
    certificate: ServerCertificate | None = None,
    *,
    through: Callable[[asyncio.BufferedProtocol], asyncio.BaseProtocol] = lambda inner: inner,
) -> asyncio.Server:
    """Listen for clients of Pulsar's binary protocol; with a certificate, over TLS.

    ``through`` may insert a protocol between a socket and its connection.
    """
    numbers = itertools.count(1)
    settings = clients.settings
    prefix = clients.incarnation[: len(settings.name) + NONCE_LENGTH]
    kind = "" if certificate is None else "s"
    options = {} if certificate is None else certificate.server_options()
    return await asyncio.get_running_loop().create_server(
        lambda: through(ClientProtocol(clients, f"{prefix}-{kind}{next(numbers)}", spawn)),
        settings.plain_host if certificate is None else settings.host,
        settings.port if certificate is None else settings.tls_port,
        backlog=4096,
        **options,
    )
