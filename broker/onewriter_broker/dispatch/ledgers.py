"""What is known about the borders between a topic's ledgers.

Entries are numbered from 1 in each ledger and nobody writes down how many there are, so that
whether two positions are neighbours is not arithmetic. Whoever reads the log learns it. Kept per
topic, in memory only, shared by its cursors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from onewriter_core.ids import Position


class LedgerGaps:
    """Pairs of positions between which no entry lies, and never will."""

    __slots__ = ("_firsts", "_lasts", "gaps_max")

    def __init__(self, gaps_max: int = 10_000) -> None:
        self.gaps_max = gaps_max
        self._lasts: list[Position] = []
        self._firsts: list[Position] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def learn(self, last: Position, first: Position) -> bool:
        """No entry lies between ``last`` and ``first``, both exclusive; True when that is news.

        To be called only with what a read of committed entries has shown.
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
            # The lowest goes: a cursor that far behind learns it again when it reads there.
            del self._lasts[0], self._firsts[0]
            low = high = bisect_right(self._firsts, last)
        self._lasts[low:high] = [last]
        self._firsts[low:high] = [first]
        return True

    def after(self, position: Position) -> Position:
        """The lowest position behind this one at which an entry may be."""
        index = bisect_right(self._firsts, position)
        if index < len(self._firsts) and self._lasts[index] <= position:
            return self._firsts[index]
        return Position(position.ledger, position.entry + 1)

    def before_ledger(self, ledger: int) -> Position | None:
        """The position known to be the last one in front of a ledger's first entry."""
        index = bisect_left(self._firsts, Position(ledger, 0))
        if index < len(self._firsts) and self._firsts[index].ledger == ledger:
            return self._lasts[index]
        return None

    def count(self, after: Position, until: Position) -> tuple[int, bool]:
        """Entries within (after, until], and whether the number is exact.

        Where the end of a ledger is not known, its entries are left out: never more than there
        are.
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
