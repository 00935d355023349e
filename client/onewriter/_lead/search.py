"""Search for the latest announcement of a leader, backwards from the topic's end."""

from __future__ import annotations

from collections.abc import Iterator

from onewriter._consume.reader import Reader
from onewriter._errors import EndOfTopic, NoMessage, Unreadable
from onewriter._lead.announcement import LeaderInfo, leader_in
from onewriter._message import EARLIEST, MessageId

ENTRIES_FIRST = 64
ENTRIES_GROWTH = 8
"""Entries of the first range that is read from the end, and the growth factor of the next ranges."""

QUIET_SECONDS = 5.0
"""After this time without an expected message, the broker is asked whether the topic contains more."""
QUIET_MAX = 2
"""After this number of quiet periods with a reachable broker, the rest counts as trimmed."""

_Place = tuple[int, int]


async def newest_leader(
    reader: Reader, *, quiet_seconds: float = QUIET_SECONDS
) -> LeaderInfo | None:
    """Read range after range, backwards from the end, until one contains an announcement.

    The cost grows with the entries written since that announcement. Raises Unavailable, Refused, Closed.
    """
    last = await reader.last_message_id()
    if last is None:
        return None
    end = last.position
    for start in search_ranges(last):
        await reader.seek(start, is_inclusive=True)
        found = await _newest_until(reader, end, quiet_seconds)
        if found is not None:
            return found
        end = (start.ledger, start.entry - 1)
    return None


def search_ranges(last: MessageId) -> Iterator[MessageId]:
    """Yield the begins of the ranges: within the last ledger, then in earlier ledgers, at last EARLIEST."""
    entries = ENTRIES_FIRST
    while (entry := last.entry - entries + 1) > 0:
        yield MessageId(last.ledger, entry)
        entries *= ENTRIES_GROWTH
    ledger, step = last.ledger, 1
    while ledger > 0:
        yield MessageId(ledger, 0)
        ledger, step = ledger - step, step * 2
    yield EARLIEST


async def _newest_until(reader: Reader, end: _Place, quiet_seconds: float) -> LeaderInfo | None:
    """Return the latest announcement between the reader's position and ``end``."""
    found: LeaderInfo | None = None
    quiet = 0
    while True:
        try:
            message = await reader.next(timeout_seconds=quiet_seconds)
        except NoMessage:
            # If the broker is down, this call does not answer, and the search does not end too early.
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
