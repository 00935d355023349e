"""Decides when a log is compacted: on request, when enough was added after the horizon (the last position that the
compacted view covers), or if retention waits for it.

Logs are compacted one after the other, in the order of the requests. passes.py does the work of one attempt.
When the store's memory is almost full, only logs that retention waits for are compacted, because that frees
memory, and only if the view fits into the remaining memory. Without the view, retention does not cut the log,
and the status states the reason.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from onewriter_broker.log.store.compacted import View
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.settings import Settings
from onewriter_broker.topic.compaction.newest_messages import CompactionRefused, InsufficientSpace
from onewriter_broker.topic.compaction.passes import compact, drop_unused
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.retention.retention import Measured, measure
from onewriter_core.errors import OnewriterError, Unavailable
from onewriter_core.ids import TopicName
from onewriter_core.log_format.field_names import COMPACTED, COMPACTING

POLL_SECONDS: Final = 2.0
"""Time between two checks for logs that are due."""

LINGER_SECONDS: Final = 60.0
"""How long a replaced view is kept for its readers."""

RETRY_SECONDS: Final = 30.0
"""Time after a failed attempt before the broker compacts the log again without a request."""

NO_SPACE_RETRY_SECONDS: Final = 600.0
"""The same time if the view did not fit into the store. The broker compacts earlier if the store has space again."""

REQUESTS_MAX: Final = 10_000
"""Logs that may wait to be compacted."""

log = structlog.get_logger(__name__)


class Progress(enum.Enum):
    """State of a log's latest compaction on this broker. The values are Pulsar's."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionStatus:
    """The compactions of one log since this broker began to serve it."""

    progress: Progress = Progress.NOT_RUN
    last_error: str = ""
    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


@dataclass(slots=True)
class _Log:
    """The compactions of one log."""

    topic_log: TopicLog
    status: CompactionStatus = field(default_factory=CompactionStatus)
    uncompacted: Measured | None = None
    """The size of the log after the horizon; None before the first measurement."""
    not_before: float = 0.0
    """The earliest time of the next attempt without a request, on the clock ``now``."""
    needed_bytes: int = 0
    """The store's memory that the view needs, if there was too little of it."""
    former: View | None = None
    """The replaced view, which is kept until ``drop_at`` at the latest."""
    drop_at: float = 0.0


@dataclass(slots=True)
class Totals:
    """Counts of one broker, for its metrics."""

    succeeded: int = 0
    failed: int = 0
    messages_removed: int = 0
    last_success_ms: int = 0


class ServedTopics(Protocol):
    """The topics served here (topics.Topics)."""

    @property
    def loaded(self) -> dict[str, LoadedTopic]: ...


class StoreSpace(Protocol):
    """The part of the store's memory watch that compaction uses (store_watch.StoreWatch)."""

    def free_bytes(self, *, is_needed: bool) -> float: ...

    async def observed_free_bytes(self, *, is_needed: bool) -> float: ...


