"""Each predicate of tests/topic_invariants.py has a mutant that breaks it, and it alone is named.

A mutant is a topic, or a step, that is right but for one thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests import topic_invariants as invariants
from tests.topic_invariants import check, check_step
from tests.violation import Violation

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Close, Effect, Fence, Grant, Queue, Reject
from onewriter_core.topic.events import (
    ClockTicked,
    Event,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    PartitionsAdded,
    ProducerGone,
    ProducerRequested,
)
from onewriter_core.topic.lookups import pending_fence_of
from onewriter_core.topic.lookups import with_pending as with_pending_fence
from onewriter_core.topic.machine import step
from onewriter_core.topic.model import (
    DEFERRED_MAX,
    DEPOSED_MAX,
    HELD_BACK_MAX,
    REFUSED_GROUPS_MAX,
    WAITERS_MAX,
    WHOLE,
    AccessMode,
    Closed,
    Fencing,
    Held,
    HeldBack,
    Member,
    Partition,
    PendingFence,
    Purpose,
    RefusedGroup,
    Request,
    Reserved,
    Settled,
    Shared,
    SharedProducer,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
    partitioned,
)

EXCLUSIVE, WAIT = AccessMode.EXCLUSIVE, AccessMode.WAIT_FOR_EXCLUSIVE
FENCING, SHARED = AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.SHARED
NOW = 0.0


def asks(
    registration: str, mode: AccessMode, topic_epoch: int | None = None, reconnects: int = 0
) -> Request:
    name = registration[0]
    return Request(
        registration,
        name,
        name,
        mode,
        identity=Identity(name),
        topic_epoch=topic_epoch,
        reconnects=reconnects,
    )


def after(topic: Topic, *events: Event) -> Topic:
    for event in events:
        topic, _ = step(topic, event)
    check(topic)
    return topic


def requested(
    registration: str, mode: AccessMode, topic_epoch: int | None = None, reconnects: int = 0
) -> ProducerRequested:
    return ProducerRequested(asks(registration, mode, topic_epoch, reconnects), NOW)


FRESH = Topic(partitioned(0))
PENDING = after(FRESH, requested("A", EXCLUSIVE))
HELD = after(PENDING, FenceStored(1, 1, NOW))
WAITED = after(HELD, requested("B", WAIT))
WAITED_TWICE = after(WAITED, requested("C", WAIT))
LEFT = after(HELD, ProducerGone("A", TransitionCause.CONNECTION_LOST, NOW))
SHARED_ONE = after(FRESH, requested("S", SHARED), FenceStored(1, 1, NOW))
SHARED_TWO = after(SHARED_ONE, requested("T", SHARED))
PROMOTING = after(WAITED_TWICE, ProducerGone("A", TransitionCause.CLOSED, NOW))
DEFERRED = after(FRESH, FenceRequested("admin", None, NOW), requested("A", EXCLUSIVE))


SERVED = after(
    FRESH,
    ProducerRequested(replace(asks("A", EXCLUSIVE), serve_seconds=2.0), NOW),
    FenceStored(1, 1, NOW),
    requested("B", WAIT),
    ProducerGone("A", TransitionCause.CONNECTION_LOST, NOW),
)
"""A may serve for two seconds after it was assured; the claim of B is in progress."""


def with_partition(topic: Topic, **changes: object) -> Topic:
    return replace(topic, partitions=(replace(topic.partitions[0], **changes),))  # type: ignore[arg-type]  # of any field


def with_pending(topic: Topic, **changes: object) -> Topic:
    fence = replace(pending_fence_of(topic), **changes)  # type: ignore[arg-type]  # of any field
    return with_pending_fence(topic, fence)


HOLDER, WAITER, TENURE = HELD.holders[0], WAITED.queue[0], Tenure(1, "A", Identity("A"))
RESERVED = with_partition(LEFT, ownership=Reserved(TENURE, NOW + 3))
PRODUCER = SharedProducer("S", "S", Identity("S"), 0)

STATES: dict[str, Topic] = {
    "each registration appears once": replace(
        WAITED, queue=(replace(WAITER, members=HOLDER.members),)
    ),
    "each group appears once": replace(WAITED, queue=(replace(WAITER, group_id="A"),)),
    "a tenure has its partition's epoch": with_partition(LEFT, epoch=0),
    "a Held partition's group is a known holder": replace(HELD, holders=()),
    "a holder holds what it was granted": with_partition(
        HELD, ownership=Held(replace(TENURE, producer_name="B"), "A")
    ),
    "a holder's partitions contain what it holds": replace(
        HELD, holders=(replace(HOLDER, partitions=()),)
    ),
    "a Shared partition has producers": with_partition(SHARED_ONE, ownership=Shared(())),
    "Shared producers have different names": with_partition(
        SHARED_ONE, ownership=Shared((PRODUCER, replace(PRODUCER, registration="S2")))
    ),
    "a holder has a member": replace(HELD, holders=(replace(HOLDER, members=()),)),
    "a holder's members write": replace(LEFT, holders=(HOLDER,)),
    "a partition has one member": replace(
        HELD, holders=(replace(HOLDER, members=(*HOLDER.members, Member(WHOLE, "A2"))),)
    ),
    "a request is deferred only by a pending fence or a reservation": replace(
        DEFERRED, phase=Settled()
    ),
    "a pending fence's partitions exist": with_pending(PENDING, partitions=(3,)),
    "the pending fence is the newest one": with_pending(PENDING, number=7),
    "a grant or a resume has a group": with_pending(PENDING, group=None),
    "a fenced group wants the fence's partitions": with_pending(
        PROMOTING, group=replace(WAITER, partitions=(0, 1))
    ),
    "newcomers are Shared": with_pending(PENDING, newcomers=(PRODUCER,)),
    "no waiter is grantable while no fence is pending": replace(LEFT, queue=(WAITER,)),
    "no writer is left without a fence in this dataset": with_partition(HELD, is_open=False),
    "no holder keeps a grant that may be lost": with_partition(
        HELD, ownership=Held(TENURE, "A", may_be_lost=True)
    ),
    "waiters are bounded": replace(
        HELD,
        queue=tuple(
            replace(WAITER, group_id=f"W{n}", members=(Member(WHOLE, f"W{n}"),), arrival=n)
            for n in range(WAITERS_MAX + 2)
        ),
    ),
    "deferred requests are bounded": replace(
        DEFERRED, deferred=tuple(asks(f"D{n}", EXCLUSIVE) for n in range(DEFERRED_MAX + 1))
    ),
    "requests held back are bounded": replace(
        HELD,
        held_back=tuple(HeldBack(asks(f"H{n}", EXCLUSIVE), 2.0) for n in range(HELD_BACK_MAX + 1)),
    ),
    "refused groups are bounded": replace(
        HELD,
        refused_groups=tuple(
            RefusedGroup(
                f"c{n}", "", Identity(), EXCLUSIVE, (1,), ServerError.PRODUCER_FENCED, "no", 2.0
            )
            for n in range(REFUSED_GROUPS_MAX + 1)
        ),
    ),
    "waiters have the mode WaitForExclusive": replace(
        WAITED, queue=(replace(WAITER, mode=EXCLUSIVE),)
    ),
    "a waiter has a member": replace(WAITED, queue=(replace(WAITER, members=()),)),
    "partitions have different numbers": replace(
        FRESH, partitions=(*FRESH.partitions, *FRESH.partitions)
    ),
    "deposed identities are bounded": with_partition(
        HELD, deposed=tuple(Identity(f"d{n}") for n in range(DEPOSED_MAX + 1))
    ),
    "no anonymous identity is remembered": with_partition(HELD, deposed=(Identity(),)),
    "an epoch is at most the newest ledger": with_partition(HELD, ledger=0),
    "a closed topic is empty": replace(HELD, phase=Closed()),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_breaks_one_predicate(name: str) -> None:
    with pytest.raises(Violation, match=f"^{re.escape(name)}:"):
        check(STATES[name])


Effects = tuple[Effect, ...]
StepMutant = tuple[Topic, Event, Callable[[Topic, Effects], tuple[Topic, Effects]]]

GONE = ProducerGone("A", TransitionCause.CLOSED, NOW)
STORED = FenceStored(1, 1, NOW)
TICK = ClockTicked(NOW)
STALE = requested("Z", FENCING, topic_epoch=0)
REJECTED = Reject("B", ServerError.PRODUCER_BUSY, "")


def mutated(
    topic: Callable[[Topic], Topic] = lambda t: t,
    effects: Callable[[Effects], Effects] = lambda e: e,
) -> Callable[[Topic, Effects], tuple[Topic, Effects]]:
    return lambda t, e: (topic(t), effects(e))


def fence_of(effects: Effects) -> Fence:
    return next(effect for effect in effects if isinstance(effect, Fence))


def with_fence(**changes: object) -> Callable[[Effects], Effects]:
    return lambda effects: tuple(
        replace(e, **changes) if isinstance(e, Fence) else e  # type: ignore[arg-type]  # of any field
        for e in effects
    )


def with_grant(**changes: object) -> Callable[[Effects], Effects]:
    return lambda effects: tuple(
        replace(e, **changes) if isinstance(e, Grant) else e  # type: ignore[arg-type]  # of any field
        for e in effects
    )


def without(kind: type[Effect]) -> Callable[[Effects], Effects]:
    return lambda effects: tuple(e for e in effects if not isinstance(e, kind))


def adding(*more: Effect) -> Callable[[Effects], Effects]:
    return lambda effects: (*effects, *more)


RESUME = requested("A2", EXCLUSIVE, topic_epoch=1, reconnects=1)

STEPS: dict[str, StepMutant] = {
    "partitions stay": (HELD, TICK, mutated(lambda t: replace(t, partitions=()))),
    "an epoch never falls": (HELD, TICK, mutated(lambda t: with_partition(t, epoch=0))),
    "a ledger never falls": (HELD, TICK, mutated(lambda t: with_partition(t, ledger=0))),
    "only a stored fence moves epoch or ledger": (
        HELD,
        TICK,
        mutated(lambda t: with_partition(t, ledger=2)),
    ),
    "a new epoch is the ledger": (PENDING, STORED, mutated(lambda t: with_partition(t, ledger=2))),
    "a tenure begins with its epoch": (
        FRESH,
        TICK,
        mutated(lambda t: with_partition(t, ownership=Vacant(replace(TENURE, epoch=0)))),
    ),
    "no grant while a former holder may serve": (
        SERVED,
        FenceStored(2, 2, NOW, assured_at=NOW),
        lambda _topic, _effects: step(SERVED, FenceStored(2, 2, NOW, assured_at=NOW - 2.0)),
    ),
    "a delayed grant keeps its deadline": (
        SERVED,
        FenceStored(2, 2, NOW),
        mutated(lambda t: replace(t, phase=Settled())),
    ),
    "a reservation is never shortened": (
        RESERVED,
        TICK,
        mutated(lambda t: with_partition(t, ownership=Reserved(TENURE, NOW + 1))),
    ),
    "a reservation ends when it is due": (
        RESERVED,
        ClockTicked(NOW + 3, resumable_until=NOW + 4),
        mutated(lambda t: with_partition(t, ownership=Vacant(TENURE))),
    ),
    "a closed topic stays closed": (
        replace(FRESH, phase=Closed()),
        TICK,
        mutated(lambda t: replace(t, phase=Settled())),
    ),
    "at most one fence is asked for": (
        WAITED,
        GONE,
        mutated(effects=lambda e: (*e, fence_of(e))),
    ),
    "a pending fence ends by its result": (
        PENDING,
        TICK,
        mutated(lambda t: replace(t, phase=Settled())),
    ),
    "a new pending fence is asked of the store": (WAITED, GONE, mutated(effects=without(Fence))),
    "a fence stops its partitions' writers": (
        HELD,
        requested("F", FENCING),
        mutated(effects=with_fence(stops=())),
    ),
    "a fence has every partition's tenure": (
        WAITED,
        GONE,
        mutated(effects=with_fence(tenures=())),
    ),
    "a grant is of a partition that exists": (
        PENDING,
        STORED,
        mutated(effects=with_grant(partition=4)),
    ),
    "a granted producer writes": (PENDING, STORED, mutated(effects=with_grant(registration="B"))),
    "a grant has the stored epoch": (PENDING, STORED, mutated(effects=with_grant(epoch=7))),
    "a resume keeps the epoch": (PENDING, STORED, mutated(effects=with_grant(resumed=True))),
    "a resume needs the tenure": (
        SHARED_ONE,
        requested("T", SHARED),
        mutated(effects=with_grant(resumed=True)),
    ),
    "a new epoch is granted only after a stored fence": (
        LEFT,
        RESUME,
        mutated(effects=with_grant(resumed=False)),
    ),
    "no producer is answered twice in a step": (
        HELD,
        requested("B", EXCLUSIVE),
        mutated(effects=lambda e: (e[0], *e)),
    ),
    "only a known producer is answered": (HELD, TICK, mutated(effects=adding(REJECTED))),
    "a departed producer is not answered": (
        HELD,
        GONE,
        mutated(effects=adding(Close("A", TransitionCause.CLOSED))),
    ),
    "only a producer that asks is added": (
        SHARED_ONE,
        TICK,
        mutated(lambda t: with_partition(t, ownership=SHARED_TWO.partitions[0].ownership)),
    ),
    "a removed producer is notified": (WAITED, TICK, mutated(lambda t: replace(t, queue=()))),
    "a new writer is notified once": (PENDING, STORED, mutated(effects=without(Grant))),
    "no writer becomes a waiter": (
        SHARED_TWO,
        TICK,
        mutated(
            lambda t: replace(
                with_partition(t, ownership=SHARED_ONE.partitions[0].ownership),
                held_back=(HeldBack(asks("T", SHARED), 2.0),),
            )
        ),
    ),
    "a waiting producer is not rejected": (WAITED, TICK, mutated(effects=adding(REJECTED))),
    "a new waiter is notified": (HELD, requested("B", WAIT), mutated(effects=without(Queue))),
    "a stale request changes nothing": (
        WAITED,
        STALE,
        mutated(lambda t: replace(t, arrivals=t.arrivals + 1)),
    ),
    "a stale request is fenced": (
        WAITED,
        STALE,
        mutated(effects=lambda _: (Reject("Z", ServerError.PRODUCER_BUSY, ""),)),
    ),
    "a departure answers no other producer": (
        SHARED_TWO,
        ProducerGone("S", TransitionCause.CLOSED, NOW),
        mutated(
            lambda t: with_partition(t, ownership=Vacant()),
            adding(Close("T", TransitionCause.CLOSED)),
        ),
    ),
    "a departed producer has no place": (HELD, GONE, lambda _, e: (HELD, e)),
    "a departure moves another producer only to a promotion": (
        DEFERRED,
        ProducerGone("nobody", TransitionCause.CLOSED, NOW),
        mutated(
            lambda t: replace(t, deferred=(), held_back=tuple(HeldBack(r, 2.0) for r in t.deferred))
        ),
    ),
    "a departure frees only what the departed held": (
        replace(LEFT, partitions=(*LEFT.partitions, Partition(1, 1, 1, ownership=Vacant(TENURE)))),
        ProducerGone("nobody", TransitionCause.CLOSED, NOW),
        mutated(
            lambda t: replace(
                t, partitions=(t.partitions[0], replace(t.partitions[1], ownership=Vacant()))
            )
        ),
    ),
    "only a takeover deposes": (
        HELD,
        requested("F", FENCING),
        mutated(effects=with_fence(group=replace(HOLDER, mode=EXCLUSIVE))),
    ),
    "no waiter is overtaken": (
        WAITED_TWICE,
        GONE,
        mutated(
            lambda t: replace(
                with_pending(t, group=WAITED_TWICE.queue[1]), queue=WAITED_TWICE.queue[:1]
            ),
            with_fence(group=WAITED_TWICE.queue[1]),
        ),
    ),
    "a handover takes the first waiter that matches": (
        WAITED_TWICE,
        HandoverRequested("admin", "", NOW),
        mutated(effects=with_fence(group=WAITED_TWICE.queue[1])),
    ),
    "an administrator is answered once": (
        HELD,
        HandoverRequested("admin", "", NOW),
        mutated(effects=lambda _: ()),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_breaks_one_predicate(name: str) -> None:
    before, event, mutate = STEPS[name]
    topic, effects = step(before, event)
    check_step(before, event, topic, effects)
    with pytest.raises(Violation, match=f"^{re.escape(name)}:"):
        check_step(before, event, *mutate(topic, effects))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("an epoch never falls", r"the topic: expected at least 1, found 0$"),
        ("a new waiter is notified", r"registration \w+: expected Queue, found nothing$"),
        (
            "a granted producer writes",
            r"registration \w+: expected a writer, found ",
        ),
    ],
)
def test_a_violation_names_the_expected_and_the_found_value(name: str, message: str) -> None:
    before, event, mutate = STEPS[name]
    with pytest.raises(Violation, match=f"^{re.escape(name)}: {message}"):
        check_step(before, event, *mutate(*step(before, event)))


def test_every_predicate_has_its_mutant() -> None:
    source = Path(invariants.__file__).read_text()
    named = set(re.findall(r'_must\(\s*"([^"]+)"', source))
    named |= {text.partition(":")[0] for text in re.findall(r'Violation\(\s*f?"([^"]+)"', source)}
    assert named - {"{name}"} == STATES.keys() | STEPS.keys()


def test_a_partition_added_is_no_violation() -> None:
    before = Topic(partitioned(2))
    event = PartitionsAdded((Partition(2),), NOW)
    check_step(before, event, *step(before, event))


def test_the_fence_of_a_roll_has_no_group() -> None:
    rolling = replace(
        HELD, fences_started=2, phase=Fencing(PendingFence(2, Purpose.ROLL, (WHOLE,)))
    )
    check(rolling)
