"""Where a message stands in its topic's log."""

from __future__ import annotations

from typing import NamedTuple

from onewriter_core.errors import ConfigurationError
from onewriter_core.wire.values import MessageId as WireId


class MessageId(NamedTuple):
    """Where a message stands in its topic's log; ids of one topic order as its messages do.

    ``ledger`` rises at each change of hands. ``batch_index`` is the message's place in its entry, -1
    for one that is an entry of its own. Ledger and entry are -1 for a message that is certainly
    stored, at a position that the broker no longer remembers (a resend, after a change of broker).
    """

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        text = f"{self.ledger}:{self.entry}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    @property
    def position(self) -> tuple[int, int]:
        """Ledger and entry: the messages of one entry share it."""
        return self.ledger, self.entry

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """What ``str`` gives, or just ``LEDGER:ENTRY``. Raises ConfigurationError."""
        try:
            numbers = [int(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if not 2 <= len(numbers) <= 4:
            raise ConfigurationError(
                f"{text!r} is not a message id: write LEDGER:ENTRY[:PARTITION[:BATCH_INDEX]]"
            )
        return cls(*numbers)

    @classmethod
    def of(cls, received: WireId) -> MessageId:
        """From the wire, where ledger and entry are unsigned."""
        return cls(
            _signed(received.ledger),
            _signed(received.entry),
            received.partition,
            received.batch_index,
        )


EARLIEST = MessageId(-1, -1)
"""Before the first message of any topic."""

LATEST = MessageId(2**63 - 1, 2**63 - 1)
"""Behind the last message of any topic, whatever that is at the moment."""


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
