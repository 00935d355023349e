"""Every reachable state of small worlds around the real ``step()``, and the effects of Pulsar's rules.

Each scenario runs in the smallest scope in which every ``Sometimes`` property occurs and in which the predicates
find its mutants. The marker ``full`` adds the scopes of ten to sixty thousand states, and ONEWRITER_MODEL=large
(`make model`) those that take minutes and gigabytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from tests.model.explorer import Always, Report, Sometimes, Step, explore
from tests.model.topic_machine_model import (
    Action,
    Actor,
    Rules,
    State,
    World,
    forgetting_who_serves,
    queueing_without_the_check,
    removal_of_whoever_holds,
)

from onewriter_core.errors import ServerError
from onewriter_core.topic.effects import Close, Fence, Grant, Reject
from onewriter_core.topic.events import ClockTicked, FenceStored, ProducerGone, ProducerRequested
from onewriter_core.topic.model import (
    AccessMode,
    PromotionPolicy,
    Purpose,
    Reserved,
    TransitionCause,
    Vacant,
)

WAIT = AccessMode.WAIT_FOR_EXCLUSIVE
EXCLUSIVE = AccessMode.EXCLUSIVE
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING
SHARED = AccessMode.SHARED

LARGE = os.environ.get("ONEWRITER_MODEL") == "large"


def holds_what_must(state: State) -> bool:
    return state.node.is_sound


def keeps_its_promises(before: State, action: Action, after: State) -> bool:
    return action.outcome is None or action.outcome.keeps_promises


def log_goes_on(before: State, action: Action, after: State) -> bool:
    return all(old <= new for old, new in zip(before.log, after.log, strict=True))


def epochs_go_on(before: State, action: Action, after: State) -> bool:
    pairs = zip(before.topic.partitions, after.topic.partitions, strict=True)
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
    reserved = any(
        isinstance(partition.ownership, Reserved) for partition in before.topic.partitions
    )
    return reserved and resumed(before, action, after)


def promoted(before: State, action: Action, after: State) -> bool:
    left = isinstance(action.event, ProducerGone) and bool(before.topic.queue)
    return left and any(isinstance(e, Fence) for e in action.effects)


def took_over(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Close) and e.cause is TransitionCause.TAKEN_OVER for e in action.effects
    )


def stale_was_rejected(before: State, action: Action, after: State) -> bool:
    event = action.event
    if not isinstance(event, ProducerRequested) or event.request.topic_epoch is None:
        return False
    partition = before.topic.partition(event.request.partition)
    return (
        partition is not None
        and event.request.topic_epoch < partition.epoch
        and not isinstance(partition.ownership, Vacant)
        and any(
            isinstance(e, Reject) and e.code is ServerError.PRODUCER_FENCED for e in action.effects
        )
    )


def ghost_was_skipped(before: State, action: Action, after: State) -> bool:
    pending = before.topic.pending_fence
    return (
        isinstance(action.event, FenceStored)
        and pending is not None
        and pending.group is not None
        and not pending.group.members
        and any(isinstance(e, Fence) and e.purpose is Purpose.GRANT for e in action.effects)
    )


def deposed_had_to_name_the_epoch(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Reject) and "was deposed" in e.message for e in action.effects)


def handed_over(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Close) and e.cause is TransitionCause.HANDED_OVER for e in action.effects
    )


def lost_its_grant(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Close) and e.cause is TransitionCause.GRANT_LOST for e in action.effects
    )


def refenced(before: State, action: Action, after: State) -> bool:
    return any(isinstance(e, Fence) and e.purpose is Purpose.REFENCE for e in action.effects)


def shared_after_exclusive(before: State, action: Action, after: State) -> bool:
    return any(
        isinstance(e, Fence) and e.purpose is Purpose.SHARE and before.topic.epoch > 0
        for e in action.effects
    )


def group_granted(before: State, action: Action, after: State) -> bool:
    return len({e.partition for e in action.effects if isinstance(e, Grant)}) > 1


def held_back_too_long(before: State, action: Action, after: State) -> bool:
    return isinstance(action.event, ClockTicked) and any(
        isinstance(e, Fence) for e in action.effects
    )


def spread(before: State, action: Action, after: State) -> bool:
    """A waiter that arrived later was promoted because its host leads fewer topics."""
    grants = [e for e in action.effects if isinstance(e, Fence) and e.group is not None]
    return any(
        fence.best_loser is not None
        and fence.group is not None
        and fence.group.arrival > fence.best_loser.arrival
        and fence.load < fence.best_loser_load
        for fence in grants
    )


def serves_alone(state: State) -> bool:
    """No producer is informed of its grant while another one may still serve."""
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


RESUMED = Sometimes("a holder resumed", resumed)
REPLACED = Sometimes("a holder was back before it was missed", replaced_its_own_ghost)
PROMOTED = Sometimes("a waiter was promoted", promoted)
TOOK_OVER = Sometimes("a fencer took over", took_over)
STALE = Sometimes("a stale producer was refused", stale_was_rejected)
GHOST = Sometimes("a ghost was skipped", ghost_was_skipped)
HANDED_OVER = Sometimes("a handover", handed_over)
GROUPED = Sometimes("a group was granted at once", group_granted)

ALONE = Always("a holder that serves is alone", serves_alone)


@dataclass(frozen=True)
class Bounds:
    ledgers: int
    losses: int
    failovers: int = 0
    reconnects: int = 1


@dataclass(frozen=True)
class Scenario:
    """A world with its smallest bounds, the bounds of the marker ``full``, and the properties that must occur in it."""

    world: World
    smallest: Bounds
    full: Bounds
    sometimes: tuple[Sometimes[State, Action], ...]
    always: tuple[Always[State], ...] = ()

    def explored(self, bounds: Bounds, rules: Rules | None = None) -> Report[State, Action]:
        world = replace(
            self.world,
            rules=rules or self.world.rules,
            ledger_max=bounds.ledgers,
            losses_max=bounds.losses,
            failovers_max=bounds.failovers,
            reconnects_max=bounds.reconnects,
            nodes={},
        )
        always = (*ALWAYS, *self.always)
        return explore(world, always=always, steps=STEPS, sometimes=self.sometimes)


SERVERS = (
    Actor("A", WAIT, serve_seconds=3.0),
    Actor("B", WAIT, priority=1, serve_seconds=1.0),
)

SCENARIOS = {
    "two waiters": Scenario(
        World((Actor("A", WAIT), Actor("B", WAIT))),
        Bounds(3, 1),
        Bounds(4, 2),
        (RESUMED, REPLACED, PROMOTED, STALE),
    ),
    "waiters and an exclusive producer": Scenario(
        World((Actor("A", WAIT), Actor("B", WAIT, priority=1), Actor("C", EXCLUSIVE))),
        Bounds(2, 1),
        Bounds(4, 1),
        (RESUMED, REPLACED, PROMOTED, STALE, GHOST),
    ),
    "waiters on hosts that lead more or fewer topics": Scenario(
        World(
            (
                Actor("A", WAIT, host="one"),
                Actor("B", WAIT, host="two"),
                Actor("C", WAIT, priority=-1, host="standby"),
            ),
            policy=PromotionPolicy.BALANCED,
            loads=((("one", 2), ("two", 1)), (("one", 1), ("two", 2))),
        ),
        Bounds(1, 0, reconnects=0),
        Bounds(3, 0, reconnects=0),
        (PROMOTED, Sometimes("the one with less to do was promoted", spread)),
    ),
    "a winner waits until no other holder serves": Scenario(
        World((*SERVERS, Actor("C", FENCING)), closes=False),
        Bounds(3, 1),
        Bounds(3, 1),
        (PROMOTED, TOOK_OVER, Sometimes("a winner was told later", waited_for_who_serves)),
        (ALONE,),
    ),
    "holders that serve close and hand over": Scenario(
        World(SERVERS, is_administered=True),
        Bounds(2, 1),
        Bounds(3, 1),
        (PROMOTED, RESUMED, HANDED_OVER),
        (ALONE,),
    ),
    "a waiter, an exclusive producer and a fencer": Scenario(
        World((Actor("A", WAIT), Actor("B", EXCLUSIVE), Actor("C", FENCING))),
        Bounds(2, 1),
        Bounds(3, 1),
        (RESUMED, REPLACED, PROMOTED, TOOK_OVER, STALE),
    ),
    "a waiter and a fencer": Scenario(
        World((Actor("A", WAIT), Actor("B", FENCING))),
        Bounds(2, 1),
        Bounds(3, 2),
        (RESUMED, REPLACED, TOOK_OVER, STALE, GHOST),
    ),
    # A deposed fencer must name the epoch, so that two fencers do not depose each other without end.
    "two fencers": Scenario(
        World((Actor("A", FENCING), Actor("B", FENCING)), departs_late=True),
        Bounds(2, 1),
        Bounds(3, 1),
        (
            RESUMED,
            TOOK_OVER,
            STALE,
            Sometimes("a deposed one was stopped", deposed_had_to_name_the_epoch),
        ),
    ),
    "a topic that moved here, with administrators": Scenario(
        World(
            (Actor("A", WAIT), Actor("B", WAIT, priority=1)),
            is_administered=True,
            may_refuse=True,
            closes=False,
            starts_reserved=True,
        ),
        Bounds(2, 1),
        Bounds(3, 1),
        (PROMOTED, HANDED_OVER, Sometimes("a holder resumed after a move", resumed_after_a_move)),
    ),
    "the store fails over": Scenario(
        World((Actor("A", EXCLUSIVE), Actor("B", WAIT)), starts_reserved=True),
        Bounds(2, 1, failovers=1),
        Bounds(4, 1, failovers=2),
        (
            RESUMED,
            PROMOTED,
            STALE,
            Sometimes("a grant was lost", lost_its_grant),
            Sometimes("a ledger was fenced again", refenced),
        ),
    ),
    "shared producers after an exclusive one": Scenario(
        World((Actor("A", EXCLUSIVE), Actor("B", SHARED), Actor("C", WAIT))),
        Bounds(2, 1),
        Bounds(3, 1, failovers=1),
        (RESUMED, PROMOTED, Sometimes("a right to resume ended", shared_after_exclusive)),
    ),
    # Each client asks for both partitions, in any order, as the C++ client does.
    "partitions are granted as a group": Scenario(
        World((Actor("A", WAIT, (0, 1)), Actor("B", WAIT, (0, 1))), partitions=2, closes=False),
        Bounds(1, 1, reconnects=0),
        Bounds(2, 1),
        (PROMOTED, GROUPED, Sometimes("a request competed alone", held_back_too_long)),
    ),
    "a group loses one partition and returns": Scenario(
        World(
            (Actor("A", WAIT, (0, 1)), Actor("B", FENCING, (1,), alone=True)),
            partitions=2,
            closes=False,
        ),
        Bounds(2, 1),
        Bounds(3, 1),
        (RESUMED, REPLACED, TOOK_OVER, STALE),
    ),
    "a group beside producers of single partitions": Scenario(
        World(
            (
                Actor("A", WAIT, (0, 1)),
                Actor("B", EXCLUSIVE, (1,), alone=True),
                Actor("C", FENCING, (0,), alone=True),
            ),
            partitions=2,
            closes=False,
        ),
        Bounds(2, 1, reconnects=0),
        Bounds(2, 1),
        (PROMOTED, TOOK_OVER, GROUPED),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_holds_in_the_smallest_scope(name: str) -> None:
    scenario = SCENARIOS[name]
    scenario.explored(scenario.smallest).assert_sound()


@pytest.mark.full  # the same worlds as above, with more takeovers and losses
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_holds_in_a_larger_scope(name: str) -> None:
    scenario = SCENARIOS[name]
    scenario.explored(scenario.full).assert_sound()


@pytest.mark.skipif(not LARGE, reason="minutes and gigabytes; ONEWRITER_MODEL=large runs it")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_holds_in_a_large_scope(name: str) -> None:
    full = SCENARIOS[name].full
    large = replace(full, ledgers=full.ledgers + 1, losses=full.losses + 1)
    SCENARIOS[name].explored(large).assert_sound()


# -- Pulsar's rules, in the smallest scopes ----------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "name", "predicate"),
    [
        (forgetting_who_serves, "holders that serve close and hand over", "no grant while"),
        (forgetting_who_serves, "a winner waits until no other holder serves", "no grant while"),
        (
            queueing_without_the_check,
            "two waiters",
            "a new epoch is granted only after a stored fence",
        ),
        (removal_of_whoever_holds, "two fencers", "a removed producer is notified"),
    ],
)
def test_a_mutant_is_found_in_the_smallest_scope(rules: Rules, name: str, predicate: str) -> None:
    scenario = SCENARIOS[name]
    found = scenario.explored(scenario.smallest, rules).violation
    assert found is not None
    assert found.detail.startswith(predicate)


def test_forgetting_who_serves_lets_two_act_in_the_topics_name() -> None:
    world = World(SERVERS, rules=forgetting_who_serves)
    found = explore(world, always=[ALONE]).violation
    assert found is not None
    assert "A is assured" in found.trace() or "B is assured" in found.trace()


WAITERS = SCENARIOS["two waiters"].world


def test_queueing_without_the_check_lets_the_epoch_fall() -> None:
    """A was granted 1 and lost its connection, B holds 2, A queues with 1: then the epoch falls to 1."""
    world = replace(WAITERS, rules=queueing_without_the_check, nodes={})
    found = explore(world, steps=[Step("an epoch never falls", epochs_go_on)]).violation
    assert found is not None
    assert found.states[-2].topic.epoch == 2
    assert found.states[-1].topic.epoch == 1
    assert "with epoch 1  =>  queue" in found.trace()


def test_queueing_without_the_check_lets_an_old_epoch_write_after_a_newer_one() -> None:
    world = replace(WAITERS, rules=queueing_without_the_check, nodes={})
    found = explore(world, steps=[Step("the log's epochs never fall", log_goes_on)]).violation
    assert found is not None
    assert found.states[-2].log == (2,)
    assert found.states[-1].log == (1,)


def test_a_removal_that_does_not_name_who_makes_two_writers() -> None:
    """The late departure of a fenced producer frees the topic that another producer holds: two may write."""
    actors = (Actor("A", EXCLUSIVE), Actor("B", FENCING), Actor("C", WAIT))
    world = World(actors, rules=removal_of_whoever_holds, departs_late=True)
    found = explore(world, steps=[Step("the log's epochs never fall", log_goes_on)]).violation
    assert found is not None
    assert "appends under" in str(found.actions[-1])
    assert sum(line.granted for lines in found.states[-1].lines for line in lines) == 2
