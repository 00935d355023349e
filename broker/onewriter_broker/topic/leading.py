"""Whether an epoch that somebody names is the one that leads a log, and may be written under."""

from __future__ import annotations

from onewriter_broker.topic.epoch_checks import Prove, standing_of
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.errors import Fenced, Unavailable
from onewriter_core.topic.lookups import is_changing_hands, tenure_of
from onewriter_core.topic.model import Topic


def leads(topic: Topic, partition: int, epoch: int) -> bool:
    """Whether an epoch's tenure is the one that may write a partition, or come back to it."""
    found = topic.partition(partition)
    tenure = None if found is None else tenure_of(found)
    if found is None or tenure is None or topic.is_closed:
        return False
    return tenure.epoch == epoch and not is_changing_hands(topic, found)


def check_epoch(topic: Topic, partition: int, epoch: int) -> None:
    """Raises Fenced where an epoch is not the one that leads, and never will be again.

    Raises Unavailable where that cannot be told here: the topic moves, or changes hands.
    """
    if topic.is_closed:
        raise Unavailable("the topic is moving to another broker; retry later")
    if leads(topic, partition, epoch):
        return
    found = topic.partition(partition)
    if found is not None and is_changing_hands(topic, found):
        raise Unavailable("the holder of the topic is changing; retry later")
    current = 0 if found is None else found.epoch
    text = (
        f"epoch {epoch} does not lead the topic, whose newest is {current}; nothing was published"
    )
    raise Fenced(text, epoch=epoch, current_epoch=current)


async def check_leads(runner: TopicRunner, partition: int, epoch: int, prove: Prove) -> None:
    """As ``check_epoch``; says Fenced only while this broker certainly serves the topic."""
    try:
        check_epoch(runner.topic, partition, epoch)
    except Fenced:
        await standing_of(runner.logs[partition], prove)
        raise


async def count_led(runner: TopicRunner, partitions: int, epoch: int, prove: Prove) -> int:
    """How many of so many partitions, from the first one on, an epoch leads.

    One that was added while the topic was held has no epoch, or another one, until the topic changes hands.
    Raises as ``check_leads`` does where it leads not even the first.
    """
    for partition in range(partitions):
        if partition not in runner.logs:  # declared, and just being made
            return partition
        try:
            await check_leads(runner, partition, epoch, prove)
        except Fenced:
            if partition == 0:
                raise
            return partition
    return partitions
