"""A topic that this broker serves, as connections and administration see it."""

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
    """Something that is still to be finished."""

    async def settled(self) -> None:
        """Return once it is."""
        ...


@dataclass(frozen=True, slots=True)
class Detection:
    """How soon a connection counts as silent. ``silent_after_seconds`` has room for missed pings."""

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
    """A topic served here: its runner, and the subscriptions of each log."""

    name: TopicName
    bucket: int
    entry: CatalogEntry
    runner: TopicRunner
    subscriptions: dict[int, Subscriptions]
    declared: ExclusiveTopic | None
    compaction_threshold: int = 0
    """Bytes behind the horizon at which its logs are compacted; 0: only on request."""
    requires_schema: bool = False
    """Producers without a schema are refused where the topic has one."""
    is_growing: bool = False
    """Partitions that were declared are being added."""
    _growing: asyncio.Lock | None = field(default=None, init=False)

    @property
    def growing(self) -> asyncio.Lock:
        """Held while logs are opened beside those that are: one call after the other."""
        if self._growing is None:  # made on demand: few topics ever grow
            self._growing = asyncio.Lock()
        return self._growing

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
        """The longest time a holder may go without publishing; 0: for ever."""
        if self.declared is None:
            return 0.0
        return self.declared.spec.detection.progress_deadline_seconds

    def partition_of(self, name: TopicName) -> int:
        """The partition that a topic name means; raises Refused when it has none."""
        partition = WHOLE if name.partition is None else name.partition
        if partition not in self.subscriptions:
            raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
        return partition
