"""Positions as brokers and offsets write them, ``ledger:entry``. Pure."""

from __future__ import annotations

from onewriter_core.ids import Position
from onewriter_pipeline.errors import Invalid


def position_of(text: str) -> Position:
    """A position as it is written; raises Invalid."""
    ledger, _, entry = text.partition(":")
    if not (ledger.isascii() and ledger.isdecimal() and entry.isascii() and entry.isdecimal()):
        raise Invalid(f"{text[:60]!r} is not a position: write <ledger>:<entry>")
    return Position(int(ledger), int(entry))


def shown(position: Position) -> str:
    """A position as it is written."""
    return f"{position.ledger}:{position.entry}"


def behind(position: Position) -> Position:
    """The next position of the same ledger."""
    return Position(position.ledger, position.entry + 1)
