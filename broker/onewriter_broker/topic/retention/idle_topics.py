"""Retention of idle topics: topics that are not loaded. No client has looked them up since this broker acquired their
buckets, or they were unloaded because no client used them.

Retention neither loads nor fences an idle topic, unless a compaction must come first. Only the logs of loaded
topics are compacted, so such a topic is loaded, and trimmed like topics in use. For other idle topics, the
broker reads the log's state, and trims with the same guarded call as for a loaded log, under the token that the
last owner left in the state. After another load has fenced the topic, the store rejects such a trim.

An idle log loses entries only by age, because no producer appends. So the broker measures it completely once,
and checks it again when its oldest entries are too old. The entries after the newest marker, in the last
ledger, stay until the topic is loaded, because only a fence ends that ledger.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.saved_cursors import lowest_saved_position
from onewriter_broker.log.store.api import LogStore
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.topic.producers.deduplication import trim_limit
from onewriter_broker.topic.registry.policies import compaction_threshold
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.retention import (
    Measured,
    RetentionLimits,
    measure,
    noted,
    trim_before,
    trim_once,
)
from onewriter_core.api.topic import Retention as RetentionPolicy
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import Position, TopicName
from onewriter_core.topic.model import WHOLE

ROUND_SECONDS = 600.0
"""Time between two rounds over the idle topics, and before the first round, because most topics are loaded soon."""

PAUSE_SECONDS = 0.1
"""Time between two logs, and between two steps of one log (``sweep_bytes_max``, or one trim call)."""

NAMES_PER_TICK = 100
"""Topics without due work that are skipped between two yields to the event loop."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Visited:
    """The last visit of a log. It is outdated when the log is loaded or its declaration changes."""

    token: str
    policy: RetentionPolicy
    due_ms: float
    """When the oldest entries will be too old, by the wall clock."""


class _Call:
    """One call to the store for an idle topic."""

    def __init__(self) -> None:
        self._done = asyncio.Event()

    def done(self) -> None:
        """Note that the call was answered or has failed."""
        self._done.set()

    async def settled(self) -> None:
        await self._done.wait()


@contextmanager
def kept_at_rest(topics: Topics, base: TopicName) -> Iterator[None]:
    """Block loads of an idle topic within the context. Loads wait until it ends."""
    key, call = str(base), _Call()
    topics.leaving[key] = call
    try:
        yield
    finally:
        call.done()
        if topics.leaving.get(key) is call:
            del topics.leaving[key]


