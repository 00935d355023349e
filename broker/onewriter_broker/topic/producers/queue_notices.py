"""Holders are told how many wait behind them, so that they may hand over (SharedState does).

Only those whose clients announced our extensions, when they are granted and whenever it changes;
changes that follow each other closely are told as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from onewriter_broker.topic.producers.producer import Producer
from onewriter_core.topic.model import Topic
from onewriter_core.topic.waiters import waiters_by_partition

QUEUE_NOTICE_SECONDS = 0.05
"""The least time between two tellings of one topic's holders."""


class ServedTopic(Protocol):
    """A topic that is being served (runner.TopicRunner)."""

    topic: Topic

    @property
    def producers(self) -> Mapping[str, Producer]: ...


class QueueNotices:
    """What the holders of one topic were told, and when they are told again."""

    __slots__ = ("_served", "_timer", "_told", "_told_at")

    def __init__(self, served: ServedTopic) -> None:
        self._served = served
        self._told: Mapping[str, int] = {}
        self._told_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Something happened in the topic: tell its holders at the end of this turn, or soon."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._told_at + QUEUE_NOTICE_SECONDS)
            self._timer = loop.call_at(due, self._tell)

    def close(self) -> None:
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        waiting = waiters_by_partition(self._served.topic)
        told: dict[str, int] = {}
        for holder in self._served.topic.holders:
            for member in holder.members:
                producer = self._served.producers.get(member.registration)
                if producer is None or not (producer.is_active and producer.channel.hears_of_queue):
                    continue
                told[member.registration] = waiting[member.partition]
                if self._told.get(member.registration) != waiting[member.partition]:
                    self._told_at = asyncio.get_running_loop().time()
                    producer.channel.queue_changed(producer, waiting[member.partition])
        self._told = told
