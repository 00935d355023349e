"""How far a micro-batch may read so that it has no more messages than it should. Pure.

Brokers tell how many messages a stretch of a log has, not where in it they are: where batches of clients
differ in size, the entries are counted off one block after the other.
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
    """How many messages some entries of one ledger have that follow each other from ``first`` on."""

    first: Position
    messages: NDArray[np.int64]


def shares(ahead: Mapping[str, Sequence[Run]], messages: int) -> dict[str, int | None]:
    """How many messages of each log may be read so that all together stay within a bound.

    In proportion to what is ahead, at least one. None: all that there is.
    """
    total = sum(map(messages_of, ahead.values()))
    if total <= messages:
        return dict.fromkeys(ahead)
    return {log: max(1, messages_of(runs) * messages // total) for log, runs in ahead.items()}


def is_even(runs: Iterable[Run]) -> bool:
    """Whether each of their entries is one message, for certain."""
    return all(run.messages == run.entries for run in runs)


def behind_entries(runs: Sequence[Run], entries: int) -> Position | None:
    """The position behind the first so many entries of runs; None: there are no more."""
    return limited({"": runs}, entries=entries)[""]


def behind_messages(
    counts: Iterable[EntryCounts], start: Position, messages: int
) -> Position | None:
    """The position in front of the first entry with which there would be more messages than that.

    Entries count from ``start`` on; the first one is passed in any case. None: there are not so many.
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
