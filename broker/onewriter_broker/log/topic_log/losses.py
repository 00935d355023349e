"""What a store with a weak profile lost of what had been acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onewriter_core.ids import Position, TopicName


@dataclass(frozen=True, slots=True)
class Loss:
    """Acknowledged entries of one ledger that the store no longer has (a weak profile lost them).

    They are those behind ``after`` up to and with ``last``.
    """

    topic: TopicName
    after: Position
    last: Position

    @property
    def entries(self) -> int:
        """How many."""
        return self.last.entry - self.after.entry


def losses(topic: TopicName, ends: Iterable[Position], survived: Position) -> list[Loss]:
    """What is lost of a log of which everything up to ``survived`` is there, and nothing behind.

    ``ends``: the last acknowledged entry of each ledger.
    """
    return [
        Loss(topic, max(survived, Position(end.ledger, 0)), end) for end in ends if end > survived
    ]
