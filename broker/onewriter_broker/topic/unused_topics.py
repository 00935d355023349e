"""Unloads topics that no client has used for some time.

A topic in memory takes more than 8 KiB, and most topics of a broker are idle. The next look-up loads the topic again, as
after a takeover of its bucket (``Topics.serve``): this fences its logs. Until then, retention treats it like other idle
topics (``retention/idle_topics.py``), and administration reads its state from the store.

A topic stays loaded while memory matters less than what another load costs or loses:

* It has a producer, a waiter, a subscription, or a deadline; or work of it waits or is under way.
* Its logs are larger than ``LOG_BYTES_MAX``, because a load measures them by reading them.
* It is compacted, because only loaded logs are.
* Retention may trim its open ledger. The broker rolls the ledger first, because no other than a fence ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.compaction.schedule import Compactions, Progress
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.maintenance import Maintenance

LOG_BYTES_MAX: Final = 1024 * 1024
"""Largest size of a log in the store, in bytes, whose topic is unloaded."""

SWEEPS_PER_PERIOD: Final = 10
"""Sweeps over the loaded topics within the time after which an unused topic is unloaded."""

SWEEP_SECONDS_MIN: Final = 0.2
SWEEP_SECONDS_MAX: Final = 10.0

TOPICS_PER_TICK: Final = 50
"""Topics that are checked, and perhaps unloaded, between two yields to the event loop: 2 ms to 5 ms."""

log = structlog.get_logger(__name__)


class UnusedTopics:
    """The sweeps over one broker's topics. The caller runs ``run`` as one task.

    ``seconds``: how long a topic must be unused. ``now``: monotonic seconds.
    """

    def __init__(
        self,
        topics: Topics,
        maintenance: Maintenance,
        compactions: Compactions,
        *,
        seconds: float,
        now: Callable[[], float],
    ) -> None:
        self._topics = topics
        self._maintenance = maintenance
        self._compactions = compactions
        self._seconds = seconds
        self._now = now

    async def run(self) -> None:
        """Sweep until cancelled."""
        pause = self._seconds / SWEEPS_PER_PERIOD
        while True:
            await asyncio.sleep(min(max(pause, SWEEP_SECONDS_MIN), SWEEP_SECONDS_MAX))
            await self.sweep()

    async def sweep(self) -> None:
        """Unload the topics that were unused for long enough."""
        ticks, unloaded = Ticks(TOPICS_PER_TICK), 0
        for topic in list(self._topics.loaded.values()):
            await ticks.step()
            if topic.is_used:
                topic.unused_since = None
            elif topic.unused_since is None:
                topic.unused_since = self._now()
            elif self._now() - topic.unused_since >= self._seconds and self._may_unload(topic):
                unloaded += self._topics.unload_unused(topic)
        if unloaded:
            log.info("topics.unloaded", topics=unloaded, loaded=len(self._topics.loaded))

    def _may_unload(self, topic: LoadedTopic) -> bool:
        logs = topic.runner.logs.values()
        return (
            topic.is_at_rest
            and not topic.compaction_threshold
            and all(each.is_measured and each.size <= LOG_BYTES_MAX for each in logs)
            and all(self._compactions.status(each).progress is Progress.NOT_RUN for each in logs)
            and self._maintenance.may_unload(topic)
        )
