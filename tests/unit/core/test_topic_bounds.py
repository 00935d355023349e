"""Every queue of a topic has a bound, and a request above it gets a clear answer."""

from __future__ import annotations

from dataclasses import replace

from onewriter_core.errors import ServerError
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Reject
from onewriter_core.topic.events import (
    ClockTicked,
    FenceRequested,
    FenceStored,
    ProducerRequested,
)
from onewriter_core.topic.groups import HOLD_BACK_SECONDS
from onewriter_core.topic.machine import next_deadline, step
from onewriter_core.topic.model import (
    DEFERRED_MAX,
    DEPOSED_MAX,
    HELD_BACK_MAX,
    REFUSED_GROUPS_MAX,
    WAITERS_MAX,
    WHOLE,
    AccessMode,
    HeldBack,
    Member,
    Request,
    Topic,
    partitioned,
)
from onewriter_core.topic.refusals import REFUSAL_SECONDS

WAIT, EXCLUSIVE = AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE


def asks(name: str, mode: AccessMode, partition: int = WHOLE) -> ProducerRequested:
    request = Request(name, name, name, mode, partition, name_given=True, identity=Identity(name))
    return ProducerRequested(request, 0.0)


def test_a_waiter_above_the_limit_is_rejected() -> None:
    topic, _ = step(Topic(partitioned(0)), asks("A", EXCLUSIVE))
    topic, _ = step(topic, FenceStored(1, 1, 0.0))
    topic, _ = step(topic, asks("W", WAIT))
    (waiter,) = topic.queue
    waiters = tuple(
        replace(waiter, group_id=f"W{n}", members=(Member(WHOLE, f"W{n}"),), arrival=n)
        for n in range(WAITERS_MAX)
    )
    full = replace(topic, queue=waiters)
    after, effects = step(full, asks("B", WAIT))
    assert after.queue == waiters
    assert effects == (
        Reject(
            "B",
            ServerError.PRODUCER_BUSY,
            "the topic already has 10000 waiting producers, which is the limit",
        ),
    )


def test_a_request_held_back_above_the_limit_is_rejected() -> None:
    early = Request("early", "c", "early", EXCLUSIVE, 1, identity=Identity("early"))
    held_back = tuple(
        HeldBack(replace(early, registration=f"H{n}"), 2.0) for n in range(HELD_BACK_MAX)
    )
    full = replace(Topic(partitioned(2)), held_back=held_back)
    after, effects = step(full, asks("B", EXCLUSIVE, 1))
    assert after == full
    assert effects == (
        Reject("B", ServerError.SERVICE_NOT_READY, "too many partitions are waiting"),
    )


def test_only_the_last_refused_groups_are_remembered_and_not_for_long() -> None:
    topic, _ = step(Topic(partitioned(2)), asks("A", EXCLUSIVE, 0))
    topic, _ = step(topic, FenceStored(1, 1, 0.0))
    for number in range(REFUSED_GROUPS_MAX + 1):
        topic, _ = step(topic, asks(f"R{number}", EXCLUSIVE, 0))
    assert len(topic.refused_groups) == REFUSED_GROUPS_MAX
    _, effects = step(topic, asks("R1", EXCLUSIVE, 1))
    assert [type(e) for e in effects] == [Reject]
    forgotten, effects = step(topic, asks("R0", EXCLUSIVE, 1))
    assert effects == ()
    assert len(forgotten.held_back) == 1  # until its partition 0 asks, or the time is over
    assert next_deadline(topic) == HOLD_BACK_SECONDS
    later, _ = step(topic, ClockTicked(REFUSAL_SECONDS))
    assert later.refused_groups == ()


def test_a_deferred_request_above_the_limit_is_rejected() -> None:
    topic, _ = step(Topic(partitioned(0)), FenceRequested("admin", None, 0.0))
    for number in range(DEFERRED_MAX):
        topic, effects = step(topic, asks(f"D{number}", EXCLUSIVE))
        assert effects == ()
    for mode in (EXCLUSIVE, AccessMode.SHARED):
        full, effects = step(topic, asks("B", mode))
        assert full.deferred == topic.deferred
        assert [type(e) for e in effects] == [Reject]
        assert effects[0] == Reject(
            "B", ServerError.SERVICE_NOT_READY, "the holder of the topic is changing"
        )


def test_only_the_last_deposed_identities_are_remembered() -> None:
    topic = Topic(partitioned(0))
    for number in range(1, DEPOSED_MAX + 5):
        fencer = AccessMode.EXCLUSIVE_WITH_FENCING
        topic, _ = step(topic, asks(f"F{number}", fencer))
        topic, _ = step(topic, FenceStored(number, number, 0.0))
    (partition,) = topic.partitions
    last = [f"F{number}" for number in range(4, DEPOSED_MAX + 4)]
    assert [who.subject for who in partition.deposed] == last
