"""What consumers and readers have in common: being connected, being iterated, and how they end.

What a message means to either of them (acknowledging, the place where it goes on) is in _consume/consumer.py
and _consume/reader.py; staying attached, and the queue, are in _consume/stream.py.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from onewriter._consume.stream import Stream
from onewriter._errors import Closed, EndOfTopic, OnewriterError
from onewriter._message import Message, MessageId
from onewriter_core.ids import TopicName


class MessageSource:
    """A topic's messages, for one event loop; its iteration ends with ``close`` and with the topic."""

    def __init__(self, topic: TopicName, stream: Stream) -> None:
        self.topic = topic
        self._stream = stream

    @property
    def is_attached(self) -> bool:
        """Whether a broker has it as a consumer just now."""
        return self._stream.link is not None

    @property
    def has_reached_end_of_topic(self) -> bool:
        """Whether the topic is terminated and nothing of it is left; receiving raises EndOfTopic."""
        return self._stream.is_at_end

    @property
    def end(self) -> OnewriterError | None:
        """Why it ended; None while it lives."""
        return self._stream.end

    @property
    def trouble(self) -> OnewriterError | None:
        """Why the last attempt to reach a broker failed; None since one succeeded."""
        return self._stream.trouble

    async def ready(self) -> None:
        """Wait until it is connected for the first time. Raises what it ended with."""
        while not self._stream.was_attached:
            self._stream.check_open()
            await self._stream.changes.wait()

    async def changed(self) -> None:
        """Wait until it is attached or detached, becomes active or inactive, or ends, or the end
        of a terminated topic is reached.
        """
        await self._stream.changes.wait()

    async def ended(self) -> OnewriterError:
        """Wait until it is refused or closed; which."""
        while (end := self._stream.end) is None:
            await self._stream.changes.wait()
        return end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self._stream.receive(None)
        except EndOfTopic:
            raise StopAsyncIteration from None
        except Closed:
            if self._stream.was_closed:
                raise StopAsyncIteration from None
            raise

    async def last_message_id(self) -> MessageId | None:
        """The topic's last message as the broker knows it; None: it holds none.

        Raises Unavailable, Refused, Closed.
        """
        return (await self._stream.ends())[0]

    async def close(self) -> None:
        """Leave. Idempotent."""
        self._stop_timer()
        await self._stream.close()

    def abandon(self) -> None:
        """Leave at once, without waiting for anything or anybody."""
        self._stop_timer()
        self._stream.stop(Closed("closed by this program"))

    def _stop_timer(self) -> None:
        """What was to be said to the broker later need not be said any more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
