"""A topic that this broker serves, in the form that connections and administration use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.settings import Settings
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE


class Settling(Protocol):
    """Work that is still under way."""

    async def settled(self) -> None:
        """Wait until the work has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Detection:
    """When a connection counts as silent. ``silent_after_seconds`` allows for missed pings."""

    ping_interval_seconds: float
    silent_after_seconds: float

    def sooner_of(self, other: Detection | None) -> Detection:
        """The stricter one of each setting."""
        if other is None:
            return self
        return Detection(
            min(self.ping_interval_seconds, other.ping_interval_seconds),
            min(self.silent_after_seconds, other.silent_after_seconds),
        )


@dataclass(slots=True, eq=False)
class LoadedTopic:
    """A topic that this broker serves: its runner, and the subscriptions of each log."""

    name: TopicName
    bucket: int
    entry: CatalogEntry
    runner: TopicRunner
    subscriptions: dict[int, Subscriptions]
    declared: ExclusiveTopic | None
    compaction_threshold: int = 0
    """Bytes after the compaction horizon at which the logs are compacted. 0: only on request."""
    requires_schema: bool = False
    """Whether producers without a schema are refused if the topic has one."""
    is_growing: bool = False
    """Whether declared partitions are being added."""
    unused_since: float | None = None
    """When it was first seen unused, in monotonic seconds. None: it was used since the last check."""
    _growing: asyncio.Lock | None = field(default=None, init=False)

    @property
    def growing(self) -> asyncio.Lock:
        """The lock that is held while further logs are opened."""
        if self._growing is None:  # created on demand, because few topics grow
            self._growing = asyncio.Lock()
        return self._growing

    @property
    def is_used(self) -> bool:
        """Whether a client uses the topic, or it has a subscription."""
        return bool(self.runner.producers) or not all(
            each.is_empty for each in self.subscriptions.values()
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether it is not used, and nothing of it waits or is under way."""
        is_locked = self.is_growing or (self._growing is not None and self._growing.locked())
        is_complete = len(self.subscriptions) == len(self.runner.logs)
        return is_complete and not is_locked and not self.is_used and self.runner.is_at_rest

    def has(self, name: TopicName) -> bool:
        """Whether the topic serves that name already."""
        return (WHOLE if name.partition is None else name.partition) in self.subscriptions

    def detection(self, settings: Settings) -> Detection:
        """How soon a holder of this topic counts as silent."""
        if self.declared is None:
            return Detection(settings.ping_interval_seconds, settings.silent_after_seconds)
        detection = self.declared.spec.detection
        return Detection(detection.ping_interval_seconds, detection.silence_seconds)

    @property
    def progress_deadline_seconds(self) -> float:
        """The longest time that a holder may not publish. 0: unlimited."""
        if self.declared is None:
            return 0.0
        return self.declared.spec.detection.progress_deadline_seconds

    def partition_of(self, name: TopicName) -> int:
        """The partition of a topic name. Raises Refused if the topic does not have it."""
        partition = WHOLE if name.partition is None else name.partition
        if partition not in self.subscriptions:
            raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
        return partition
