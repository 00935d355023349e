"""Which of a log's waiting entries depend on what: entries with different guards never share a block."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from onewriter_broker.log.store.api import FLOOR_PREFIX, GUARDIAN_PREFIX, Guard, GuardKind, Outcome
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName

if TYPE_CHECKING:
    from onewriter_broker.log.topic_log.log import TopicLog
    from onewriter_broker.log.topic_log.pending_blocks import PendingEntry, Sender

FLOORS_MAX = 500
"""Guards of other buckets that one topic remembers the highest numbers of. Each fence writes them."""

FLOORS_PER_SUBJECT_MAX = 400
"""The same for one subject: the one that was admitted first to write under the guard."""

ANONYMOUS = "anonymous"
"""Stands for all clients without a subject."""


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


def has_room(state: dict[str, str], guard: Guard | None) -> bool:
    """Whether a log can remember the floor that an append under this guard leaves."""
    if guard is None or guard.kind is not GuardKind.FLOOR or _is_known(state, guard):
        return True
    prefixes = FLOOR_PREFIX, GUARDIAN_PREFIX
    names = {name.partition(":")[2] for name in state if name.startswith(prefixes)}
    return len(names) < FLOORS_MAX


def no_room(name: TopicName) -> Refused:
    """What is told to whoever would need one floor too many."""
    text = f"{name} is written under {FLOORS_MAX} guards of other buckets already"
    return Refused(ServerError.NOT_ALLOWED_ERROR, text)


async def reserve_floor(topic_log: TopicLog, guard: Guard, subject: str) -> None:
    """Record the subject whose quota counts the floor of this guard, unless the floor exists already.

    Raises Refused where the log, or the subject, has too many; Unavailable, Undecided.
    """
    state = topic_log.state
    if _is_known(state, guard):
        return
    if not has_room(state, guard):
        raise no_room(topic_log.name)
    whose = subject or ANONYMOUS
    used = sum(1 for name in state if name.startswith(GUARDIAN_PREFIX) and state[name] == whose)
    if used >= FLOORS_PER_SUBJECT_MAX:
        text = (
            f"{topic_log.name} is written under {used} guards of other buckets for {whose} already, and one"
            f" subject has at most {FLOORS_PER_SUBJECT_MAX}"
        )
        raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
    state[guard.guardian_field] = (
        whose  # a concurrent guard must count it while it is being written
    )
    await topic_log.save_state({guard.guardian_field: whose})


def _is_known(state: dict[str, str], guard: Guard) -> bool:
    return guard.floor_field in state or guard.guardian_field in state


def refuse_surplus(topic_log: TopicLog) -> bool:
    """Refuse whoever waits in front of all with a guard that there is no room for; is one left?

    More may have been admitted than there is room for. Such a sender has nothing on its way: its
    first block would have noted the floor.
    """
    while topic_log.waiting:
        sender = topic_log.waiting[0][0]
        guarded = topic_log.guarded.get(sender)
        if guarded is None or has_room(topic_log.state, guarded.guard):
            return True
        own = [entry for entry in topic_log.waiting if entry[0] is sender]
        topic_log.waiting = [entry for entry in topic_log.waiting if entry[0] is not sender]
        size = sum(len(payload) for _, _, payload in own)
        guarded.guard_refused(len(own), size, Outcome.AHEAD)
    return False


def note_floor(state: dict[str, str], guard: Guard | None) -> None:
    """Remember what an append is about to leave as a floor.

    Before it is sent: what a fence writes must not be below what the call leaves.
    """
    if guard is not None and guard.kind is GuardKind.FLOOR:
        floor = int(state.get(guard.floor_field, "0"))
        state[guard.floor_field] = str(max(floor, guard.number))
