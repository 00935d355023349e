"""Readers of whole logs over HTTP: their positions, the number of remaining messages, and what was trimmed
after their positions.
"""

from __future__ import annotations

import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import OWN, Http, epoch_of
from tests.integration.raw import EXCLUSIVE, FENCING, full
from tests.integration.test_http_own_api import guarded, token

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import BlockFrame
from onewriter_pipeline.errors import Conflict, Invalid, NotAllowed, NotFound, Trimmed
from onewriter_testing.processes import LocalBrokers

__all__ = ["guarded"]


# ------------------------------------------------------------ position of a reader


def test_a_subscription_follows_a_reader_and_never_goes_back(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    for number in range(10):
        producer.publish(b"%d" % number)
    ledger, end = pipeline.segments(topic).ledger, pipeline.segments(topic).end
    middle = Position(ledger, 6)
    assert pipeline.acknowledge(topic, "reader", middle) == middle
    for earlier in (Position(0, 0), Position(ledger, 1), middle):
        assert pipeline.acknowledge(topic, "reader", earlier) == middle
    assert pipeline.acknowledge(topic, "reader", Position(ledger + 9, 1)) == end
    assert pipeline.acknowledge(topic, "reader", Position(ledger, 8)) == end
    consumer = raw(broker.address()).subscribe(topic, "reader")
    producer.publish(b"new")
    assert consumer.contents(1) == [b"new"]
    with pytest.raises(Conflict, match="consumers read with the subscription reader"):
        pipeline.acknowledge(topic, "reader", end)


def test_a_subscription_that_follows_survives_its_broker(raw: RawClients) -> None:
    with forked_brokers() as brokers, Broker(Access(brokers.http_url)) as pipeline:
        producer = raw(brokers.address()).producer("followed", EXCLUSIVE)
        for number in range(600):
            producer.publish(b"%d" % number)
        old = pipeline.segments("followed").ledger
        assert pipeline.acknowledge("followed", "reader", Position(old, 301)) == (old, 301)
        brokers.kill()
        brokers.restart(0)
        assert pipeline.segments("followed").ledger > old
        successor = raw(brokers.address()).producer("followed", FENCING)
        done = pipeline.trim(
            "followed", successor.publish(b"x").position, epoch=epoch_of(successor)
        )
        assert (done.limited_by, done.name) == ("subscription", "reader")
        assert done.before == (old, 301)
        assert pipeline.acknowledge("followed", "reader", Position(old, 3)) == (old, 301)


def test_a_consumer_may_follow_a_log(guarded: LocalBrokers, raw: RawClients) -> None:
    raw(guarded.address(), token=token("writer")).producer("plain", EXCLUSIVE).publish(b"x")
    with (
        Broker(Access(guarded.http_url)) as anonymous,
        pytest.raises(NotAllowed, match=r"refuse the token \(401\)"),
    ):
        anonymous.acknowledge("plain", "reader", Position(0, 0))
    with Broker(Access(guarded.http_url, token=token("reader"))) as client:
        client.acknowledge("plain", "reader", Position(0, 0))
        with pytest.raises(NotAllowed, match=r"does not allow this \(403\)"):
            client.trim("plain", Position(0, 0), epoch=0)


def test_impossible_follow_requests_are_refused_with_a_reason(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    raw(broker.address()).producer(topic, EXCLUSIVE).publish(b"x")
    with pytest.raises(NotFound):
        pipeline.acknowledge(f"{topic}-none", "reader", Position(0, 0))
    with pytest.raises(Invalid, match="longer than"):
        pipeline.acknowledge(topic, "r" * 3_000, Position(0, 0))
    http = Http(broker.http_url)
    for body in ({}, {"before": "1-1"}, {"before": 1}):
        assert http("PUT", f"{OWN}/{topic}/acknowledged/reader", body)[0] == 400
    answer = http("PUT", f"{OWN}/{topic}/acknowledged/a%2Fb", {"before": "0:0"})[1]
    assert answer == {"topic": full(topic), "subscription": "a/b", "before": answer["before"]}


# ------------------------------------------------------------ blocks without their contents


def test_blocks_may_be_requested_without_their_entries(
    broker: LocalBrokers, topic: str, raw: RawClients, pipeline: Broker
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    for number in range(20):
        producer.publish(b"%d" % number * 100)

    def seen(*, payload: bool) -> list[tuple[Position, list[int], int]]:
        frames = pipeline.frames(topic, payload=payload)
        blocks = [frame for frame in frames if isinstance(frame, BlockFrame)]
        return [(block.first, block.lengths.tolist(), len(block.payload)) for block in blocks]

    whole, heads = seen(payload=True), seen(payload=False)
    assert [each[:2] for each in heads] == [each[:2] for each in whole]
    assert {each[2] for each in heads} == {0}
    assert [each[2] for each in whole] == [sum(each[1]) for each in whole]
    (segment,) = [each for each in pipeline.segments(topic).segments if each.entries]
    assert sum(each.messages for each in segment.block_runs) == segment.messages == 20


# ------------------------------------------------------------ trimming beyond a reader


@pytest.mark.parametrize("past", [0, 1], ids=["at the next marker", "behind the next marker"])
def test_a_reader_at_the_end_of_a_ledger_that_was_cut_reads_on_after_a_restart(
    raw: RawClients, past: int
) -> None:
    with forked_brokers() as brokers, Broker(Access(brokers.http_url)) as pipeline:
        producer = raw(brokers.address()).producer("cut", EXCLUSIVE)
        for number in range(600):
            producer.publish(b"%d" % number)
        had_read = pipeline.segments("cut").end
        successor = raw(brokers.address()).producer("cut", FENCING)
        successor.publish(b"new")
        middle = pipeline.segments("cut").ledger
        last = raw(brokers.address()).producer("cut", FENCING)
        last.publish(b"newer")
        pipeline.trim("cut", Position(middle, past), epoch=epoch_of(last))
        brokers.kill()
        brokers.restart(0)
        first = pipeline.segments("cut").first
        assert first > Position(had_read.ledger, 0)
        found = [chunk.entry.tolist() for chunk in pipeline.read("cut", had_read)]
        assert found == [[1, 1]]
        with pytest.raises(Trimmed):
            list(pipeline.read("cut", Position(had_read.ledger, 1)))
