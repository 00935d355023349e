"""What a round of the campaign on a cluster does: the role, the step, the fault. A number determines its round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Role(StrEnum):
    """The part that the fault is about."""

    PRIMARY = "the primary of the topic's shard"
    REPLICA = "its replica"
    OTHER_PRIMARY = "the primary of another shard"
    OWNER = "the broker that owns the bucket"
    OTHER_BROKER = "the other broker"
    WRITER = "the writer"


class Step(StrEnum):
    """What is going on when the fault occurs."""

    IDLE = "idle"
    PUBLISHING = "while writers publish"
    TAKEOVER = "during a takeover"
    PROMOTION = "during a promotion"
    REGISTRATION = "during the registration of the promoted dataset"
    RETURN = "right after the former primary returned"


class Fault(StrEnum):
    """What happens to the part."""

    KILLED = "killed"
    FROZEN = "frozen"
    CUT_FROM_NODES = "cut off from the other nodes"
    CUT_FROM_PARTNER = "cut off from the other node of its shard"
    CUT_FROM_BROKERS = "cut off from the brokers"
    CUT_FROM_PRIMARY = "cut off from the primary of the topic's shard"
    CUT_FROM_STORE = "cut off from all nodes"
    TORN = "killed; its file loses the end, and the partner is promoted before it returns"
    TORN_AT_ONCE = "killed; its file loses the end, and it returns before a promotion"
    EMPTIED = "killed; its directory is emptied, and it returns before a promotion"
    LAGGING = "killed while the replica lags"
    LAGGING_WITH_OWNER = "killed together with the owner while the replica lags"


_ANY = (Fault.KILLED, Fault.FROZEN)
_OF_A_NODE = (*_ANY, Fault.CUT_FROM_NODES, Fault.CUT_FROM_BROKERS)
_OF_DATA = (Fault.TORN, Fault.EMPTIED)
_OF_A_BROKER = (*_ANY, Fault.CUT_FROM_PRIMARY, Fault.CUT_FROM_STORE)

FAULTS: dict[Role, tuple[Fault, ...]] = {
    Role.PRIMARY: (
        *_OF_A_NODE,
        Fault.CUT_FROM_PARTNER,
        *_OF_DATA,
        Fault.TORN_AT_ONCE,
        Fault.LAGGING,
        Fault.LAGGING_WITH_OWNER,
    ),
    Role.REPLICA: (*_OF_A_NODE, *_OF_DATA),
    Role.OTHER_PRIMARY: (*_OF_A_NODE, Fault.CUT_FROM_PARTNER, *_OF_DATA),
    Role.OWNER: _OF_A_BROKER,
    Role.OTHER_BROKER: _OF_A_BROKER,
    Role.WRITER: (*_ANY, Fault.CUT_FROM_BROKERS),
}

SECOND = (Step.PROMOTION, Step.REGISTRATION, Step.RETURN)
"""Steps in which the fault is the second one: the primary of the topic's shard has just been killed."""

ONLY_FIRST = (
    *_OF_DATA,
    Fault.TORN_AT_ONCE,
    Fault.LAGGING,
    Fault.LAGGING_WITH_OWNER,
)
"""Faults that destroy data. Together with a second fault they are beyond every promise."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round. ``number`` repeats it."""

    number: int
    role: Role
    step: Step
    fault: Fault

    def __str__(self) -> str:
        return f"round {self.number}: {self.step}, {self.role}: {self.fault}"

    @property
    def is_second(self) -> bool:
        """Whether the fault is the second one of the round."""
        return self.step in SECOND

    @property
    def chance(self) -> random.Random:
        """The source of all other choices of the round."""
        return random.Random(self.number)


def _is_possible(role: Role, step: Step, fault: Fault) -> bool:
    if step in SECOND and fault in ONLY_FIRST:
        return False
    if step in {Step.PROMOTION, Step.REGISTRATION}:  # the shard has one process
        return role is not Role.REPLICA and (role, fault) != (Role.PRIMARY, Fault.CUT_FROM_PARTNER)
    return True


BEGINNING = (
    (Role.PRIMARY, Step.PUBLISHING, Fault.LAGGING),
    (Role.OWNER, Step.TAKEOVER, Fault.FROZEN),
    (Role.PRIMARY, Step.RETURN, Fault.CUT_FROM_NODES),
)
"""The first rounds, which CI plays."""


@cache
def combinations() -> Sequence[tuple[Role, Step, Fault]]:
    """All combinations. Every role, step and fault is among the first ones."""
    left = [
        (role, step, fault)
        for role, faults in FAULTS.items()
        for step in Step
        for fault in faults
        if _is_possible(role, step, fault) and (role, step, fault) not in BEGINNING
    ]
    random.Random(1).shuffle(left)
    seen: set[object] = {word for each in BEGINNING for word in each}
    ordered = list(BEGINNING)
    while left:
        best = max(left, key=lambda each: len(set(each) - seen))
        left.remove(best)
        ordered.append(best)
        seen |= set(best)
    return ordered


def plan(number: int) -> Plan:
    """The plan of a round."""
    known = combinations()
    return Plan(number, *known[number % len(known)])
