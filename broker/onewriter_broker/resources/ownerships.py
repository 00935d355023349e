"""All ownerships of the buckets that this broker holds: the interface of this package.

Sessions use it for owners and readers, and guarded writes to get the current generation. Implements BucketEvents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from onewriter_broker.ownership.acquisition import Holding
from onewriter_broker.ownership.bucket_events import LostReason
from onewriter_broker.resources.dependencies import (
    SECONDS_PER_DAY,
    ResourceDependencies,
    ResourceLimits,
)
from onewriter_broker.resources.records import OwnerEnd, OwnershipRecord
from onewriter_broker.resources.resource_bucket import ResourceBucket
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import TopicName
from onewriter_core.own.names import own_field, resource_bucket, split_field, topic_of
from onewriter_core.own.table import Ownership, OwnershipDenied, OwnershipGranted
from onewriter_core.property_names import GENERATION_PROPERTY, NONCE_PROPERTY
from onewriter_core.topic.model import WHOLE

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class OwnershipStatistics:
    """Counters for the metrics."""

    granted: Counter[str] = field(default_factory=Counter)
    """Grants by cause."""
    denied: Counter[str] = field(default_factory=Counter)
    """Denials by code."""
    readers_refused: int = 0
    readers_closed: int = 0

    def answered(self, answer: OwnershipGranted | OwnershipDenied) -> None:
        """Count the answer for one resource."""
        if isinstance(answer, OwnershipGranted):
            self.granted[answer.cause.value] += 1
        else:
            self.denied[answer.code.name] += 1


class GenerationStatus(NamedTuple):
    """The current generation for guarded writes, and the highest one that was ever current.

    Without a record the former is 0 and the latter the floor of the group.
    ``first_subject``: the subject that owned the resource first and has not released it; None if there is no such
    subject, or if the resource is a topic.
    """

    current: int
    highest: int
    first_subject: str | None = None


def generation_status_in(ownership: Ownership) -> GenerationStatus:
    """The standing of a record."""
    owner = ownership.owner
    subject = None if owner is None else owner.identity.subject
    return GenerationStatus(ownership.generation, ownership.generation, subject)


class Ownerships:
    """See the module. ``topics`` serves the same buckets, whose number is ``buckets``.

    ``kept_days``: how long a record stays after its owner left, before it may be dropped for others.
    ``may_drop``: whether all brokers keep floors. Otherwise no record is dropped.
    """

    def __init__(
        self,
        topics: Topics,
        buckets: int,
        kept_days: float,
        may_drop: Callable[[], bool],
        limits: ResourceLimits = ResourceLimits(),
    ) -> None:
        self._limits = limits
        self.statistics = OwnershipStatistics()
        self._topics = topics
        self._buckets = buckets
        self._kept_seconds = kept_days * SECONDS_PER_DAY
        self._may_drop = may_drop
        self._resource_buckets: dict[int, ResourceBucket] = {}
        self._dependencies: ResourceDependencies

    def serve_with(self, dependencies: TopicDependencies) -> None:
        """Complete the construction, as ``Topics.serve_with`` does."""
        self._dependencies = ResourceDependencies(
            store=dependencies.store,
            appender=dependencies.appender,
            ownership=dependencies.ownership,
            spawn=dependencies.spawn,
            now=dependencies.now,
            wall_ms=dependencies.wall_ms,
            incarnation=dependencies.incarnation,
            promises=lambda: self._topics.promises,
            reserved_until=lambda bucket: self._topics.resume_windows.until(bucket) or 0.0,
            deposed=self._close_readers,
            kept_seconds=self._kept_seconds,
            may_drop=self._may_drop,
            limits=self._limits,
        )

    # ------------------------------------------------------------ BucketEvents

    def bucket_acquired(self, bucket: int, holding: Holding) -> None:
        """Forget older records. They are read at the first request."""
        del holding
        self._close(bucket)

    def bucket_lost(self, bucket: int, reason: LostReason) -> None:
        """Close the bucket. Its owners continue at the next broker."""
        del reason
        self._close(bucket)

    def dataset_changed(self, bucket: int, holding: Holding) -> None:
        """Write the records again that a failover of the store may have lost."""
        del holding
        resources = self._resource_buckets.get(bucket)
        if resources is not None:
            self._dependencies.spawn(_bind(resources))

    async def drain(self, bucket: int) -> None:
        """Close the bucket and wait for the changes that are under way."""
        resources = self._resource_buckets.get(bucket)
        self._close(bucket)
        if resources is not None:
            await resources.settled()

    def _close(self, bucket: int) -> None:
        resources = self._resource_buckets.pop(bucket, None)
        if resources is not None:
            resources.close("the ownership is moving to another broker")

    # ------------------------------------------------------------ asking

    def bucket_of(self, resource: str) -> int:
        """The bucket that keeps a resource's records. Raises InvalidTopicName."""
        return resource_bucket(resource, self._buckets)

    async def of_bucket(self, bucket: int) -> ResourceBucket:
        """A held bucket's records, loaded. Raises Unavailable, Undecided, BrokenKey."""
        resources = self._resource_buckets.get(bucket)
        if resources is None:
            resources = self._resource_buckets[bucket] = ResourceBucket(bucket, self._dependencies)
        await resources.loaded()
        return resources

    def loaded_buckets(self) -> Iterator[ResourceBucket]:
        """The buckets whose records are in memory."""
        return iter(list(self._resource_buckets.values()))

    def left(self, end: OwnerEnd) -> None:
        """Handle a lost connection."""
        for each in self.loaded_buckets():
            each.left(end)

    async def generation_status(self, group: str, resource: str) -> GenerationStatus:
        """The standing that guards on the resource depend on. Raises as ``of_bucket`` does, and InvalidTopicName."""
        resources = await self.of_bucket(self.bucket_of(resource))
        entry = resources.entries.get(own_field(group, resource))
        if entry is None:
            return GenerationStatus(0, resources.floors.of(group))
        return generation_status_in(entry.ownership)

    # ------------------------------------------------------------ single readers

    async def check_reader(
        self,
        topic: TopicName,
        subscription: str,
        properties: Mapping[str, str],
        end: OwnerEnd,
    ) -> None:
        """Refuse a consumer that does not belong to the group's current owner of the topic.

        If the group has never owned the topic, the broker refuses only a consumer that names a generation,
        because it would not be the single reader. Raises Refused, and as ``of_bucket``.
        """
        resources = await self.of_bucket(self._topics.bucket_of(topic))
        if GENERATION_PROPERTY in properties and _covering(resources, topic, subscription) is None:
            self.statistics.readers_refused += 1
            text = f"group {subscription} never owned {topic}, so no consumer is its single reader"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        self.check_reader_now(topic, subscription, properties, end)

    def check_reader_now(
        self,
        topic: TopicName,
        subscription: str,
        properties: Mapping[str, str],
        end: OwnerEnd,
    ) -> None:
        """The same check on records that are loaded. Raises Refused."""
        resources = self._resource_buckets.get(self._topics.bucket_of(topic))
        entry = None if resources is None else _covering(resources, topic, subscription)
        if entry is None:
            return
        refusal = _reader_refusal(entry, subscription, properties, end, self._dependencies.now())
        if refusal is not None:
            self.statistics.readers_refused += 1
            raise refusal

    async def check_follower(self, topic: TopicName, subscription: str) -> None:
        """Refuse to move a subscription over HTTP if its group owns the topic.

        The result holds until the next await of the caller. Raises Refused, and as ``of_bucket``.
        """
        resources = await self.of_bucket(self._topics.bucket_of(topic))
        if _covering(resources, topic, subscription) is not None:
            self.statistics.readers_refused += 1
            text = f"group {subscription} owns its topics: only their owners' consumers acknowledge"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)

    def _close_readers(self, resources: ResourceBucket, record: str) -> None:
        """Disconnect the consumers of a group after its owner changed."""
        group, resource = split_field(record)
        name = topic_of(resource)
        loaded = None if name is None or not group else self._topics.loaded.get(str(name.base))
        if name is None or loaded is None:
            return
        for partition, subscriptions in loaded.subscriptions.items():
            whole = name.base if partition == WHOLE else name.base.with_partition(partition)
            is_meant = name == whole or (
                name.partition is None and own_field(group, str(whole)) not in resources.entries
            )
            if is_meant:
                self.statistics.readers_closed += subscriptions.disconnect(group)


