"""Acknowledged entries that a store with a weak durability profile lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onewriter_core.ids import Position, TopicName


@dataclass(frozen=True, slots=True)
class Loss:
    """Acknowledged entries of one ledger that the store no longer has (a weak profile lost them).

    They are the entries after ``after`` up to and including ``last``.
    """

    topic: TopicName
    after: Position
    last: Position

    @property
    def entries(self) -> int:
        """The number of lost entries."""
        return self.last.entry - self.after.entry


def losses(topic: TopicName, ends: Iterable[Position], survived: Position) -> list[Loss]:
    """The losses of a log that has everything up to ``survived``, and nothing after it.

    ``ends``: the last acknowledged entry of each ledger.
    """
    return [
        Loss(topic, max(survived, Position(end.ledger, 0)), end) for end in ends if end > survived
    ]
