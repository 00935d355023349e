"""A log that takes no more entries, for good: what its state says of that.

Set in topic/registry/termination.py; it rejects producers, and consumers at its end are notified.
"""

from __future__ import annotations

from collections.abc import Mapping

from onewriter_core.ids import Position
from onewriter_core.log_format.field_names import TERMINATED


def terminated_at(state: Mapping[str, str]) -> Position | None:
    """The last entry of a terminated log, EARLIEST when it has none; None: it is not terminated."""
    text = state.get(TERMINATED)
    return Position.parse(text) if text else None
