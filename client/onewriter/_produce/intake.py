"""The intake of a producer: it accepts messages in the order of the calls, within bounds, and packs them.

This module contains every step from the call to the outbox. Writing to the connection is in
_produce/producer.py, the results of messages in _produce/outbox.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from onewriter._errors import ConfigurationError, OnewriterError, Refused
from onewriter._message import MessageId
from onewriter._produce.outbox import Outbox, Pending, Receipt
from onewriter._produce.packer import (
    Batching,
    Outgoing,
    Packed,
    Packer,
    checked_content,
    described,
    message_size,
    too_large,
)
from onewriter._produce.queue import QueuePosition, SubmissionQueue
from onewriter._produce.tenure import ProducerOptions
from onewriter._signal import Signal


class IntakeOwner(Protocol):
    """The producer of an intake."""

    def may_send(self) -> bool:
        """Whether the producer was granted its topic, and has neither ended nor begun to close."""
        ...

    def check_open(self) -> None:
        """Raise the error that the producer ended with, or Closed while it is being closed."""
        ...

    def pump(self) -> None:
        """Write the outbox: it contains unwritten entries."""
        ...


class OpenBatch:
    """The batch that collects messages; each message can still be withdrawn.

    It calls ``on_full`` when the batch has to be sealed, because of its size or its age.
    """

    def __init__(self, batching: Batching, on_full: Callable[[], None]) -> None:
        self._batching = batching
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._messages: list[Outgoing] = []
        self._timer: asyncio.Handle | None = None
        self.bytes = 0
        """Size of the collected messages."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Outgoing) -> None:
        """Append a message; seal the present messages first if all together are too large."""
        if self._messages and self.bytes + message.size > self._batching.bytes_max:
            self._on_full()
        self._messages.append(message)
        self.bytes += message.size
        if (
            len(self._messages) >= self._batching.messages_max
            or self.bytes >= self._batching.bytes_max
        ):
            self._on_full()
        elif self._timer is None:
            delay = self._batching.delay_seconds
            self._timer = (
                self._loop.call_later(delay, self._on_full)
                if delay
                else self._loop.call_soon(self._on_full)
            )

    def take(self) -> list[Outgoing]:
        """Remove and return all messages; the next message begins another batch."""
        messages, self._messages = self._messages, []
        self.bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def withdraw(self, receipt: asyncio.Future[MessageId]) -> bool:
        """Remove one message. False: the batch does not contain it."""
        for number, message in enumerate(self._messages):
            if message.receipt is receipt:
                del self._messages[number]
                self.bytes -= message.size
                return True
        return False


