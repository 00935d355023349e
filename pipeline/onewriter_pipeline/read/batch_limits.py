"""Limits the number of messages in a micro-batch. Pure.

Brokers return the number of messages in a stretch of a log, but not their positions within it. If the client's
batches differ in size, the entries are counted block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onewriter_core.ids import Position
from onewriter_pipeline.read.offsets import Run, limited, messages_of


@dataclass(frozen=True, slots=True, eq=False)
class EntryCounts:
    """The number of messages in consecutive entries of one ledger, beginning with ``first``."""

    first: Position
    messages: NDArray[np.int64]


def shares(ahead: Mapping[str, Sequence[Run]], messages: int) -> dict[str, int | None]:
    """How many messages of each log may be read so that all together stay within a limit.

    Shares are proportional to the unread messages, and at least one. None: all of them.
    """
    total = sum(map(messages_of, ahead.values()))
    if total <= messages:
        return dict.fromkeys(ahead)
    return {log: max(1, messages_of(runs) * messages // total) for log, runs in ahead.items()}


def is_even(runs: Iterable[Run]) -> bool:
    """Whether each entry is exactly one message."""
    return all(run.messages == run.entries for run in runs)


def end_after_entries(runs: Sequence[Run], entries: int) -> Position | None:
    """The position after the first ``entries`` entries of the runs; None: the runs have no more."""
    return limited({"": runs}, entries=entries)[""]


def end_after_messages(
    counts: Iterable[EntryCounts], start: Position, messages: int
) -> Position | None:
    """The position of the first entry that would exceed the number of messages.

    Entries are counted from ``start`` on. The first entry is included in any case. None: the limit is not reached.
    """
    left, has_one = messages, False
    for part in counts:
        if part.first.ledger < start.ledger:
            continue
        is_first = part.first.ledger == start.ledger
        low = max(0, start.entry - part.first.entry) if is_first else 0
        numbers = part.messages[low:]
        if not len(numbers):
            continue
        first = part.first.entry + low
        taken = int(np.searchsorted(np.cumsum(numbers), left, "right"))
        if not has_one:
            taken, has_one = max(1, taken), True
        if taken < len(numbers):
            return Position(part.first.ledger, first + taken)
        left -= int(numbers.sum())
    return None
