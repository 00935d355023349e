"""A topic's messages, one after the other, through every connection that a consumer has.

::

    CONNECTING ──▶ ATTACHED ◀──▶ CONNECTING     any of them ──▶ ENDED

What lives here: keeping a consumer attached, its queue and permits, and redelivery without a race.
What does not: what is asked for and where it goes on (the Role: _consume/consumer.py, _consume/reader.py).

**Epochs (PIP-84).** A request for redelivery raises the epoch first, then clears the queue, then
goes to the broker. Until the broker has taken it, whatever comes is of before: a delivery that
carries a lower epoch is dropped wherever it comes from, and where the broker answers requests for
redelivery (onewriter), so is everything that comes before the answer. SUBSCRIBE carries the epoch,
so a lost connection needs no second request: a new consumer begins behind what is acknowledged.
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
"""A consumer that was attached for so long is attached again without a pause."""

Answer = TypeVar("Answer")

log = logging.getLogger("onewriter")


class Role(Protocol):
    """What makes a stream a consumer's or a reader's. Only ``attached`` may wait."""

    @property
    def keeps_order(self) -> bool:
        """Whether redelivery has an epoch: Exclusive and Failover."""
        ...

    def subscribe_command(self) -> pb.CommandSubscribe:
        """What to ask for now; ids and epoch are filled in."""
        ...

    async def attached(self, link: Link) -> None:
        """It may go on; nothing is delivered before this returns. Raises Refused, Unavailable."""
        ...

    def wants(self, item: Item) -> bool:
        """Whether the application shall see what came."""
        ...

    def chunk_begun(self, first: MessageId) -> None:
        """A message in chunks begins here; it is handed out with its last one."""
        ...

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None:
        """These are of a message that is not put together any more."""
        ...

    def handed_out(self, item: Item) -> None:
        """The application has it now."""
        ...


class Stream:
    """Implements Receiver. ``run`` it; ``stop`` ends it from outside."""

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
        """Why the last attempt to reach a broker failed; None since one succeeded."""
        self.was_attached = False
        self.was_closed = False
        self.link: Link | None = None
        """Where it is attached now."""
        self.is_at_end = False
        """The topic is terminated, and nothing of it is left."""
        self._chunks = ChunkExpiry(str(topic), role, chunks, lambda: not self._queue)
        self._unpacker = Unpacker(str(topic), self._chunks.assembler)
        self.epoch = 0
        """How often redelivery was asked for."""
        self.changes = Signal()
        """It was attached or detached, or its epoch taken, or it became active, or the topic was
        terminated or goes on, or it has ended."""
        self._arrivals = Signal()
        """A message came, or ``changes``."""
        self._taken_epoch = 0
        """The highest one that the broker is known to have taken."""
        self._asked_epoch = 0
        """The one that its answer is awaited for, if that is higher."""
        self._topic = topic
        self._role = role
        self._directory = directory
        self._limits = limits
        self._consumer_ids = consumer_ids
        self._window = window
        self._queue: deque[Item] = deque()
        self._attaching: Link | None = None
        self._muted: Link | None = None
        """What it still delivers is of before a seek."""
        self._places = 0
        """How often the role has moved: what is being attached for an earlier place is no use."""
        self._backoff = Backoff()

    # ------------------------------------------------------------ staying attached

    async def run(self) -> None:
        """Attach, and attach again; returns when it has ended."""
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
        """It is over, for this reason; what waits in the queue is dropped."""
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
        """Attach anew, if this is still the link."""
        if link is not None and link is self.link:
            link.withdraw()
            self.detached(link, reason)

    def start_over(self, reason: str) -> None:
        """The role has moved: attach anew."""
        self._places += 1
        self.is_at_end = False
        self._clear()
        self.restart(self.link, reason)

    async def close(self) -> None:
        """Leave in order, so that others may have the subscription at once; then ``stop``."""
        self.was_closed = True
        link = self.link
        if link is not None and self.end is None:
            with contextlib.suppress(OnewriterError):
                await link.close()
            link.release()
        self.stop(Closed("closed by this program"))

    def _changed(self) -> None:
        self.changes.tell()
        self._arrivals.tell()

    def _is_final(self, error: OnewriterError) -> bool:
        """Whether asking again is pointless."""
        if self.was_attached:
            return isinstance(error, Refused) and error.code in FINAL_FOR_HOLDERS
        return isinstance(error, Refused | ConfigurationError)

    async def _attach(self) -> Link:
        """Ask once; returns when it is attached and nothing of before is delivered any more."""
        connection = await self._directory.owner_of(self._topic)
        if not self.was_attached:
            await self._directory.check_partitions(connection, self._topic)
        self.check_open()  # it may have been closed meanwhile
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
            while epoch < self.epoch:  # asked for meanwhile
                epoch = self.epoch
                await link.redeliver(epoch if self._role.keeps_order else None)
            if not link.is_open or place != self._places:
                raise Unavailable("closed again at once")
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
        """The next message that is here; None: none is. Raises Unreadable, what it ended with."""
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
        """The next message. Raises NoMessage, Unreadable, EndOfTopic, and what it ended with."""
        message = self.take_next()
        if message is not None:
            return message
        try:
            async with asyncio.timeout(timeout_seconds):
                while message is None:
                    if self.is_at_end:
                        raise EndOfTopic(f"{self._topic} is terminated, and this was all of it")
                    await self._arrivals.wait()
                    message = self.take_next()
                return message
        except TimeoutError:
            raise NoMessage(f"no message came within {timeout_seconds:g} s") from self.trouble

    @property
    def queued_messages(self) -> int:
        """Messages that came and were not taken."""
        return len(self._queue)

    def check_open(self) -> None:
        """Raise what it ended with, if it has."""
        if isinstance(self.end, Fenced):
            end = self.end
            raise Fenced(end.message, epoch=end.epoch, current_epoch=end.current_epoch) from end
        if isinstance(self.end, Refused):
            raise Refused(self.end.code, self.end.message) from self.end
        if self.end is not None:
            raise Closed(f"the consumer has ended: {self.end}") from self.end

    async def attached(self) -> Link:
        """Wait until it is attached. Raises Unavailable after a while, what it ended with."""
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
        """An answer from the broker, after a lost connection from the next one.

        Raises Unavailable when there was none in time, Refused, what it ended with.
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
        """The topic's last message, None: it holds none; and up to where all is acknowledged.

        Raises as ``ask`` does.
        """
        answer = await self.ask(Link.last_message_id)
        last = MessageId.of(message_id_from_proto(answer.last_message_id))
        mark = MessageId.of(message_id_from_proto(answer.consumer_mark_delete_position))
        is_known = answer.HasField("consumer_mark_delete_position")
        return None if last.entry < 0 else last, mark if is_known else EARLIEST

    def drop_queued(self, is_unwanted: Callable[[Item], bool]) -> None:
        """Take such messages out of the queue."""
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
        """Have everything unacknowledged again, from the oldest on; see the module.

        Returns when the broker has taken the epoch, at once or with the next SUBSCRIBE. Raises
        what it ended with, and nothing for a lost connection.
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
        """Once at a time: the next request follows the answer, and counts for all until then."""
        link = self.link
        if link is None or self._asked_epoch > self._taken_epoch or self._taken_epoch == self.epoch:
            return
        self._asked_epoch = self.epoch
        seconds = self._limits.request_timeout_seconds
        link.ask_redelivery(self.epoch if self._role.keeps_order else None, seconds)
        if not link.answers_redeliver:
            self._took(self.epoch)

    def redelivery_answered(self, link: Link, error: OnewriterError | None) -> None:
        """The broker has taken it; or it is not known whether, and the next SUBSCRIBE carries it."""
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
        """Whether it was delivered before the broker took the last request for redelivery."""
        if self._taken_epoch < self.epoch and link.answers_redeliver:
            return True
        return delivery.consumer_epoch is not None and delivery.consumer_epoch < self.epoch

    # ------------------------------------------------------------ moving

    async def seek(self, command: pb.CommandSeek) -> None:
        """Move the subscription; returns when it is attached at its new place.

        Raises Refused when it was not moved, OutcomeUnknown, Unavailable.
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
            self.restart(link, "moved")  # also where it failed: what was dropped comes again
        await self.attached_again()

    async def attached_again(self) -> None:
        """Wait until it is attached, however long that takes. Raises what it ended with."""
        while self.link is None:
            self.check_open()
            await self.changes.wait()

    # ------------------------------------------------------------ its link's receiver

    def delivered(self, link: Link, delivery: Delivery, payload: memoryview) -> None:
        """An entry came."""
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
        if self.is_at_end and self._queue:  # of a topic made anew, or the subscription was moved
            self.is_at_end = False
            self.changes.tell()
        self._arrivals.tell()

    def active_changed(self, link: Link) -> None:
        """Failover: whoever receives from now on is given everything that is not acknowledged."""
        if link is self.link and link.is_active is False:
            self._clear()
            self._grant()
        self._changed()

    def end_reached(self, link: Link) -> None:
        """Nothing comes any more. Told while it is being attached: it is looked at then."""
        if link is self.link and link is not self._muted:
            self.is_at_end = True
            self._changed()

    def detached(self, link: Link, reason: str) -> None:
        """Nothing more comes from there, and what came and was not taken comes again."""
        if link is self.link:
            self.link = None
            self._clear()
            self.trouble = Unavailable(reason)
            self._changed()


def _size(item: Item) -> int:
    return len(item.content) if isinstance(item, Message) else 0


def pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    """As the wire has them."""
    return [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
