"""Every reachable state of small worlds around the real ``step()``, and what upstream's rules do.

``make model`` may raise the bounds through the parameters of ``World``.
"""

from __future__ import annotations

import pytest

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Close, Fence, Grant, Reject
from onewriter_core.topic.events import FenceStored, ProducerGone, ProducerRequested
from onewriter_core.topic.invariants import check, check_step
from onewriter_core.topic.model import AccessMode, Departure, Purpose, Reserved, Vacant
from tests.model.explorer import Always, Sometimes, Step, explore
from tests.model.topic_machine_model import (
    Action,
    Actor,
    State,
    World,
    queueing_without_the_check,
    removal_of_whoever_holds,
)

WAIT = AccessMode.WAIT_FOR_EXCLUSIVE
EXCLUSIVE = AccessMode.EXCLUSIVE
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING
SHARED = AccessMode.SHARED


def holds_what_must(state: State) -> bool:
    check(state.topic)
    return True


def keeps_its_promises(before: State, action: Action, after: State) -> bool:
    if action.event is not None and action.topic is not None:
        check_step(before.topic, action.event, action.topic, action.effects)
    return True


def log_goes_on(before: State, action: Action, after: State) -> bool:
    return all(old <= new for old, new in zip(before.log, after.log, strict=True))


def epochs_go_on(before: State, action: Action, after: State) -> bool:
    pairs = zip(before.topic.slots, after.topic.slots, strict=True)
    return all(old.epoch <= new.epoch for old, new in pairs)


ALWAYS = [Always("what must hold of a topic", holds_what_must)]
STEPS = [
    Step("what must hold of a step", keeps_its_promises),
    Step("an epoch never falls", epochs_go_on),
    Step("the log's epochs never fall", log_goes_on),
]


def resumed(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Grant) and e.resumed for e in action.effects)


def replaced_its_own_ghost(before: State, action: Action, after: State) -> bool:
    return resumed(before, action, after) and any(isinstance(e, Close) for e in action.effects)


def resumed_after_a_move(before: State, action: Action, after: State) -> bool:
    reserved = any(isinstance(slot.ownership, Reserved) for slot in before.topic.slots)
    return reserved and resumed(before, action, after)


def promoted(before: State, action: Action, after: State) -> bool:
    left = isinstance(action.event, ProducerGone) and bool(before.topic.queue)
    return left and any(isinstance(e, Fence) for e in action.effects)


def took_over(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Close) and e.departure is Departure.TAKEN_OVER for e in action.effects)


def stale_was_rejected(before: State, action: Action, after: State) -> bool:
    event = action.event
    if not isinstance(event, ProducerRequested) or event.request.topic_epoch is None:
        return False
    slot = before.topic.slot(event.request.slot)
    return (
        slot is not None
        and event.request.topic_epoch < slot.epoch
        and not isinstance(slot.ownership, Vacant)
        and any(
            isinstance(e, Reject) and e.code is ServerError.PRODUCER_FENCED for e in action.effects
        )
    )


def ghost_was_skipped(before: State, action: Action, after: State) -> bool:
    claim = before.topic.claim
    return (
        isinstance(action.event, FenceStored)
        and claim is not None
        and claim.contender is not None
        and not claim.contender.members
        and any(isinstance(e, Fence) and e.purpose is Purpose.GRANT for e in action.effects)
    )


def deposed_had_to_name_the_epoch(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Reject) and "was deposed" in e.message for e in action.effects)


def handed_over(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Close) and e.departure is Departure.HANDED_OVER for e in action.effects
    )


RESUMED = Sometimes("a holder resumed", resumed)
REPLACED = Sometimes("a holder was back before it was missed", replaced_its_own_ghost)
PROMOTED = Sometimes("a waiter was promoted", promoted)
TOOK_OVER = Sometimes("a fencer took over", took_over)
STALE = Sometimes("a stale producer was refused", stale_was_rejected)
GHOST = Sometimes("a ghost was skipped", ghost_was_skipped)


def test_two_waiters_and_a_fencer() -> None:
    world = World((Actor("A", WAIT), Actor("B", WAIT), Actor("C", FENCING)), ledger_max=3)
    sometimes = [RESUMED, REPLACED, PROMOTED, TOOK_OVER, STALE, GHOST]
    report = explore(world, always=ALWAYS, steps=STEPS, sometimes=sometimes)
    print(report)
    report.assert_sound()
