"""Saves cursors: one write at a time per log, which contains all that is dirty.

A changed cursor is saved within a short interval, or at once if a receipt waits for it. What could not be
saved stays dirty and is retried. Until then a receipt waits, unless the answer is definite.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from onewriter_broker.dispatch.api import Receipt, Spawn, TaskHandle
from onewriter_broker.dispatch.cursor import Cursor, CursorFormatError
from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.log.store.api import BrokenKey
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import EARLIEST, Position

STATE_PREFIX = "cursor:"
"""Prefix of the log's state fields; the name of the subscription follows."""


def cursor_text(cursor: Cursor, properties: Mapping[str, str], limits: Limits) -> str:
    """The contents of a subscription's state field."""
    saved = cursor.to_saved(
        ranges_max=limits.ranges_saved_max, partial_bytes_max=limits.partial_saved_bytes_max
    )
    if properties:
        saved["p"] = dict(properties)
    return json.dumps(saved, separators=(",", ":"))


def read_cursor(text: str, gaps: LedgerGaps, limits: Limits) -> tuple[Cursor, dict[str, str]]:
    """The cursor and properties in a state field; raises CursorFormatError."""
    try:
        saved: Any = json.loads(text)
    except ValueError as error:
        raise CursorFormatError(f"a saved cursor is not JSON: {error}") from error
    if not isinstance(saved, dict):
        raise CursorFormatError("a saved cursor is not an object")
    cursor = Cursor.from_saved(
        saved, gaps, ranges_max=limits.ranges_max, partial_bytes_max=limits.partial_bytes_max
    )
    properties = saved.get("p", {})
    if not isinstance(properties, dict):
        raise CursorFormatError("a saved cursor's properties are not an object")
    return cursor, {str(key): str(value) for key, value in properties.items()}


def lowest_saved_position(state: Mapping[str, str], limits: Limits) -> Position | None:
    """The position of the slowest subscription of a log that is not loaded; None if it has none.

    A subscription whose cursor cannot be read needs everything.
    """
    gaps = LedgerGaps(limits.ledger_gaps_max)
    found: list[Position] = []
    for field, text in state.items():
        if field.startswith(STATE_PREFIX):
            try:
                found.append(read_cursor(text, gaps, limits)[0].mark_delete)
            except CursorFormatError:
                found.append(EARLIEST)
    return min(found, default=None)


class _Durable(NamedTuple):
    """The saved part of a subscription: as it is when the write begins, not when it was marked."""

    cursor: Cursor
    properties: Mapping[str, str]


