"""Finding the newest message in which a leader says who it is, from the topic's end backwards."""

from __future__ import annotations

from onewriter._errors import NoMessage, Unreadable
from onewriter._ids import EARLIEST, MessageId
from onewriter._leader import LeaderInfo, leader_in
from onewriter._reader import Reader

QUIET_SECONDS = 5.0
"""So long nothing came although the topic should hold more: what is left was trimmed meanwhile."""

_Place = tuple[int, int]


async def newest_leader(reader: Reader) -> LeaderInfo | None:
    """Read the last ledger, then twice as far back, and so on, until somebody says so.

    A ledger begins at each change of hands, so it mostly costs what was written since the last one.
    """
    last = await reader.last_message_id()
    if last is None:
        return None
    start, step, end = last.ledger, 1, (last.ledger, last.entry)
    while True:
        place = MessageId(start, 0) if start > 0 else EARLIEST
        await reader.seek(place, is_inclusive=True)
        found = await _newest_until(reader, end)
        if found is not None or place == EARLIEST:
            return found
        end = (start, -1)
        start, step = start - step, step * 2


async def _newest_until(reader: Reader, end: _Place) -> LeaderInfo | None:
    """From where the reader stands up to this entry, or the last one before it."""
    found: LeaderInfo | None = None
    while True:
        try:
            message = await reader.next(timeout_seconds=QUIET_SECONDS)
        except NoMessage:
            return found
        except Unreadable:
            continue
        place = (message.id.ledger, message.id.entry)
        if place > end:
            return found
        found = leader_in(message.properties, message.content) or found
        if place == end and message.ends_entry:
            return found
