"""Every reachable state of small worlds around the real ``step()``, and what upstream's rules do.

Each world is small enough for ten or twenty seconds; ONEWRITER_MODEL=large (`make model`) raises the
bounds.
"""

from __future__ import annotations

import os

import pytest
from tests.model.explorer import Always, Sometimes, Step, explore
from tests.model.topic_machine_model import (
    Action,
    Actor,
    State,
    World,
    forgetting_who_serves,
    queueing_without_the_check,
    removal_of_whoever_holds,
)

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Close, Fence, Grant, Reject
from onewriter_core.topic.events import ClockTicked, FenceStored, ProducerGone, ProducerRequested
from onewriter_core.topic.invariants import check, check_step
from onewriter_core.topic.model import (
    AccessMode,
    Departure,
    PromotionPolicy,
    Purpose,
    Reserved,
    Vacant,
)

WAIT = AccessMode.WAIT_FOR_EXCLUSIVE
EXCLUSIVE = AccessMode.EXCLUSIVE
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING
SHARED = AccessMode.SHARED

DEEPER = int(os.environ.get("ONEWRITER_MODEL") == "large")
"""Added to the bounds; 1 takes minutes and gigabytes instead of seconds."""


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


def lost_its_grant(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Close) and e.departure is Departure.GRANT_LOST for e in action.effects)


def refenced(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Fence) and e.purpose is Purpose.REFENCE for e in action.effects)


def shared_after_exclusive(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Fence) and e.purpose is Purpose.SHARE and before.topic.epoch > 0
        for e in action.effects
    )


def group_granted(before: State, action: Action, after: State) -> bool:
    return len({e.slot for e in action.effects if isinstance(e, Grant)}) > 1


def held_back_too_long(before: State, action: Action, after: State) -> bool:
    return isinstance(action.event, ClockTicked) and any(
        isinstance(e, Fence) for e in action.effects
    )


RESUMED = Sometimes("a holder resumed", resumed)
REPLACED = Sometimes("a holder was back before it was missed", replaced_its_own_ghost)
PROMOTED = Sometimes("a waiter was promoted", promoted)
TOOK_OVER = Sometimes("a fencer took over", took_over)
STALE = Sometimes("a stale producer was refused", stale_was_rejected)
GHOST = Sometimes("a ghost was skipped", ghost_was_skipped)


def prove(world: World, *sometimes: Sometimes[State, Action]) -> None:
    report = explore(world, always=ALWAYS, steps=STEPS, sometimes=sometimes)
    report.assert_sound()


def test_waiters_and_an_exclusive_producer() -> None:
    actors = (Actor("A", WAIT), Actor("B", WAIT, priority=1), Actor("C", EXCLUSIVE))
    world = World(actors, ledger_max=4 + DEEPER, losses_max=1 + DEEPER)
    prove(world, RESUMED, REPLACED, PROMOTED, STALE, GHOST)


def spread(before: State, action: Action, after: State) -> bool:
    """Somebody who came later was promoted, because its host leads less."""
    grants = [e for e in action.effects if isinstance(e, Fence) and e.contender is not None]
    return any(
        fence.best_loser is not None
        and fence.contender is not None
        and fence.contender.arrival > fence.best_loser.arrival
        and fence.load < fence.best_loser_load
        for fence in grants
    )


def test_waiters_on_hosts_that_lead_more_or_less() -> None:
    actors = (
        Actor("A", WAIT, host="one"),
        Actor("B", WAIT, host="two"),
        Actor("C", WAIT, priority=-1, host="standby"),
    )
    world = World(
        actors,
        ledger_max=3 + DEEPER,
        losses_max=DEEPER,
        reconnects_max=0,
        policy=PromotionPolicy.BALANCED,
        loads=((("one", 2), ("two", 1)), (("one", 1), ("two", 2))),
    )
    prove(world, PROMOTED, Sometimes("the one with less to do was promoted", spread))


