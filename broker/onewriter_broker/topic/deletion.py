"""Deletes topics: removes everything below the newest markers of the logs. Epoch and ledger floor stay."""

from __future__ import annotations

from collections.abc import Iterable

from onewriter_broker.dispatch.saved_cursors import STATE_PREFIX as CURSOR_PREFIX
from onewriter_broker.log.store.api import Outcome
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.compaction.passes import drop_unused
from onewriter_broker.topic.producers.deduplication import FIELD as DEDUPLICATION
from onewriter_broker.topic.publish.layouts import LAYOUT_PREFIX
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.schemas.topic_schemas import STATE_PREFIX as SCHEMA_PREFIX
from onewriter_core.errors import Unavailable
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.log_format.field_names import (
    COMPACTED,
    COMPACTING,
    OWNER_PREFIX,
    TERMINATED,
    TRIMMED,
    VERSION_PREFIX,
)


async def delete(topics: Topics, base: TopicName, *, only_if_empty: bool = False) -> bool:
    """Delete a topic: trim its logs completely, and leave tombstones that keep the epochs.

    Producers and consumers are closed. Look-ups meanwhile get a retryable error and then find a new topic.
    False: ``only_if_empty`` was set, the topic has entries, and it keeps them. Raises Refused, Unavailable,
    Undecided; after the latter two, call it again.
    """
    topic = await topics.serve_existing(base)
    if only_if_empty and not await _is_empty(topic.runner.logs.values()):
        return False
    async with topics.shut(topic, "the topic was deleted") as runner:
        logs = list(runner.logs.values())
        # Check again after the fence, because no producer can append from here on.
        if only_if_empty and not await _is_empty(logs):
            return False
        for topic_log in logs:
            await erase(topic_log)
        await topics.change_entry(base, lambda _: CatalogEntry(is_deleted=True))
    return True


async def _is_empty(logs: Iterable[TopicLog]) -> bool:
    """Whether none of the logs has an entry. Raises Undecided."""
    for topic_log in logs:
        if topic_log.undecided or topic_log.waiting:
            return False
        if await topic_log.read(EARLIEST, 1, 1):
            return False
    return True


async def erase(topic_log: TopicLog) -> None:
    """Drop all blocks below the marker of a log that was just fenced, and the state derived from them.

    Raises Unavailable if the log has moved on, Undecided if the store does not answer.
    """
    binding, marker = topic_log.binding, Position(topic_log.ledger, 0)
    forgotten = (CURSOR_PREFIX, SCHEMA_PREFIX, VERSION_PREFIX, OWNER_PREFIX, LAYOUT_PREFIX)
    gone = [name for name in topic_log.state if name.startswith(forgotten)]
    gone += [TERMINATED, DEDUPLICATION, COMPACTED]
    had_view = COMPACTED in topic_log.state or COMPACTING in topic_log.state
    while True:
        if binding is None:
            raise Unavailable(f"this broker no longer serves {topic_log.name}; retry")
        outcome = await topic_log.store.trim(
            binding,
            topic_log.name,
            binding.token(topic_log.ledger),
            marker,
            {TRIMMED: str(marker)} | ({COMPACTING: "deleted"} if had_view else {}),
            gone,
        )
        if outcome is not Outcome.DONE:
            raise Unavailable(
                f"this broker no longer serves {topic_log.name} ({outcome.value}); retry"
            )
        first = await topic_log.read_blocks(EARLIEST, count=1)
        if not first or first[0].position >= marker:
            break
    topic_log.note_state({}, [COMPACTED])
    if had_view:
        await drop_unused(topic_log)
