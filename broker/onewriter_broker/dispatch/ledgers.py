"""The known borders between a topic's ledgers.

Entries are numbered from 1 in each ledger, and their number is not stored. So arithmetic cannot decide
whether two positions are adjacent; reading the log does. The knowledge is kept per topic, in memory only, and
shared by its cursors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from onewriter_core.ids import Position


class LedgerGaps:
    """Pairs of positions between which there is no entry and never will be."""

    __slots__ = ("_firsts", "_lasts", "gaps_max")

    def __init__(self, gaps_max: int = 10_000) -> None:
        self.gaps_max = gaps_max
        self._lasts: list[Position] = []
        self._firsts: list[Position] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def learn(self, last: Position, first: Position) -> bool:
        """Record that there is no entry between ``last`` and ``first`` (both exclusive); True if this is new.

        Call it only with the result of a read of committed entries.
        """
        if first <= (last.ledger, last.entry + 1):
            return False
        low = bisect_right(self._firsts, last)
        high = bisect_right(self._firsts, first)
        if high > low:
            if self._firsts[high - 1] == first and self._lasts[high - 1] <= last:
                return False
            last = min(last, self._lasts[low])
        elif len(self._firsts) >= self.gaps_max:
            # Drop the lowest: a cursor that is so far behind learns it again when it reads there.
            del self._lasts[0], self._firsts[0]
            low = high = bisect_right(self._firsts, last)
        self._lasts[low:high] = [last]
        self._firsts[low:high] = [first]
        return True

    def after(self, position: Position) -> Position:
        """The lowest position after this one at which there may be an entry."""
        index = bisect_right(self._firsts, position)
        if index < len(self._firsts) and self._lasts[index] <= position:
            return self._firsts[index]
        return Position(position.ledger, position.entry + 1)

    def before_ledger(self, ledger: int) -> Position | None:
        """The position that is known to be the last one before a ledger's first entry."""
        index = bisect_left(self._firsts, Position(ledger, 0))
        if index < len(self._firsts) and self._firsts[index].ledger == ledger:
            return self._lasts[index]
        return None

    def count(self, after: Position, until: Position) -> tuple[int, bool]:
        """The number of entries in (after, until], and whether it is exact.

        If the end of a ledger is not known, its entries are not counted, so the number is never too high.
        """
        total, is_exact = 0, True
        position = after
        index = bisect_right(self._firsts, after)
        while position.ledger < until.ledger:
            if index == len(self._firsts) or self._lasts[index].ledger >= until.ledger:
                return total + until.entry, False
            last, first = self._lasts[index], self._firsts[index]
            if last.ledger > position.ledger:
                total += last.entry
                is_exact = False
            elif last > position:
                total += last.entry - position.entry
            if first > until:
                return total, is_exact
            position = Position(first.ledger, first.entry - 1)
            index += 1
        if position.ledger == until.ledger:
            total += max(0, until.entry - position.entry)
        return total, is_exact
