"""Waits for the first message that a new holder writes.

It watches the logs' watermarks, so an acknowledgement costs nothing more once the first one is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onewriter_broker.log.topic_log.log import TopicLog


class FirstMessage:
    """Calls ``stored`` once, when an entry of ``ledger`` or of a later ledger is acknowledged in one of the logs."""

    __slots__ = ("_is_over", "_ledger", "_logs", "_stored")

    def __init__(self, logs: Sequence[TopicLog], ledger: int, stored: Callable[[], None]) -> None:
        self._logs = logs
        self._ledger = ledger
        self._stored = stored
        self._is_over = False
        for topic_log in logs:
            topic_log.watch(self._moved)

    def _moved(self) -> None:
        is_there = any(
            # Entry 0 of a ledger is its marker.
            each.committed.ledger >= self._ledger and each.committed.entry > 0
            for each in self._logs
        )
        if is_there and not self._is_over:
            self.cancel()
            self._stored()

    def cancel(self) -> None:
        """End the wait."""
        if not self._is_over:
            self._is_over = True
            for topic_log in self._logs:
                topic_log.unwatch(self._moved)
