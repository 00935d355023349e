"""Checks of epochs: whether this broker still serves a log, and whether an epoch leads it.

The store answers, because a broker's memory proves nothing: the process may have been frozen, and another broker may
serve its topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from onewriter_broker.log.store.api import Binding, EpochStatus, Guard, Outcome
from onewriter_broker.log.topic_log.guards import has_space, too_many_floors
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Fenced, Unavailable, Undecided
from onewriter_core.topic.lookups import is_ownership_ending, tenure_of
from onewriter_core.topic.model import Topic

_Answer = TypeVar("_Answer")

Prove = Callable[[Durability, str], Awaitable[None]]
"""Waits until earlier writes to a dataset have this durability (Appender.prove)."""


async def epoch_status_of(topic_log: TopicLog, prove: Prove) -> EpochStatus:
    """The log's standing in the store, at a moment at which this broker certainly served the log.

    It is as durable as an acknowledgement of the topic: if that waits for replicas, so does this check. Raises
    Undecided if the caller should retry, Unavailable if this broker does not serve the log.
    """
    durability = topic_log.durability
    marks = durability not in {Durability.NONE, Durability.LOCAL}

    def ask(binding: Binding, token: str) -> Awaitable[EpochStatus | Outcome]:
        return topic_log.store.check(binding, topic_log.name, token, marks=marks)

    binding, answer = await _owned(topic_log, ask)
    if not isinstance(answer, EpochStatus):
        raise Unavailable(f"this broker no longer serves {topic_log.name} ({answer.value}); retry")
    if marks:
        await prove(durability, binding.replid)
    return answer


async def raise_floor(topic_log: TopicLog, guard: Guard, prove: Prove) -> None:
    """Raise the floor of a guard: the log then rejects writes under an older number of this guard.

    Raises as ``epoch_status_of`` does; the floor may be stored nevertheless. Raises Refused if the log already has
    ``LogLimits.floors_max`` other floors.
    """
    field = guard.floor_field
    floors_max = topic_log.limits.floors_max
    if not has_space(topic_log.state, guard, floors_max):
        raise too_many_floors(topic_log.name, floors_max)

    def ask(binding: Binding, token: str) -> Awaitable[Outcome]:
        topic_log.note_floor(guard)
        fields = {field: topic_log.state[field]}
        return topic_log.store.set_state(binding, topic_log.name, token, fields)

    _, outcome = await _owned(topic_log, ask)
    if outcome is not Outcome.DONE:
        raise Unavailable(f"this broker no longer serves {topic_log.name} ({outcome.value}); retry")
    await epoch_status_of(topic_log, prove)  # as durable as an acknowledgement


async def _owned(
    topic_log: TopicLog, ask: Callable[[Binding, str], Awaitable[_Answer]]
) -> tuple[Binding, _Answer]:
    """The store's answer under the log's present ledger. The call is repeated if the ledger changes meanwhile."""
    while True:
        binding, ledger = topic_log.binding, topic_log.ledger
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        answer = await ask(binding, binding.token(ledger))
        is_refused = isinstance(answer, Outcome) and answer is not Outcome.DONE
        if is_refused and (binding, ledger) != (topic_log.binding, topic_log.ledger):
            continue
        if answer is Outcome.REFENCE:  # bucket ownership binds the bucket to the new dataset
            raise Undecided(f"{topic_log.name} is reconnecting to the store")
        return binding, answer


def leads(topic: Topic, partition: int, epoch: int) -> bool:
    """Whether the tenure of an epoch is the one that may write a partition or resume."""
    found = topic.partition(partition)
    tenure = None if found is None else tenure_of(found)
    if found is None or tenure is None or topic.is_closed:
        return False
    return tenure.epoch == epoch and not is_ownership_ending(topic, found)


def check_epoch(topic: Topic, partition: int, epoch: int) -> None:
    """Raise Fenced if an epoch does not lead a partition and can never lead it again.

    Raises Unavailable if this is unknown, because the topic moves or its holder changes.
    """
    if topic.is_closed:
        raise Unavailable("the topic is moving to another broker; retry later")
    if leads(topic, partition, epoch):
        return
    found = topic.partition(partition)
    if found is not None and is_ownership_ending(topic, found):
        raise Unavailable("the holder of the topic is changing; retry later")
    current = 0 if found is None else found.epoch
    text = (
        f"epoch {epoch} does not lead the topic, whose newest is {current}; nothing was published"
    )
    raise Fenced(text, epoch=epoch, current_epoch=current)


async def check_leads(runner: TopicRunner, partition: int, epoch: int, prove: Prove) -> None:
    """As ``check_epoch``. Raises Fenced only while this broker certainly serves the topic."""
    try:
        check_epoch(runner.topic, partition, epoch)
    except Fenced:
        await epoch_status_of(runner.logs[partition], prove)
        raise


async def count_led(runner: TopicRunner, partitions: int, epoch: int, prove: Prove) -> int:
    """Count the partitions that an epoch leads, from the first one of ``partitions`` up to a gap.

    A partition that was added during a tenure has no epoch or another one until the holder changes. Raises as
    ``check_leads`` does if the epoch does not lead the first partition.
    """
    for partition in range(partitions):
        if partition not in runner.logs:  # declared, and being created
            return partition
        try:
            await check_leads(runner, partition, epoch, prove)
        except Fenced:
            if partition == 0:
                raise
            return partition
    return partitions
