"""The state of a terminated log, which accepts no more entries.

topic/registry/termination.py sets it, rejects producers, and notifies consumers at its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from onewriter_core.ids import Position
from onewriter_core.log_format.field_names import TERMINATED


def terminated_at(state: Mapping[str, str]) -> Position | None:
    """The last entry of a terminated log, EARLIEST if it has none; None if the log is not terminated."""
    text = state.get(TERMINATED)
    return Position.parse(text) if text else None
