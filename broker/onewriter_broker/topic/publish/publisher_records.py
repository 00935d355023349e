"""Records in the bucket's audit stream who publishes under an epoch, before the first publish.

A block names its publisher, but a process that can write to the log can write any name. The audit record
repeats the name and adds the right under which it published; ``onewriter verify`` compares both. One
record per log, epoch, app and publisher is enough, so a broker remembers what it wrote. A broker that
takes the topic over writes the record again before its own first publish.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from onewriter_broker.log.store.api import Binding
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.history.transitions import identity_fields
from onewriter_broker.topic.publish.requests import PublishRequest, PublishRight
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.publishers import (
    CAPABILITY,
    EVERY_POD,
    HELD,
    PUBLISHER,
    Publisher,
    publisher_of,
)

PUBLISHERS_PER_EPOCH_MAX: Final = 256
"""Records that name a pod, per log and epoch. Later records name all pods of a subject, because a program that
restarts often has another pod each time."""

RECORDS_PER_EPOCH_MAX: Final = 512
"""Records per log and epoch. The broker refuses a publish that needs another one."""


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """Limits of the records of one log and epoch: see the constants."""

    publishers_per_epoch_max: int = PUBLISHERS_PER_EPOCH_MAX
    records_per_epoch_max: int = RECORDS_PER_EPOCH_MAX


@dataclass(slots=True)
class _Recorded:
    """The records that this broker wrote for one log, under one epoch and binding."""

    epoch: int = -1
    binding: Binding | None = None
    known: set[tuple[str, Publisher]] = field(default_factory=set)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class PublisherRecords:
    """The publishers that this broker has recorded for the logs that it serves."""

    def __init__(self, limits: PublisherLimits = PublisherLimits()) -> None:
        self._limits = limits
        self._of: WeakKeyDictionary[TopicLog, _Recorded] = WeakKeyDictionary()

    async def record(
        self, runner: TopicRunner, topic_log: TopicLog, requested: PublishRequest
    ) -> Binding:
        """Return when the audit names the publisher, with the binding under which the record was written.

        Only a block that is appended under that binding certainly follows the record. Raises Unavailable if
        the store did not confirm the record, and Refused if there are too many.
        """
        right = requested.right
        if right is None:
            raise Refused(ServerError.AUTHORIZATION_ERROR, "the right to publish was not proved")
        recorded = self._of.setdefault(topic_log, _Recorded())
        async with recorded.writing:
            binding = topic_log.binding
            if binding is None or right.epoch < recorded.epoch:
                raise Unavailable("the holder of the topic has changed; nothing was published")
            if (right.epoch, binding) != (recorded.epoch, recorded.binding):
                recorded.known.clear()
                recorded.epoch, recorded.binding = right.epoch, binding
            publisher = publisher_of(requested.identity)
            if (requested.app, publisher) in recorded.known:
                return binding
            limits = self._limits
            if len(recorded.known) >= limits.publishers_per_epoch_max and publisher.pod_uid:
                publisher = publisher._replace(pod_uid=EVERY_POD)
                if (requested.app, publisher) in recorded.known:
                    return binding
            if len(recorded.known) >= limits.records_per_epoch_max:
                text = (
                    f"{topic_log.name} was published to by {limits.records_per_epoch_max} publishers and"
                    f" apps under epoch {right.epoch} already: publish under the next epoch"
                )
                raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
            fields = _fields(topic_log, requested, right, publisher)
            await runner.history.attest(binding, fields)
            recorded.known.add((requested.app, publisher))
            return binding


def _fields(
    topic_log: TopicLog, requested: PublishRequest, right: PublishRight, publisher: Publisher
) -> dict[str, str]:
    """The fields of the record, without those of every audit record."""
    who = {} if publisher.pod_uid == EVERY_POD else identity_fields(requested.identity)
    fields = {"subject": publisher.subject, "podUID": publisher.pod_uid} | who
    return {
        "kind": PUBLISHER,
        "log": str(topic_log.name),
        "epoch": str(right.epoch),
        "app": requested.app,
        "right": CAPABILITY if right.is_passed_on else HELD,
        "holder": str(right.holder),
    } | {name: value for name, value in fields.items() if value}
