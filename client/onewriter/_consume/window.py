"""The window of permits: how many messages a broker may send ahead of the application. Pure.

Permits count messages, memory counts bytes. The window is the number of messages that fit into both bounds at the
recent message size. If messages grow suddenly, the bound in bytes is exceeded only by the messages in flight.
"""

from __future__ import annotations

QUEUE_MESSAGES_MAX = 1_000
QUEUE_BYTES_MAX = 16 * 1024 * 1024

_FIRST_MESSAGE_BYTES = 64 * 1024
"""Assumed size of a message before the first one has arrived."""

_SHRINKS_BY = 16
"""A smaller message lowers the assumed size by this fraction of the difference."""


class Window:
    """The permits of one consumer on one connection, and its queued messages."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.queued_messages = 0
        self.queued_bytes = 0
        self.open = 0
        """Unused permits of the broker; negative after a batch that is larger than the permits."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._message_bytes: float = _FIRST_MESSAGE_BYTES

    def renew(self) -> None:
        """Reset for another connection: nothing is queued, and the broker has no permits."""
        self.queued_messages = self.queued_bytes = self.open = 0

    def received(self, permits: int, size: int) -> None:
        """Record an entry by its permits and its size in bytes."""
        self.open -= permits
        message_bytes = size / max(permits, 1)
        grown = message_bytes - self._message_bytes
        self._message_bytes += grown if grown > 0 else grown / _SHRINKS_BY

    def queued(self, size: int) -> None:
        """Record that a message was queued."""
        self.queued_messages += 1
        self.queued_bytes += size

    def taken(self, size: int) -> None:
        """Record that a message left the queue."""
        self.queued_messages -= 1
        self.queued_bytes -= size

    def grant(self) -> int:
        """Return the permits to give now. They are given in portions: 0 while there is little room."""
        if 2 * self.open > self._messages_max:
            return 0  # the common case, without further computation
        fitting = int((self._bytes_max - self.queued_bytes) / max(self._message_bytes, 1.0))
        space = min(self._messages_max - self.queued_messages, fitting)
        if self.queued_messages == 0:
            space = max(space, 1)  # a message above the bound is delivered alone
        lacking = space - self.open
        if lacking <= 0 or (
            self.open > 0 and 2 * lacking < self._messages_max and 2 * lacking < space
        ):
            return 0
        self.open += lacking
        return lacking