def serves_alone(state: State) -> bool:
    """Nobody is told that it leads while somebody else may still serve."""
    leading = {
        line.registration.partition(".")[0]
        for lines in state.lines
        for line in lines
        if line.granted
    }
    return all(leading <= {name} for name in state.serving)


def waited_for_who_serves(before: State, action: Action, after: State) -> bool:
    return isinstance(action.event, ClockTicked) and any(
        isinstance(e, Grant) and not e.resumed for e in action.effects
    )


SERVERS = (
    Actor("A", WAIT, serve_seconds=3.0),
    Actor("B", WAIT, priority=1, serve_seconds=1.0),
)


def test_winners_are_told_when_nobody_else_serves() -> None:
    actors = (*SERVERS, Actor("C", FENCING))
    world = World(actors, ledger_max=3 + DEEPER, losses_max=1, reconnects_max=1, closes=False)
    waited = Sometimes("a winner was told later", waited_for_who_serves)
    alone = Always("who serves serves alone", serves_alone)
    report = explore(
        world, always=[*ALWAYS, alone], steps=STEPS, sometimes=(PROMOTED, TOOK_OVER, waited)
    )
    report.assert_sound()


def test_who_closes_and_who_hands_over_serve_alone() -> None:
    world = World(SERVERS, ledger_max=3 + DEEPER, losses_max=1 + DEEPER, is_administered=True)
    alone = Always("who serves serves alone", serves_alone)
    handed = Sometimes("a handover", handed_over)
    report = explore(
        world, always=[*ALWAYS, alone], steps=STEPS, sometimes=(PROMOTED, RESUMED, handed)
    )
    report.assert_sound()


def test_forgetting_who_serves_lets_two_act_in_the_topics_name() -> None:
    world = World(SERVERS, rules=forgetting_who_serves)
    found = explore(world, always=[Always("who serves serves alone", serves_alone)]).violation
    assert found is not None
    assert found.broken == "who serves serves alone"
    assert "A is assured" in found.story() or "B is assured" in found.story()


@pytest.mark.full  # the pairs of these three actors have worlds of their own
def test_a_waiter_an_exclusive_producer_and_a_fencer() -> None:
    actors = (Actor("A", WAIT), Actor("B", EXCLUSIVE), Actor("C", FENCING))
    world = World(actors, ledger_max=3 + DEEPER, losses_max=1 + DEEPER)
    prove(world, RESUMED, REPLACED, PROMOTED, TOOK_OVER, STALE)


def test_a_waiter_and_a_fencer_that_lose_two_connections() -> None:
    actors = (Actor("A", WAIT), Actor("B", FENCING))
    world = World(actors, ledger_max=3 + DEEPER, losses_max=2 + DEEPER)
    prove(world, RESUMED, REPLACED, TOOK_OVER, STALE, GHOST)


def test_fencers_among_themselves() -> None:
    """Two that may take over: whoever was deposed must name the epoch, so they do not take turns."""
    actors = (Actor("A", FENCING), Actor("B", FENCING))
    world = World(actors, ledger_max=3 + DEEPER, losses_max=1 + DEEPER, departs_late=True)
    named = Sometimes("a deposed one was stopped", deposed_had_to_name_the_epoch)
    prove(world, RESUMED, TOOK_OVER, STALE, named)


def test_a_topic_that_moved_here_with_administrators_about() -> None:
    actors = (Actor("A", WAIT), Actor("B", WAIT, priority=1))
    world = World(
        actors,
        ledger_max=3 + DEEPER,
        losses_max=1 + DEEPER,
        is_administered=True,
        may_refuse=True,
        closes=False,
        starts_reserved=True,
    )
    moved = Sometimes("a holder resumed after a move", resumed_after_a_move)
    prove(world, PROMOTED, moved, Sometimes("a handover", handed_over))


def test_the_store_fails_over_beneath_them() -> None:
    actors = (Actor("A", EXCLUSIVE), Actor("B", WAIT))
    world = World(
        actors,
        ledger_max=4 + DEEPER,
        losses_max=1 + DEEPER,
        failovers_max=2,
        starts_reserved=True,
    )
    lost = Sometimes("a grant was lost", lost_its_grant)
    prove(world, RESUMED, PROMOTED, STALE, lost, Sometimes("a ledger was fenced again", refenced))


