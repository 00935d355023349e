"""The anchor's directory disappears under a working broker: what continues, what waits, and what is reported."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, Http, epoch_of
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    RawProducer,
    RefusedByBroker,
    contents_of,
)

from onewriter_broker.ownership.adoption import LEDGERS_PER_BLOCK
from onewriter_core.errors import ServerError
from onewriter_core.ids import TopicName, bucket_of
from onewriter_testing.processes import LocalBrokers


class MovableAnchor:
    """The directory of the file anchor, which the test moves elsewhere and back."""

    def __init__(self, data_directory: Path) -> None:
        self._place = data_directory / "anchor"
        self._elsewhere = data_directory / "anchor-elsewhere"

    def move_away(self) -> None:
        self._place.rename(self._elsewhere)

    def bring_back(self) -> None:
        self._elsewhere.rename(self._place)

    @property
    def is_away(self) -> bool:
        return not self._place.exists()


@pytest.fixture
def brokers() -> Iterator[LocalBrokers]:
    with forked_brokers() as forked:
        yield forked


@pytest.fixture
def anchor(brokers: LocalBrokers, raw: RawClients, topic: str) -> MovableAnchor:
    """The anchor of a broker whose topic has been used before, so that its bucket is known."""
    first = raw(brokers.address()).producer(topic, EXCLUSIVE)
    first.publish(b"first")
    first.close()
    return MovableAnchor(brokers.data_directory)


def test_grants_continue_without_the_anchor_while_reserved_ledgers_are_left(
    brokers: LocalBrokers, raw: RawClients, topic: str, anchor: MovableAnchor
) -> None:
    """The topic is released and granted to the next waiter until no ledger is left. Then the grant waits."""
    anchor.move_away()
    client = raw(brokers.address())
    holder = client.producer(topic, EXCLUSIVE)
    epochs = [epoch_of(holder)]

    def hand_on(holder: RawProducer) -> None:
        while len(epochs) <= LEDGERS_PER_BLOCK:
            waiter = client.waiter(topic)
            holder.close()
            holder = waiter.ready()
            holder.publish(b"%d" % len(epochs))
            epochs.append(epoch_of(holder))

    with pytest.raises(RefusedByBroker) as refused:
        hand_on(holder)
    assert refused.value.code is ServerError.SERVICE_NOT_READY
    assert "cannot change hands now" in refused.value.text
    assert LEDGERS_PER_BLOCK // 2 < len(epochs) < LEDGERS_PER_BLOCK
    assert epochs == sorted(set(epochs))
    assert anchor.is_away, "somebody made a new anchor"

    anchor.bring_back()
    last = client.producer(topic, EXCLUSIVE)
    assert epoch_of(last) > epochs[-1]
    assert len(contents_of(brokers.address(), topic)) == len(epochs)


def test_a_takeover_that_cannot_be_recorded_stops_no_holder(
    brokers: LocalBrokers, raw: RawClients, topic: str, anchor: MovableAnchor
) -> None:
    """If the store lost the takeover, only the anchor's note would prevent the loser's return."""
    holder = raw(brokers.address()).producer(topic, EXCLUSIVE)
    http = Http(brokers.http_url)
    anchor.move_away()
    # The broker notices the lost anchor by another topic's grant, which affects no holder.
    names = (f"{topic}-{n}" for n in itertools.count())
    other = next(name for name in names if is_in_the_bucket_of(topic, name, brokers))
    released = raw(brokers.address()).producer(other, EXCLUSIVE)
    brokers.wait_for_event("bucket.grants_unrecorded")
    with pytest.raises(RefusedByBroker) as refused:
        raw(brokers.address()).producer(topic, FENCING)
    assert refused.value.code is ServerError.SERVICE_NOT_READY
    status, answer = http("POST", f"{OWN}/{topic}/fence", {})
    assert status == 409
    assert "cannot change hands now" in answer["reason"]
    holder.publish(b"undisturbed")
    released.publish(b"too")

    anchor.bring_back()
    taker = raw(brokers.address()).producer(topic, FENCING)
    assert epoch_of(taker) > epoch_of(holder)
    holder.closed_by_broker()


def is_in_the_bucket_of(topic: str, name: str, brokers: LocalBrokers) -> bool:
    first, second = (bucket_of(TopicName.parse(each), brokers.buckets) for each in (topic, name))
    return first == second


def test_the_first_use_of_a_bucket_is_refused_for_now(
    brokers: LocalBrokers, raw: RawClients, topic: str, anchor: MovableAnchor
) -> None:
    """A bucket that was never recorded as used could be emptied and taken for new."""
    names = (f"{topic}-{n}" for n in itertools.count())
    other = next(name for name in names if not is_in_the_bucket_of(topic, name, brokers))
    anchor.move_away()
    with pytest.raises(RefusedByBroker) as refused:
        raw(brokers.address()).producer(other)
    assert refused.value.code is ServerError.SERVICE_NOT_READY
    anchor.bring_back()
    raw(brokers.address()).producer(other).publish(b"now")


def test_a_dead_holders_waiter_is_granted_as_soon_as_the_anchor_is_back(
    brokers: LocalBrokers, raw: RawClients, topic: str, anchor: MovableAnchor
) -> None:
    holder = raw(brokers.address()).producer(topic, EXCLUSIVE, name="holder")
    waiter = raw(brokers.address()).waiter(topic)
    anchor.move_away()
    holder.client.close()
    brokers.wait_for_event("grant.unrecorded", lambda event: topic in str(event["topic"]))
    assert not waiter.is_ready
    anchor.bring_back()
    waiter.ready().publish(b"at last")
    with pytest.raises(RefusedByBroker) as refused:
        raw(brokers.address()).producer(
            topic, EXCLUSIVE, name="holder", epoch=holder.epoch, reconnects=1
        )
    assert refused.value.code is ServerError.PRODUCER_FENCED
