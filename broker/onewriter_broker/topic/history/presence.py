"""Whether a topic's holders are there, as it is noted with the logs for whoever serves it next.

Fields of a log's state: ``present``, for which the next broker keeps a resume window; and since
when, from which it tells how long nobody could write. Noted when it changes, by the wall clock and
best effort: a broker that is killed notes nothing more, and then its last heartbeat is what is known
(membership.py). What is missed costs the next broker a resume window for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

import structlog

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.history.tenures import ABSENT_SINCE, PRESENT, PRESENT_SINCE
from onewriter_core.errors import Unavailable, Undecided
from onewriter_core.topic.model import Partition, Shared, Topic

UNHEARD_MS_MAX = 1_000
"""Brokers are heard of twice a second: who noted something this much later is another one."""

log = structlog.get_logger(__name__)


def note(
    topic: Topic,
    logs: Mapping[int, TopicLog],
    dependencies: TopicDependencies,
    spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
) -> None:
    """Note what has changed since it was noted last. ``logs`` has a log for every partition."""
    for partition in topic.partitions:
        topic_log = logs[partition.number]
        is_present = _is_held(topic, partition)
        present = "1" if is_present else "0"
        if topic_log.is_writable and topic_log.state.get(PRESENT, "0") != present:
            fields = {
                PRESENT: present,
                PRESENT_SINCE: str(dependencies.wall_ms()) if is_present else "",
                ABSENT_SINCE: "" if is_present else _since(partition, dependencies),
            }
            topic_log.note_state(fields)
            spawn(_save(topic_log, fields))


async def note_leaving(topic: Topic, logs: Mapping[int, TopicLog], wall_ms: int) -> None:
    """Note that the holders can write no longer, because the topic is given to another broker."""
    for partition in topic.partitions:
        topic_log = logs[partition.number]
        if topic_log.is_writable and _is_held(topic, partition):
            await _save(topic_log, {ABSENT_SINCE: str(wall_ms)})


def _since(partition: Partition, dependencies: TopicDependencies) -> str:
    """When the partition's last writer left; empty: before this broker's time, and nobody knows."""
    if partition.vacant_since is None:
        return ""
    elapsed_seconds = dependencies.now() - partition.vacant_since
    return str(dependencies.wall_ms() - round(elapsed_seconds * 1000))


async def _save(topic_log: TopicLog, fields: Mapping[str, str]) -> None:
    try:
        await topic_log.save_state(fields)
    except (Unavailable, Undecided) as error:
        log.debug("presence.unsaved", topic=str(topic_log.name), reason=str(error))


def absent_since(
    state: Mapping[str, str], now: float, wall_ms: int, heard_ms: int | None
) -> float | None:
    """Since when nobody could write a log that is loaded, by the clock of ``now``; None: not known.

    ``heard_ms`` is the last sign of life of the bucket's former owner. A holder that was there when
    that one noted it last was there until then.
    """
    absent_since, present_since = state.get(ABSENT_SINCE, ""), state.get(PRESENT_SINCE, "")
    if absent_since:
        since_ms = int(absent_since)
    elif present_since and heard_ms is not None and heard_ms + UNHEARD_MS_MAX >= int(present_since):
        since_ms = max(heard_ms, int(present_since))
    else:
        return None
    return now - max(0, wall_ms - since_ms) / 1000


def _is_held(topic: Topic, partition: Partition) -> bool:
    return any(
        partition.number in holder.partitions for holder in topic.holders
    ) and not isinstance(partition.ownership, Shared)