def test_shared_producers_come_after_an_exclusive_one() -> None:
    actors = (Actor("A", EXCLUSIVE), Actor("B", SHARED), Actor("C", WAIT))
    world = World(actors, ledger_max=3 + DEEPER, losses_max=1 + DEEPER, failovers_max=1)
    prove(world, RESUMED, PROMOTED, Sometimes("a right to resume ended", shared_after_exclusive))


def test_partitions_are_granted_as_a_group() -> None:
    """Two clients for both partitions, each asking in any order, as the C++ client does."""
    actors = (Actor("A", WAIT, (0, 1)), Actor("B", WAIT, (0, 1)))
    world = World(actors, partitions=2, ledger_max=2 + DEEPER, losses_max=1, closes=False)
    alone = Sometimes("a request competed alone", held_back_too_long)
    whole = Sometimes("a group was granted at once", group_granted)
    prove(world, PROMOTED, alone, whole)


def test_a_group_loses_one_partition_and_comes_back() -> None:
    actors = (Actor("A", WAIT, (0, 1)), Actor("B", FENCING, (1,), alone=True))
    world = World(actors, partitions=2, ledger_max=3 + DEEPER, losses_max=1 + DEEPER, closes=False)
    prove(world, RESUMED, REPLACED, TOOK_OVER, STALE)


@pytest.mark.full  # the two tests before this one: groups, and a producer of one partition beside a group
def test_a_group_beside_producers_of_single_partitions() -> None:
    actors = (
        Actor("A", WAIT, (0, 1)),
        Actor("B", EXCLUSIVE, (1,), alone=True),
        Actor("C", FENCING, (0,), alone=True),
    )
    world = World(actors, partitions=2, ledger_max=2 + DEEPER, losses_max=0)
    whole = Sometimes("a group was granted at once", group_granted)
    prove(world, PROMOTED, TOOK_OVER, whole)


# -- upstream's rules, in the same worlds ------------------------------------------------------


WAITERS = (Actor("A", WAIT), Actor("B", WAIT))


def test_queueing_without_the_check_lets_the_epoch_fall() -> None:
    """A was granted 1 and lost its connection, B holds 2, A queues with 1: then the epoch is 1."""
    world = World(WAITERS, rules=queueing_without_the_check)
    found = explore(world, steps=[Step("an epoch never falls", epochs_go_on)]).violation
    assert found is not None
    assert found.broken == "an epoch never falls"
    assert found.states[-2].topic.epoch == 2
    assert found.states[-1].topic.epoch == 1
    assert "with epoch 1  =>  queue" in found.story()
    checked = explore(world, always=ALWAYS, steps=STEPS).violation
    assert checked is not None, "the predicates of all tests see it, too"


def test_queueing_without_the_check_lets_an_old_epoch_write_after_a_newer_one() -> None:
    world = World(WAITERS, rules=queueing_without_the_check)
    found = explore(world, steps=[Step("the log's epochs never fall", log_goes_on)]).violation
    assert found is not None
    assert found.states[-2].log == (2,)
    assert found.states[-1].log == (1,)


def test_a_removal_that_does_not_name_who_makes_two_writers() -> None:
    """The late departure of one that was fenced frees what another holds: two are told to write."""
    actors = (Actor("A", EXCLUSIVE), Actor("B", FENCING), Actor("C", WAIT))
    world = World(actors, rules=removal_of_whoever_holds, departs_late=True)
    found = explore(world, steps=[Step("the log's epochs never fall", log_goes_on)]).violation
    assert found is not None
    assert found.broken == "the log's epochs never fall"
    assert "appends under" in str(found.actions[-1])
    assert sum(line.granted for lines in found.states[-1].lines for line in lines) == 2
    checked = explore(world, always=ALWAYS, steps=STEPS).violation
    assert checked is not None
    assert "a departure" in checked.detail or "who is removed is told" in checked.detail