class IdleTopics:
    """The rounds over idle topics. The caller runs ``run`` as one task."""

    def __init__(
        self,
        topics: Topics,
        store: LogStore,
        wall_ms: Callable[[], int],
        *,
        limits: RetentionLimits = RetentionLimits(),
    ) -> None:
        self._retention_limits = limits
        self._topics = topics
        self._store = store
        self._wall_ms = wall_ms
        self._limits = Limits()
        self._visited: dict[str, _Visited] = {}

    async def run(self) -> None:
        """Repeat the rounds until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.go_round()

    async def go_round(self) -> None:
        """Trim the logs of all idle topics to their bounds."""
        known, self._visited = self._visited, {}
        for number, (base, policy) in enumerate(self._bounded()):
            if number % NAMES_PER_TICK == 0:
                await asyncio.sleep(0)
            holding = self._topics.resting(base)
            if holding is None:
                continue
            try:
                entry = await self._topics.entry_of(base)
                if entry is None:
                    continue
                declared, namespaces = self._topics.desired.topic(base), self._topics.namespaces
                await namespaces.known()
                keeps_keys = compaction_threshold(base, declared, entry, namespaces) > 0
                for name in entry.log_names(base):
                    visited = await self._visit(
                        base, name, policy, holding, known.get(str(name)), keeps_keys=keeps_keys
                    )
                    if visited is not None:
                        self._visited[str(name)] = visited
            except (OnewriterError, ValueError) as error:  # a stored value may be invalid
                log.info("retention.waits", topic=str(base), reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    def _bounded(self) -> Iterator[tuple[TopicName, RetentionPolicy]]:
        for declared in self._topics.desired.topics:
            policy = declared.spec.retention
            if (policy.max_age_seconds, policy.max_bytes, policy.max_entries) != (None, None, None):
                yield declared.topic_name, policy

    async def _visit(
        self,
        base: TopicName,
        name: TopicName,
        policy: RetentionPolicy,
        holding: Holding,
        known: _Visited | None,
        *,
        keeps_keys: bool,
    ) -> _Visited | None:
        """Trim one log if part of it is due. None: visit it again in the next round.

        ``keeps_keys``: entries that were not compacted stay. If such entries are due
        for a trim, the topic is loaded.
        """
        await asyncio.sleep(PAUSE_SECONDS)
        state = await self._store.read_state(name, replid=holding.binding.replid)
        token, ledger = state.get("tok"), state.get("ledger", "")
        if token is None or not ledger.isdecimal():
            return None  # nothing was ever written
        requested = policy
        if known is not None and (known.token, known.policy) == (token, policy):
            if self._wall_ms() < known.due_ms:
                return known
            requested = policy.model_copy(update={"max_bytes": None, "max_entries": None})
        topic_log = TopicLog(name, self._store)
        topic_log.load_unserved(state, holding.binding, int(ledger))
        topic_log.keep_uncompacted(is_wanted=keeps_keys)
        measured = Measured(topic_log, holding.binding.generation, limits=self._retention_limits)
        lowest_retained = lowest_saved_position(state, self._limits)
        cut = await self._cut(measured, requested, lowest_retained)
        is_held_back = keeps_keys and self._is_held_back(measured, requested, lowest_retained)
        if cut is not None and not await self._trim(base, measured, cut, holding, token):
            return None
        if is_held_back:
            log.info("retention.loads", topic=str(name))
            await self._topics.serve(name)
            return None
        return _Visited(token, policy, self._due_ms(measured, policy))

    async def _cut(
        self, measured: Measured, policy: RetentionPolicy, lowest_retained: Position | None
    ) -> Position | None:
        """The position of the cut. Reads as much of the log as needed, in steps."""
        marker = measured.topic_log.committed
        limit = measured.topic_log.compacted_limit(trim_limit(measured.topic_log, marker))
        has_size = policy.max_bytes is not None or policy.max_entries is not None
        while True:
            reached = measured.reaches
            await measure(measured)
            cut = trim_before(measured.block_runs, policy, lowest_retained, limit, self._wall_ms())
            is_whole = measured.reaches in {reached, marker}
            # By age, the rest of the log does not matter once a young enough entry was found.
            if is_whole or not (has_size or cut == measured.block_runs[-1].start):
                return cut
            await asyncio.sleep(PAUSE_SECONDS)

    def _is_held_back(
        self, measured: Measured, policy: RetentionPolicy, lowest_retained: Position | None
    ) -> bool:
        """Whether more could be trimmed after a compaction."""
        topic_log = measured.topic_log
        limit = trim_limit(topic_log, topic_log.committed)
        cut = trim_before(measured.block_runs, policy, lowest_retained, limit, self._wall_ms())
        return cut is not None and cut > topic_log.compacted_limit(limit)

    async def _trim(
        self, base: TopicName, measured: Measured, cut: Position, holding: Holding, token: str
    ) -> bool:
        """Trim up to the cut. False: the topic is not idle any more, or the store rejected the trim."""
        dropped = 0
        while measured.begins < cut:
            # A load waits for this one call, because the call would make the state that it reads outdated by
            # the time of its fence.
            if self._topics.resting(base) != holding:
                break
            with kept_at_rest(self._topics, base):
                fields = await noted(measured.topic_log, cut)
                before = measured.size
                done = await trim_once(measured, cut, fields, holding.binding, token)
            name, gone = measured.topic_log.name, before - measured.size
            number = WHOLE if name.partition is None else name.partition
            self._topics.unloaded.trimmed(base, holding.binding.bucket, number, gone)
            dropped += done.blocks
            if done.blocks == 0:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        if dropped:
            topic = str(measured.topic_log.name)
            log.info("retention.trimmed", topic=topic, blocks=dropped, before=str(cut))
        return measured.begins >= cut

    def _due_ms(self, measured: Measured, policy: RetentionPolicy) -> float:
        """When more entries will be too old. Infinite if entries that are too old already are still needed."""
        marker = measured.topic_log.committed
        if policy.max_age_seconds is None or measured.begins >= marker:
            return math.inf
        due_ms = measured.block_runs[0].newest_ms + policy.max_age_seconds * 1000
        return due_ms if due_ms > self._wall_ms() else math.inf
