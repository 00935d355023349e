"""Work on the history of topics for which no client waits: a bounded number of tasks for each bucket, however
many topics there are.

After a takeover, or when many clients leave at the same time, thousands of topics have such work at once. A task for
each of them takes more memory than its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_core.errors import Unavailable, Undecided

Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]

Guarded = Callable[[Coroutine[object, object, None]], Awaitable[None]]
"""Runs work of one topic. An unexpected error closes the topic, and is not raised."""

SAVES_MAX = 4
"""States of a bucket's logs that are saved at the same time."""

log = structlog.get_logger(__name__)


async def save_presence(
    topic_log: TopicLog, fields: Mapping[str, str], may_repeat: Callable[[], bool] = lambda: True
) -> None:
    """Save fields of a log's state that record its holder's presence, as best effort."""
    try:
        await topic_log.save_state(fields, may_repeat=may_repeat)
    except (Unavailable, Undecided) as error:
        log.debug("presence.unsaved", topic=str(topic_log.name), reason=str(error))


@dataclass(slots=True)
class _Saves:
    """The records of a bucket's logs that were not sent yet, those that are being sent, and the tasks that save them."""

    waiting: dict[TopicLog, tuple[dict[str, str], Guarded]] = field(default_factory=dict)
    sending: dict[TopicLog, dict[str, str]] = field(default_factory=dict)
    tasks: int = 0


class PresenceSaves:
    """Records of presence that wait to be saved. Later values of a log replace earlier ones.

    Each bucket has its own tasks, so a shard that does not answer delays no records of other shards.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._buckets: dict[int, _Saves] = {}

    def save(
        self, bucket: int, topic_log: TopicLog, fields: Mapping[str, str], guarded: Guarded
    ) -> None:
        """Save fields soon."""
        saves = self._buckets.get(bucket)
        if saves is None:
            saves = self._buckets[bucket] = _Saves()
        saves.waiting[topic_log] = (self.take(bucket, topic_log) | dict(fields), guarded)
        if saves.tasks < SAVES_MAX:
            saves.tasks += 1
            self._spawn(self._work(bucket, saves))

    def is_waiting(self, bucket: int, topic_log: TopicLog) -> bool:
        """Whether fields of a log wait to be saved, or are being saved."""
        saves = self._buckets.get(bucket)
        return saves is not None and (topic_log in saves.waiting or topic_log in saves.sending)

    def take(self, bucket: int, topic_log: TopicLog) -> dict[str, str]:
        """The fields of a log that wait or are being sent. The caller saves them.

        A record that is being sent is not repeated any more: after a fence, it would overwrite what the fence wrote.
        """
        saves = self._buckets.get(bucket)
        if saves is None:
            return {}
        waiting = saves.waiting.pop(topic_log, None)
        return saves.sending.pop(topic_log, {}) | ({} if waiting is None else waiting[0])

    async def _work(self, bucket: int, saves: _Saves) -> None:
        try:
            while saves.waiting:
                topic_log = next(iter(saves.waiting))
                fields, guarded = saves.waiting.pop(topic_log)
                saves.sending[topic_log] = fields
                try:
                    may_repeat = partial(_is_being_sent, saves, topic_log, fields)
                    await guarded(save_presence(topic_log, fields, may_repeat))
                finally:
                    if _is_being_sent(saves, topic_log, fields):
                        del saves.sending[topic_log]
        finally:
            saves.tasks -= 1
            if not saves.tasks:
                del self._buckets[bucket]


def _is_being_sent(saves: _Saves, topic_log: TopicLog, fields: dict[str, str]) -> bool:
    """Whether the caller of ``take`` has not taken the fields."""
    return saves.sending.get(topic_log) is fields


class Recalls:
    """Topics whose former transitions are to be read: one task for each bucket, because its topics share a reading."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._waiting: dict[int, list[Callable[[], Awaitable[None]]]] = {}

    def add(self, bucket: int, recall: Callable[[], Awaitable[None]]) -> None:
        """Call ``recall`` soon. It raises nothing."""
        if bucket in self._waiting:
            self._waiting[bucket].append(recall)
        else:
            self._waiting[bucket] = [recall]
            self._spawn(self._work(bucket))

    async def _work(self, bucket: int) -> None:
        waiting = self._waiting[bucket]
        try:
            while waiting:
                await waiting.pop()()
        finally:
            del self._waiting[bucket]
