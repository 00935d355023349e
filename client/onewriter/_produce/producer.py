"""A producer: messages in, receipts out, through every connection that its tenure has.

What lives here: writing; the resending after a resume; what each message is told in the end. What
does not: getting and keeping the topic (_produce/tenure.py), taking messages and packing them (_produce/intake.py),
what is pending (_produce/outbox.py).
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
"""The broker looked at the message and refused it."""


SubmitArguments = tuple[bytes, str | None, bytes | None, Mapping[str, str] | None, int]
"""A message as it is handed on: content, key, ordering key, properties, event time in ms."""


class Submitter(ABC):
    """Whatever takes messages for a topic."""

    async def submit(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: bytes | None = None,
        event_time_ms: int = 0,
    ) -> asyncio.Future[MessageId]:
        """Hand a message in once there is room, and get the future of its receipt.

        Messages are appended in the order of these calls. The future ends as ``send`` does, without
        its time-out. Raises Fenced, Closed, Refused, ConfigurationError (what cannot be a message),
        and, where it is guarded, NotSent (nobody could be asked in time) when it was not taken.
        """
        return await self.take(content, key, ordering_key, properties, event_time_ms)

    @abstractmethod
    def take(self, *message: *SubmitArguments) -> Awaitable[asyncio.Future[MessageId]]:
        """As ``submit``, for who has the message in this order already."""


class Producer(Submitter):
    """Writes one topic. Made by ``Client.create_producer``; for one event loop."""

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
        """The outbox has room, or is written, or the producer may write or has ended."""
        self._intake = Intake(producer_id, options, self._outbox, self._moved, owner=self)
        self._when_ended: list[Callable[[OnewriterError], None]] = []
        self.guard_is_atomic: bool | None = None
        """Of a guarded producer: whether the guard is checked together with each append; None: the
        broker knows nothing of guards."""
        self.registration: str | None = None
        """Secret that proves the holder of the epoch to the brokers' HTTP API (publishing as a whole);
        None before the grant, and where the broker gives none. It must not be logged."""
        self._is_closing = False
        self._drainers = 0
        """Who waits until everything is written."""
        self._tenure = Tenure(
            topic, options, producer_id, directory=directory, limits=limits, tenant=self
        )
        self._runner = spawn(self._tenure.run())

    # ------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """Its name at the broker; empty until the broker has given one."""
        return self._tenure.name

    @property
    def epoch(self) -> int | None:
        """The topic epoch that it was granted; None before, and for Shared producers."""
        return self._tenure.epoch

    @property
    def state(self) -> ProducerState:
        """Where it stands."""
        return self._tenure.state

    @property
    def end(self) -> OnewriterError | None:
        """Why it ended; None while it lives."""
        return self._tenure.end

    @property
    def trouble(self) -> OnewriterError | None:
        """Why the last attempt to reach a broker failed; None since one succeeded."""
        return self._tenure.trouble

    @property
    def is_ready(self) -> bool:
        """Whether it holds its topic, is connected, and has not begun to close."""
        return self._tenure.link is not None and not self._is_closing

    @property
    def waiting(self) -> int:
        """How many wait behind it while it holds the topic.

        0 also while it has no connection, for Shared producers, and on brokers that do not tell
        (Pulsar). ``on_change`` is called whenever it changes.
        """
        return 0 if self._tenure.link is None else self._tenure.link.waiting

    async def waited_for(self) -> int:
        """Wait until somebody waits behind it; how many. Raises what it ended with."""
        await self._until(lambda: self.waiting > 0)
        return self.waiting

    @property
    def queue_priority(self) -> int:
        """Its place in the waiting line, as it asked for it; cannot be changed afterwards."""
        return self.options.queue_priority or 0

    @property
    def pending_messages(self) -> int:
        """Messages without a receipt."""
        return len(self._outbox) + self._intake.gathered_messages

    @property
    def pending_bytes(self) -> int:
        """Bytes without a receipt."""
        return self._outbox.bytes + self._intake.gathered_bytes

    def when_ended(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call it in the very turn of the loop in which it ends; it must not block or raise."""
        if self.end is not None:
            callback(self.end)
        else:
            self._when_ended.append(callback)

    async def ready(self) -> None:
        """Wait until it may write for the first time. Raises what it ended with."""
        await self._until(lambda: self._tenure.was_ready)

    async def ended(self) -> OnewriterError:
        """Wait until it is fenced, refused or closed; which."""
        while (end := self._tenure.end) is None:
            await self._tenure.changes.wait()
        return end

    async def linked(self) -> Registration:
        """The registration under which it may write, once there is one. Raises what it ended with."""
        while (link := self._tenure.link) is None:
            await self._until(lambda: self._tenure.link is not None)
        return link

    async def verify(self) -> None:
        """Wait until a broker says, by a round trip, that it is there and we may write.

        Raises what it ended with. Give it a time-out: the broker may be away.
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
        """Append one message; where it stands.

        Raises Fenced, Refused, NotSent, Closed or ConfigurationError (what cannot be a message) when
        it is definitely not in the log, and OutcomeUnknown when it may be. When cancelled, a message that was written may be stored.
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
        """Send the batch that is being gathered, and wait for all receipts so far.

        What became of each message is in its own future.
        """
        self._intake.seal()
        # Not for the futures: those of messages that are under way may be cancelled.
        later = self._intake.next_sequence_id
        await self._moved.until(lambda: not self._outbox.has_before(later))

    def join_queue(self) -> QueuePosition:
        """A place in line behind all calls of ``submit`` so far, for who writes otherwise.

        During its turn nothing is taken; whoever waits meanwhile keeps to its own time-out.
        """
        return self._intake.join_queue()

    async def written(self, link: Registration) -> None:
        """Wait until everything handed in so far is on its way through ``link``. Needs the turn.

        Raises Unavailable when that is not its registration any more, what it ended with, Closed.
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
        """The next message as an entry that is published otherwise than by SEND: number and bytes.

        ``described`` is what ``send`` takes beside the content. Needs the turn. Raises Refused for
        one that no broker would take.
        """
        return self._intake.pack_alone(content, **described)

    # ------------------------------------------------------------ its intake's owner

    def may_send(self) -> bool:
        """Whether it was granted its topic, and neither ended nor is being closed."""
        tenure = self._tenure
        return tenure.was_ready and tenure.end is None and not self._is_closing

    def check_open(self) -> None:
        """Raises what it ended with, Closed while it is being closed."""
        end = self._tenure.end
        if isinstance(end, Fenced):
            raise self._fenced_like(end)
        if end is not None:
            raise Closed(f"the producer has ended: {end}") from end
        if self._is_closing:
            raise Closed("the producer is being closed")

    def pump(self) -> None:
        """Write what the connection takes; nothing unless the broker was there just now."""
        if self._tenure.link is None:
            return
        connection = self._tenure.link.connection
        while connection.has_room and (pending := self._outbox.next_unwritten()) is not None:
            if not connection.is_proved:
                connection.ask_proof()
                return
            connection.write(pending.header, pending.entry)
            self._outbox.wrote(connection, connection.now())
        if self._is_closing or self._drainers:
            self._moved.tell()

    # ------------------------------------------------------------ its registrations' writer

    def received(self, receipt: SendReceipt) -> None:
        """A message is stored."""
        pending = self._answered(receipt.sequence_id)
        if pending is not None and receipt.message_id is not None:
            pending.stored_at(MessageId.of(receipt.message_id))

    def send_refused(self, error: pb.CommandSendError) -> None:
        """A message is refused."""
        pending = self._answered(error.sequence_id)
        if pending is None:
            return
        code = ServerError(error.error)
        is_definite = code in _DEFINITE_SEND_ERRORS and not pending.was_rewritten
        if pending.is_part and self._intake.withdraw(pending.receipts[0]):
            is_definite = True  # without its last chunk it is no message
        pending.refuse(
            (lambda: Refused(code, error.message))
            if is_definite
            else (lambda: OutcomeUnknown(error.message))
        )

    def writable(self) -> None:
        """The socket takes data again, or the broker was proved to be there."""
        self.pump()

    def queue_changed(self) -> None:
        """Another number of candidates waits behind it."""
        self._tenure.changes.tell()
        self._on_change(self)

    def _answered(self, sequence_id: int) -> Pending | None:
        try:
            pending = self._outbox.answered(sequence_id)
        except LookupError as error:
            if self._tenure.link is not None:
                self._tenure.link.connection.abort(f"the broker broke the order: {error}")
            return None
        if pending is not None:
            if pending.connection is not None:
                pending.connection.note_proof(pending.written_at)
            self._moved.tell()
        return pending

    # ------------------------------------------------------------ its tenure's tenant

    def granted(self, answer: pb.CommandProducerSuccess) -> None:
        """It may write, for the first time or again: everything without a receipt goes first."""
        if not self._tenure.was_ready:
            self._intake.begin(self.name, answer.last_sequence_id + 1)
        if answer.HasField("guard_is_atomic"):
            self.guard_is_atomic = answer.guard_is_atomic
        if (
            answer.registration
        ):  # a broker of an earlier release gives none: the last one still counts
            self.registration = answer.registration
        if self._tenure.link is not None:
            self._intake.message_bytes_max = self._tenure.link.connection.message_bytes_max
        self._outbox.rewind()
        self.pump()

    def changed(self) -> None:
        """State or trouble changed."""
        self._moved.tell()
        self._on_change(self)

    def ended_with(self, end: OnewriterError, said_by: Connection | None) -> None:
        """Tell all messages without a receipt what is certain about them."""

        def refusal() -> OnewriterError:
            if isinstance(end, Fenced):
                return self._fenced_like(end)
            return NotSent(f"the producer has ended: {end}")

        def unknown() -> OnewriterError:
            return OutcomeUnknown(f"it had no receipt when the producer ended: {end}")

        self._outbox.fail(said_by, refusal, unknown)
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
        """Take no more messages, see those through that were taken, and leave the topic.

        The next in line is promoted as soon as the last message is stored. What has no receipt
        when the time (``Limits.operation_timeout_seconds``) is over fails as ``send`` describes.
        """
        self._is_closing = True
        self._intake.seal()
        self._moved.tell()
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
        """Leave at once, without waiting for anything or anybody."""
        self._is_closing = True
        self._tenure.stop(Closed("the producer was closed"))
        self._runner.cancel()

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            if self.end is not None:
                raise self.end
            await self._tenure.changes.wait()
