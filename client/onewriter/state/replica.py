"""A state that follows its log: folded from a checkpoint or the beginning, kept up to date.

What lives here: following, beginning anew after errors, waiting until a position is reached. What
does not: what an entry means (fold.py), where checkpoints come from (``Recover``), writing.

A broken follower is replaced behind the last entry that was folded. A fold that does not fit the
log any more (entries cut in front of it, or lost) is replaced by a new one: from the newest
checkpoint, then from the log's beginning. If neither leads to the entry that showed it, that is a
StateGap, told to everybody who asks.
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

ENTRIES_PER_TURN = 256
"""Entries that are folded before others have their turn of the loop."""

FOLDS_MAX = 2
"""Folds that are tried for one entry that does not fit: from a checkpoint, from the beginning."""

GAP_RETRY_SECONDS = 5.0
"""After a gap was found: a checkpoint that covers it may still be written by somebody."""

S = TypeVar("S")
Op = TypeVar("Op")

Trouble = StateError | Refused | Closed
"""Why a replica does not go on. Closed: the client beneath it was."""

Recover = Callable[[], Awaitable[Base[S]]]
"""Gives where to begin: the newest checkpoint that is good, else the beginning."""

log = logging.getLogger("onewriter")


class Replica(Generic[S, Op]):
    """``run`` it. ``on_taken`` hears of every entry that was applied, at once, and
    ``on_trouble`` of what is in the way; they must not block.
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
        """The fold has reached the end that the log had when it was begun."""
        self.trouble: Trouble | None = None
        """Why it does not go on; None while it does."""
        self.moved = Signal()
        """The fold has moved, or completeness or trouble has changed."""
        self._goal = BEGINNING
        self._is_from_beginning = True
        self._misfit = BEGINNING
        """The furthest entry that did not fit,"""
        self._misfits = 0
        """and how often none did, since the fold came further than that."""
        self._following: asyncio.Task[OnewriterError] | None = None
        self._is_suspect = False
        """The present fold holds what the log has lost, and no new one was begun yet."""
        self._shown: S | None = None
        """What was readable before the fold was replaced; None: nothing was."""

    async def run(self) -> None:
        """Follow for ever; returns only when an entry cannot be read, the broker refuses, or
        the client is closed.
        """
        backoff = Backoff()
        await self._begin_anew()
        while True:
            async with asyncio.TaskGroup() as group:
                self._following = group.create_task(self._follow(backoff))
            if self._is_suspect:  # whatever ended it, what it folded is no good
                await self._begin_anew()
                continue
            if self._following.cancelled():
                raise asyncio.CancelledError  # it was not ours
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
        """The log ends in front of what was folded: it lost entries, so fold it anew."""
        if self._following is not None and not self._is_suspect:
            log.warning(
                "%s: the log lost entries; reading it again from the start", self._source.name
            )
            self._is_suspect = True
            if self.is_complete:
                self._shown = self.fold.state
            self.is_complete = False
            self._following.cancel()
            self.moved.tell()

    async def _follow(self, backoff: Backoff) -> OnewriterError:
        """Fold whatever comes; why that ended."""
        taken = 0
        try:
            async with aclosing(self._source.follow(self.fold.position)) as entries:
                async for entry in entries:
                    self._take(entry)
                    backoff.reset()
                    if self._misfits and self.fold.position >= self._misfit:
                        self._misfits = 0
                    taken += 1
                    if taken % ENTRIES_PER_TURN == 0:
                        await asyncio.sleep(0)
        except OnewriterError as error:
            return error
        return Unavailable("the log ended")

    async def _refit(self, error: StateError) -> None:
        """Fold anew what does not fit the log: from a checkpoint, then from its beginning."""
        log.warning("%s: %s; reading it again from the start", self._source.name, error)
        self._misfits += 1
        self._misfit = max(self._misfit, error.position)
        if self._misfits > FOLDS_MAX:
            self._fail(StateGap(str(error), position=self._misfit))
            await asyncio.sleep(GAP_RETRY_SECONDS)
            self._misfits = 1
        await self._begin_anew(from_beginning=self._misfits == FOLDS_MAX)

    async def reach(self, position: Position) -> None:
        """Wait until everything up to ``position`` is folded. Raises what is in the way."""
        await self.moved.until(lambda: self._is_in_the_way() or self.fold.position >= position)
        if self.fold.position < position and self.trouble is not None:
            raise self.trouble

    async def complete(self) -> None:
        """Wait until it may be read: the whole log was folded once. Raises what is in the way."""
        await self.moved.until(lambda: self._is_in_the_way() or self.is_complete)
        if not self.is_complete and self.trouble is not None:
            raise self.trouble

    def _is_in_the_way(self) -> bool:
        return self.trouble is not None

    # ------------------------------------------------------------ inside

    async def _begin_anew(self, *, from_beginning: bool = False) -> None:
        """Put a new fold in place of the present one, and find out how far it has to come."""
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
                    continue  # it was lost meanwhile: what was just read may be of before
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
        self._look()

    async def _end(self) -> Position:
        try:
            return await self._source.barrier()
        except BarrierUnsupported:
            return await self._source.end()

    def _take(self, entry: LogEntry) -> None:
        is_as_stored = self._is_from_beginning and entry.position <= self._goal
        taken = self.fold.take(entry, self._memo, is_as_stored=is_as_stored)
        if isinstance(self.trouble, StateGap):
            self.trouble = None  # it was covered after all
        self._on_taken(taken)
        self._look()

    def _look(self) -> None:
        if not self.is_complete and self.fold.position >= self._goal:
            self.is_complete = True
            self.trouble = None
            if self._shown is not None:
                before, self._shown = self._shown, None
                self._on_replaced(before, self.fold.state)
        self.moved.tell()

    def _fail(self, error: Trouble) -> None:
        if isinstance(error, UnreadableEntry):
            self.is_complete = True  # it may be read up to there
        self.trouble = error
        self._on_trouble(error)
        self.moved.tell()
