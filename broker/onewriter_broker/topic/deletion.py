"""Deleting a log: all that is below its newest marker goes, its epoch and ledger floor stay."""

from __future__ import annotations

from onewriter_broker.dispatch.saving import STATE_PREFIX as CURSOR_PREFIX
from onewriter_broker.log.api import Outcome
from onewriter_broker.log.topic_log import TRIMMED, TopicLog
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position


async def erase(topic_log: TopicLog) -> None:
    """Drop all blocks below the marker of a log that was just fenced, and its cursors.

    Raises Unavailable when the log has moved on, Undecided when the store does not answer.
    """
    binding, marker = topic_log.binding, Position(topic_log.ledger, 0)
    cursors = [name for name in topic_log.state if name.startswith(CURSOR_PREFIX)]
    while True:
        if binding is None:
            raise Unavailable(f"{topic_log.name} has moved on")
        outcome = await topic_log.store.trim(
            binding,
            topic_log.name,
            binding.token(topic_log.ledger),
            marker,
            {TRIMMED: str(marker)},
            cursors,
        )
        if outcome is not Outcome.DONE:
            raise Unavailable(f"{topic_log.name} has moved on: {outcome.value}")
        first = await topic_log.store.read_blocks(topic_log.name, EARLIEST, count=1)
        if not first or first[0].position >= marker:
            return
