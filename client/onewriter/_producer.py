"""A producer: messages in, receipts out, through every connection that its tenure has.

What lives here: sending, bounded; the resending after a resume; what each message is told in the
end. What does not: getting and keeping the topic (_tenure.py), what is pending (_outbox.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from onewriter._config import Limits
from onewriter._connection import Connection, Spawn
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
from onewriter._lookup import Directory
from onewriter._outbox import MessageId, Outbox, Pending
from onewriter._signal import Signal
from onewriter._tenure import ProducerOptions, ProducerState, Tenure
from onewriter_core.ids import TopicName
from onewriter_core.wire import hot
from onewriter_core.wire.hot import SendReceipt
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

_DEFINITE_SEND_ERRORS = frozenset({ServerError.CHECKSUM_ERROR, ServerError.NOT_ALLOWED_ERROR})
"""The broker looked at the message and refused it."""


class Producer:
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
        self._producer_id = producer_id
        self._limits = limits
        self._on_change = on_change
        self._outbox = Outbox(options.pending_messages_max, options.pending_bytes_max)
        self._moved = Signal()
        """The outbox has room, or is written, or the producer may write or has ended."""
        self._turn = asyncio.Lock()
        self._next_sequence_id = 0
        self._message_bytes_max = 0
        self._is_closing = False
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
    def pending_messages(self) -> int:
        """Messages without a receipt."""
        return len(self._outbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes without a receipt."""
        return self._outbox.bytes

    async def ready(self) -> None:
        """Wait until it may write for the first time. Raises what it ended with."""
        await self._until(lambda: self._tenure.was_ready)

    async def ended(self) -> OnewriterError:
        """Wait until it is fenced, refused or closed; which."""
        while (end := self._tenure.end) is None:
            await self._tenure.changes.wait()
        return end

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
        event_time_ms: int = 0,
        timeout_seconds: float | None = None,
    ) -> MessageId:
        """Append one message; where it stands.

        Raises Fenced, Refused, NotSent or Closed when it is definitely not in the log, and
        OutcomeUnknown when it may be. When cancelled, a message that was written may be stored.
        """
        seconds = self.options.send_timeout_seconds if timeout_seconds is None else timeout_seconds
        pending: Pending | None = None
        try:
            async with asyncio.timeout(seconds):
                pending = await self._enqueue(content, key, properties, event_time_ms)
                return await pending.receipt
        except TimeoutError:
            if pending is None or self._outbox.withdraw(pending):
                raise NotSent(f"no broker took the message within {seconds:g} s") from self.trouble
            raise OutcomeUnknown(f"no receipt within {seconds:g} s") from self.trouble
        except asyncio.CancelledError:
            if pending is not None:
                self._outbox.withdraw(pending)
            raise

    async def submit(
        self,
        content: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> asyncio.Future[MessageId]:
        """Hand a message in once there is room, and get the future of its receipt.

        Messages are appended in the order of these calls. The future ends as ``send`` does, without
        its time-out. Raises Fenced, Refused or Closed when the message was not taken.
        """
        return (await self._enqueue(content, key, properties, event_time_ms)).receipt

    async def _enqueue(
        self,
        content: bytes,
        key: str | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
    ) -> Pending:
        async with self._turn:  # in the order of the calls, also where they wait
            while True:
                self._check_open()
                if self._tenure.was_ready and self._outbox.has_room(len(content)):
                    break
                await self._moved.wait()
            pending = self._pack(content, key, properties or {}, event_time_ms)
            self._outbox.add(pending)
        self._pump()
        return pending

    def _check_open(self) -> None:
        end = self._tenure.end
        if isinstance(end, Fenced):
            raise self._fenced_like(end)
        if end is not None:
            raise Closed(f"the producer has ended: {end}") from end
        if self._is_closing:
            raise Closed("the producer is being closed")

    def _pack(
        self, content: bytes, key: str | None, properties: Mapping[str, str], event_time_ms: int
    ) -> Pending:
        metadata = pb.MessageMetadata(
            producer_name=self.name,
            sequence_id=self._next_sequence_id,
            publish_time=time.time_ns() // 1_000_000,
            partition_key=key,
            event_time=event_time_ms or None,
            properties=[pb.KeyValue(key=name, value=value) for name, value in properties.items()],
        )
        entry = build_entry(metadata, content)
        if len(entry) > self._message_bytes_max:
            raise Refused(
                ServerError.NOT_ALLOWED_ERROR,
                f"a message of {len(entry)} bytes; the broker takes {self._message_bytes_max}",
            )
        header = hot.encode_send_header(self._producer_id, self._next_sequence_id, len(entry))
        receipt: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        pending = Pending(self._next_sequence_id, header, entry, receipt)
        self._next_sequence_id += 1
        return pending

    def _pump(self) -> None:
        """Write what the connection takes; nothing unless the broker was there just now."""
        if self._tenure.link is None:
            return
        connection = self._tenure.link.connection
        while connection.has_room and (pending := self._outbox.next_unwritten()) is not None:
            if not connection.is_proved:
                connection.ask_proof()
                return
            self._outbox.wrote(connection, connection.now())
            connection.write(pending.header, pending.entry)
        if self._is_closing:
            self._moved.tell()

    # ------------------------------------------------------------ its registrations' writer

    def received(self, receipt: SendReceipt) -> None:
        """A message is stored."""
        pending = self._answered(receipt.sequence_id)
        if pending is not None and not pending.receipt.done() and receipt.message_id is not None:
            pending.receipt.set_result(MessageId.of(receipt.message_id))

    def send_refused(self, error: pb.CommandSendError) -> None:
        """A message is refused."""
        pending = self._answered(error.sequence_id)
        if pending is None or pending.receipt.done():
            return
        code = ServerError(error.error)
        if code in _DEFINITE_SEND_ERRORS and not pending.was_rewritten:
            pending.receipt.set_exception(Refused(code, error.message))
        else:
            pending.receipt.set_exception(OutcomeUnknown(error.message))

    def writable(self) -> None:
        """The socket takes data again, or the broker was proved to be there."""
        self._pump()

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
            self._next_sequence_id = answer.last_sequence_id + 1
        if self._tenure.link is not None:
            self._message_bytes_max = self._tenure.link.connection.message_bytes_max
        self._outbox.rewind()
        self._pump()

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