class Compactions:
    """The compactions of one broker. The caller runs ``run`` as a task.

    ``store`` reports how much memory a second view may take. If it reports none, no compaction begins, and a
    running attempt ends.
    """

    def __init__(
        self,
        topics: ServedTopics,
        settings: Settings,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        store: StoreSpace,
    ) -> None:
        self.totals = Totals()
        self._topics = topics
        self._settings = settings
        self._now = now
        self._wall_ms = wall_ms
        self._store = store
        self._logs: dict[TopicName, _Log] = {}
        self._requests: dict[TopicName, None] = {}
        self._wake = asyncio.Event()

    # ------------------------------------------------------------ requests and status

    def request(self, topic_log: TopicLog) -> bool:
        """Request the compaction of a log. False: it is already requested or running. Raises Unavailable."""
        if len(self._requests) >= REQUESTS_MAX:
            raise Unavailable(f"{REQUESTS_MAX} logs already wait to be compacted; retry later")
        known = self._of(topic_log)
        if known.status.progress is Progress.RUNNING:
            return False
        known.status.progress, known.status.last_error = Progress.RUNNING, ""
        self._requests[topic_log.name] = None
        self._wake.set()
        return True

    def status(self, topic_log: TopicLog) -> CompactionStatus:
        """The status of a log's compactions."""
        known = self._logs.get(topic_log.name)
        return (
            known.status
            if known is not None and known.topic_log is topic_log
            else CompactionStatus()
        )

    @property
    def held_back(self) -> int:
        """Logs that retention must not cut, because their compaction failed."""
        return sum(
            each.topic_log.compacted.is_waited_for and each.status.progress is Progress.ERROR
            for each in self._logs.values()
        )

    def _of(self, topic_log: TopicLog) -> _Log:
        known = self._logs.get(topic_log.name)
        if known is None or known.topic_log is not topic_log:
            known = self._logs[topic_log.name] = _Log(topic_log)
        return known

    # ------------------------------------------------------------ the task

    async def run(self) -> None:
        """Check and compact until cancelled."""
        while True:
            self._wake.clear()
            await self.check()
            await self.compact_requested()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def compact_requested(self) -> None:
        """Compact the requested logs, one after the other."""
        while self._requests:
            name = next(iter(self._requests))
            del self._requests[name]
            await self._compact(self._logs[name])

    async def check(self) -> None:
        """Request compactions that are due, drop views without readers, and forget logs that are not served here."""
        for name in [name for name, each in self._logs.items() if each.topic_log.is_closed]:
            del self._logs[name]
            self._requests.pop(name, None)
        for topic in list(self._topics.loaded.values()):
            threshold = topic.compaction_threshold
            for topic_log in list(topic.runner.logs.values()):
                if topic_log.binding is None:
                    continue
                if threshold or COMPACTED in topic_log.state or COMPACTING in topic_log.state:
                    await self._check_log(self._of(topic_log), threshold)

    async def _check_log(self, known: _Log, threshold: int) -> None:
        compacted = known.topic_log.compacted
        try:
            await self._drop_former(known)
            space = self._free_bytes(known)
            has_space_now = 0 < known.needed_bytes <= space
            if self._now() < known.not_before and not has_space_now:
                return
            if space <= 0 and not compacted.is_waited_for:
                return  # retention waits for it: the attempt records why it fails
            is_due = compacted.is_waited_for or (
                threshold > 0 and await self._is_due(known, threshold)
            )
        except OnewriterError as error:
            log.info("compaction.waits", topic=str(known.topic_log.name), reason=str(error))
            return
        if is_due and known.status.progress is not Progress.RUNNING:
            self.request(known.topic_log)

    def _free_bytes(self, known: _Log) -> float:
        return self._store.free_bytes(is_needed=known.topic_log.compacted.is_waited_for)

    async def _is_due(self, known: _Log, threshold: int) -> bool:
        """Whether the part of the log after the horizon reaches the threshold, and half the size of the view.

        Each attempt copies the whole view.
        """
        topic_log = known.topic_log
        view, binding = await topic_log.compacted.view(), topic_log.binding
        horizon = topic_log.compacted.horizon
        uncompacted = known.uncompacted
        if binding is None:
            return False
        if uncompacted is None or uncompacted.generation != binding.generation:
            uncompacted = known.uncompacted = Measured(
                topic_log, binding.generation, reaches=horizon
            )
        await measure(uncompacted)
        size = sum(block_run.bytes for block_run in uncompacted.block_runs)
        return size >= max(threshold, 0 if view is None else view.size // 2)

    async def _drop_former(self, known: _Log) -> None:
        """Drop a replaced view that has no readers any more, and views that another broker left."""
        topic_log, former = known.topic_log, known.former
        if COMPACTING not in topic_log.state or known.status.progress is Progress.RUNNING:
            return
        if former is not None:
            if topic_log.compacted.is_read(former) and self._now() < known.drop_at:
                return
            topic_log.compacted.retire(former)
            known.former = None
        await drop_unused(topic_log)

    async def _compact(self, known: _Log) -> None:
        topic_log, status, began = known.topic_log, known.status, self._now()
        topic = str(topic_log.name)
        if known.former is not None:  # its slot is needed
            topic_log.compacted.retire(known.former)
            known.former = None

        def check() -> None:
            if topic_log.is_closed:
                raise Unavailable(f"{topic} is not served here any more")
            if self._free_bytes(known) <= 0:
                raise CompactionRefused("the store is almost full; give it more memory")

        try:
            check()
            done = await compact(
                topic_log,
                keys_max=self._settings.compaction_keys_max,
                wall_ms=self._wall_ms,
                check=check,
                free_bytes=lambda: self._store.observed_free_bytes(
                    is_needed=topic_log.compacted.is_waited_for
                ),
            )
        except InsufficientSpace as error:
            log.warning("compaction.failed", topic=topic, reason=str(error))
            self._failed(known, str(error), NO_SPACE_RETRY_SECONDS, error.needed_bytes)
            return
        except OnewriterError as error:
            log.warning("compaction.failed", topic=topic, reason=str(error))
            self._failed(known, str(error))
            return
        except Exception:
            log.exception("compaction.failed", topic=topic)
            self._failed(known, "unexpected error; the broker's log has the details")
            return
        topic_log.compacted.is_waited_for = False
        known.uncompacted, known.former, known.needed_bytes = None, done.former, 0
        known.drop_at = self._now() + LINGER_SECONDS
        status.progress, status.removed = Progress.SUCCESS, done.removed
        status.succeeded_ms = self.totals.last_success_ms = self._wall_ms()
        status.duration_ms = int((self._now() - began) * 1000)
        self.totals.succeeded += 1
        self.totals.messages_removed += done.removed
        log.info(
            "compaction.done",
            topic=topic,
            horizon=str(done.view.horizon),
            entries=done.view.entries,
            bytes=done.view.size,
            removed=done.removed,
        )

    def _failed(
        self,
        known: _Log,
        reason: str,
        retry_seconds: float = RETRY_SECONDS,
        needed_bytes: int = 0,
    ) -> None:
        if known.topic_log.compacted.is_waited_for:
            reason = f"{reason}. Retention waits for it: nothing is dropped that no view has"
        known.status.progress, known.status.last_error = Progress.ERROR, reason
        known.status.failed_ms = self._wall_ms()
        known.not_before = self._now() + retry_seconds
        known.needed_bytes = needed_bytes
        self.totals.failed += 1
