"""The sizes of the logs that are or were in use here, and of the parts that are staged for them.

A size comes from retention's measurement, or from a single measurement here, plus later entries. It estimates
what the log takes in the store: the bytes of its entries, and an overhead for each entry and each block. Logs
that no client has looked up since the broker acquired their buckets are not counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.quotas.shares import ShareOf
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.retention import Measured, RetentionLimits, measure
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import TopicName

POLL_SECONDS = 1.0
"""Minimal time between two sums over all logs."""

LOGS_PER_SECOND = 10_000
"""With more logs, the sums are computed less often."""

LOGS_PER_TICK = 500
"""Logs that are summed between two yields to the event loop."""

PAUSE_SECONDS = 0.25
"""Time between two reads of measured logs, each of ``sweep_bytes_max`` at most."""

log = structlog.get_logger(__name__)


class Sizes:
    """The sizes of one broker's logs, by share. The caller runs ``run`` and ``measure`` as tasks."""

    def __init__(
        self,
        topics: Topics,
        summed: Callable[[Counter[ShareOf]], None],
        staged: Callable[[], Mapping[TopicName, int]],
        limits: RetentionLimits = RetentionLimits(),
    ) -> None:
        """``summed`` receives the sums of each sweep. ``staged`` returns the bytes of staged parts by topic."""
        self._topics = topics
        self._limits = limits
        self._staged = staged
        self._summed = summed

    async def run(self) -> None:
        """Compute sums until cancelled."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            self._summed(await self.sums())

    async def sums(self) -> Counter[ShareOf]:
        """The stored bytes now, by share."""
        found: Counter[ShareOf] = Counter(self._topics.unloaded.sizes)
        seen = 0
        for topic in list(self._topics.loaded.values()):
            whose = ShareOf(topic.name.namespace_name, topic.declared is not None)
            for topic_log in list(topic.runner.logs.values()):
                found[whose] += topic_log.size
                seen += 1
                if seen % LOGS_PER_TICK == 0:
                    await asyncio.sleep(0)
        for name, size in self._staged().items():
            is_declared = self._topics.desired.topic(name) is not None
            found[ShareOf(name.namespace_name, is_declared)] += size
        return found

    async def measure(self) -> None:
        """Measure logs that existed before this broker loaded them, until cancelled."""
        while True:
            for topic in list(self._topics.loaded.values()):
                for topic_log in list(topic.runner.logs.values()):
                    if not topic_log.is_measured and not topic_log.is_closed:
                        await self._measure(topic_log)
            await asyncio.sleep(self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        return max(POLL_SECONDS, len(self._topics.loaded) / LOGS_PER_SECOND)

    async def _measure(self, topic_log: TopicLog) -> None:
        """Measure one log. The measurement ends if the log is trimmed meanwhile or the store does not answer."""
        binding, cut = topic_log.binding, topic_log.maybe_trimmed_before
        if binding is None or topic_log.ledger == 0:
            return
        measured = Measured(topic_log, binding.generation, limits=self._limits)
        try:
            while not topic_log.is_closed and not topic_log.is_measured:
                reached = measured.reaches
                await measure(measured)
                if topic_log.maybe_trimmed_before != cut:
                    return
                if measured.reaches in {reached, topic_log.committed}:
                    topic_log.set_size(measured.size)
                    return
                await asyncio.sleep(PAUSE_SECONDS)
        except OnewriterError as error:
            log.debug("size.unknown", topic=str(topic_log.name), reason=str(error))
            await asyncio.sleep(PAUSE_SECONDS)
