"""The waiting line as a pure value: who comes next.

PIP-440 orders waiters by priority, then by creation time, ties at random. Ours are ordered by
priority, then by arrival, which counts up and so cannot tie: there is nothing left to draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from onewriter_core.topic.model import Contender, PromotionPolicy


def in_order(queue: Iterable[Contender], policy: PromotionPolicy) -> list[Contender]:
    """The waiters, first to be promoted first."""
    match policy:
        case PromotionPolicy.FIFO:
            return sorted(queue, key=lambda waiter: waiter.arrival)
        case PromotionPolicy.PRIORITY:
            return sorted(queue, key=lambda waiter: (-waiter.priority, waiter.arrival))
        case _:
            assert_never(policy)


def next_promoted(
    queue: Sequence[Contender], policy: PromotionPolicy, free: frozenset[int]
) -> Contender | None:
    """The first waiter whose slots are all free and wanted by nobody before it.

    A waiter for all partitions that is blocked by one of them keeps its place: those behind it do
    not take the other partitions away.
    """
    if not free:
        return None  # the usual case, and the queue may be long
    wanted_before: set[int] = set()
    for waiter in in_order(queue, policy):
        if all(slot in free and slot not in wanted_before for slot in waiter.slots):
            return waiter
        wanted_before.update(waiter.slots)
    return None
