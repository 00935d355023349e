"""Finding the newest message in which a leader says who it is, from the topic's end backwards."""

from __future__ import annotations

from collections.abc import Iterator

from onewriter._consume.reader import Reader
from onewriter._errors import EndOfTopic, NoMessage, Unreadable
from onewriter._lead.announcement import LeaderInfo, leader_in
from onewriter._message import EARLIEST, MessageId

ENTRIES_FIRST = 64
ENTRIES_GROWTH = 8
"""So many entries from the end are read first; of the last ledger so many times more, again and again."""

QUIET_SECONDS = 5.0
"""So long nothing came although the topic should hold more: the broker is asked whether it does."""
QUIET_MAX = 2
"""So often in a row, with a broker that is there: what is left was trimmed meanwhile."""

_Place = tuple[int, int]


async def newest_leader(reader: Reader) -> LeaderInfo | None:
    """Read back from the end, stretch by stretch, until somebody says so.

    It costs what was written since. Raises Unavailable, Refused, Closed.
    """
    last = await reader.last_message_id()
    if last is None:
        return None
    end = last.position
    for start in stretches(last):
        await reader.seek(start, is_inclusive=True)
        found = await _newest_until(reader, end)
        if found is not None:
            return found
        end = (start.ledger, start.entry - 1)
    return None


def stretches(last: MessageId) -> Iterator[MessageId]:
    """Where to begin to read: within the last ledger, then ledgers before it, and at last EARLIEST."""
    entries = ENTRIES_FIRST
    while (entry := last.entry - entries + 1) > 0:
        yield MessageId(last.ledger, entry)
        entries *= ENTRIES_GROWTH
    ledger, step = last.ledger, 1
    while ledger > 0:
        yield MessageId(ledger, 0)
        ledger, step = ledger - step, step * 2
    yield EARLIEST


async def _newest_until(reader: Reader, end: _Place) -> LeaderInfo | None:
    """From where the reader stands up to this entry, or the last one before it."""
    found: LeaderInfo | None = None
    quiet = 0
    while True:
        try:
            message = await reader.next(timeout_seconds=QUIET_SECONDS)
        except NoMessage:
            # Or the broker is away, and the newest one is still to come: then it does not answer.
            if not await reader.has_message_available():
                return found
            quiet = quiet + 1 if reader.trouble is None else 0
            if quiet == QUIET_MAX:
                return found
            continue
        except EndOfTopic:
            return found
        except Unreadable:
            continue
        quiet = 0
        place = message.id.position
        if place > end:
            return found
        found = leader_in(message.properties, message.content) or found
        if place == end and message.ends_entry:
            return found
