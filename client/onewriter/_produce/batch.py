"""The batch that a producer is gathering: no entry yet, so each message may still be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onewriter._message import MessageId
from onewriter._produce.packer import Batching, Outgoing


class Batch:
    """``add`` messages; ``on_full`` is called when the batch is to be sealed, by size or by time."""

    def __init__(self, batching: Batching, on_full: Callable[[], None]) -> None:
        self._batching = batching
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._messages: list[Outgoing] = []
        self._timer: asyncio.Handle | None = None
        self.bytes = 0
        """Of its messages."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Outgoing) -> None:
        """Behind all others; seals what is there first if both are too large together."""
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
        """All of it; the next message begins another batch."""
        messages, self._messages = self._messages, []
        self.bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def withdraw(self, receipt: asyncio.Future[MessageId]) -> bool:
        """Take one message back; False: it is not in here."""
        for number, message in enumerate(self._messages):
            if message.receipt is receipt:
                del self._messages[number]
                self.bytes -= message.size
                return True
        return False