class Intake:
    """Accepts messages.

    ``moved`` wakes the waiting calls. It must be notified when room may have become free, when the owner was
    granted its topic, and when the owner ends.
    """

    def __init__(
        self,
        producer_id: int,
        options: ProducerOptions,
        outbox: Outbox,
        moved: Signal,
        owner: IntakeOwner,
    ) -> None:
        self._producer_id = producer_id
        self._options = options
        self._outbox = outbox
        self._moved = moved
        self._owner = owner
        self._batch = None if options.batching is None else OpenBatch(options.batching, self.seal)
        self._packer = Packer(producer_id, options.name, options.compression)
        self._loop = asyncio.get_running_loop()
        self._queue = SubmissionQueue()
        """Calls that wait for room, and transactions and seals, in their order."""
        self._next_sequence_id = 0
        self.message_bytes_max = 0
        """Largest entry that the broker accepts."""

    @property
    def next_sequence_id(self) -> int:
        """The sequence id of the next entry; all earlier entries have lower ones."""
        return self._next_sequence_id

    @property
    def gathered_messages(self) -> int:
        """Number of accepted messages that are not in an entry yet."""
        return 0 if self._batch is None else len(self._batch)

    @property
    def gathered_bytes(self) -> int:
        """Size of the accepted messages that are not in an entry yet."""
        return 0 if self._batch is None else self._batch.bytes

    def begin(self, producer_name: str, next_sequence_id: int) -> None:
        """Start after the broker has granted the topic under this name."""
        self._packer = Packer(self._producer_id, producer_name, self._options.compression)
        self._next_sequence_id = next_sequence_id

    async def take(
        self,
        content: bytes,
        key: str | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
    ) -> Receipt:
        """Wait for room, in the order of the calls, and return the future of the receipt.

        Raises ConfigurationError for an invalid message, Refused for a message that is too large for the
        broker, and the error that the owner ended with.
        """
        content = checked_content(content)
        if not self._queue and self._may_take(len(content)) and not self._is_large(content):
            return self._pack(content, key, ordering_key, properties, event_time_ms)
        self._owner.check_open()
        position = self._queue.join()
        try:
            await position.reached()
            while not self._may_take(len(content)):
                self._owner.check_open()
                await self._moved.wait()
            if self._is_large(content):
                return await self._pack_large(
                    content,
                    key=key,
                    ordering_key=ordering_key,
                    properties=properties,
                    event_time_ms=event_time_ms,
                )
            return self._pack(content, key, ordering_key, properties, event_time_ms)
        finally:
            position.leave()

    def join_queue(self) -> QueuePosition:
        """Take a position in the queue of ``take``. While it is the first one, no call of ``take`` is served."""
        return self._queue.join()

    def seal(self) -> None:
        """Pack the collected messages into an entry."""
        messages = [] if self._batch is None else self._batch.take()
        if not messages:
            return
        for message in messages:
            message.sequence_id = self._next_sequence_id
            self._next_sequence_id += 1
        receipts = [message.receipt for message in messages]
        pending = Pending(messages[0].sequence_id, b"", b"", receipts, messages, is_batch=True)
        try:
            pending.header, pending.entry = self._repack(messages)
            self._check_size(len(pending.entry), "batches are not split into chunks")
        except Refused as error:
            code, text = error.code, error.message
            pending.refuse(lambda: Refused(code, text))
            return
        except Exception as error:  # noqa: BLE001 - the waiting calls have to receive it
            why = f"the batch cannot be packed: {error!r}"
            pending.refuse(lambda: ConfigurationError(why))
            return
        self._outbox.add(pending)
        self._owner.pump()

    def withdraw(self, receipt: Receipt) -> bool:
        """Withdraw a message that was never written to a connection. False: it was written."""
        is_withdrawn = self._batch is not None and self._batch.withdraw(receipt)
        is_withdrawn = is_withdrawn or self._outbox.withdraw(receipt, self._repack)
        if is_withdrawn:
            self._moved.notify()
        return is_withdrawn

    def drop(self, refusal: Callable[[], OnewriterError]) -> None:
        """Refuse all messages that are not in an entry, and end the wait of all calls."""
        for message in () if self._batch is None else self._batch.take():
            if not message.receipt.done():
                message.receipt.set_exception(refusal())
                message.receipt.exception()  # mark it as retrieved: the caller may have been cancelled
        self._queue.release_all()

    def pack_alone(self, content: bytes, **described: Any) -> tuple[int, bytes]:
        """Pack a message into an entry that is not published by SEND; return its sequence id and bytes.

        Raises ConfigurationError for an invalid message, Refused for a message that is too large for the
        broker.
        """
        content = checked_content(content)
        number = self._next_sequence_id
        _, entry = self._packer.single(number, content, now_ms=_now_ms(), **described)
        self._check_size(len(entry), "such a message is not split into chunks")
        self._next_sequence_id = number + 1
        return number, entry

    # ------------------------------------------------------------ inside

    def _may_take(self, size: int) -> bool:
        if not self._owner.may_send():
            return False
        batch = self._batch
        if batch is None:
            return self._outbox.has_space(size)
        return self._outbox.has_space(size, len(batch), batch.bytes)

    def _pack(
        self,
        content: bytes,
        key: str | None,
        ordering_key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
    ) -> Receipt:
        receipt: Receipt = self._loop.create_future()
        if self._batch is not None:
            metadata = described(key, ordering_key, properties, event_time_ms)
            size = message_size(content, metadata)
            self._check_size(size)
            self._batch.add(Outgoing(content, key, ordering_key, metadata, receipt, size))
            return receipt
        number = self._next_sequence_id
        header, entry = self._packer.single(
            number,
            content,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            now_ms=_now_ms(),
        )
        self._check_size(len(entry))
        self._next_sequence_id = number + 1
        self._outbox.add(Pending(number, header, entry, (receipt,)))
        self._owner.pump()
        return receipt

    def _is_large(self, content: bytes) -> bool:
        """Whether the message may need chunks. An entry that fits after all is sent whole."""
        return self._options.chunking and len(content) > self.message_bytes_max // 2

    async def _pack_large(self, content: bytes, **described: Any) -> Receipt:
        """Pack a message outside of any batch, in chunks if necessary. Requires the first queue position."""
        self.seal()
        number = self._next_sequence_id
        entries = await asyncio.to_thread(
            self._packer.chunked,
            number,
            content,
            now_ms=_now_ms(),
            entry_bytes_max=self.message_bytes_max,
            **described,
        )
        self._owner.check_open()
        self._next_sequence_id = number + 1
        receipt: Receipt = self._loop.create_future()
        for header, entry in entries[:-1]:
            self._outbox.add(Pending(number, header, entry, (receipt,), is_part=True))
        self._outbox.add(Pending(number, *entries[-1], (receipt,)))
        self._owner.pump()
        return receipt

    def _check_size(
        self, size: int, why: str = "this producer does not split messages into chunks"
    ) -> None:
        if size > self.message_bytes_max:
            raise too_large(
                f"the message has {size} bytes, the broker accepts {self.message_bytes_max}, and {why}"
            )

    def _repack(self, messages: Sequence[Outgoing]) -> Packed:
        return self._packer.batch(messages, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
