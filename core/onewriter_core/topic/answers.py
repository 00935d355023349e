"""The effects that answer producers, and their texts.

The Go client recognizes errors by substring. So no text contains the name of an error other than its own.
"""

from __future__ import annotations

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Effect, Grant, Probe, Reject
from onewriter_core.topic.lookups import writers
from onewriter_core.topic.model import Partition, ProducerGroup, Request, SharedProducer, Topic


def reject_all(
    group: ProducerGroup, text: str, code: ServerError = ServerError.PRODUCER_FENCED
) -> tuple[Effect, ...]:
    return tuple(Reject(m.registration, code, text) for m in group.members)


def reject_busy(request: Request, text: str) -> Reject:
    return Reject(request.registration, ServerError.PRODUCER_BUSY, text)


def not_ready(registration: str, text: str) -> Reject:
    return Reject(registration, ServerError.SERVICE_NOT_READY, text)


def reject_replaced(registration: str) -> Reject:
    """Reject the older one of two connections of one producer."""
    return not_ready(registration, "a newer connection of this producer has replaced this one")


def reject_old_epoch(registration: str, carried: int, stored: int) -> Reject:
    """Reject a producer that reconnects with an epoch that it cannot resume. ``stored``: the topic's epoch."""
    if carried < stored:
        text = f"Topic epoch has already moved. Current epoch: {stored}, Producer epoch: {carried}"
    elif carried == stored:
        text = f"Topic epoch {stored} can no longer be resumed"
    else:
        text = f"Topic epoch {carried} was never granted, the current one is {stored}"
    return Reject(registration, ServerError.PRODUCER_FENCED, text)


def grants(topic: Topic, group: ProducerGroup, *, resumed: bool) -> tuple[Effect, ...]:
    """Grant each member its partition, under the partition's epoch."""
    epochs = {partition.number: partition.epoch for partition in topic.partitions}
    return tuple(
        Grant(m.registration, m.partition, group.producer_name, epochs[m.partition], resumed)
        for m in group.members
    )


def grant_shared(partition: Partition, producer: SharedProducer) -> Grant:
    epoch = partition.epoch or None
    return Grant(producer.registration, partition.number, producer.producer_name, epoch)


def probes(topic: Topic, partitions: tuple[int, ...]) -> tuple[Effect, ...]:
    """Check whether the present writers are alive: one PING for each partition."""
    return tuple(
        Probe(registration)
        for partition in topic.partitions
        if partition.number in partitions
        for registration in writers(topic, partition)[:1]
    )
