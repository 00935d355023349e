"""A producer: it sends messages and receives their receipts, across the connections of its tenure.

This module writes entries, sends them again after a resume, and completes each message's receipt. Acquiring
and keeping the topic is in _produce/tenure.py, accepting and packing messages in _produce/intake.py, the
entries without a receipt in _produce/outbox.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from onewriter._config import Limits
from onewriter._errors import (
    Closed,
    Fenced,
    NotSent,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._message import MessageId
from onewriter._produce.intake import Intake
from onewriter._produce.outbox import Outbox, Pending, Receipt
from onewriter._produce.queue import QueuePosition
from onewriter._produce.registration import Registration
from onewriter._produce.tenure import ProducerOptions, ProducerState, Tenure
from onewriter._signal import Signal
from onewriter._transport.connection import Connection, Spawn
from onewriter._transport.lookup import Directory
from onewriter_core.ids import TopicName
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import SendReceipt

_DEFINITE_SEND_ERRORS = frozenset({ServerError.CHECKSUM_ERROR, ServerError.NOT_ALLOWED_ERROR})
"""Codes with which the broker rejects a message itself: it is not in the log."""


SubmitArguments = tuple[bytes, str | None, bytes | None, Mapping[str, str] | None, int]
"""The arguments of ``submit``: content, key, ordering key, properties, event time in ms."""


class Submitter(ABC):
    """Accepts messages for a topic: a producer, a guarded producer or a leadership."""

    async def submit(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
    ) -> asyncio.Future[MessageId]:
        """Wait until there is room for the message, and return the future of its receipt.

        Messages are appended in the order of these calls. The future ends as ``send`` does, but without a
        time limit. Raises Fenced, Closed, Refused, ConfigurationError (an invalid message) and, for a guarded
        producer, NotSent (no broker confirmed the guard in time); in these cases the message is not in the log.
        """
        return await self.take(content, key, ordering_key, properties, event_time_ms)

    @abstractmethod
    def take(self, *message: *SubmitArguments) -> Awaitable[asyncio.Future[MessageId]]:
        """As ``submit``, with positional arguments."""


class Producer(Submitter):
    """Writes to one topic. Created by ``Client.create_producer``; for one event loop."""

    def __init__(
        self,
        topic: TopicName,
        options: ProducerOptions,
        producer_id: int,
        *,
        directory: Directory,
        limits: Limits,
        spawn: Spawn,
        on_change: Callable[[Producer], None],
    ) -> None:
        self.topic = topic
        self.options = options
        self._limits = limits
        self._on_change = on_change
        self._outbox = Outbox(options.pending_messages_max, options.pending_bytes_max)
        self._moved = Signal()
        """Notified when the outbox has room or is written, and when the producer may write or has ended."""
        self._intake = Intake(producer_id, options, self._outbox, self._moved, owner=self)
        self._when_ended: list[Callable[[OnewriterError], None]] = []
        self.guard_is_atomic: bool | None = None
        """For a guarded producer: whether the store checks the guard in the append itself; None: the
        broker does not support guards."""
        self.registration: str | None = None
        """Secret that authorizes the holder of the epoch at the brokers' HTTP API (atomic publishes).
        None before the grant, and for brokers that issue none. Do not log it."""
        self._is_closing = False
        self._drainers = 0
        """Number of calls that wait until all entries are written."""
        self._tenure = Tenure(
            topic, options, producer_id, directory=directory, limits=limits, tenant=self
        )
        self._runner = spawn(self._tenure.run())

    # ------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """The producer's name at the broker; empty until the broker has assigned one."""
        return self._tenure.name

    @property
    def epoch(self) -> int | None:
        """The topic epoch of the grant; None before the grant and for Shared producers."""
        return self._tenure.epoch

    @property
    def state(self) -> ProducerState:
        """The producer's state."""
        return self._tenure.state

    @property
    def end(self) -> OnewriterError | None:
        """The reason for the producer's end; None while it has not ended."""
        return self._tenure.end

    @property
    def trouble(self) -> OnewriterError | None:
        """The error of the last attempt to reach a broker; None after one that succeeded."""
        return self._tenure.trouble

    @property
    def is_ready(self) -> bool:
        """Whether the producer holds its topic, is connected, and has not begun to close."""
        return self._tenure.link is not None and not self._is_closing

    @property
    def waiting(self) -> int:
        """Number of producers in the topic's queue while this one holds the topic.

        The value is also 0 while the producer is not connected, for Shared producers, and on brokers that do
        not report it (Pulsar). ``on_change`` is called whenever it changes.
        """
        return 0 if self._tenure.link is None else self._tenure.link.waiting

    async def waited_for(self) -> int:
        """Wait until the topic's queue is not empty; return its length. Raises the reason of the end."""
        await self._until(lambda: self.waiting > 0)
        return self.waiting

    @property
    def queue_priority(self) -> int:
        """The priority in the topic's queue that this producer requested; it never changes."""
        return self.options.queue_priority or 0

    @property
    def pending_messages(self) -> int:
        """Number of messages without a receipt."""
        return len(self._outbox) + self._intake.gathered_messages

    @property
    def pending_bytes(self) -> int:
        """Size in bytes of the messages without a receipt."""
        return self._outbox.bytes + self._intake.gathered_bytes

    def when_ended(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call ``callback`` in the event-loop tick in which the producer ends. It must not block or raise."""
        if self.end is not None:
            callback(self.end)
        else:
            self._when_ended.append(callback)

    async def ready(self) -> None:
        """Wait until the producer may write for the first time. Raises the reason of the end."""
        await self._until(lambda: self._tenure.was_ready)

    async def ended(self) -> OnewriterError:
        """Wait until the producer is fenced, rejected or closed, and return the reason."""
        while (end := self._tenure.end) is None:
            await self._tenure.changes.wait()
        return end

    async def linked(self) -> Registration:
        """Wait for a registration under which the producer may write. Raises the reason of the end."""
        while (link := self._tenure.link) is None:
            await self._until(lambda: self._tenure.link is not None)
        return link

    async def verify(self) -> None:
        """Wait for a round trip to the broker that proves that this producer may write.

        Raises the reason of the end. Use a time-out: the broker may be down.
        """
        while True:
            await self._until(lambda: self._tenure.link is not None)
            link = self._tenure.link
            if link is None:
                continue
            try:
                await link.connection.prove()
            except Unavailable:
                continue
            if self._tenure.link is link:
                return

    # ------------------------------------------------------------ sending

    async def send(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
        timeout_seconds: float | None = None,
    ) -> MessageId:
        """Append one message and return its id.

        Raises Fenced, Refused, NotSent, Closed or ConfigurationError (an invalid message) if the message is
        definitely not in the log, and OutcomeUnknown if it may be. ``timeout_seconds`` defaults to
        ``ProducerOptions.send_timeout_seconds``. After a cancellation, a message that was written may be
        stored.
        """
        seconds = self.options.send_timeout_seconds if timeout_seconds is None else timeout_seconds
        receipt: Receipt | None = None
        try:
            async with asyncio.timeout(seconds):
                receipt = await self.submit(
                    content,
                    key=key,
                    properties=properties,
                    ordering_key=ordering_key,
                    event_time_ms=event_time_ms,
                )
                return await receipt
        except TimeoutError:
            if receipt is None or self._intake.withdraw(receipt):
                raise NotSent(f"no broker took the message within {seconds:g} s") from self.trouble
            raise OutcomeUnknown(f"no receipt within {seconds:g} s") from self.trouble
        except asyncio.CancelledError:
            if receipt is not None:
                self._intake.withdraw(receipt)
            raise

    def take(self, *message: *SubmitArguments) -> Awaitable[asyncio.Future[MessageId]]:
        return self._intake.take(*message)

    async def flush(self) -> None:
        """Send the open batch, and wait for the receipts of all messages so far.

        The result of each message is in its own future.
        """
        self._intake.seal()
        # Do not wait for the futures: the application may have cancelled them.
        later = self._intake.next_sequence_id
        await self._moved.until(lambda: not self._outbox.has_before(later))

    def join_queue(self) -> QueuePosition:
        """Take a queue position after all calls of ``submit`` so far, for a transaction or a seal.

        The producer accepts no message while this position is the first one; waiting calls keep their
        time limits.
        """
        return self._intake.join_queue()

    async def written(self, link: Registration) -> None:
        """Wait until all messages so far are written to ``link``. Requires the first queue position.

        Raises Unavailable if ``link`` is not the current registration any more, the reason of the end, Closed.
        """
        self._intake.seal()
        self.pump()
        self._drainers += 1
        try:
            while True:
                self.check_open()
                if self._tenure.link is not link:
                    raise Unavailable(f"the connection to the broker of {self.topic} was lost")
                if self._outbox.is_written:
                    return
                await self._moved.wait()
        finally:
            self._drainers -= 1

    def pack(self, content: bytes, **described: Any) -> tuple[int, bytes]:
        """Pack a message into an entry that is not published by SEND; return its sequence id and bytes.

        ``described`` are the other arguments of ``send``. Requires the first queue position. Raises Refused
        for a message that is too large for the broker.
        """
        return self._intake.pack_alone(content, **described)

    # ------------------------------------------------------------ IntakeOwner

    def may_send(self) -> bool:
        """Whether the producer was granted its topic, and has neither ended nor begun to close."""
        tenure = self._tenure
        return tenure.was_ready and tenure.end is None and not self._is_closing

    def check_open(self) -> None:
        """Raise the reason of the end, or Closed while the producer is being closed."""
        end = self._tenure.end
        if isinstance(end, Fenced):
            raise self._fenced_like(end)
        if end is not None:
            raise Closed(f"the producer has ended: {end}") from end
        if self._is_closing:
            raise Closed("the producer is being closed")

    def pump(self) -> None:
        """Write entries while the connection accepts them and is proved."""
        if self._tenure.link is None:
            return
        connection = self._tenure.link.connection
        while connection.has_space and (pending := self._outbox.next_unwritten()) is not None:
            if not connection.is_proved:
                connection.ask_proof()
                return
            connection.write(pending.header, pending.entry)
            self._outbox.wrote(connection, connection.now())
        if self._is_closing or self._drainers:
            self._moved.notify()

    # ------------------------------------------------------------ RegistrationOwner

    def received(self, receipt: SendReceipt) -> None:
        """The broker has stored an entry."""
        pending = self._answered(receipt.sequence_id)
        if pending is not None and receipt.message_id is not None:
            pending.stored_at(MessageId.of(receipt.message_id))

    def send_refused(self, error: pb.CommandSendError) -> None:
        """The broker has rejected an entry."""
        pending = self._answered(error.sequence_id)
        if pending is None:
            return
        code = ServerError(error.error)
        is_definite = code in _DEFINITE_SEND_ERRORS and not pending.was_rewritten
        if pending.is_part and self._intake.withdraw(pending.receipts[0]):
            is_definite = True  # no client reads a message without its last chunk
        pending.refuse(
            (lambda: Refused(code, error.message))
            if is_definite
            else (lambda: OutcomeUnknown(error.message))
        )

    def writable(self) -> None:
        """The socket accepts data again, or a round trip has proved the connection."""
        self.pump()

    def queue_changed(self) -> None:
        """The number of producers in the topic's queue has changed."""
        self._tenure.changes.notify()
        self._on_change(self)

    def _answered(self, sequence_id: int) -> Pending | None:
        try:
            pending = self._outbox.answered(sequence_id)
        except LookupError as error:
            if self._tenure.link is not None:
                self._tenure.link.connection.abort(
                    f"the broker answered messages out of order: {error}"
                )
            return None
        if pending is not None:
            if pending.connection is not None:
                pending.connection.note_proof(pending.written_at)
            self._moved.notify()
        return pending

    # ------------------------------------------------------------ Tenant

    def granted(self, answer: pb.CommandProducerSuccess) -> None:
        """The producer may write, for the first time or again. Entries without a receipt are sent first."""
        if not self._tenure.was_ready:
            self._intake.begin(self.name, answer.last_sequence_id + 1)
        if answer.HasField("guard_is_atomic"):
            self.guard_is_atomic = answer.guard_is_atomic
        if answer.registration:  # a broker of an earlier release issues none: keep the last one
            self.registration = answer.registration
        if self._tenure.link is not None:
            self._intake.message_bytes_max = self._tenure.link.connection.message_bytes_max
        self._outbox.rewind()
        self.pump()

    def changed(self) -> None:
        """The state or the trouble has changed."""
        self._moved.notify()
        self._on_change(self)

    def ended_with(self, end: OnewriterError, ended_by: Connection | None) -> None:
        """Fail all messages without a receipt with the error that states what is certain."""

        def refusal() -> OnewriterError:
            if isinstance(end, Fenced):
                return self._fenced_like(end)
            return NotSent(f"the producer has ended: {end}")

        def unknown() -> OnewriterError:
            return OutcomeUnknown(f"it had no receipt when the producer ended: {end}")

        self._outbox.fail(ended_by, refusal, unknown)
        self._intake.drop(refusal)
        callbacks, self._when_ended = self._when_ended, []
        reason = self._fenced_like(end) if isinstance(end, Fenced) else end
        for callback in callbacks:
            callback(reason)

    def _fenced_like(self, end: Fenced) -> Fenced:
        epoch = self.epoch if end.epoch is None else end.epoch
        return Fenced(end.message, epoch=epoch, current_epoch=end.current_epoch)

    # ------------------------------------------------------------ ending

    async def close(self, *, timeout_seconds: float | None = None) -> None:
        """Accept no more messages, wait for the receipts of accepted ones, and release the topic.

        The broker promotes the first waiter as soon as the last message is stored. Messages without a receipt
        after ``timeout_seconds`` (default: ``Limits.operation_timeout_seconds``) fail as ``send`` describes.
        """
        self._is_closing = True
        self._intake.seal()
        self._moved.notify()
        limit = self._limits.operation_timeout_seconds
        try:
            async with asyncio.timeout(limit if timeout_seconds is None else timeout_seconds):
                while self.end is None and self._tenure.was_ready:
                    await self._moved.until(self._may_leave)
                    link = self._tenure.link
                    if link is not None and await self._tenure.leave(link):
                        break
        except TimeoutError:
            self._tenure.stop(Closed("closed before everything was answered"))
        finally:
            self.abandon()

    def _may_leave(self) -> bool:
        is_written = self._tenure.link is not None and self._outbox.is_written
        return is_written or self.end is not None

    def abandon(self) -> None:
        """Release the topic at once, without waiting for receipts or the broker."""
        self._is_closing = True
        self._tenure.stop(Closed("the producer was closed"))
        self._runner.cancel()

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            if self.end is not None:
                raise self.end
            await self._tenure.changes.wait()
