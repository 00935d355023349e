"""Maintenance of the topics served here: it rolls ledgers, applies retention, and bounds the memory of their tails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog

from onewriter_broker.log.appender import AppendPath
from onewriter_broker.settings import Settings
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.retention import Retention, RetentionLimits
from onewriter_core.api.topic import Retention as RetentionPolicy
from onewriter_core.errors import OnewriterError

POLL_SECONDS = 1.0
"""Time between two checks of the ledgers and of the memory of the tails."""

SWEEP_SECONDS = 5.0
"""Time between two sweeps of retention over the topics that declare one."""

TOPICS_PER_TICK = 1_000
"""Topics without due work that are skipped between two yields to the event loop."""

ROLLS_PER_BOUND = 4
"""If retention bounds a log, its ledgers are rolled at the bound divided by this number. Only whole ledgers before the
current one can be trimmed."""

ROLL_BYTES_MIN = 1024 * 1024
"""Minimal size of a roll, also if the bound is small."""

log = structlog.get_logger(__name__)


class Maintenance:
    """Maintains all topics of one broker. The caller runs two tasks."""

    def __init__(
        self,
        topics: Topics,
        settings: Settings,
        wall_ms: Callable[[], int],
        appender: AppendPath,
        limits: RetentionLimits = RetentionLimits(),
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._wall_ms = wall_ms
        self._appender = appender
        self._retention = Retention(limits)
        self._undeclared_bytes = most = settings.undeclared_retention_bytes
        self._undeclared = RetentionPolicy(max_bytes=most) if most else None
        self._grown = (0, 0)

    async def run(self) -> None:
        """Repeat rolls, snapshots and the bound on tails until cancelled. This task never waits for the store."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._topics.follow_policies()
            for topic in self._topics.loaded.values():
                if topic.runner.deduplications.is_on:
                    topic.runner.deduplications.save_due()
            self.roll()
            grown = (self._appender.statistics.blocks, self._appender.statistics.fences)
            if grown != self._grown:
                self._grown = grown
                self.shrink_tails()

    async def sweep_for_ever(self) -> None:
        """Sweep until cancelled. A sweep begins after the former one has ended, however long the store takes."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    def roll(self) -> None:
        """Roll the ledgers that are full or old. Only ledgers with entries can be rolled."""
        written = self._appender.written
        topics: dict[str, LoadedTopic] = {}
        for topic_log in list(written):
            base = str(topic_log.name.base)
            topic = self._topics.loaded.get(base)
            if topic is None or topic_log.is_closed or topic_log.ledger_entries == 0:
                del written[topic_log]
            else:
                topics[base] = topic
        for topic in topics.values():
            bytes_max, age_seconds_max = self.roll_bounds(topic)
            topic.runner.roll_if_full(bytes_max, age_seconds_max)

    def _policy(self, topic: LoadedTopic) -> RetentionPolicy | None:
        """The declared bounds; for undeclared topics, those of the settings. None: no bounds."""
        if topic.declared is None:
            return self._undeclared
        policy = topic.declared.spec.retention
        bounds = (policy.max_age_seconds, policy.max_bytes, policy.max_entries)
        return policy if any(bound is not None for bound in bounds) else None

    def roll_bounds(self, topic: LoadedTopic) -> tuple[int, float]:
        """The size in bytes and the age in seconds at which the topic's ledgers are rolled."""
        bytes_max, age_max = self._settings.roll_bytes, self._settings.roll_seconds
        policy = self._policy(topic)
        if policy is not None and policy.max_bytes is not None:
            share = max(policy.max_bytes // ROLLS_PER_BOUND, ROLL_BYTES_MIN)
            bytes_max = min(bytes_max, share)
        if policy is not None and policy.max_age_seconds is not None:
            age_max = min(age_max, max(policy.max_age_seconds / ROLLS_PER_BOUND, POLL_SECONDS))
        return bytes_max, age_max

    def may_unload(self, topic: LoadedTopic) -> bool:
        """Whether an unused topic may leave memory, with nothing left that only retention of loaded topics does.

        Retention of idle topics follows declared bounds, and does not trim the ledger that is open. So this method
        rolls a ledger with entries, and returns False until it is rolled.
        """
        policy = self._policy(topic)
        if policy is None:
            return True
        logs = topic.runner.logs
        if topic.declared is None and any(e.size > self._undeclared_bytes for e in logs.values()):
            return False
        if any(each.ledger_entries for each in logs.values()):
            topic.runner.roll_if_full(0, math.inf)
            return False
        return True

    def shrink_tails(self) -> None:
        """Keep the newest blocks of all logs in memory within their bound. Each log gets an equal share."""
        logs = [
            topic_log
            for topic in self._topics.loaded.values()
            for topic_log in topic.runner.logs.values()
            if topic_log.tail_bytes
        ]
        if sum(topic_log.tail_bytes for topic_log in logs) > self._settings.tail_bytes_max:
            share = self._settings.tail_bytes_max // len(logs)
            for topic_log in logs:
                topic_log.shrink_tail(share)

    async def sweep(self) -> None:
        """Trim every log that has a declared bound."""
        self._retention.forget_closed()
        for number, topic in enumerate(list(self._topics.loaded.values())):
            if number % TOPICS_PER_TICK == TOPICS_PER_TICK - 1:
                await asyncio.sleep(0)
            policy = self._policy(topic)
            if policy is None and not self._retention.has_measured:
                continue
            for partition, topic_log in list(topic.runner.logs.items()):
                if topic.declared is None and topic_log.size <= self._undeclared_bytes:
                    if self._retention.has_measured:
                        self._retention.forget(topic_log)
                    continue
                subscriptions = topic.subscriptions.get(partition)
                if policy is None or subscriptions is None:
                    self._retention.forget(topic_log)
                    continue
                topic_log.keep_uncompacted(is_wanted=topic.compaction_threshold > 0)
                try:
                    await self._retention.sweep(
                        topic_log,
                        policy,
                        subscriptions.lowest_retained_position,
                        self._wall_ms(),
                    )
                except OnewriterError as error:
                    log.info("retention.waits", topic=str(topic_log.name), reason=str(error))
