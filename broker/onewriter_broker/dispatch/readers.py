"""Reads ahead for one subscription: from memory at once, or from the store in a task.

It holds a bounded number of entries that are read but not delivered. It knows neither consumers nor cursors.
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
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.log_format.field_names import TRIMMED

_log = structlog.get_logger(__name__)


def learn_gaps(gaps: LedgerGaps, after: Position, runs: Sequence[EntryRun]) -> bool:
    """Record the borders between ledgers that a read after ``after`` has shown; True if any is new."""
    is_news, is_first = False, True
    for run in runs:
        if is_first or run.position.ledger != after.ledger:
            is_news = gaps.learn(after, run.position) or is_news
        is_first, after = False, run.last
    return is_news


async def read_at_last(
    log: TopicLog, after: Position, entries: int, limits: Limits
) -> list[EntryRun]:
    """The result of ``log.read``, which is retried until it succeeds.

    An unreadable block is reported at each attempt, and nothing is read past it. Raises BrokenKey: the topic
    has to be closed.
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
    """Reads the part of a log that its compacted view replaces, for one ReadAhead.

    A reader that has begun with a view continues with it, and then with the log after the horizon of *that*
    view: a newer view lacks the messages that removed keys which the older one still had.
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
        """Whether to read the view before the log."""
        return self._is_due

    def rewind(self) -> None:
        """Begin again, with the view that is current by then."""
        self._is_due = True
        self._rewinds += 1
        if self._reading is not None:
            self._log.compacted.end(self._reading)
            self._reading = None

    async def read(self, after: Position) -> tuple[list[EntryRun], Position]:
        """The view's entries after ``after``; if there are none, the log continues after the second value.

        As ``read_at_last``, it retries until it succeeds. Raises BrokenKey.
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
            if runs is not None:  # otherwise the view was replaced
                compacted.end(reading)
                self._is_due = rewinds != self._rewinds
                return [], max(after, reading.view.horizon)
        return [], after

    @property
    def _trimmed(self) -> Position:
        text = self._log.state.get(TRIMMED)
        return Position(0, 0) if text is None else Position.parse(text)


class TailReader:
    """Reads the log's tail from memory, once for all subscriptions at its end."""

    __slots__ = ("_after", "_is_sharing", "_limits", "_log", "_runs")

    def __init__(self, log: TopicLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._is_sharing = False
        self._after: Position | None = None
        self._runs: list[EntryRun] | None = None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """While the context is open, nothing is committed, and reads after the same position return the same
        list.
        """
        self._is_sharing = True
        try:
            yield
        finally:
            self._is_sharing = False
            self._after = self._runs = None

    def read(self, after: Position) -> list[EntryRun] | None:
        """The committed entries after ``after``, which must not be changed; None if they are not in memory."""
        if self._is_sharing and after == self._after:
            return self._runs
        runs = self._log.read_tail(after, self._limits.read_entries, self._limits.read_bytes)
        if self._is_sharing:
            self._after, self._runs = after, runs
        return runs


class ReadBudget:
    """Limits how many subscriptions of a broker hold entries that wait for a consumer.

    Each holds at most two reads (Limits.read_bytes and a block, or one larger entry). The subscription that
    has held entries for the longest time drops them, and reads them again when its consumer accepts more.
    """

    def __init__(self, holders_max: int = 64) -> None:
        self._holders_max = holders_max
        self._holders: dict[ReadAhead, None] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def hold(self, reader: ReadAhead) -> None:
        """Record that the reader holds entries."""
        self._holders.pop(reader, None)
        self._holders[reader] = None
        if len(self._holders) > self._holders_max:
            next(iter(self._holders)).release()

    def drop(self, reader: ReadAhead) -> None:
        """Record that the reader holds no entries."""
        self._holders.pop(reader, None)


class ReadAhead:
    """The next entries in order. ``position`` is the last one that was taken."""

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
        self._following: list[EntryRun] = []  # the read after _runs
        self._task: TaskHandle | None = None
        self._operation = 0
        self._view: ViewReader | None = None
        self.horizon = EARLIEST
        """The end of the part that was read from a compacted view."""

    def read_compacted(self, *, is_on: bool) -> None:
        """Whether to read the compacted view where it replaces the log; call ``rewind`` afterwards."""
        if is_on != (self._view is not None):
            if self._view is not None:
                self._view.rewind()
            self._view = ViewReader(self._log, self._limits) if is_on else None

    def rewind(self, position: Position) -> None:
        """Continue after ``position``. Entries that were read or are being read are dropped."""
        self.position = position
        self.horizon = EARLIEST
        if self._view is not None:
            self._view.rewind()
        self.release()

    def release(self) -> None:
        """Free the memory; continue after the last entry that was taken."""
        self._operation += 1
        self._hold(is_holding=False)
        self._runs.clear()
        self._following = []
        self._read_to = before(self._gaps.after(self.position))

    def close(self) -> None:
        """Stop permanently."""
        self.rewind(self.position)
        if self._task is not None:
            self._task.cancel()

    def fill(self) -> bool:
        """Whether there is an entry to take now; if not, and the log has one, starts to read."""
        self._drop_trimmed()
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

    def _drop_trimmed(self) -> None:
        """Read again if the log was trimmed after entries were read. A compacted view still has them."""
        held = self._runs or self._following
        if self._view is None and held and held[0].position <= self._log.trimmed_up_to:
            self.release()

    @property
    def has_more(self) -> bool:
        """Whether to call ``fill`` again now."""
        return (
            bool(self._runs)
            or bool(self._following)
            or (self._task is None and self._read_to < self._log.committed)
        )

    @property
    def left_out(self) -> Position | None:
        """The position up to which neither the compacted view nor the log has anything after the last taken
        entry; None if nothing is left out there, or something is being read.
        """
        is_idle = not self._runs and not self._following and self._task is None
        return self.horizon if is_idle and self.horizon > self.position else None

    def take(self, messages_max: int, bytes_max: int) -> tuple[list[EntryRun], int, int]:
        """Entries until a limit is reached (the last entry may exceed it), their messages and bytes.

        Call it after ``fill`` returned True, with limits above 0.
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
        """Skip everything up to ``position``, if that is ahead."""
        if position <= self._read_to:
            return
        self.rewind(position)

    def _start_reading(self) -> None:
        if self._task is None and self._read_to < self._log.committed:
            self._task = self._spawn(self._read(self._operation, self._read_to))

    async def _read(self, operation: int, after: Position) -> None:
        """Read once and report it. After a rewind the result is dropped, and the next fill reads again."""
        end, requested = self._log.committed, after
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
            if after > requested:
                self.horizon = after
            if is_of_view:
                self._hold(is_holding=True)
            elif runs:
                self._note(runs)
                self._hold(is_holding=True)
            elif end > after:
                # There are only markers up to there: never read them again.
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
