"""The only writer of a store with one primary, or of a bucket of a cluster (bucket_appenders.py).

It sends blocks and fences, one call after the other.

In each tick of the event loop the appender sends the waiting entries of all logs in one guarded call.
Entries that arrive during a call are sent with the next one. A fence is sent after the call under way,
so it never overtakes entries of the epoch that it ends. Entries that no call has taken by then are not
appended (the runner rejected them before it requested the fence). Fences that wait at the same time go
in one call, in their order: they share one sync of the store, and each gets its own answer.

If the result of a call is unknown, the appender repeats it with the same blocks and positions until
the store decides. At most one call is undecided at a time. Blocks that are stored, but not yet as
durable as their topic promises, wait in ``_commits`` and do not delay other topics. A log with a broken
key does not delay them either: the store answers for that log alone, and its topic is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from onewriter_broker.distribution import COUNTS, SECONDS, Distribution
from onewriter_broker.log.commits import Commits, Kind
from onewriter_broker.log.joint_append import JointAppend
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import Append, BrokenKey, Fence, LogStore, Outcome, OwnWrite
from onewriter_broker.log.topic_log.atomic_publish import Publish, abandon
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.log.topic_log.pending_blocks import PendingBlock
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Refused, ServerError, Undecided
from onewriter_core.ids import Position, TopicName

RETRY_SECONDS = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Pauses between attempts of an undecided call; the last one repeats."""

FENCE_FIELDS_MAX = 8_000
"""Fields in the fences of one call, if there is more than one: about 200 fences of topics with one log, which keep
the store busy for 5 ms to 10 ms."""

JOINT_APPENDS_MAX = 10_000
"""Queued requests to store entries of several logs together."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Statistics:
    """Counters of the append path for the metrics."""

    calls: int = 0
    blocks: int = 0
    entries: int = 0
    bytes: int = 0
    undecided_calls: int = 0
    fences: int = 0
    publish_seconds: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    """From the arrival of a block's first entry until the block is committed; one value per block."""
    call_seconds: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    block_entries: Distribution = field(default_factory=lambda: Distribution(COUNTS))
    call_blocks: Distribution = field(default_factory=lambda: Distribution(COUNTS))


@dataclass(slots=True, eq=False)
class _FenceItem:
    """A queued fence, or queued writes of ownerships, which are fenced like topics."""

    fence: Fence | OwnWrite
    logs: Sequence[TopicLog]
    flush: bool
    done: asyncio.Future[Outcome]
    durability: Durability = Durability.NONE

    @property
    def fields(self) -> int:
        """How many fields it sets in the store."""
        if isinstance(self.fence, OwnWrite):
            return FENCE_FIELDS_MAX + 1  # a call of its own
        audit = len(self.fence.audit)
        return audit + sum(len(log.marker) + len(log.state) for log in self.fence.logs)

    @property
    def kind(self) -> Kind:
        """The durability of the ledgers before and after it: nothing is committed out of order."""
        wanted = {self.durability, *(topic_log.durability for topic_log in self.logs)}
        wanted |= {topic_log.wanted_durability for topic_log in self.logs}
        return max(wanted, key=list(Durability).index), self.fence.binding.replid


@dataclass(slots=True, eq=False)
class _StoredBlock:
    """A block that is stored but perhaps not yet durable enough."""

    topic_log: TopicLog
    pending: PendingBlock


class AppendPath(Protocol):
    """Sends everything that is written to logs: one Appender, or in a cluster one for each bucket."""

    statistics: Statistics
    written: dict[TopicLog, None]
    """Logs that got blocks since the maintenance last examined them; it removes those that need nothing."""

    def append_soon(self, topic_log: TopicLog) -> None:
        """The log has waiting entries: include them in the next call."""

    async def fence(self, fence: Fence, logs: Sequence[TopicLog], *, flush: bool) -> Outcome:
        """See ``Appender.fence``."""

    async def own(self, write: OwnWrite, durability: Durability) -> Outcome:
        """See ``Appender.own``."""

    def abandon(self, topic_log: TopicLog, publish: Publish, why: str) -> bool:
        """See ``Appender.abandon``."""

    async def append_jointly(self, request: JointAppend) -> list[Position]:
        """See ``Appender.append_jointly``."""

    async def prove(self, durability: Durability, replid: str) -> None:
        """See ``Appender.prove``."""

    async def run(self) -> None:
        """Send calls until cancelled."""


