"""The producers of one topic: admits them after their predecessors, stops them, and remembers them for a while.

The topic machine decides which producer may write (runner.py). This module keeps what a returning producer may
resend, also for the next broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.limits import DeduplicationLimits
from onewriter_broker.topic.producers.deduplication import Deduplications
from onewriter_broker.topic.producers.producer import Producer, settled
from onewriter_broker.topic.producers.resends import (
    SNAPSHOT_FIELD,
    lineage_from_log,
    read_snapshot,
    snapshot,
)
from onewriter_core.errors import Undecided
from onewriter_core.topic.effects import Grant

PREDECESSORS_MAX = 256
"""Departed producers that are remembered per topic, so that they can resume without duplicates."""


RETRY_SECONDS = 0.2
"""Time between attempts to read a producer's entries while the store does not answer."""

log = structlog.get_logger(__name__)


class TopicProducers:
    """Producers by registration. ``activated`` is called with each admitted producer."""

    __slots__ = ("_activated", "_logs", "_predecessors", "_spawn", "deduplications", "producers")

    def __init__(
        self,
        logs: Mapping[int, TopicLog],
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        activated: Callable[[Producer], None],
        *,
        is_deduplicated: bool,
        limits: DeduplicationLimits = DeduplicationLimits(),
    ) -> None:
        self.producers: dict[str, Producer] = {}
        self.deduplications = Deduplications(logs, spawn, is_on=is_deduplicated, limits=limits)
        self._logs = logs
        self._spawn = spawn
        self._activated = activated
        self._predecessors: dict[tuple[int, str], Producer] = {}

    def stop(self, registration: str) -> Producer | None:
        """Remove a producer. Its entries in the store are still answered."""
        producer = self.producers.pop(registration, None)
        if producer is None:
            return None
        producer.stop()
        if producer.is_answered:  # else its lineage may not have been read yet
            key = (producer.request.partition, producer.name)
            self._predecessors.pop(key, None)
            self._predecessors[key] = producer
            while len(self._predecessors) > PREDECESSORS_MAX:
                del self._predecessors[next(iter(self._predecessors))]
        return producer

    def grant(self, effect: Grant) -> None:
        """Let a producer write, at once or after the entries of its predecessor are known."""
        producer = self.producers[effect.registration]
        producer.name = effect.producer_name
        producer.epoch = effect.epoch
        producer.is_granted = True
        if self.deduplications.is_on:
            self._spawn(self._admit_when_settled(producer, effect))
        else:
            self._admit(producer, effect)

    async def _admit_when_settled(self, producer: Producer, effect: Grant) -> None:
        """Wait for pending entries of the producer's name, because the answer contains the last stored one."""
        await settled(producer.topic_log, producer.name)
        if self._is_waited_for(producer, effect):
            self._admit(producer, effect)

    def _is_waited_for(self, producer: Producer, effect: Grant) -> bool:
        """Whether the producer is still registered, and its grant still applies."""
        is_there = self.producers.get(effect.registration) is producer
        return is_there and not producer.is_stopped

    def _admit(self, producer: Producer, effect: Grant) -> None:
        """Let a producer write, after the entries of its earlier connections."""
        # Only a client that was granted before sends a topic epoch. The reconnect counter proves nothing,
        # because clients also raise it between two attempts at a first creation. A new producer whose sequence
        # ids were taken for those of a namesake would get receipts for entries that are not stored.
        if not effect.resumed and producer.request.topic_epoch is None:
            self._activate(producer)
            return
        predecessor = self._predecessors.pop((producer.request.partition, producer.name), None)
        if predecessor is not None and predecessor.request.identity == producer.request.identity:
            producer.continues(predecessor)
            self._activate(producer)
        else:  # it was granted by another broker, or this broker no longer remembers it
            self._spawn(self._activate_from_log(producer, effect))

    def _activate(self, producer: Producer) -> None:
        producer.deduplicate(self.deduplications.of(producer.request.partition))
        producer.is_active = producer.is_answered = True
        epoch = producer.epoch
        if epoch is None and not producer.is_exclusive:
            epoch = 0  # so that the producer sends one when it reconnects
        producer.channel.producer_ready(producer, epoch)
        self._activated(producer)

    async def _activate_from_log(self, producer: Producer, effect: Grant) -> None:
        """Read the producer's entries, and let it write. Its connection may carry other holders, so it is kept."""
        is_logged = False
        while True:
            try:
                runs, floor = await lineage_from_log(
                    producer.topic_log,
                    producer.name,
                    effect.epoch if producer.is_exclusive else None,
                )
            except Undecided as undecided:
                if not self._is_waited_for(producer, effect):
                    return
                if not is_logged:
                    topic = str(producer.topic_log.name)
                    log.warning("lineage.waits", topic=topic, reason=str(undecided))
                    is_logged = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        producer.lineage.floor = floor
        for run in runs:
            producer.lineage.note(run)
        producer.resends = producer.lineage.resends(producer.topic_log)
        if self._is_waited_for(producer, effect):
            self._activate(producer)

    def deduplicate(self, *, is_on: bool) -> None:
        """Begin or end the deduplication of later entries."""
        self.deduplications.switch(is_on=is_on)
        for producer in self.producers.values():
            if producer.is_answered:
                producer.deduplicate(self.deduplications.of(producer.request.partition))

    def state(self, partition: int, epoch: int) -> dict[str, str]:
        """State fields with which another broker recognises resends after a trim of the log's tail."""
        # First the snapshot of another broker, because its producers may return only after this fence.
        last = {
            name: kept
            for name, kept in read_snapshot(self._logs[partition].state).items()
            if kept[0] >= epoch
        }
        for producer in (*self._predecessors.values(), *self.producers.values()):
            newest = producer.lineage.newest_stored
            # Only an epoch makes a name one lineage: a Shared producer with the same name starts again at 0.
            is_kept = producer.is_exclusive and producer.request.partition == partition
            if is_kept and producer.epoch is not None and newest is not None:
                last[producer.name] = (producer.epoch, newest)
        return {SNAPSHOT_FIELD: snapshot(last)} | self.deduplications.state(partition)
