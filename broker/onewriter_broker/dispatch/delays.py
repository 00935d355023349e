"""Delivery at a later time: entries of a Shared subscription that wait for their moment.

Exclusive and Failover subscriptions keep the order and deliver at once, as in Pulsar. Kept in memory
only: whoever dispatches next reads the entries again, and finds out the same.
"""

from __future__ import annotations

import asyncio
import heapq
import struct
from collections.abc import Callable, Iterator

from onewriter_broker.log.topic_log.entries import Entry, EntryRun
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position
from onewriter_core.wire.frames import CHECKSUM_MAGIC
from onewriter_core.wire.messages import parse_metadata

LOOK_SECONDS_MAX = 60.0
"""Between two looks at the time of day, which may be set."""

_DELIVER_AT_TAG = b"\x98\x01"
"""How field 19 of an entry's metadata begins: deliver_at_time, a number."""

_size = struct.Struct(">I").unpack_from
_BEGIN = 4
"""Where the metadata of an entry begins: behind its size."""
_BEGIN_CHECKED = 10
"""The same where a checksum stands in front: magic (2) and itself (4)."""


class Delays:
    """Entries that wait. ``due`` is called, from the event loop, when some wait no longer."""

    def __init__(self, wall_clock_ms: Callable[[], int], due: Callable[[], None]) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._due = due
        self._waiting: list[tuple[int, Position]] = []  # a heap
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def postpone(self, entry: Entry) -> bool:
        """Whether it has to wait; then it is kept until its time has come."""
        deliver_at_ms = _deliver_at_ms(entry)
        if deliver_at_ms <= self._wall_clock_ms():
            return False
        heapq.heappush(self._waiting, (deliver_at_ms, entry.position))
        if self._waiting[0][1] == entry.position:
            self._set_timer()
        return True

    def take_due(self) -> Iterator[Position]:
        """Those whose time has come; they are not kept any more."""
        now_ms = self._wall_clock_ms() if self._waiting else 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            yield heapq.heappop(self._waiting)[1]

    def close(self) -> None:
        """Forget them all."""
        self._waiting.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            seconds = (self._waiting[0][0] - self._wall_clock_ms()) / 1000
            delay = min(max(seconds, 0.0), LOOK_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting and self._waiting[0][0] <= self._wall_clock_ms():
            self._due()
        self._set_timer()


def may_be_delayed(run: EntryRun) -> bool:
    """Whether the metadata of any of its entries looks as if it named a time of delivery.

    Quick, because every entry of a Shared subscription is looked at: nothing is parsed, and what
    cannot be read looks delayed.
    """
    payload, start = run.block.payload, run.offset
    find = payload.find
    try:
        for end in run.ends[run.start : run.stop]:
            # No size begins with the checksum's magic: it would be one of 200 MB.
            begin = start + (_BEGIN_CHECKED if payload[start] == CHECKSUM_MAGIC[0] else _BEGIN)
            if find(_DELIVER_AT_TAG, begin, begin + _size(payload, begin - _BEGIN)[0]) >= 0:
                return True
            start = end
    except (IndexError, struct.error):
        return True
    return False


def _deliver_at_ms(entry: Entry) -> int:
    """When it may be delivered, milliseconds since 1970; 0: at once."""
    try:
        return parse_metadata(entry.payload).deliver_at_time
    except ProtocolError:
        return 0
