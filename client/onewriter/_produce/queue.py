"""A line: turns, one at a time, in the order in which they were asked for.

Whoever takes places in several lines without waiting in between cannot deadlock with others who do
so, too: of any two the same one comes first in all of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Turn:
    """A place in a line; ``await came()``, and call ``over`` in any case."""

    __slots__ = ("_came", "_line")

    def __init__(self, line: Line, came: asyncio.Future[None]) -> None:
        self._line = line
        self._came = came

    async def came(self) -> None:
        """Wait until all in front of it are over."""
        await self._came

    def over(self) -> None:
        """Let the next one have its turn; also given up before it came. Idempotent."""
        self._line.leave(self)

    def comes(self) -> None:
        """It is the first in its line, or the line is dissolved."""
        if not self._came.done():
            self._came.set_result(None)


class Line:
    """As long as there are callers who wait: each has one place."""

    def __init__(self) -> None:
        self._places: OrderedDict[Turn, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def stand(self) -> Turn:
        """The last place."""
        turn = Turn(self, asyncio.get_running_loop().create_future())
        self._places[turn] = None
        if len(self._places) == 1:
            turn.comes()
        return turn

    def leave(self, turn: Turn) -> None:
        """The turn is over."""
        if self._places.pop(turn, self) is None and self._places:
            next(iter(self._places)).comes()

    def dissolve(self) -> None:
        """There is nothing to wait for any more: all of them have their turn."""
        for turn in self._places:
            turn.comes()
