"""The acknowledged part of a log, for one subscription: whole entries, and single messages of batches.

All entries up to ``mark_delete`` are acknowledged. Above it there are ranges of individually acknowledged
entries, and batches that are acknowledged in part. Pure: no clock, no I/O. Other modules decide when the
cursor is saved and who may acknowledge.

Ranges may cross ledgers; LedgerGaps knows whether two positions are adjacent. What is not known to be
acknowledged counts as unacknowledged. Every bound is enforced by forgetting an acknowledgement, so an entry
may be delivered twice but is never skipped.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onewriter_broker.dispatch.ledgers import LedgerGaps
from onewriter_core.ids import NUMBER_MAX, Position

FORMAT_VERSION = 1
"""The format of the saved text. Every version has ``m``, the mark-delete position."""

ACK_SET_WORDS_MAX = 2048
"""64-bit words of an acknowledgement set that are read: 131,072 messages in a batch."""

_WORD = 2**64 - 1
_HIGHEST = Position(NUMBER_MAX, NUMBER_MAX)


class CursorFormatError(ValueError):
    """A saved cursor that this version cannot read."""


def mask_of(ack_set: Sequence[int]) -> int | None:
    """Pulsar's words (a set bit: not acknowledged) as one number; None for a set that is too long."""
    if len(ack_set) > ACK_SET_WORDS_MAX:
        return None
    return int.from_bytes(
        b"".join((word & _WORD).to_bytes(8, "little") for word in ack_set), "little"
    )


def ack_set_of(mask: int) -> tuple[int, ...]:
    """The number as Pulsar's words, signed as on the wire."""
    count = (mask.bit_length() + 63) // 64
    return struct.unpack(f"<{count}q", mask.to_bytes(8 * count, "little"))


def before(position: Position) -> Position:
    """The position directly before an entry in its ledger; entry 0 stays."""
    return Position(position.ledger, max(position.entry - 1, 0))