class Appender:
    """Implements AppendPath. ``run`` must be running; it ends when cancelled.

    ``statistics`` and ``written`` may be shared with other appenders.

    ``deposed`` is called with a bucket whose writes were answered REFENCE, FENCED, UNKNOWN or
    LOST: the caller checks its ownership before it writes anything else there. ``broken`` is
    called with a log that cannot be written because of a broken key: the caller closes the log,
    which answers its pending entries.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        deposed: Callable[[int, Outcome], None],
        broken: Callable[[TopicName, BrokenKey], None],
        limits: LogLimits = LogLimits(),
        statistics: Statistics | None = None,
        written: dict[TopicLog, None] | None = None,
    ) -> None:
        self.statistics = Statistics() if statistics is None else statistics
        self.written = {} if written is None else written
        self._store = store
        self._now = now
        self._wall_ms = wall_ms
        self._deposed = deposed
        self._broken = broken
        self._dirty: dict[TopicLog, float] = {}  # with the time of the first waiting entry
        self._fences: deque[_FenceItem] = deque()
        self._joint_appends: deque[JointAppend] = deque()
        self._commits: Commits[_StoredBlock | _FenceItem] = Commits(
            store, now=now, wake=self._wake_up, pass_on=self._pass_on, limits=limits
        )
        self._call_bytes_max = limits.call_bytes_max
        self._wake: asyncio.Future[None] | None = None

    def append_soon(self, topic_log: TopicLog) -> None:
        """The log has waiting entries: include them in the next call."""
        if topic_log not in self._dirty:  # a log that is in it needs no wake-up
            self._dirty[topic_log] = self._now()
            self._wake_up()

    async def fence(self, fence: Fence, logs: Sequence[TopicLog], *, flush: bool) -> Outcome:
        """Write the markers after the call under way; DONE: they are durable.

        Raises BrokenKey if the fence touches a broken key: nothing of the fence was written.
        ``flush``: first append the entries that wait in the logs (the holder stays the same).
        After DONE the logs are open at the new ledger. The caller moves their watermarks past the
        markers and makes the logs writable.
        """
        item = _FenceItem(fence, logs, flush, asyncio.get_running_loop().create_future())
        self._fences.append(item)
        self._wake_up()
        return await item.done

    async def own(self, write: OwnWrite, durability: Durability) -> Outcome:
        """Write records of ownerships, in order with the fences; DONE: with this durability.

        Ledgers must be opened in their order (BucketOwnership.reserve_ledger).
        Raises BrokenKey: nothing was written.
        """
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        item = _FenceItem(write, (), flush=False, done=done, durability=durability)
        self._fences.append(item)
        self._wake_up()
        return await item.done

    def abandon(self, topic_log: TopicLog, publish: Publish, why: str) -> bool:
        """Release the memory of an atomic publish; see ``atomic_publish.abandon``.

        A call under way with blocks of the publish continues: a fence is sent after it.
        """

        def is_meant(item: _StoredBlock | _FenceItem) -> bool:
            if not isinstance(item, _StoredBlock) or item.pending.publish is not publish:
                return False
            return not item.pending.block.commits  # the result of this block applies to all of them

        forgotten = self._commits.forget(is_meant)
        stored = [item.pending for item in forgotten if isinstance(item, _StoredBlock)]
        return abandon(topic_log, publish, why, stored)

    async def append_jointly(self, request: JointAppend) -> list[Position]:
        """Store entries of several logs, all or none, and return their positions. See JointAppend.

        Raises Refused if JOINT_APPENDS_MAX requests are queued already.
        """
        if len(self._joint_appends) >= JOINT_APPENDS_MAX:
            text = f"{JOINT_APPENDS_MAX} requests wait to be stored"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        self._joint_appends.append(request)
        self._wake_up()
        return await asyncio.shield(request.done)

    async def prove(self, durability: Durability, replid: str) -> None:
        """Wait until everything that was written to the dataset before this call has the durability.

        The appender combines this with the requests that it sends to the store anyway. Raises Undecided: retry.
        """
        await self._commits.prove(durability, replid)

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self) -> None:
        """Send calls until cancelled."""
        try:
            while True:
                if self._fences:
                    await self._perform(self._next_fences())
                    await self._commit()
                elif not (self._dirty or self._joint_appends):
                    await self._rest(self._commits.pause_seconds)
                # Also while fences wait: thousands of them must not stop the publishing of other topics.
                if self._dirty:
                    await self._append(self._gather(list(self._dirty)))
                if self._joint_appends:
                    await self._append_jointly(self._joint_appends.popleft())
                await self._commit()
        finally:
            self._commits.close()
            for item in self._fences:
                item.done.cancel()
            for request in self._joint_appends:
                request.done.cancel()

    async def _rest(self, seconds: float | None) -> None:
        """Wait until there is something to send, for at most ``seconds``."""
        if seconds == 0.0:
            return
        self._wake = asyncio.get_running_loop().create_future()
        if seconds is None:
            await self._wake
        else:
            await asyncio.wait((self._wake,), timeout=seconds)
        self._wake = None

    # ------------------------------------------------------------ blocks

    def _gather(self, logs: Sequence[TopicLog]) -> list[tuple[TopicLog, PendingBlock]]:
        """The blocks of the next call; the logs that have waited longest come first."""
        sent_blocks: list[tuple[TopicLog, PendingBlock]] = []
        size = 0
        time_ms = self._wall_ms()
        for topic_log in logs:
            since = self._dirty.pop(topic_log, None) or self._now()
            while size < self._call_bytes_max:
                pending = topic_log.next_block(time_ms)
                if pending is None:
                    break
                pending.since = since
                sent_blocks.append((topic_log, pending))
                size += pending.size
            if topic_log.has_more and topic_log.is_writable:
                self._dirty[topic_log] = since
            if size >= self._call_bytes_max:
                break
        return sent_blocks

    async def _append(self, sent_blocks: list[tuple[TopicLog, PendingBlock]]) -> None:
        if sent_blocks:
            started_at = self._now()
            self._answered(sent_blocks, await self._decided(sent_blocks), started_at)

    async def _append_jointly(self, request: JointAppend) -> None:
        await self._flush(request.logs)
        sent_blocks = request.form(self._wall_ms())
        if sent_blocks:
            started_at = self._now()
            for _, pending in sent_blocks:
                pending.since = started_at
            self._answered(sent_blocks, await self._decided_jointly(sent_blocks), started_at)

    def _answered(
        self,
        sent_blocks: list[tuple[TopicLog, PendingBlock]],
        answers: Sequence[Outcome | BrokenKey],
        started_at: float,
    ) -> None:
        """Apply the store's result to each block."""
        statistics = self.statistics
        broken: dict[TopicLog, BrokenKey] = {}
        refused: dict[TopicLog, tuple[PendingBlock, Outcome, list[PendingBlock]]] = {}
        statistics.calls += 1
        statistics.call_seconds.observe(self._now() - started_at)
        statistics.call_blocks.observe(len(sent_blocks))
        for (topic_log, pending), answer in zip(sent_blocks, answers, strict=True):
            if pending not in topic_log.undecided or topic_log.binding is None:
                continue  # the log was closed meanwhile
            if isinstance(answer, BrokenKey):
                topic_log.stop_writes()
                broken[topic_log] = answer
                continue
            replid = topic_log.binding.replid
            # Fenced by our own next marker: the next fence shows whether the block is before it, as for
            # any block of a former dataset.
            is_own = pending.block.position.ledger < topic_log.ledger
            outcome = Outcome.REFENCE if is_own and answer is Outcome.FENCED else answer
            match outcome:
                case Outcome.DONE:
                    statistics.blocks += 1
                    statistics.entries += len(pending.entries)
                    statistics.block_entries.observe(len(pending.entries))
                    statistics.bytes += pending.size
                    self.written[topic_log] = None
                    kind = (topic_log.durability, replid)
                    self._commits.later(kind, _StoredBlock(topic_log, pending))
                case Outcome.REFENCE | Outcome.LOST:
                    # Whether the block is in the registered dataset is seen after the next fence.
                    topic_log.stop_writes(compare=True)
                    self._deposed_from(topic_log, outcome)
                case Outcome.FENCED | Outcome.UNKNOWN:
                    # If this broker still owns the bucket, it fences again.
                    topic_log.stop_writes(compare=True)
                    if outcome is Outcome.UNKNOWN:
                        topic_log.forget_tail()  # the store may lack one of the blocks
                    topic_log.give_up(pending, is_definite=outcome is Outcome.FENCED)
                    self._deposed_from(topic_log, outcome)
                case Outcome.STALE | Outcome.AHEAD | Outcome.HELD if (
                    pending.joint_append is not None
                ):
                    topic_log.withdraw(pending, outcome)
                case Outcome.STALE | Outcome.AHEAD:
                    refused[topic_log] = (pending, outcome, [])
                case Outcome.HELD:
                    refused[topic_log][2].append(pending)
        for topic_log, (pending, outcome, held) in refused.items():
            topic_log.roll_back(pending, held, outcome)
            if topic_log.has_more:
                self._dirty.setdefault(topic_log, pending.since)
        for topic_log, error in broken.items():
            self._broken(topic_log.name, error)
        for topic_log, _ in sent_blocks:
            self._go_on(topic_log)

    async def _decided(
        self, sent_blocks: list[tuple[TopicLog, PendingBlock]]
    ) -> list[Outcome | BrokenKey]:
        """Send the call until the store decides."""
        attempt = 0
        while True:
            appends = []
            for topic_log, pending in sent_blocks:
                if topic_log.binding is None:  # the log was closed, which answered its blocks
                    continue
                appends.append(
                    Append(
                        topic_log.binding,
                        topic_log.name,
                        pending.token,
                        pending.block,
                        never_sent=not pending.was_sent,
                        guard=pending.guard,
                        opens=pending.opens,
                        owner=pending.owner,
                    )
                )
            sent_blocks[:] = [pair for pair in sent_blocks if pair[0].binding is not None]
            for _, pending in sent_blocks:
                pending.was_sent = True
            try:
                answers = await self._store.append(appends)
            except Undecided as undecided:
                await self._pause_before_retry(attempt, undecided, len(appends))
                attempt += 1
                continue
            for (_, pending), sent, answer in zip(sent_blocks, appends, answers, strict=True):
                if isinstance(answer, BrokenKey):  # this attempt wrote nothing of it
                    pending.was_sent = not sent.never_sent
            return answers

    async def _decided_jointly(
        self, sent_blocks: list[tuple[TopicLog, PendingBlock]]
    ) -> list[Outcome | BrokenKey]:
        """Send exactly the same blocks until the store decides, even if a log is closed meanwhile.

        If an attempt had one block less, it could store blocks that the previous attempt did not store.
        """
        appends = [
            Append(
                topic_log.binding,
                topic_log.name,
                pending.token,
                pending.block,
                never_sent=True,
                guard=pending.guard,
            )
            for topic_log, pending in sent_blocks
            if topic_log.binding is not None
        ]
        for _, pending in sent_blocks:
            pending.was_sent = True
        attempt = 0
        while True:
            try:
                answers = await self._store.append_together(appends)
            except Undecided as undecided:
                appends = [replace(item, never_sent=False) for item in appends]
                await self._pause_before_retry(attempt, undecided, len(appends))
                attempt += 1
                continue
            for (_, pending), answer in zip(sent_blocks, answers, strict=True):
                if isinstance(answer, BrokenKey):  # this attempt wrote nothing of it
                    pending.was_sent = attempt > 0
            return answers

    async def _pause_before_retry(self, attempt: int, undecided: Undecided, blocks: int) -> None:
        self.statistics.undecided_calls += 1
        if attempt == 0:
            log.warning("append.undecided", reason=str(undecided), blocks=blocks)
        await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])

    async def _commit(self) -> None:
        """Report the items that are durable enough; repeat writes whose connection was lost."""
        lost = await self._commits.check()
        fences = [item for item in lost if isinstance(item, _FenceItem)]
        again = [item for item in lost if isinstance(item, _StoredBlock)]
        self._fences.extendleft(reversed(fences))
        if again:
            await asyncio.sleep(RETRY_SECONDS[0])
            await self._append([(item.topic_log, item.pending) for item in again])

    def _pass_on(self, items: Sequence[_StoredBlock | _FenceItem]) -> None:
        for item in items:
            if isinstance(item, _FenceItem):
                if not item.done.done():
                    item.done.set_result(Outcome.DONE)
            elif item.pending in item.topic_log.undecided:
                item.topic_log.block_committed(item.pending)
                self._go_on(item.topic_log)
                self.statistics.publish_seconds.observe(self._now() - item.pending.since)

    def _go_on(self, topic_log: TopicLog) -> None:
        """Gather again: entries that waited for an atomic publish may be next."""
        if topic_log.publishes is not None and topic_log.has_more:
            self.append_soon(topic_log)

    def _deposed_from(self, topic_log: TopicLog, outcome: Outcome) -> None:
        if topic_log.binding is not None:
            self._deposed(topic_log.binding.bucket, outcome)

    # ------------------------------------------------------------ fences

    async def _flush(self, logs: Sequence[TopicLog]) -> None:
        """Append the waiting entries, but none that arrive later: a busy log would delay the fence without end."""
        goals = [(each, each.entries_in + len(each.waiting)) for each in logs]
        while any(
            each.entries_in < goal and each.has_more and each.is_writable for each, goal in goals
        ):
            await self._append(self._gather(logs))
            await self._commit()

    def _next_fences(self) -> list[_FenceItem]:
        """The fences of the next call. A write of ownerships is a call of its own, as is the next fence of a log."""
        items = [self._fences.popleft()]
        fields, logs = items[0].fields, set(items[0].logs)
        while self._fences:
            item = self._fences[0]
            fields += item.fields
            if fields > FENCE_FIELDS_MAX or not logs.isdisjoint(item.logs):
                break
            logs.update(item.logs)
            items.append(self._fences.popleft())
        return items

    async def _perform(self, items: Sequence[_FenceItem]) -> None:
        flushed = [topic_log for item in items if item.flush for topic_log in item.logs]
        if flushed:
            await self._flush(flushed)
        fenced = [item for item in items if not self._is_over(item)]
        for topic_log in (topic_log for item in fenced for topic_log in item.logs):
            topic_log.stop_writes()
        if not fenced:
            return
        try:
            outcomes = await self._fenced([item.fence for item in fenced])
        except (ValueError, BrokenKey) as error:  # its topic fails, not the appender
            if len(fenced) > 1:  # nothing was sent
                for item in fenced:
                    await self._perform([item])
            elif not fenced[0].done.done():
                fenced[0].done.set_exception(error)
            return
        now = self._now()
        for item, outcome in zip(fenced, outcomes, strict=True):
            self._fence_answered(item, outcome, now)

    def _is_over(self, item: _FenceItem) -> bool:
        """Whether a log of the fence was closed.

        The broker that serves these logs now must not find a marker without a pending fence.
        """
        is_over = any(topic_log.is_closed for topic_log in item.logs)
        if is_over and not item.done.done():
            item.done.set_result(Outcome.REFENCE)
        return is_over

    def _fence_answered(self, item: _FenceItem, outcome: Outcome | BrokenKey, now: float) -> None:
        if item.done.done():
            return
        if isinstance(outcome, BrokenKey):
            item.done.set_exception(outcome)
        elif outcome is not Outcome.DONE:
            item.done.set_result(outcome)
        else:
            self.statistics.fences += 1
            kind = item.kind
            for topic_log in item.logs:
                topic_log.open(item.fence.ledger, item.fence.binding, now)
            self._commits.later(kind, item)

    async def _fenced(self, fences: Sequence[Fence | OwnWrite]) -> list[Outcome | BrokenKey]:
        """Send the call until the store decides. Raises ValueError, BrokenKey: nothing was written."""
        attempt = 0
        while True:
            try:
                match fences:
                    case [OwnWrite() as write]:
                        return [await self._store.own(write)]
                    case _:
                        return await self._store.fence(
                            [fence for fence in fences if isinstance(fence, Fence)]
                        )
            except Undecided as undecided:
                self.statistics.undecided_calls += 1
                if attempt == 0:
                    ledgers = [fence.ledger for fence in fences[:10]]
                    log.warning("fence.undecided", reason=str(undecided), ledgers=ledgers)
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
