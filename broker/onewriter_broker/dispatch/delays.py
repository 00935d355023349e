"""Delayed delivery: entries of a Shared subscription that wait for their time.

Exclusive and Failover subscriptions keep the order and deliver at once, as in Pulsar. The state is only in
memory: the next dispatcher reads the entries again.
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

TIMER_SECONDS_MAX = 60.0
"""Longest interval between two readings of the wall clock, which may be changed."""

_DELIVER_AT_TAG = b"\x98\x01"
"""The beginning of field 19 of an entry's metadata: deliver_at_time, a number."""

_size = struct.Struct(">I").unpack_from
_BEGIN = 4
"""The offset of the metadata in an entry, after its size."""
_BEGIN_CHECKED = 10
"""The same with a checksum before it: magic (2 bytes) and checksum (4 bytes)."""


class Delays:
    """Entries that wait. ``due`` is called from the event loop when some of them are due."""

    def __init__(self, wall_clock_ms: Callable[[], int], due: Callable[[], None]) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._due = due
        self._waiting: list[tuple[int, Position]] = []  # a heap
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def postpone(self, entry: Entry) -> bool:
        """Whether the entry has to wait; if so, it is kept until its time."""
        deliver_at_ms = _deliver_at_ms(entry)
        if deliver_at_ms <= self._wall_clock_ms():
            return False
        heapq.heappush(self._waiting, (deliver_at_ms, entry.position))
        if self._waiting[0][1] == entry.position:
            self._set_timer()
        return True

    def take_due(self) -> Iterator[Position]:
        """Remove and return the entries that are due."""
        now_ms = self._wall_clock_ms() if self._waiting else 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            yield heapq.heappop(self._waiting)[1]

    def close(self) -> None:
        """Forget all entries."""
        self._waiting.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            seconds = (self._waiting[0][0] - self._wall_clock_ms()) / 1000
            delay = min(max(seconds, 0.0), TIMER_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiting and self._waiting[0][0] <= self._wall_clock_ms():
            self._due()
        self._set_timer()


def may_be_delayed(run: EntryRun) -> bool:
    """Whether the metadata of any of its entries may contain a time of delivery.

    It must be fast, because it checks every entry of a Shared subscription. It does not parse, and treats
    what it cannot read as delayed.
    """
    payload, start = run.block.payload, run.offset
    find = payload.find
    try:
        for end in run.ends[run.start : run.stop]:
            # No size begins with the checksum's magic: it would be 200 MB.
            begin = start + (_BEGIN_CHECKED if payload[start] == CHECKSUM_MAGIC[0] else _BEGIN)
            if find(_DELIVER_AT_TAG, begin, begin + _size(payload, begin - _BEGIN)[0]) >= 0:
                return True
            start = end
    except (IndexError, struct.error):
        return True
    return False


def _deliver_at_ms(entry: Entry) -> int:
    """The time of delivery, in milliseconds since 1970; 0 for immediate delivery."""
    try:
        return parse_metadata(entry.payload).deliver_at_time
    except ProtocolError:
        return 0