def _covering(resources: ResourceBucket, topic: TopicName, group: str) -> OwnershipRecord | None:
    """The record that decides who reads a topic for a group: that of the partition, else that of the topic."""
    entry = resources.entries.get(own_field(group, str(topic)))
    if entry is None and topic.partition is not None:
        entry = resources.entries.get(own_field(group, str(topic.base)))
    return entry


def _reader_refusal(
    entry: OwnershipRecord, group: str, properties: Mapping[str, str], end: OwnerEnd, now: float
) -> Refused | None:
    current = entry.current(now)
    requested = properties.get(GENERATION_PROPERTY)
    if requested is None:
        text = f"group {group} owns its topics: subscribe with the property {GENERATION_PROPERTY}"
        return Refused(ServerError.NOT_ALLOWED_ERROR, text)
    if requested != str(current.generation):
        text = f"generation {requested[:20]} does not read for group {group}: the current one is"
        return Refused(ServerError.PRODUCER_FENCED, f"{text} {current.generation}")
    nonce = properties.get(NONCE_PROPERTY, "")
    is_owners = current.owner is not None and nonce != "" and nonce == current.owner.nonce
    if entry.end is end or (current.is_owned and is_owners):
        return None
    if is_owners:
        text = f"the owner of generation {requested} of group {group} has not come back yet"
        return Refused(ServerError.SERVICE_NOT_READY, text)
    text = f"generation {requested} of group {group} is not owned by this connection"
    return Refused(ServerError.NOT_ALLOWED_ERROR, text)


async def _bind(resources: ResourceBucket) -> None:
    try:
        await resources.bind()
    except OnewriterError as error:  # the next request tries again
        log.warning("ownerships.unbound", bucket=resources.bucket, reason=str(error))
