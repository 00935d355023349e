"""Which of a log's waiting entries depend on what: entries with different guards never share a block."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.api import Guard, GuardKind, Outcome

if TYPE_CHECKING:
    from onewriter_broker.log.topic_log import PendingEntry, Sender


class GuardedSender(Protocol):
    """A sender whose entries may be appended only while its guard holds."""

    guard: Guard | None

    def guard_refused(self, entries: int, size: int, outcome: Outcome) -> None:
        """So many entries of its own, of ``size`` bytes, are not in the log: STALE or AHEAD says why.

        Among them is all that it has handed in behind the first of them.
        """
        ...


def guard_of(guarded: dict[Sender, GuardedSender], entry: PendingEntry) -> Guard | None:
    """What an entry depends on."""
    sender = guarded.get(entry[0])
    return None if sender is None else sender.guard


def cut(entries: list[PendingEntry], guarded: dict[Sender, GuardedSender]) -> Guard | None:
    """Drop all entries behind the first with another guard than the first one's; that guard."""
    guard = guard_of(guarded, entries[0])
    alike = takewhile(lambda entry: guard_of(guarded, entry) == guard, entries)
    del entries[sum(1 for _ in alike) :]
    return guard


def note_floor(state: dict[str, str], guard: Guard | None) -> None:
    """Remember what an append is about to leave as a floor.

    Before it is sent: what a fence writes must not be below what the call leaves.
    """
    if guard is not None and guard.kind is GuardKind.FLOOR:
        floor = int(state.get(guard.floor_field, "0"))
        state[guard.floor_field] = str(max(floor, guard.number))
