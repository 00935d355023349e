"""A stream of a topic's messages, in order, across all connections of a consumer or reader.

::

    CONNECTING ──▶ ATTACHED ◀──▶ CONNECTING     any of them ──▶ ENDED

This module keeps a consumer attached to its broker, and contains its queue, its permits and redelivery without a
race. The SUBSCRIBE command and the position are the Role's (_consume/consumer.py, _consume/reader.py).

**Epochs (PIP-84).** A request for redelivery first raises the epoch, then clears the queue, then goes to the
broker. Deliveries from before the broker has accepted the request are dropped: every delivery with a lower epoch
and, if the broker answers requests for redelivery (onewriter), every delivery before that answer. SUBSCRIBE
carries the epoch, so a lost connection needs no second request: the new consumer begins after the acknowledged
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from onewriter._config import Backoff, Limits
from onewriter._consume.chunk_expiry import ChunkExpiry, ChunkLimits
from onewriter._consume.link import Link
from onewriter._consume.unpacker import Item, Unpacker, permits_of
from onewriter._consume.window import Window
from onewriter._errors import (
    FINAL_FOR_HOLDERS,
    Closed,
    ConfigurationError,
    EndOfTopic,
    Fenced,
    NoMessage,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
    Unreadable,
)
from onewriter._message import EARLIEST, Message, MessageId
from onewriter._signal import Signal
from onewriter._transport.lookup import Directory
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import TopicName
from onewriter_core.wire.commands import message_id_from_proto
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery

STABLE_SECONDS = 5.0
"""A consumer that was attached for this time attaches again without a pause."""

Answer = TypeVar("Answer")

log = logging.getLogger("onewriter")


class Role(Protocol):
    """The part of a stream that differs between consumers and readers. Only ``attached`` may wait."""

    @property
    def keeps_order(self) -> bool:
        """Whether redelivery uses epochs: in Exclusive and Failover subscriptions."""
        ...

    def subscribe_command(self) -> pb.CommandSubscribe:
        """Return the SUBSCRIBE command; the stream sets its ids and epoch."""
        ...

    async def attached(self, link: Link) -> None:
        """Prepare the position; nothing is delivered before the return. Raises Refused, Unavailable."""
        ...

    def wants(self, item: Item) -> bool:
        """Whether the application should receive the item."""
        ...

    def chunk_begun(self, first: MessageId) -> None:
        """The first chunk of a message has arrived; the message is returned with its last chunk."""
        ...

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None:
        """A message with these chunks was dropped."""
        ...

    def handed_out(self, item: Item) -> None:
        """The application has received the item."""
        ...


class Stream:
    """Implements Receiver. ``run`` it in a task; ``stop`` ends it from outside."""

    def __init__(
        self,
        topic: TopicName,
        role: Role,
        *,
        directory: Directory,
        limits: Limits,
        consumer_ids: Callable[[], int],
        window: Window,
        chunks: ChunkLimits,
    ) -> None:
        self.end: OnewriterError | None = None
        self.trouble: OnewriterError | None = None
        """The error of the last attempt to reach a broker; None after one that succeeded."""
        self.was_attached = False
        self.was_closed = False
        self.link: Link | None = None
        """The current link; None while detached."""
        self.is_at_end = False
        """The topic is terminated, and all its messages were received."""
        self._chunks = ChunkExpiry(str(topic), role, chunks, lambda: not self._queue)
        self._unpacker = Unpacker(str(topic), self._chunks.assembler)
        self.epoch = 0
        """Number of requests for redelivery."""
        self.changes = Signal()
        """Notified when it is attached or detached, when its epoch is accepted, when it becomes active, when
        the topic is terminated or continues, and when it ends."""
        self._arrivals = Signal()
        """Notified when a message has arrived, and with ``changes``."""
        self._taken_epoch = 0
        """The highest epoch that the broker is known to have accepted."""
        self._asked_epoch = 0
        """The epoch whose answer is awaited, if it is higher."""
        self._topic = topic
        self._role = role
        self._directory = directory
        self._limits = limits
        self._consumer_ids = consumer_ids
        self._window = window
        self._queue: deque[Item] = deque()
        self._attaching: Link | None = None
        self._muted: Link | None = None
        """A link whose deliveries are from before a seek, and ignored."""
        self._places = 0
        """Number of moves of the role; an attempt to attach for an earlier position is discarded."""
        self._backoff = Backoff()

    # ------------------------------------------------------------ staying attached

    async def run(self) -> None:
        """Attach, and attach again after each detach; return at the end."""
        now = asyncio.get_running_loop().time
        try:
            while self.end is None:
                try:
                    link = await self._attach()
                except (OnewriterError, ProtocolError) as error:
                    if self._is_final(error):
                        self.stop(error)
                        return
                    self.trouble = error
                    self._changed()
                    await asyncio.sleep(self._backoff.seconds())
                    continue
                attached_at = now()
                while self.link is link:
                    await self.changes.wait()
                if now() - attached_at > STABLE_SECONDS:
                    self._backoff.reset()
                elif link.connection.is_closed:
                    await asyncio.sleep(self._backoff.seconds())
        except Exception as defect:
            self.stop(Closed(f"the consumer failed: {defect!r}"))
            raise

    def stop(self, end: OnewriterError) -> None:
        """End the stream for this reason, and drop the queue."""
        if self.end is not None:
            return
        self.end = end
        self._clear()
        for link in (self.link, self._attaching):
            if link is not None:
                link.withdraw()
        self.link = None
        self._chunks.stop()
        self._changed()

    def restart(self, link: Link | None, reason: str) -> None:
        """Detach and attach again, if this is the current link."""
        if link is not None and link is self.link:
            link.withdraw()
            self.detached(link, reason)

    def start_over(self, reason: str) -> None:
        """Attach again, because the role has moved."""
        self._places += 1
        self.is_at_end = False
        self._clear()
        self.restart(self.link, reason)

    async def close(self) -> None:
        """Close the consumer at the broker, so that others can use the subscription; then ``stop``."""
        self.was_closed = True
        link = self.link
        if link is not None and self.end is None:
            with contextlib.suppress(OnewriterError):
                await link.close()
            link.release()
        self.stop(Closed("closed by this program"))

    def _changed(self) -> None:
        self.changes.notify()
        self._arrivals.notify()

    def _is_final(self, error: OnewriterError) -> bool:
        """Whether the error is permanent, so that another attempt is useless."""
        if self.was_attached:
            return isinstance(error, Refused) and error.code in FINAL_FOR_HOLDERS
        return isinstance(error, Refused | ConfigurationError)

    async def _attach(self) -> Link:
        """Attach once; return when no delivery from before can arrive any more."""
        connection = await self._directory.owner_of(self._topic)
        if not self.was_attached:
            await self._directory.check_partitions(connection, self._topic)
        self.check_open()  # the stream may have been closed meanwhile
        link = Link(connection, self._consumer_ids(), self)
        self._attaching = link
        try:
            command = self._role.subscribe_command()
            epoch, place = self.epoch, self._places
            if self._role.keeps_order:
                command.consumer_epoch = epoch
            self._renew()
            await link.subscribe(command)
            await self._role.attached(link)
            while epoch < self.epoch:  # redelivery was requested meanwhile
                epoch = self.epoch
                await link.redeliver(epoch if self._role.keeps_order else None)
            if not link.is_open or place != self._places:
                raise Unavailable("the broker closed the consumer immediately")
        except BaseException:
            link.withdraw()
            raise
        finally:
            self._attaching = None
        self.link = link
        self._asked_epoch = epoch
        self.was_attached = True
        self.is_at_end = self.is_at_end or link.is_at_end
        self.trouble = None
        self._took(epoch)
        self._grant()
        return link

    def _renew(self) -> None:
        self._queue.clear()
        self._chunks.assembler.forget()
        self._window.renew()

    # ------------------------------------------------------------ receiving

    def take_next(self) -> Message | None:
        """Return the next message that has arrived, else None. Raises Unreadable, the reason of the end."""
        if not self._queue:
            self.check_open()
            return None
        item = self._queue.popleft()
        self._window.taken(_size(item))
        self._role.handed_out(item)
        self._grant()
        if isinstance(item, Unreadable):
            raise item
        return item

    async def receive(self, timeout_seconds: float | None) -> Message:
        """Wait for the next message. Raises NoMessage, Unreadable, EndOfTopic, and the reason of the end."""
        message = self.take_next()
        if message is not None:
            return message
        try:
            async with asyncio.timeout(timeout_seconds):
                while message is None:
                    if self.is_at_end:
                        raise EndOfTopic(
                            f"{self._topic} is terminated, and all its messages were received"
                        )
                    await self._arrivals.wait()
                    message = self.take_next()
                return message
        except TimeoutError:
            raise NoMessage(f"no message came within {timeout_seconds:g} s") from self.trouble

    @property
    def queued_messages(self) -> int:
        """Number of messages that have arrived and were not received by the application."""
        return len(self._queue)

    def check_open(self) -> None:
        """Raise the reason of the end if the stream has ended."""
        if isinstance(self.end, Fenced):
            end = self.end
            raise Fenced(end.message, epoch=end.epoch, current_epoch=end.current_epoch) from end
        if isinstance(self.end, Refused):
            raise Refused(self.end.code, self.end.message) from self.end
        if self.end is not None:
            raise Closed(f"the consumer has ended: {self.end}") from self.end

    async def attached(self) -> Link:
        """Wait until it is attached. Raises Unavailable after the operation time limit, the reason of the end."""
        seconds = self._limits.operation_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                while self.link is None:
                    self.check_open()
                    await self.changes.wait()
                return self.link
        except TimeoutError:
            raise Unavailable(f"no broker within {seconds:g} s: {self.trouble}") from self.trouble

    async def ask(self, question: Callable[[Link], Awaitable[Answer]]) -> Answer:
        """Ask the broker, and ask again on the next link after a lost connection.

        Raises Unavailable if no answer arrived in time, Refused, the reason of the end.
        """
        seconds = self._limits.operation_timeout_seconds
        backoff = Backoff()
        trouble: OnewriterError | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    link = await self.attached()
                    try:
                        return await question(link)
                    except Unavailable as error:
                        trouble = error
                        await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            raise Unavailable(f"no answer within {seconds:g} s: {trouble}") from trouble

    async def ends(self) -> tuple[MessageId | None, MessageId]:
        """Return the topic's last message (None: empty), and the id up to which all is acknowledged.

        Raises as ``ask`` does.
        """
        answer = await self.ask(Link.last_message_id)
        last = MessageId.of(message_id_from_proto(answer.last_message_id))
        mark = MessageId.of(message_id_from_proto(answer.consumer_mark_delete_position))
        is_known = answer.HasField("consumer_mark_delete_position")
        return None if last.entry < 0 else last, mark if is_known else EARLIEST

    def drop_queued(self, is_unwanted: Callable[[Item], bool]) -> None:
        """Remove the unwanted messages from the queue."""
        kept: deque[Item] = deque()
        for item in self._queue:
            if is_unwanted(item):
                self._window.taken(_size(item))
            else:
                kept.append(item)
        self._queue = kept

    def _clear(self) -> None:
        self.drop_queued(lambda _item: True)
        self._chunks.assembler.forget()

    def _grant(self) -> None:
        if self.link is not None:
            permits = self._window.grant()
            if permits > 0:
                self.link.flow(permits)

    # ------------------------------------------------------------ redelivery

    async def redeliver(self) -> None:
        """Request redelivery of all unacknowledged messages, the oldest first; see the module.

        Returns when the broker has accepted the epoch, at once or with the next SUBSCRIBE. A lost connection
        is not an error. Raises the reason of the end.
        """
        self.check_open()
        self.epoch += 1
        epoch = self.epoch
        self._clear()
        self._ask_redelivery()
        while self._taken_epoch < epoch:
            self.check_open()
            await self.changes.wait()

    def _ask_redelivery(self) -> None:
        """Send one request at a time; the next one follows the answer, for all calls until then."""
        link = self.link
        if link is None or self._asked_epoch > self._taken_epoch or self._taken_epoch == self.epoch:
            return
        self._asked_epoch = self.epoch
        seconds = self._limits.request_timeout_seconds
        link.ask_redelivery(self.epoch if self._role.keeps_order else None, seconds)
        if not link.answers_redeliver:
            self._took(self.epoch)

    def redelivery_answered(self, link: Link, error: OnewriterError | None) -> None:
        """The broker has accepted the epoch; after an error the next SUBSCRIBE carries it."""
        if link is not self.link:
            return
        if error is not None:
            self.restart(link, str(error))
            return
        self._took(self._asked_epoch)
        self._ask_redelivery()

    def _took(self, epoch: int) -> None:
        self._taken_epoch = max(self._taken_epoch, epoch)
        self._grant()
        self._changed()

    def _is_stale(self, link: Link, delivery: Delivery) -> bool:
        """Whether an entry was delivered before the broker accepted the last request for redelivery."""
        if self._taken_epoch < self.epoch and link.answers_redeliver:
            return True
        return delivery.consumer_epoch is not None and delivery.consumer_epoch < self.epoch

    # ------------------------------------------------------------ moving

    async def seek(self, command: pb.CommandSeek) -> None:
        """Move the subscription; return when it is attached at the new position.

        Raises Refused (not moved), OutcomeUnknown, Unavailable.
        """
        link = await self.attached()
        self._muted = link
        self.is_at_end = False
        self._clear()
        try:
            await link.seek(command)
        except Unavailable as error:
            raise OutcomeUnknown(f"whether it was moved is not known: {error}") from error
        finally:
            self.restart(
                link, "moved"
            )  # also after a failure, so that dropped messages are delivered again
        await self.attached_again()

    async def attached_again(self) -> None:
        """Wait without a limit until it is attached. Raises the reason of the end."""
        while self.link is None:
            self.check_open()
            await self.changes.wait()

    # ------------------------------------------------------------ Receiver

    def delivered(self, link: Link, delivery: Delivery, payload: memoryview) -> None:
        """Unpack an entry, and queue its messages."""
        if link is not self.link or link is self._muted:
            return
        if self._is_stale(link, delivery):
            self._window.received(permits_of(delivery, payload), len(payload))
            self._grant()
            return
        items, permits = self._unpacker.unpack(delivery, payload)
        self._window.received(permits, len(payload))
        for item in items:
            if self._role.wants(item):
                self._window.queued(_size(item))
                self._queue.append(item)
        self._grant()
        if self.is_at_end and self._queue:  # the topic was created again, or the subscription moved
            self.is_at_end = False
            self.changes.notify()
        self._arrivals.notify()

    def active_changed(self, link: Link) -> None:
        """Failover: the new active consumer receives all unacknowledged messages."""
        if link is self.link and link.is_active is False:
            self._clear()
            self._grant()
        self._changed()

    def end_reached(self, link: Link) -> None:
        """Report the end of the topic. While the stream is attaching, it reports the end afterwards."""
        if link is self.link and link is not self._muted:
            self.is_at_end = True
            self._changed()

    def detached(self, link: Link, reason: str) -> None:
        """Drop the queue after the end of a link; the next link delivers these messages again."""
        if link is self.link:
            self.link = None
            self._clear()
            self.trouble = Unavailable(reason)
            self._changed()


def _size(item: Item) -> int:
    return len(item.content) if isinstance(item, Message) else 0


def pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    """Convert properties to protobuf."""
    return [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
