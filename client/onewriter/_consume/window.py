"""How many messages a broker may send ahead of what the application takes. Pure.

Permits count messages; memory counts bytes. The window is as many messages as fit into both bounds
at the size that messages had lately, so the bound in bytes is passed by what was under way when
they suddenly grew, and by no more.
"""

from __future__ import annotations

QUEUE_MESSAGES_MAX = 1_000
QUEUE_BYTES_MAX = 16 * 1024 * 1024

_FIRST_MESSAGE_BYTES = 64 * 1024
"""What a message is taken to have before one has come."""

_SHRINKS_BY = 16
"""A smaller message lowers the size that is reckoned with by this part of the difference."""


class Window:
    """The permits of one consumer on one connection, and what it holds."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.queued_messages = 0
        self.queued_bytes = 0
        self.open = 0
        """Permits that the broker has and has not used; below 0 after a batch larger than they."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._message_bytes: float = _FIRST_MESSAGE_BYTES

    def renew(self) -> None:
        """Another connection: nothing is queued, and the broker has no permits."""
        self.queued_messages = self.queued_bytes = self.open = 0

    def received(self, permits: int, size: int) -> None:
        """An entry came that cost so many permits and has so many bytes."""
        self.open -= permits
        message_bytes = size / max(permits, 1)
        grown = message_bytes - self._message_bytes
        self._message_bytes += grown if grown > 0 else grown / _SHRINKS_BY

    def queued(self, size: int) -> None:
        """A message waits for the application."""
        self.queued_messages += 1
        self.queued_bytes += size

    def taken(self, size: int) -> None:
        """A message waits no more."""
        self.queued_messages -= 1
        self.queued_bytes -= size

    def grant(self) -> int:
        """The permits to give now, in portions: 0 while there is little room."""
        if 2 * self.open > self._messages_max:
            return 0  # the usual case, at no cost
        fitting = int((self._bytes_max - self.queued_bytes) / max(self._message_bytes, 1.0))
        room = min(self._messages_max - self.queued_messages, fitting)
        if self.queued_messages == 0:
            room = max(room, 1)  # a message larger than the bound comes alone
        lacking = room - self.open
        if lacking <= 0 or (
            self.open > 0 and 2 * lacking < self._messages_max and 2 * lacking < room
        ):
            return 0
        self.open += lacking
        return lacking
