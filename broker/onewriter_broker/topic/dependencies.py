"""What the topics of one broker depend on: the store, the appender, bucket ownership, clocks, observers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onewriter_broker.log.appender import AppendPath
from onewriter_broker.log.store.api import Binding, BrokenKey, LogStore, Outcome
from onewriter_broker.log.topic_log.losses import Loss, RangeAtRisk
from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import Refenced
from onewriter_broker.topic.history.audit import AuditTail
from onewriter_broker.topic.history.background import PresenceSaves, Recalls
from onewriter_broker.topic.limits import TopicLimits
from onewriter_broker.topic.producers.leader_loads import LeaderLoads
from onewriter_core.ids import Position, TopicName
from onewriter_core.topic.effects import Record


class Ownership(Protocol):
    """The methods of bucket ownership that a topic uses (buckets.BucketOwnership)."""

    def holding(self, bucket: int) -> Holding | None: ...

    async def reserve_ledger(self, bucket: int) -> int: ...

    async def record_grant(self, bucket: int, ledger: int) -> None: ...

    def note_grant(self, bucket: int, ledger: int) -> None: ...

    async def confirm_record(self, bucket: int) -> None: ...

    async def record_use(self, bucket: int, ledger: int) -> None: ...

    async def refence(
        self, bucket: int, failed: Binding, outcome: Outcome | None = None
    ) -> Refenced: ...


@dataclass(frozen=True, slots=True)
class TopicDependencies:
    """What all topics of a broker share."""

    store: LogStore
    appender: AppendPath
    ownership: Ownership
    spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
    now: Callable[[], float]
    """Monotonic clock, in seconds."""
    wall_ms: Callable[[], int]
    incarnation: str
    """Name of this broker process in audit records."""
    failed: Callable[[TopicName], None]
    """Reports an unexpected error in a topic. The broker then closes the topic."""
    broken: Callable[[TopicName, BrokenKey], None]
    """Reports an unusable key of a topic. The broker closes the topic and refuses it until it is repaired."""
    lost: Callable[[Loss], None]
    """Reports acknowledged entries that a failover lost."""
    left: Callable[[TopicName, Binding, Sequence[Position]], None]
    """Reports what was acknowledged in a log that may be lost to another dataset."""
    moved: Callable[[TopicName, Record], None]
    """Reports a transition of a topic."""
    at_risk: Callable[[RangeAtRisk], None] = lambda _range: None
    """Reports positions of a log whose entries were perhaps acknowledged and lost."""
    replicas: int = 0
    """Configured replicas of each primary of the store."""
    first_message: Callable[[str, float], None] = lambda _cause, _seconds: None
    """Reports the seconds between a grant and its holder's first message, with the cause of the transition."""
    changed: Callable[[TopicName], None] = lambda _name: None
    """Reports that a topic's status changed, or whether this broker serves it."""
    resumable_until: Callable[[int], float | None] = lambda _bucket: None
    """Until when returning holders of a bucket's topics have precedence over waiters. None: no longer."""
    audit_tail: AuditTail | None = None
    """Transitions of topics before this broker served them; None: not available."""
    loads: LeaderLoads = field(default_factory=LeaderLoads)
    limits: TopicLimits = TopicLimits()
    presence: PresenceSaves = field(init=False)
    recalls: Recalls = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "presence", PresenceSaves(self.spawn))
        object.__setattr__(self, "recalls", Recalls(self.spawn))
