"""Is this broker still the one that serves a log, and which epoch is it? Answered by the store.

A broker's memory proves nothing: it may have been frozen, and its topics may have another owner since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from onewriter_broker.log.store.api import Binding, Durability, Guard, Outcome, Standing
from onewriter_broker.log.topic_log.guards import has_room, no_room
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import Unavailable, Undecided

_Answer = TypeVar("_Answer")

Prove = Callable[[Durability, str], Awaitable[None]]
"""Waits until what was written to a dataset is as durable as that (Appender.prove)."""


async def standing_of(topic_log: TopicLog, prove: Prove) -> Standing:
    """What the log's state says, at a moment at which this broker certainly served the log.

    It holds as firmly as an acknowledgement of the topic: where that waits for replicas, so does
    this. Raises Undecided (ask again) and Unavailable (this broker does not serve the log now).
    """
    durability = topic_log.durability
    marks = durability not in {Durability.NONE, Durability.LOCAL}

    def ask(binding: Binding, token: str) -> Awaitable[Standing | Outcome]:
        return topic_log.store.check(binding, topic_log.name, token, marks=marks)

    binding, answer = await _owned(topic_log, ask)
    if not isinstance(answer, Standing):
        raise Unavailable(f"{topic_log.name} has moved on: {answer.value}")
    if marks:
        await prove(durability, binding.replid)
    return answer


async def raise_floor(topic_log: TopicLog, guard: Guard, prove: Prove) -> None:
    """From now on nothing enters the log under an older number of this guard, which is a floor.

    Raises as ``standing_of`` does; the floor may stand all the same. Raises Refused when the log
    remembers FLOORS_MAX others.
    """
    field = guard.floor_field
    if not has_room(topic_log.state, guard):
        raise no_room(topic_log.name)

    def ask(binding: Binding, token: str) -> Awaitable[Outcome]:
        topic_log.note_floor(guard)
        fields = {field: topic_log.state[field]}
        return topic_log.store.set_state(binding, topic_log.name, token, fields)

    _, outcome = await _owned(topic_log, ask)
    if outcome is not Outcome.DONE:
        raise Unavailable(f"{topic_log.name} has moved on: {outcome.value}")
    await standing_of(topic_log, prove)  # as durable as an acknowledgement


async def _owned(
    topic_log: TopicLog, ask: Callable[[Binding, str], Awaitable[_Answer]]
) -> tuple[Binding, _Answer]:
    """The answer to a question under the log's present ledger, asked again while ledgers change."""
    while True:
        binding, ledger = topic_log.binding, topic_log.ledger
        if binding is None:
            raise Unavailable(f"{topic_log.name} is not open here")
        answer = await ask(binding, binding.token(ledger))
        is_refused = isinstance(answer, Outcome) and answer is not Outcome.DONE
        if is_refused and (binding, ledger) != (topic_log.binding, topic_log.ledger):
            continue
        if answer is Outcome.REFENCE:  # whoever follows the store binds the bucket anew
            raise Undecided(f"{topic_log.name} is reconnecting to the store")
        return binding, answer