class CursorSaver:
    """The dirty cursors of one log. Its task exists only while there are some."""

    __slots__ = (
        "_dirty",
        "_is_closed",
        "_limits",
        "_log",
        "_receipt_count",
        "_receipts",
        "_saving",
        "_spawn",
        "_task",
        "_turn",
        "_urgent",
    )

    def __init__(self, log: TopicLog, *, spawn: Spawn, limits: Limits) -> None:
        self._log = log
        self._spawn = spawn
        self._limits = limits
        self._dirty: dict[str, _Durable | None] = {}  # None: to be removed
        self._saving: dict[str, _Durable | None] = {}
        self._receipts: dict[str, list[Receipt]] = {}
        self._receipt_count = 0
        self._urgent: asyncio.Event | None = None  # only while saving: most topics are idle
        self._task: TaskHandle | None = None
        self._is_closed = False
        self._turn = asyncio.Lock()

    def changed(self, name: str, cursor: Cursor, properties: Mapping[str, str]) -> None:
        """Mark a subscription's changed cursor or properties for saving."""
        self._dirty[name] = _Durable(cursor, properties)
        self._start()

    def removed(self, name: str) -> None:
        """Remove the saved state of a deleted subscription."""
        self._dirty[name] = None
        self._start()

    def when_saved(self, name: str, receipt: Receipt) -> None:
        """Call ``receipt`` once the present state of the subscription is saved or removed."""
        if self._is_closed:
            receipt(Unavailable("the topic is closing"))
        elif name not in self._dirty and name not in self._saving:
            receipt(None)
        elif self._receipt_count >= self._limits.receipts_max:
            receipt(
                Refused(ServerError.TOO_MANY_REQUESTS, "too many acknowledgements wait to be saved")
            )
        else:
            if name not in self._dirty:
                # The write under way may fail; the next one certainly covers it.
                self._dirty[name] = self._saving[name]
            self._receipts.setdefault(name, []).append(receipt)
            self._receipt_count += 1
            if self._urgent is not None:
                self._urgent.set()

    async def saved(self, name: str) -> None:
        """Wait until the present state is saved or removed.

        Raises Unavailable, or Undecided after Limits.save_wait_seconds.
        """
        answer: asyncio.Future[OnewriterError | None] = asyncio.get_running_loop().create_future()

        def receipt(error: OnewriterError | None) -> None:
            if not answer.done():
                answer.set_result(error)

        self.when_saved(name, receipt)
        try:
            async with asyncio.timeout(self._limits.save_wait_seconds):
                error = await answer
        except TimeoutError:
            raise Undecided("the store did not answer in time") from None
        if error is not None:
            raise error

    @property
    def is_saved(self) -> bool:
        """Whether no change waits or is being saved."""
        return not (self._dirty or self._saving or self._receipts or self._task is not None)

    async def flush(self) -> None:
        """Save all that is dirty now; raises Undecided or Unavailable at the first failure."""
        async with self._turn:
            while self._dirty:
                await self._save_some()

    async def close(self, *, save: bool) -> None:
        """Stop. With ``save``, try once more for a bounded time. Remaining receipts get an error."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            self._task = None
        error: OnewriterError = Unavailable("the topic is closing")
        if save:
            try:
                async with asyncio.timeout(self._limits.close_seconds):
                    await self.flush()
            except (Undecided, Unavailable) as failure:
                error = failure
            except TimeoutError:
                error = Undecided("the store did not answer in time")
        for name in list(self._receipts):
            self._answer(name, error)

    def _answer(self, name: str, error: OnewriterError | None) -> None:
        receipts = self._receipts.pop(name, [])
        self._receipt_count -= len(receipts)
        for receipt in receipts:
            receipt(error)

    # ------------------------------------------------------------ saving

    def _start(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = self._spawn(self._run())

    async def _run(self) -> None:
        """Save until nothing is dirty."""
        urgent = self._urgent = asyncio.Event()
        while self._dirty:
            if not self._receipts:
                try:
                    async with asyncio.timeout(self._limits.save_seconds):
                        await urgent.wait()
                except TimeoutError:
                    pass  # nothing is urgent: the interval is over
            urgent.clear()
            try:
                async with self._turn:
                    if self._dirty:
                        await self._save_some()
            except BrokenKey:
                raise  # the component that spawned this closes the topic
            except (Undecided, Unavailable):
                await asyncio.sleep(self._limits.retry_seconds)
        self._task = self._urgent = None

    async def _save_some(self) -> None:
        """One write of what is dirty, oldest first, up to Limits.save_bytes."""
        fields: dict[str, str] = {}
        remove: list[str] = []
        size = 0
        waiting: dict[str, list[Receipt]] = {}
        for name, durable in list(self._dirty.items()):
            field = STATE_PREFIX + name
            if durable is None:
                remove.append(field)
            else:
                text = cursor_text(durable.cursor, durable.properties, self._limits)
                fields[field] = text
                size += len(text)
            size += len(field)
            self._saving[name] = self._dirty.pop(name)
            waiting[name] = self._receipts.pop(name, [])
            if size >= self._limits.save_bytes:
                break
        error: OnewriterError | None = None
        is_saved = False
        try:
            await self._log.save_state(fields, remove)
            is_saved = True
        except Unavailable as failure:
            error = failure
            raise
        finally:
            for name, receipts in waiting.items():
                durable = self._saving.pop(name)
                if not is_saved:
                    self._dirty.setdefault(name, durable)
                if is_saved or error is not None:
                    self._receipt_count -= len(receipts)
                    for receipt in receipts:
                        receipt(error)
                elif receipts:
                    self._receipts.setdefault(name, [])[:0] = receipts
