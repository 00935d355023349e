"""The common base of consumers and readers: connection state, iteration and end.

Acknowledgements are in _consume/consumer.py, the position of a reader is in _consume/reader.py, the connection and
the queue are in _consume/stream.py.
"""

from __future__ import annotations

from typing import Self

from onewriter._consume.stream import Stream
from onewriter._errors import Closed, EndOfTopic, OnewriterError
from onewriter._message import Message, MessageId
from onewriter_core.ids import TopicName


class MessageSource:
    """The messages of a topic, for one event loop. The iteration ends at ``close`` and at the topic's end."""

    def __init__(self, topic: TopicName, stream: Stream) -> None:
        self.topic = topic
        self._stream = stream

    @property
    def is_attached(self) -> bool:
        """Whether it is connected to the topic's broker as a consumer."""
        return self._stream.link is not None

    @property
    def has_reached_end_of_topic(self) -> bool:
        """Whether the topic is terminated and all its messages were received; receiving raises EndOfTopic."""
        return self._stream.is_at_end

    @property
    def end(self) -> OnewriterError | None:
        """The reason of the end; None while it has not ended."""
        return self._stream.end

    @property
    def trouble(self) -> OnewriterError | None:
        """The error of the last attempt to reach a broker; None after one that succeeded."""
        return self._stream.trouble

    async def ready(self) -> None:
        """Wait until it is connected for the first time. Raises the reason of the end."""
        while not self._stream.was_attached:
            self._stream.check_open()
            await self._stream.changes.wait()

    async def changed(self) -> None:
        """Wait for the next change: attached or detached, active or inactive, ended, or end of topic."""
        await self._stream.changes.wait()

    async def ended(self) -> OnewriterError:
        """Wait until it is rejected or closed, and return the reason."""
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
        """Return the id of the topic's last message; None for an empty topic.

        Raises Unavailable, Refused, Closed.
        """
        return (await self._stream.ends())[0]

    async def close(self) -> None:
        """Close it. Idempotent."""
        self._stop_timer()
        await self._stream.close()

    def abandon(self) -> None:
        """Close it at once, without waiting for the broker."""
        self._stop_timer()
        self._stream.stop(Closed("closed by this program"))

    def _stop_timer(self) -> None:
        """Cancel delayed reports to the broker."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
