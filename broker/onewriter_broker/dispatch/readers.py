"""Reading ahead of one subscription: out of memory at once, or from the store in a task.

Holds what was read and not yet handed out, bounded. Knows nothing of consumers or cursors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from onewriter_broker.dispatch.api import Spawn, TaskHandle
from onewriter_broker.dispatch.cursor import before
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.store.blocks import MalformedBlock
from onewriter_broker.log.topic_log.compacted_log import CompactedLog, ViewReading
from onewriter_broker.log.topic_log.entries import EntryRun
from onewriter_broker.log.topic_log.log import TRIMMED, TopicLog
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position

_log = structlog.get_logger(__name__)


def learn_gaps(gaps: LedgerGaps, after: Position, runs: Sequence[EntryRun]) -> bool:
    """Note the borders between ledgers that a read behind ``after`` has shown; True: news."""
    is_news, is_first = False, True
    for run in runs:
        if is_first or run.position.ledger != after.ledger:
            is_news = gaps.learn(after, run.position) or is_news
        is_first, after = False, run.last
    return is_news


async def read_at_last(
    log: TopicLog, after: Position, entries: int, limits: Limits
) -> list[EntryRun]:
    """What ``log.read`` gives, however long it takes: it is tried again until it succeeds.

    A block that cannot be understood is reported each time; nobody can read past it. Raises
    BrokenKey: the topic is to be closed.
    """
    while True:
        try:
            return await log.read(after, entries, limits.read_bytes)
        except BrokenKey:
            raise
        except (Undecided, Unavailable):
            await asyncio.sleep(limits.retry_seconds)
        except MalformedBlock as error:
            _log.error("block.unreadable", topic=str(log.name), after=str(after), why=str(error))
            await asyncio.sleep(limits.unreadable_retry_seconds)


class ViewReader:
    """Reads what stands for the log's beginning in its compacted view, for one ReadAhead.

    Who has begun to read a view goes on with it, and then with the log behind *its* horizon: a newer
    view lacks the messages that removed keys which the older one still had.
    """

    __slots__ = ("_is_due", "_limits", "_log", "_reading", "_rewinds")

    def __init__(self, log: TopicLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._is_due = True
        self._reading: ViewReading | None = None
        self._rewinds = 0

    @property
    def is_due(self) -> bool:
        """Whether the view is to be asked before the log."""
        return self._is_due

    def rewind(self) -> None:
        """Begin anew, with the view that counts by then."""
        self._is_due = True
        self._rewinds += 1
        if self._reading is not None:
            self._log.compacted.end(self._reading)
            self._reading = None

    async def read(self, after: Position) -> tuple[list[EntryRun], Position]:
        """The view's entries behind ``after``; none: the log goes on behind the second value.

        As ``read_at_last`` it takes as long as it takes. Raises BrokenKey.
        """
        if not self._is_due and self._trimmed <= (after.ledger, after.entry + 1):
            return [], after
        compacted = self._log.compacted
        while True:
            try:
                return await self._read_once(compacted, after)
            except BrokenKey:
                raise
            except (Undecided, Unavailable):
                await asyncio.sleep(self._limits.retry_seconds)
            except MalformedBlock as error:
                topic = str(self._log.name)
                _log.error("view.unreadable", topic=topic, after=str(after), why=str(error))
                await asyncio.sleep(self._limits.unreadable_retry_seconds)

    async def _read_once(
        self, compacted: CompactedLog, after: Position
    ) -> tuple[list[EntryRun], Position]:
        rewinds = self._rewinds
        while rewinds == self._rewinds:
            reading = self._reading
            if reading is None:
                reading = await compacted.begin(after)
                if rewinds != self._rewinds:
                    if reading is not None:
                        compacted.end(reading)
                    break
                if reading is None:
                    self._is_due = False
                    return [], after
                self._reading = reading
            runs = await compacted.read(
                reading, after, self._limits.read_entries, self._limits.read_bytes
            )
            if runs:
                return runs, runs[-1].last
            if rewinds == self._rewinds:
                self._reading = None
            if runs is not None:  # else the view was dropped, and another one counts
                compacted.end(reading)
                self._is_due = rewinds != self._rewinds
                return [], max(after, reading.view.horizon)
        return [], after

    @property
    def _trimmed(self) -> Position:
        text = self._log.state.get(TRIMMED)
        return Position(0, 0) if text is None else Position.parse(text)


class TailReader:
    """Reads the log's tail out of memory, once for all subscriptions that stand at its end."""

    __slots__ = ("_after", "_is_sharing", "_limits", "_log", "_runs")

    def __init__(self, log: TopicLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._is_sharing = False
        self._after: Position | None = None
        self._runs: list[EntryRun] | None = None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside, nothing is committed; who reads behind the same position gets the same list."""
        self._is_sharing = True
        try:
            yield
        finally:
            self._is_sharing = False
            self._after = self._runs = None

    def read(self, after: Position) -> list[EntryRun] | None:
        """What is committed behind ``after``, not to be changed; None: it is not in memory."""
        if self._is_sharing and after == self._after:
            return self._runs
        runs = self._log.read_tail(after, self._limits.read_entries, self._limits.read_bytes)
        if self._is_sharing:
            self._after, self._runs = after, runs
        return runs


class ReadBudget:
    """Bounds how many subscriptions, of a whole broker, hold entries that wait for a consumer.

    Each holds at most two reads (Limits.read_bytes and a block, or one larger entry). Who has held them
    longest gives them back and reads again when its consumer takes more.
    """

    def __init__(self, holders_max: int = 64) -> None:
        self._holders_max = holders_max
        self._holders: dict[ReadAhead, None] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def hold(self, reader: ReadAhead) -> None:
        """It keeps entries for later."""
        self._holders.pop(reader, None)
        self._holders[reader] = None
        if len(self._holders) > self._holders_max:
            next(iter(self._holders)).release()

    def drop(self, reader: ReadAhead) -> None:
        """It keeps none any more."""
        self._holders.pop(reader, None)


class ReadAhead:
    """The entries that come next, in order. ``position`` is the last one handed out."""

    def __init__(
        self,
        log: TopicLog,
        gaps: LedgerGaps,
        position: Position,
        *,
        tail: TailReader,
        budget: ReadBudget,
        spawn: Spawn,
        limits: Limits,
        ready: Callable[[], None],
        learned: Callable[[], None],
    ) -> None:
        self.position = position
        self._log = log
        self._gaps = gaps
        self._tail = tail
        self._budget = budget
        self._is_holding = False
        self._spawn = spawn
        self._limits = limits
        self._ready = ready
        self._learned = learned
        self._runs: deque[EntryRun] = deque()
        self._read_to = position
        self._following: list[EntryRun] = []  # the read behind _runs
        self._task: TaskHandle | None = None
        self._operation = 0
        self._view: ViewReader | None = None
        self.horizon = EARLIEST
        """Up to where what was read stood in a compacted view."""

    def read_compacted(self, *, is_on: bool) -> None:
        """Whether the compacted view is read where it stands for the log; a rewind has to follow."""
        if is_on != (self._view is not None):
            if self._view is not None:
                self._view.rewind()
            self._view = ViewReader(self._log, self._limits) if is_on else None

    def rewind(self, position: Position) -> None:
        """Go on behind ``position``. What was read or is being read counts no more."""
        self.position = position
        self.horizon = EARLIEST
        if self._view is not None:
            self._view.rewind()
        self.release()

    def release(self) -> None:
        """Give back the memory; go on where the last entry was handed out."""
        self._operation += 1
        self._hold(is_holding=False)
        self._runs.clear()
        self._following = []
        self._read_to = before(self._gaps.after(self.position))

    def close(self) -> None:
        """Stop for good."""
        self.rewind(self.position)
        if self._task is not None:
            self._task.cancel()

    def fill(self) -> bool:
        """Whether there is an entry to take now; if not, and the log has one, starts reading."""
        if self._runs:
            return True
        if self._following:
            self._runs.extend(self._following)
            self._following = []
            self._start_reading()
            return True
        if self._task is not None:
            return False
        is_view_first = self._view is not None and self._view.is_due
        runs = None if is_view_first else self._tail.read(self._read_to)
        if runs is None:
            self._start_reading()
            return False
        self._runs.extend(runs)
        self._note(runs)
        return bool(runs)

    @property
    def has_more(self) -> bool:
        """Whether ``fill`` is worth another call now."""
        return (
            bool(self._runs)
            or bool(self._following)
            or (self._task is None and self._read_to < self._log.committed)
        )

    @property
    def left_out(self) -> Position | None:
        """Up to where the compacted view has nothing behind the last entry that was taken, and the
        log neither; None: nothing is left out there, or something is being read.
        """
        is_idle = not self._runs and not self._following and self._task is None
        return self.horizon if is_idle and self.horizon > self.position else None

    def take(self, messages_max: int, bytes_max: int) -> tuple[list[EntryRun], int, int]:
        """Entries until a limit is reached or passed by the last, their messages and bytes.

        To be called after ``fill`` said yes, with limits above 0.
        """
        runs = self._runs
        taken: list[EntryRun] = []
        messages = size = 0
        while runs and messages < messages_max and size < bytes_max:
            run = runs.popleft()
            count = run.fitting(messages_max - messages, bytes_max - size)
            if count < len(run):
                run, rest = run.split(count)
                runs.appendleft(rest)
            taken.append(run)
            messages += run.messages
            size += run.size
        self.position = taken[-1].last
        if runs:
            if not self._is_holding:
                self._hold(is_holding=True)
        elif self._is_holding and not self._following:
            self._hold(is_holding=False)
        return taken, messages, size

    def skip_to(self, position: Position) -> None:
        """Leave out what lies up to ``position``, if that is ahead."""
        if position <= self._read_to:
            return
        self.rewind(position)

    def _start_reading(self) -> None:
        if self._task is None and self._read_to < self._log.committed:
            self._task = self._spawn(self._read(self._operation, self._read_to))

    async def _read(self, operation: int, after: Position) -> None:
        """Read once and say so. After a rewind the result is dropped: the next fill reads anew."""
        end, asked = self._log.committed, after
        runs: list[EntryRun] = []
        if self._view is not None:
            runs, after = await self._view.read(after)
        is_of_view = bool(runs)
        if not is_of_view:
            runs = await read_at_last(self._log, after, self._limits.read_entries, self._limits)
        self._task = None
        if operation == self._operation:
            self._following = runs
            self._read_to = max(self._read_to, after)
            if after > asked:
                self.horizon = after
            if is_of_view:
                self._hold(is_holding=True)
            elif runs:
                self._note(runs)
                self._hold(is_holding=True)
            elif end > after:
                # Only markers up to there: never ask the store for them again.
                self._read_to = end
                if self._gaps.learn(after, Position(end.ledger, end.entry + 1)):
                    self._learned()
        self._ready()

    def _hold(self, *, is_holding: bool) -> None:
        self._is_holding = is_holding
        if is_holding:
            self._budget.hold(self)
        else:
            self._budget.drop(self)

    def _note(self, runs: list[EntryRun]) -> None:
        if not runs:
            return
        is_news = learn_gaps(self._gaps, self._read_to, runs)
        self._read_to = runs[-1].last
        if is_news:
            self._learned()
