"""Notifies holders of the number of waiters, so that they can hand the topic over (SharedState does).

Only clients that announced onewriter's extensions get notices: at the grant and after each change. Changes in quick
succession are combined into one notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from onewriter_broker.topic.producers.producer import Producer
from onewriter_core.topic.model import Topic
from onewriter_core.topic.waiters import waiters_by_partition

QUEUE_NOTICE_SECONDS = 0.05
"""Shortest time between two notices to the holders of a topic."""


class ServedTopic(Protocol):
    """A served topic (runner.TopicRunner)."""

    topic: Topic

    @property
    def producers(self) -> Mapping[str, Producer]: ...


class QueueNotices:
    """The last notices to the holders of a topic, and the timer of the next one."""

    __slots__ = ("_sent", "_sent_at", "_served", "_timer")

    def __init__(self, served: ServedTopic) -> None:
        self._served = served
        self._sent: Mapping[str, int] = {}
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Schedule a notice after a change in the topic: at the end of this tick, or soon."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._sent_at + QUEUE_NOTICE_SECONDS)
            self._timer = loop.call_at(due, self._send)

    def close(self) -> None:
        """Send no more notices."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._timer = None
        waiting = waiters_by_partition(self._served.topic)
        sent: dict[str, int] = {}
        for holder in self._served.topic.holders:
            for member in holder.members:
                producer = self._served.producers.get(member.registration)
                if producer is None or not (
                    producer.is_active and producer.channel.receives_queue_notices
                ):
                    continue
                sent[member.registration] = waiting[member.partition]
                if self._sent.get(member.registration) != waiting[member.partition]:
                    self._sent_at = asyncio.get_running_loop().time()
                    producer.channel.queue_changed(producer, waiting[member.partition])
        self._sent = sent
