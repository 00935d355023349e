"""A first-come, first-served queue, whose positions are assigned without waiting.

A caller that joins several queues in one step of the event loop cannot deadlock with other callers that do
the same: of any two callers, the same one is first in every queue.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class QueuePosition:
    """A position in a queue. Await ``reached``, and call ``leave`` in any case."""

    __slots__ = ("_queue", "_reached")

    def __init__(self, queue: SubmissionQueue, reached: asyncio.Future[None]) -> None:
        self._queue = queue
        self._reached = reached

    async def reached(self) -> None:
        """Wait until this position is the first one."""
        await self._reached

    def leave(self) -> None:
        """Leave the queue, whether or not the position was reached. Idempotent."""
        self._queue.remove(self)

    def reach(self) -> None:
        """End the wait: the position is the first one, or the queue is released."""
        if not self._reached.done():
            self._reached.set_result(None)


class SubmissionQueue:
    """The queue of waiting callers. It needs no bound of its own: each caller has one position."""

    def __init__(self) -> None:
        self._positions: OrderedDict[QueuePosition, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._positions)

    def join(self) -> QueuePosition:
        """Take the last position."""
        position = QueuePosition(self, asyncio.get_running_loop().create_future())
        self._positions[position] = None
        if len(self._positions) == 1:
            position.reach()
        return position

    def remove(self, position: QueuePosition) -> None:
        """Remove a position; the next one becomes the first."""
        if self._positions.pop(position, self) is None and self._positions:
            next(iter(self._positions)).reach()

    def release_all(self) -> None:
        """End the wait of every position, because there is nothing to wait for any more."""
        for position in self._positions:
            position.reach()
