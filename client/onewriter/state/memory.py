"""A log in memory for tests. All states that are opened on the same ``MemoryLog`` share it.

It behaves like a fenced topic: one grant at a time, in the order of arrival, and an append under an older grant is
refused. ``fence``, ``lose_answers``, ``break_followers`` and ``trim`` simulate the failures of topics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from onewriter._errors import (
    Closed,
    Fenced,
    OnewriterError,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._signal import Signal
from onewriter.state.log import BEGINNING, BarrierUnsupported, LogEntry, LogMessage
from onewriter_core.ids import Position

ENTRY_BYTES_MAX = 5 * 1024 * 1024


class MemoryLog:
    """Implements Log. For one event loop.

    With ``proves_end=False`` and ``tells_waiting=False`` it behaves like a stock Pulsar broker.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        proves_end: bool = True,
        tells_waiting: bool = True,
    ) -> None:
        self.name = name
        self.entry_bytes_max = entry_bytes_max
        self.entries: list[LogEntry] = []
        self.grants = 0
        """Number of grants, which is the epoch of the current one."""
        self.tells_waiting = tells_waiting
        self._proves_end = proves_end
        self._holder: MemoryGrant | None = None
        self._line: deque[tuple[asyncio.Future[MemoryGrant], Callable[[], None]]] = deque()
        self._grown = Signal()
        self._breaks = 0
        self._answers_lost = 0
        self._loses_entries = False

    # ------------------------------------------------------------ Log

    async def acquire(self, on_change: Callable[[], None]) -> MemoryGrant:
        """Queue for the grant; see Log."""
        turn: asyncio.Future[MemoryGrant] = asyncio.get_running_loop().create_future()
        self._line.append((turn, on_change))
        self._promote()
        self._notify_waiting()
        try:
            return await turn
        except asyncio.CancelledError:
            self._line = deque(each for each in self._line if each[0] is not turn)
            self._notify_waiting()
            if turn.done() and not turn.cancelled():
                await turn.result().hand_over()
            raise

    async def follow(self, after: Position | None) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries after a position, then new ones. Raises Unavailable after ``break_followers``."""
        reached = after or BEGINNING
        breaks = self._breaks
        while True:
            if breaks != self._breaks:
                raise Unavailable("the follower was broken off")
            batch = [entry for entry in self._behind(reached) if entry.position > reached]
            for entry in batch:
                if breaks != self._breaks:
                    break
                reached = entry.position
                yield entry
            if not batch:
                await self._grown.wait()

    async def end(self) -> Position:
        """Return the last entry's position."""
        await asyncio.sleep(0)
        return self.entries[-1].position if self.entries else BEGINNING

    async def barrier(self) -> Position:
        """Return the proved end. Raises BarrierUnsupported."""
        if not self._proves_end:
            raise BarrierUnsupported("this log is like a stock broker's")
        return await self.end()

    # ------------------------------------------------------------ simulated failures

    def fence(self) -> None:
        """Depose the holder, which learns of it when its next append is refused."""
        self._holder = None
        self._promote()

    def lose_answers(self, count: int = 1, *, loses_entries: bool = False) -> None:
        """Let the next ``count`` appends end with an unknown outcome.

        Their entries are stored unless ``loses_entries``.
        """
        self._answers_lost = count
        self._loses_entries = loses_entries

    def break_followers(self) -> None:
        """Break the connections of all followers."""
        self._breaks += 1
        self._grown.notify()

    def trim(self, before: Position) -> None:
        """Remove the entries before a position."""
        self.entries = [entry for entry in self.entries if entry.position >= before]

    def lose_tail(self, count: int) -> None:
        """Remove the latest entries: a fault of the store that no promise covers."""
        del self.entries[-count:]
        self.fence()

    # ------------------------------------------------------------ inside

    def _behind(self, position: Position) -> list[LogEntry]:
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].position > position:
                high = middle
            else:
                low = middle + 1
        return self.entries[low:]

    def waiting(self) -> int:
        """Return the number of waiters."""
        return len(self._line)

    def store(self, grant: MemoryGrant, messages: Sequence[LogMessage]) -> Position:
        """Append an entry if the grant is current, for ``MemoryGrant.append``."""
        if grant is not self._holder:
            raise Fenced("another writer has the log", epoch=grant.epoch, current_epoch=self.grants)
        last = self.entries[-1].position if self.entries else BEGINNING
        entry = 1 if last.ledger != grant.epoch else last.entry + 1
        position = Position(grant.epoch, entry)
        is_unknown = self._answers_lost > 0
        self._answers_lost -= is_unknown
        if not (is_unknown and self._loses_entries):
            self.entries.append(LogEntry(position, tuple(messages)))
            self._grown.notify()
        if is_unknown:
            self.leave(grant)
            raise OutcomeUnknown("the answer was lost")
        return position

    def leave(self, grant: MemoryGrant) -> None:
        """End the grant, and make the next one."""
        if self._holder is grant:
            self._holder = None
            self._promote()

    def _promote(self) -> None:
        while self._holder is None and self._line:
            turn, on_change = self._line.popleft()
            if turn.done():
                continue
            self.grants += 1
            self._holder = MemoryGrant(self, self.grants, on_change)
            turn.set_result(self._holder)
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        if self._holder is not None:
            self._holder.on_change()


class MemoryGrant:
    """Implements Grant."""

    def __init__(self, log: MemoryLog, epoch: int, on_change: Callable[[], None]) -> None:
        self.epoch = epoch
        self.end: OnewriterError | None = None
        self.on_change = on_change
        self._log = log

    @property
    def waiting(self) -> int | None:
        return self._log.waiting() if self._log.tells_waiting else None

    async def append(self, messages: Sequence[LogMessage]) -> asyncio.Future[object]:
        if self.end is not None:
            raise self.end
        if sum(len(message.content) for message in messages) > self._log.entry_bytes_max:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "the entry is too large")
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[object] = loop.create_future()
        try:
            position = self._log.store(self, messages)
        except OnewriterError as error:
            self.end = error
            receipt.set_exception(error)
            receipt.exception()
            self.on_change()
        else:
            loop.call_soon(_receive, receipt, position)
        return receipt

    async def hand_over(self) -> None:
        if self.end is None:
            self.end = Closed("handed over")
        self._log.leave(self)
        self.on_change()


def _receive(receipt: asyncio.Future[object], position: Position) -> None:
    if not receipt.done():
        receipt.set_result(position)
