"""Waits for the first message that a new holder writes.

It watches the logs' watermarks, so an acknowledgement costs nothing more once the first one is there. Most topics
are idle, so it is small: it waits as long as the holder writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.history.transitions import Transition


class Listener(Protocol):
    """Is notified of a first message."""

    def first_message_stored(self, message: FirstMessage) -> None: ...


class FirstMessage:
    """Notifies its listener once, when an entry of the transition's ledger or of a later one is acknowledged.

    ``partitions`` are those of the transition; the entry is in one of them. ``granted_at`` is for the listener.
    """

    __slots__ = ("_is_over", "_listener", "_logs", "granted_at", "partitions", "transition")

    def __init__(
        self,
        listener: Listener,
        logs: Mapping[int, TopicLog],
        partitions: tuple[int, ...],
        transition: Transition,
        granted_at: float,
    ) -> None:
        self.partitions = partitions
        self.transition = transition
        self.granted_at = granted_at
        self._listener = listener
        self._logs = logs
        self._is_over = False
        for topic_log in self._watched():
            topic_log.watch(self._moved)

    def _watched(self) -> Iterator[TopicLog]:
        return (self._logs[number] for number in self.partitions)

    def _moved(self) -> None:
        is_there = any(
            # Entry 0 of a ledger is its marker.
            each.committed.ledger >= self.transition.ledger and each.committed.entry > 0
            for each in self._watched()
        )
        if is_there and not self._is_over:
            self.cancel()
            self._listener.first_message_stored(self)

    def cancel(self) -> None:
        """End the wait."""
        if not self._is_over:
            self._is_over = True
            for topic_log in self._watched():
                topic_log.unwatch(self._moved)
