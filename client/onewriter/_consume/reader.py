"""A reader: a topic's messages from a position on, without a durable subscription.

After a lost connection the reader itself continues after the last message that it returned, so that no message
is repeated or skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from onewriter._config import Limits
from onewriter._consume.chunk_expiry import CHUNKS_EXPIRE_SECONDS, ChunkLimits
from onewriter._consume.chunks import CHUNKED_MAX
from onewriter._consume.link import Link
from onewriter._consume.source import MessageSource
from onewriter._consume.stream import Stream, pairs
from onewriter._consume.unpacker import Item
from onewriter._consume.window import QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Window
from onewriter._errors import Unreadable
from onewriter._message import EARLIEST, LATEST, Message, MessageId
from onewriter._transport.connection import Spawn
from onewriter._transport.lookup import Directory
from onewriter_core.ids import TopicName
from onewriter_core.wire.commands import message_id_from_proto
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId as WireId

CHUNKS_MAX = 10_000
"""Largest number of chunked messages that have begun and were not returned yet."""

ACKNOWLEDGE_SECONDS = 0.1
"""Delay after which the reader reports its position to the broker, for all messages until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Options of a reader.

    ``name``: prefix of the name of its subscription at the broker. ``read_compacted``: read only the last
    message of each key, in the part of the topic that is compacted. ``queue_messages_max``,
    ``queue_bytes_max``: what the broker may send ahead of the application. ``chunked_messages_max``,
    ``chunks_expire_seconds``: limits of incomplete chunked messages, as in ConsumerOptions; if a dropped
    message is completed later, ``next`` raises Unreadable.
    """

    name: str = ""
    read_compacted: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    queue_messages_max: int = QUEUE_MESSAGES_MAX
    queue_bytes_max: int = QUEUE_BYTES_MAX
    chunked_messages_max: int = CHUNKED_MAX
    chunks_expire_seconds: float = CHUNKS_EXPIRE_SECONDS


class Reader(MessageSource):
    """Reads one topic. Created by ``Client.create_reader``; for one event loop.

    ``async for message in reader`` ends after the last message of a terminated topic. For any other topic it
    waits for further messages until the reader is closed.
    """

    def __init__(
        self,
        topic: TopicName,
        start: MessageId,
        options: ReaderOptions,
        *,
        is_inclusive: bool,
        directory: Directory,
        limits: Limits,
        spawn: Spawn,
        consumer_ids: Callable[[], int],
    ) -> None:
        self.options = options
        self._timer: asyncio.TimerHandle | None = None
        self._place = _Place(
            topic, options, start, is_inclusive=is_inclusive, on_passed=self._report_later
        )
        stream = Stream(
            topic,
            self._place,
            directory=directory,
            limits=limits,
            consumer_ids=consumer_ids,
            window=Window(options.queue_messages_max, options.queue_bytes_max),
            chunks=ChunkLimits(options.chunked_messages_max, options.chunks_expire_seconds),
        )
        super().__init__(topic, stream)
        spawn(stream.run())

    # ------------------------------------------------------------ state

    @property
    def position(self) -> MessageId | None:
        """The id of the last message that the reader returned; None: none yet."""
        return self._place.last

    # ------------------------------------------------------------ reading

    async def next(self, *, timeout_seconds: float | None = None) -> Message:
        """Wait for the next message and return it, without a limit by default.

        Raises NoMessage after ``timeout_seconds``, Unreadable for an entry that cannot be decoded (the next
        call continues after it), EndOfTopic, Closed, Refused. A cancellation loses no message.
        """
        return await self._stream.receive(timeout_seconds)

    def next_nowait(self) -> Message | None:
        """Return the next message if it has arrived already, else None. Raises as ``next`` does."""
        return self._stream.take_next()

    async def has_message_available(self) -> bool:
        """Whether the topic contains messages after the reader's position. Raises as ``last_message_id``."""
        if self._stream.queued_messages:
            return True
        last = await self.last_message_id()
        return last is not None and self._place.is_ahead(last)

    async def seek(self, target: MessageId | int, *, is_inclusive: bool = False) -> None:
        """Continue after a message (with ``is_inclusive``: with it), or at a time in milliseconds since 1970.

        A time selects the first message that was published then or later. Raises Refused and Unavailable (the
        position of the time is not known), OutcomeUnknown, Closed.
        """
        self._stream.check_open()
        if isinstance(target, MessageId):
            self._place.move(target, is_inclusive=is_inclusive)
            self._stream.start_over("moved")
            await self._stream.attached_again()
        else:
            self._place.move_to_time(target)
            await self._stream.seek(pb.CommandSeek(message_publish_time=target))

    # ------------------------------------------------------------ reports to the broker

    def _report_later(self) -> None:
        """Schedule the report of the position, by which the broker detects a reader at the end of the topic."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ACKNOWLEDGE_SECONDS, self._acknowledge)

    def _acknowledge(self) -> None:
        self._timer = None
        link, passed = self._stream.link, self._place.passed
        if link is not None and passed is not None:
            entry = WireId(passed.ledger, passed.entry)
            link.acknowledge_unanswered([entry], is_cumulative=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Place:
    """The position of a reader. Implements Role."""

    keeps_order = False  # a reader never requests redelivery

    def __init__(
        self,
        topic: TopicName,
        options: ReaderOptions,
        start: MessageId,
        *,
        is_inclusive: bool,
        on_passed: Callable[[], None],
    ) -> None:
        self.last: MessageId | None = None
        self.passed: MessageId | None = None
        """The last entry of which no message is needed any more."""
        self._on_passed = on_passed
        self._topic = topic
        self._options = options
        self._start = start
        self._is_inclusive = is_inclusive
        self._since_ms = 0
        self._chunks: dict[MessageId, None] = {}
        """First chunks of messages that were not returned yet, in order."""
        self._is_kept = False
        """Whether the broker's subscription is at the right position and can be used again."""
        self._name = options.name or f"reader-{secrets.token_hex(5)}"
        self._attempts = itertools.count()
        self._subscription = ""

    def move(self, start: MessageId, *, is_inclusive: bool) -> None:
        """Continue at another position."""
        self._start, self._is_inclusive = start, is_inclusive
        self.last = self.passed = None
        self._since_ms = 0
        self._is_kept = False
        self._chunks.clear()

    def move_to_time(self, publish_time_ms: int) -> None:
        """Continue with the messages published at this time; the broker knows their position."""
        self.move(EARLIEST, is_inclusive=False)
        self._since_ms = publish_time_ms
        self._is_kept = True

    def is_ahead(self, message_id: MessageId) -> bool:
        """Whether a message is after the reader's position."""
        start = self._start
        if message_id.position != start.position:
            return message_id.position > start.position
        if start.batch_index < 0:
            return self._is_inclusive  # all of the entry, or none of it
        if self._is_inclusive:
            return message_id.batch_index >= start.batch_index
        return message_id.batch_index > start.batch_index

    # ------------------------------------------------------------ Role

    def subscribe_command(self) -> pb.CommandSubscribe:
        # Each attempt uses a new name, so that the subscription of an earlier one neither conflicts nor
        # determines the position. After a seek to a time, the subscription does determine it.
        if not self._is_kept:
            self._subscription = f"{self._name}-{next(self._attempts)}"
        start = min(self._start, next(iter(self._chunks), self._start))
        ledger, entry = start.position
        return pb.CommandSubscribe(
            topic=str(self._topic),
            subscription=self._subscription,
            sub_type=pb.CommandSubscribe.EXCLUSIVE,
            durable=False,
            start_message_id=pb.MessageIdData(
                ledger_id=ledger % 2**64, entry_id=entry % 2**64, batch_index=start.batch_index
            ),
            read_compacted=self._options.read_compacted,
            metadata=pairs(self._options.properties),
        )

    async def attached(self, link: Link) -> None:
        """Record the position that the broker chose, so that a lost connection leaves no gap."""
        if self._start != LATEST and not self._is_kept:
            return
        answer = await link.last_message_id()
        if answer.HasField("consumer_mark_delete_position"):
            mark = MessageId.of(message_id_from_proto(answer.consumer_mark_delete_position))
            self._start, self._is_inclusive = mark._replace(batch_index=-1), False
        self._is_kept = False

    def wants(self, item: Item) -> bool:
        message_id = item.message_id if isinstance(item, Unreadable) else item.id
        is_early = (
            self._since_ms > 0
            and isinstance(item, Message)
            and item.publish_time_ms < self._since_ms
        )
        if is_early or not self.is_ahead(message_id):
            self._pass(item, message_id)
            return False
        if isinstance(item, Message):
            self._since_ms = 0
        return True

    def _pass(self, item: Item, message_id: MessageId) -> None:
        if isinstance(item, Unreadable) or item.ends_entry:
            self.passed = message_id
            self._on_passed()

    def chunk_begun(self, first: MessageId) -> None:
        self._chunks[first] = None
        if len(self._chunks) > CHUNKS_MAX:
            del self._chunks[next(iter(self._chunks))]

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None:
        self._chunks.pop(chunk_ids[0], None)

    def handed_out(self, item: Item) -> None:
        message_id = item.message_id if isinstance(item, Unreadable) else item.id
        self.last = self._start = message_id
        self._is_inclusive = False
        if isinstance(item, Message) and item.chunk_ids:
            self._chunks.pop(item.chunk_ids[0], None)
        self._pass(item, message_id)
