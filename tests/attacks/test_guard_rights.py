"""A writer may use only guards that it has a right to."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, wire_as
from tests.integration.conftest import RawClients
from tests.integration.owners import own
from tests.integration.raw_connection import RefusedByBroker

from onewriter_broker.app import BrokerLimits
from onewriter_broker.log.limits import LogLimits
from onewriter_broker.topic.limits import TopicLimits
from onewriter_core.ids import TopicName, bucket_of
from onewriter_core.own.names import resource_bucket
from onewriter_core.property_names import (
    GUARD_GROUP_PROPERTY,
    GUARD_NUMBER_PROPERTY,
    GUARD_PROPERTY,
)
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

LOCK = "the-lock"
BUCKETS = 64


def topic(*, is_beside: bool) -> str:
    """A topic in the bucket of the lock, or in another one."""
    bucket = resource_bucket(LOCK, BUCKETS)
    names = (f"t-{number}" for number in range(2_000))
    return next(
        name for name in names if (bucket_of(TopicName.parse(name), BUCKETS) == bucket) is is_beside
    )


def guarded_by(number: int, group: str = "") -> dict[str, str]:
    return {
        GUARD_PROPERTY: LOCK,
        GUARD_NUMBER_PROPERTY: str(number),
        GUARD_GROUP_PROPERTY: group,
    }


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_name_of_another_subject_guards_nothing(
    guarded: GuardedBrokers, raw: RawClients, *, is_beside: bool
) -> None:
    name = topic(is_beside=is_beside)
    broker = guarded(buckets=BUCKETS)
    alice = wire_as(broker, raw, "alice")
    generation = own(alice, LOCK, 1, group="")
    for number in (generation, generation + 1):
        with pytest.raises(
            RefusedByBroker, match="lacks the right guard on resource the-lock"
        ) as no:
            wire_as(broker, raw, "mallory").producer(
                name, pb.EXCLUSIVE, properties=guarded_by(number)
            )
        assert "alice" not in str(no.value)
    for subject in ("alice", ADMINISTRATOR):
        producer = wire_as(broker, raw, subject).producer(
            name, pb.EXCLUSIVE, properties=guarded_by(generation)
        )
        producer.publish(b"under the lock")
        producer.close()
    assert broker._broker.clients.authorization.refusals["guard"] == 2


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_name_that_was_never_owned_is_reported_as_such(
    guarded: GuardedBrokers, raw: RawClients, *, is_beside: bool
) -> None:
    client = wire_as(guarded(buckets=BUCKETS), raw, "alice")
    with pytest.raises(RefusedByBroker, match="never owned"):
        client.producer(topic(is_beside=is_beside), pb.EXCLUSIVE, properties=guarded_by(1))


def test_a_subject_leaves_space_for_the_guards_of_others(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    name = topic(is_beside=False)
    logs = LogLimits(floors_max=5, floors_per_subject_max=3)
    broker = guarded(limits=BrokerLimits(topic=TopicLimits(log=logs)), buckets=BUCKETS)
    target = bucket_of(TopicName.parse(name), BUCKETS)
    locks = (f"lock-{number}" for number in range(1_000))
    elsewhere = (lock for lock in locks if resource_bucket(lock, BUCKETS) != target)

    def write(subject: str, lock: str, generation: int) -> None:
        properties = guarded_by(generation) | {GUARD_PROPERTY: lock}
        producer = wire_as(broker, raw, subject).producer(name, pb.SHARED, properties=properties)
        producer.publish(b"guarded")
        producer.close()

    def writes_under_another(subject: str) -> tuple[str, int]:
        lock = next(elsewhere)
        generation = own(wire_as(broker, raw, subject), lock, 1, group="")
        write(subject, lock, generation)
        return lock, generation

    known = [writes_under_another("greedy") for _ in range(3)]
    with pytest.raises(RefusedByBroker, match="one subject may use 3"):
        writes_under_another("greedy")
    first = writes_under_another("calm")
    for lock, generation in known:
        write("greedy", lock, generation)
    broker._do(broker._broker.topics.unload(TopicName.parse(name)))
    with pytest.raises(RefusedByBroker, match="one subject may use 3"):
        writes_under_another("greedy")
    writes_under_another("calm")
    with pytest.raises(RefusedByBroker, match="under 5 guards of other buckets"):
        writes_under_another("late")
    write("calm", *first)