class Cursor:
    """The acknowledged part of a log. ``gaps`` belongs to the topic; cursors only read it."""

    def __init__(
        self,
        mark_delete: Position,
        gaps: LedgerGaps,
        *,
        ranges_max: int = 200_000,
        partial_bytes_max: int = 1024 * 1024,
    ) -> None:
        self.mark_delete = mark_delete
        self.reach = mark_delete
        """No entry above this was ever acknowledged, not even in part: a cheap test for all of them."""
        self.refused = 0
        """Acknowledgements that were dropped because of a bound."""
        self._gaps = gaps
        self._ranges_max = ranges_max
        self._partial_bytes_max = partial_bytes_max
        self._starts: list[Position] = []
        self._ends: list[Position] = []
        self._partial: dict[Position, int] = {}
        self._partial_floor = _HIGHEST
        """No position in ``_partial`` is lower."""
        self._partial_bytes = 0

    # ------------------------------------------------------------ asking

    @property
    def ranges(self) -> list[tuple[Position, Position]]:
        """The ranges (first, last) acknowledged above the mark-delete position, lowest first."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def range_count(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or self._range_end(position) is not None

    def acknowledged_until(self, position: Position) -> Position | None:
        """The last position of the acknowledged range that contains this one; None if it is not acknowledged."""
        if position <= self.mark_delete:
            return self.mark_delete
        return self._range_end(position)

    def remaining(self, position: Position) -> int | None:
        """The unacknowledged messages of a batch as a bit mask; None if all are unacknowledged."""
        return self._partial.get(position)

    def acknowledged_count(self) -> int:
        """Entries acknowledged above the mark-delete position, as far as known."""
        return sum(
            last - max(first, 1) + 1
            if ledger == last_ledger
            else self._gaps.count(before(Position(ledger, first)), Position(last_ledger, last))[0]
            for (ledger, first), (last_ledger, last) in zip(self._starts, self._ends, strict=True)
        )

    def _range_end(self, position: Position) -> Position | None:
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position <= self._ends[index]:
            return self._ends[index]
        return None

    # ------------------------------------------------------------ acknowledging

    def acknowledge(self, position: Position) -> bool:
        """Acknowledge one entry. Returns False if it was dropped, because there are too many ranges."""
        if position <= self.mark_delete:
            return True
        following = self._gaps.after(self.mark_delete)
        if position <= following:
            if position == following:
                self._move_to(position)
            return True  # there is no entry before it
        index = bisect_right(self._starts, position)
        if index and position <= self._ends[index - 1]:
            return True
        joins_left = index > 0 and self._gaps.after(self._ends[index - 1]) >= position
        joins_right = (
            index < len(self._starts) and self._gaps.after(position) >= self._starts[index]
        )
        if joins_left and joins_right:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_left:
            self._ends[index - 1] = position
        elif joins_right:
            self._starts[index] = position
        elif len(self._starts) >= self._ranges_max:
            self.refused += 1
            return False
        else:
            self._starts.insert(index, position)
            self._ends.insert(index, position)
        self._forget_partial(position)
        self.reach = max(self.reach, position)
        return True

    def acknowledge_all(self, positions: Sequence[Position]) -> list[Position]:
        """Acknowledge these entries, lowest first; returns those that were dropped (see ``acknowledge``).

        Ranges that become adjacent are inserted together, so all other ranges move once.
        """
        if len(positions) == 1:
            return [] if self.acknowledge(positions[0]) else list(positions)
        refused: list[Position] = []
        fresh: list[tuple[Position, Position]] = []
        index = 0  # the position of the new ranges
        for start, end in list(self._runs(positions)):
            if start <= self._gaps.after(self.mark_delete):
                self._move_to(max(end, self.mark_delete))  # the lowest range: nothing is new yet
                continue
            following = self._gaps.after(end)
            low = bisect_right(self._starts, start)
            if low and self._gaps.after(self._ends[low - 1]) >= start:
                low -= 1
            high = bisect_right(self._starts, max(end, following), low)
            if low == high and len(self._starts) + len(fresh) >= self._ranges_max:
                refused += [position for position in positions if start <= position <= end]
                continue
            if fresh and (low < high or low != index):
                self._insert(index, fresh)
                low, high = low + len(fresh), high + len(fresh)
                fresh = []
            if low < high:
                self._starts[low:high] = [min(start, self._starts[low])]
                self._ends[low:high] = [max(end, self._ends[high - 1])]
            else:
                index = low
                fresh.append((start, end))
            self.reach = max(self.reach, end)
        self._insert(index, fresh)
        self.refused += len(refused)
        if self._partial:
            for position in positions:
                if position not in refused:
                    self._forget_partial(position)
        return refused

    def _runs(self, positions: Sequence[Position]) -> Iterator[tuple[Position, Position]]:
        """These positions, lowest first, as ranges (first, last), without those that are acknowledged."""
        start = end = None
        for position in positions:
            if position <= self.mark_delete:
                continue
            if start is None or end is None:
                start = end = position
            elif position <= self._gaps.after(end):
                end = position
            else:
                yield start, end
                start = end = position
        if start is not None and end is not None:
            yield start, end

    def _insert(self, index: int, ranges: Sequence[tuple[Position, Position]]) -> None:
        if ranges:
            self._starts[index:index] = [start for start, _ in ranges]
            self._ends[index:index] = [end for _, end in ranges]

    def acknowledge_messages(self, position: Position, remaining: int) -> bool:
        """Acknowledge the messages of a batch whose bits are not set in ``remaining``.

        Returns False if it was dropped, because too many batches are acknowledged in part.
        """
        if self.is_acknowledged(position):
            return True
        known = self._partial.get(position)
        left = remaining if known is None else remaining & known
        if left == 0:
            return self.acknowledge(position)
        if known is None:
            size = _weight(left)
            if self._partial_bytes + size > self._partial_bytes_max:
                self.refused += 1
                return False
            self._partial_bytes += size
        else:
            self._partial_bytes += _weight(left) - _weight(known)
        self._partial[position] = left
        self._partial_floor = min(self._partial_floor, position)
        self.reach = max(self.reach, position)
        return True

    def acknowledge_until(self, position: Position) -> None:
        """Acknowledge this entry and all entries before it."""
        if position > self.mark_delete:
            self._move_to(position)

    def pass_over(self, after: Position, until: Position) -> None:
        """Acknowledge everything between these two positions (both exclusive), because it will not be
        delivered.

        Readers of a compacted view get only some of the entries. Dropped at a bound.
        """
        start, end = self._gaps.after(after), before(until)
        if start > end or end <= self.mark_delete:
            return
        if after <= self.mark_delete:
            self._move_to(end)
            return
        low = bisect_right(self._starts, start)
        if low and self._gaps.after(self._ends[low - 1]) >= start:
            low -= 1
            start = self._starts[low]
        following = self._gaps.after(end)
        high = bisect_right(self._starts, max(end, following))
        if high > low:
            end = max(end, self._ends[high - 1])
        elif len(self._starts) >= self._ranges_max:
            self.refused += 1
            return
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        for position in [held for held in self._partial if start <= held <= end]:
            self._forget_partial(position)
        self.reach = max(self.reach, end)

    def settle(self) -> None:
        """Move over ranges that are adjacent, by what the topic has learned since."""
        if self._starts and self._gaps.after(self.mark_delete) >= self._starts[0]:
            self._move_to(self.mark_delete)

    def reset(self, mark_delete: Position) -> None:
        """Forget all acknowledgements and move to this position."""
        self.mark_delete = self.reach = mark_delete
        self._starts.clear()
        self._ends.clear()
        self._partial.clear()
        self._partial_bytes = 0

    def clamp(self, end: Position) -> bool:
        """Forget everything after the log's end, which may have lost its tail; True if something was
        forgotten.
        """
        changed = False
        while self._ends and self._ends[-1] > end:
            changed = True
            start = self._starts[-1]
            if start > end:
                del self._starts[-1], self._ends[-1]
            else:
                self._ends[-1] = end
        for position in [position for position in self._partial if position > end]:
            changed = True
            self._forget_partial(position)
        if self.mark_delete > end:
            changed = True
            self.mark_delete = end
        self.reach = min(self.reach, max(end, self.mark_delete))
        return changed

    def _move_to(self, position: Position) -> None:
        """Move to ``position`` or, if acknowledged ranges are adjacent, to their end."""
        starts, ends = self._starts, self._ends
        index, count = 0, len(starts)
        while index < count and starts[index] <= self._gaps.after(position):
            position = max(position, ends[index])
            index += 1
        if index:
            del starts[:index], ends[:index]
        self.mark_delete = position
        self.reach = max(self.reach, position)
        if self._partial and self._partial_floor <= position:
            for passed in [held for held in self._partial if held <= position]:
                self._forget_partial(passed)
            self._partial_floor = min(self._partial, default=_HIGHEST)

    def _forget_partial(self, position: Position) -> None:
        mask = self._partial.pop(position, None)
        if mask is not None:
            self._partial_bytes -= _weight(mask)

    # ------------------------------------------------------------ saving

    def to_saved(
        self, *, ranges_max: int = 1_000, partial_bytes_max: int = 16 * 1024
    ) -> dict[str, object]:
        """The state to save, as JSON values of bounded size: the lowest ranges and batches."""
        saved: dict[str, object] = {"v": FORMAT_VERSION, "m": str(self.mark_delete)}
        if self._starts:
            count = min(len(self._starts), ranges_max)
            saved["r"] = [[*self._starts[i], *self._ends[i]] for i in range(count)]
        batches: list[list[int | str]] = []
        size = 0
        for position in sorted(self._partial):
            mask = f"{self._partial[position]:x}"
            size += len(mask) + 20
            if size > partial_bytes_max:
                break
            batches.append([*position, mask])
        if batches:
            saved["b"] = batches
        return saved

    @classmethod
    def from_saved(
        cls,
        saved: Mapping[str, Any],
        gaps: LedgerGaps,
        *,
        ranges_max: int = 200_000,
        partial_bytes_max: int = 1024 * 1024,
    ) -> Cursor:
        """The cursor from its saved state; raises CursorFormatError.

        Of a later version, only the mark-delete position is used.
        """
        try:
            cursor = cls(
                _position(*map(int, saved["m"].split("-"))),
                gaps,
                ranges_max=ranges_max,
                partial_bytes_max=partial_bytes_max,
            )
            if saved["v"] != FORMAT_VERSION:
                return cursor
            for start_ledger, start_entry, end_ledger, end_entry in saved.get("r", ()):
                cursor._append(
                    _position(start_ledger, start_entry), _position(end_ledger, end_entry)
                )
            for ledger, entry, text in saved.get("b", ()):
                mask = int(text, 16)
                if mask <= 0:
                    raise CursorFormatError("a batch without messages")
                cursor.acknowledge_messages(_position(ledger, entry), mask)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CursorFormatError(f"a saved cursor cannot be read: {error}") from error
        return cursor

    def _append(self, start: Position, end: Position) -> None:
        floor = self._ends[-1] if self._ends else self.mark_delete
        if not floor < start <= end:
            raise CursorFormatError(f"the range {start} to {end} is out of order")
        self._starts.append(start)
        self._ends.append(end)
        self.reach = end


def _position(ledger: int, entry: int) -> Position:
    if not (0 <= ledger <= NUMBER_MAX and 0 <= entry <= NUMBER_MAX):
        raise CursorFormatError(f"not a position: {ledger}-{entry}")
    return Position(ledger, entry)


def _weight(mask: int) -> int:
    """The approximate memory of a batch that is acknowledged in part."""
    return mask.bit_length() // 8 + 150
