"""A replica: a state that follows its log, from a checkpoint or the beginning.

This module follows the log, starts again after errors, and waits for positions. The effect of an entry is in
fold.py; checkpoints come from ``Recover``; writing is in writer.py.

After a broken connection the replica follows again, after the last folded entry. If the fold does not match the log
any more (entries before it were trimmed, or lost), a new fold replaces it: from the latest checkpoint, then from
the log's beginning. If neither leads to the entry that revealed the mismatch, the result is a StateGap, which every
read raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from onewriter._config import Backoff
from onewriter._errors import Closed, OnewriterError, Refused, Unavailable
from onewriter._signal import Signal
from onewriter.state.envelope import Stamp
from onewriter.state.errors import StateError, StateGap, UnreadableEntry
from onewriter.state.fold import Base, Fold, GapFound, HistoryRewritten, Memo, Rules, Taken
from onewriter.state.log import BEGINNING, BarrierUnsupported, Log, LogEntry
from onewriter_core.ids import Position

ENTRIES_PER_TICK = 256
"""Number of entries that are folded before the event loop runs other tasks."""

FOLDS_MAX = 2
"""Number of folds for one mismatching entry: from a checkpoint, and from the beginning."""

GAP_RETRY_SECONDS = 5.0
"""Pause after a gap was found; another instance may still write a checkpoint that covers it."""

S = TypeVar("S")
Op = TypeVar("Op")

Trouble = StateError | Refused | Closed
"""The reason why a replica does not continue. Closed: its client was closed."""

Recover = Callable[[], Awaitable[Base[S]]]
"""Returns the base to begin with: the latest valid checkpoint, else the beginning."""

log = logging.getLogger("onewriter")


class Replica(Generic[S, Op]):
    """Follows a log; ``run`` it in a task.

    It calls ``on_taken`` at once for every applied entry, and ``on_trouble`` for every trouble; they must not
    block.
    """

    def __init__(
        self,
        source: Log,
        rules: Rules[S, Op],
        recover: Recover[S],
        *,
        memo: Callable[[Stamp], Memo[S, Op] | None],
        on_taken: Callable[[Taken[S, Op]], None],
        on_replaced: Callable[[S, S], None],
        on_trouble: Callable[[Trouble], None],
    ) -> None:
        self._source = source
        self._rules = rules
        self._recover = recover
        self._memo = memo
        self._on_taken = on_taken
        self._on_replaced = on_replaced
        self._on_trouble = on_trouble
        self.fold: Fold[S, Op] = Fold(rules, Base(rules.initial()))
        self.is_complete = False
        """Whether the fold has reached the end that the log had when the fold began."""
        self.trouble: Trouble | None = None
        """The reason why it does not continue; None while it does."""
        self.moved = Signal()
        """Notified when the fold, its completeness or the trouble has changed."""
        self._goal = BEGINNING
        self._is_from_beginning = True
        self._misfit = BEGINNING
        """The furthest entry that did not match a fold,"""
        self._misfits = 0
        """and the number of mismatches since a fold came further than that."""
        self._following: asyncio.Task[OnewriterError] | None = None
        self._is_suspect = False
        """The current fold contains lost entries, and no new fold has begun yet."""
        self._shown: S | None = None
        """The state that was readable before the fold was replaced; None: none."""

    async def run(self) -> None:
        """Follow until an entry cannot be read, the broker refuses, or the client is closed."""
        backoff = Backoff()
        await self._begin_anew()
        while True:
            async with asyncio.TaskGroup() as group:
                self._following = group.create_task(self._follow(backoff))
            if self._is_suspect:  # the fold is invalid, whatever ended the follower
                await self._begin_anew()
                continue
            if self._following.cancelled():
                raise asyncio.CancelledError  # the cancellation came from outside
            match self._following.result():
                case (GapFound() | HistoryRewritten()) as error:
                    await self._refit(error)
                case (UnreadableEntry() | Refused() | Closed()) as error:
                    self._fail(error)
                    return
                case error:
                    log.info("%s: following again: %s", self._source.name, error)
                    await asyncio.sleep(backoff.seconds())
                    if self._is_suspect:
                        await self._begin_anew()

    def suspect(self) -> None:
        """Fold again, because the log ends before the fold: it has lost entries."""
        if self._following is not None and not self._is_suspect:
            log.warning(
                "%s: the log lost entries; reading it again from the start", self._source.name
            )
            self._is_suspect = True
            if self.is_complete:
                self._shown = self.fold.state
            self.is_complete = False
            self._following.cancel()
            self.moved.notify()

    async def _follow(self, backoff: Backoff) -> OnewriterError:
        """Fold all entries, and return the reason when that ends."""
        taken = 0
        try:
            async with aclosing(self._source.follow(self.fold.position)) as entries:
                async for entry in entries:
                    self._take(entry)
                    backoff.reset()
                    if self._misfits and self.fold.position >= self._misfit:
                        self._misfits = 0
                    taken += 1
                    if taken % ENTRIES_PER_TICK == 0:
                        await asyncio.sleep(0)
        except OnewriterError as error:
            return error
        return Unavailable("the log ended")

    async def _refit(self, error: StateError) -> None:
        """Fold again after a mismatch: from a checkpoint, then from the log's beginning."""
        log.warning("%s: %s; reading it again from the start", self._source.name, error)
        self._misfits += 1
        self._misfit = max(self._misfit, error.position)
        if self._misfits > FOLDS_MAX:
            self._fail(StateGap(str(error), position=self._misfit))
            await asyncio.sleep(GAP_RETRY_SECONDS)
            self._misfits = 1
        await self._begin_anew(from_beginning=self._misfits == FOLDS_MAX)

    async def reach(self, position: Position) -> None:
        """Wait until everything up to ``position`` is folded. Raises the trouble that prevents it."""
        await self.moved.until(lambda: self._is_in_the_way() or self.fold.position >= position)
        if self.fold.position < position and self.trouble is not None:
            raise self.trouble

    async def complete(self) -> None:
        """Wait until the whole log was folded once. Raises the trouble that prevents it."""
        await self.moved.until(lambda: self._is_in_the_way() or self.is_complete)
        if not self.is_complete and self.trouble is not None:
            raise self.trouble

    def _is_in_the_way(self) -> bool:
        return self.trouble is not None

    # ------------------------------------------------------------ inside

    async def _begin_anew(self, *, from_beginning: bool = False) -> None:
        """Replace the fold by a new one, and determine the end that it has to reach."""
        if self.is_complete:
            self._shown = self.fold.state
        self.is_complete = False
        backoff = Backoff()
        while True:
            self._is_suspect = False
            try:
                base = Base(self._rules.initial()) if from_beginning else await self._recover()
                goal = await self._end()
                if self._is_suspect:
                    continue  # entries were lost meanwhile: the base may be from before
                if goal == BEGINNING == base.position and self.fold.version > 0:
                    raise StateGap("the log holds nothing any more", position=self.fold.position)
                self.fold, self._goal = Fold(self._rules, base), goal
                self._is_from_beginning = base.position == BEGINNING
                break
            except (Refused, StateGap, Closed) as error:
                self._fail(error)
            except OnewriterError as error:
                log.info("%s: not read yet: %s", self._source.name, error)
            await asyncio.sleep(backoff.seconds())
        self._check_goal()

    async def _end(self) -> Position:
        try:
            return await self._source.barrier()
        except BarrierUnsupported:
            return await self._source.end()

    def _take(self, entry: LogEntry) -> None:
        is_as_stored = self._is_from_beginning and entry.position <= self._goal
        taken = self.fold.take(entry, self._memo, is_as_stored=is_as_stored)
        if isinstance(self.trouble, StateGap):
            self.trouble = None  # a checkpoint covers the gap after all
        self._on_taken(taken)
        self._check_goal()

    def _check_goal(self) -> None:
        if not self.is_complete and self.fold.position >= self._goal:
            self.is_complete = True
            self.trouble = None
            if self._shown is not None:
                before, self._shown = self._shown, None
                self._on_replaced(before, self.fold.state)
        self.moved.notify()

    def _fail(self, error: Trouble) -> None:
        if isinstance(error, UnreadableEntry):
            self.is_complete = True  # the state is readable up to this entry
        self.trouble = error
        self._on_trouble(error)
        self.moved.notify()
