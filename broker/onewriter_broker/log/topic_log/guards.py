"""Guards of a log's pending entries: entries with different guards never share a block."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.limits import FLOORS_MAX
from onewriter_broker.log.store.api import Guard, GuardKind, Outcome
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName
from onewriter_core.log_format.field_names import FLOOR_PREFIX, GUARDIAN_PREFIX

if TYPE_CHECKING:
    from onewriter_broker.log.topic_log.log import TopicLog
    from onewriter_broker.log.topic_log.pending_blocks import PendingEntry, Sender

ANONYMOUS = "anonymous"
"""Represents all clients without a subject."""


class GuardedSender(Protocol):
    """A sender whose entries may be appended only while its guard holds."""

    guard: Guard | None

    def guard_refused(self, entries: int, size: int, outcome: Outcome) -> None:
        """``entries`` entries of this sender, of ``size`` bytes, are not in the log; STALE or AHEAD is the reason.

        They include all entries that the sender submitted after the first of them.
        """
        ...


def guard_of(guarded: dict[Sender, GuardedSender], entry: PendingEntry) -> Guard | None:
    """The guard of an entry."""
    sender = guarded.get(entry[0])
    return None if sender is None else sender.guard


def keep_leading_guard(
    entries: list[PendingEntry], guarded: dict[Sender, GuardedSender]
) -> Guard | None:
    """Keep only the leading entries that have the first entry's guard, and return that guard."""
    guard = guard_of(guarded, entries[0])
    alike = takewhile(lambda entry: guard_of(guarded, entry) == guard, entries)
    del entries[sum(1 for _ in alike) :]
    return guard


def has_space(state: Mapping[str, str], guard: Guard | None, floors_max: int = FLOORS_MAX) -> bool:
    """Whether a log has space for the floor that an append under this guard stores."""
    if guard is None or guard.kind is not GuardKind.FLOOR or _is_known(state, guard):
        return True
    prefixes = FLOOR_PREFIX, GUARDIAN_PREFIX
    names = {name.partition(":")[2] for name in state if name.startswith(prefixes)}
    return len(names) < floors_max


def too_many_floors(name: TopicName, floors_max: int = FLOORS_MAX) -> Refused:
    """The error for a sender that needs another floor."""
    text = (
        f"{name} is already written under {floors_max} guards of other buckets, which is the limit"
    )
    return Refused(ServerError.NOT_ALLOWED_ERROR, text)


async def reserve_floor(topic_log: TopicLog, guard: Guard, subject: str) -> None:
    """Record the subject whose quota counts the floor of this guard, unless the floor exists already.

    Raises Refused if the log or the subject has too many; Unavailable, Undecided.
    """
    state, limits = topic_log.state, topic_log.limits
    if _is_known(state, guard):
        return
    if not has_space(state, guard, limits.floors_max):
        raise too_many_floors(topic_log.name, limits.floors_max)
    whose = subject or ANONYMOUS
    used = sum(1 for name in state if name.startswith(GUARDIAN_PREFIX) and state[name] == whose)
    if used >= limits.floors_per_subject_max:
        text = (
            f"{topic_log.name} is already written under {used} guards of other buckets for {whose}; one"
            f" subject may use {limits.floors_per_subject_max}"
        )
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
    # Noted first: a concurrent guard must count it while it is being written.
    topic_log.note_state({guard.guardian_field: whose})
    await topic_log.save_state({guard.guardian_field: whose})


def _is_known(state: Mapping[str, str], guard: Guard) -> bool:
    return guard.floor_field in state or guard.guardian_field in state
