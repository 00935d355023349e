"""Pulsar's deduplication policy, set over HTTP, with stock and raw clients.

The answers are those of Apache Pulsar 4.0.7 to the same requests, unless docs/wire.md says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.following import placed, topic_of
from tests.integration.forked_brokers import forked_brokers
from tests.integration.http_calls import ADMIN, Http
from tests.integration.raw import EXCLUSIVE, RawClient, RawProducer, contents_of, eventually

from onewriter_core.wire.values import SendReceipt
from onewriter_testing.processes import LocalBrokers

NOWHERE = (2**64 - 1, 2**64 - 1)
"""The position in the receipt of a duplicate."""

FIRST = 1
"""The first sequence id of a replay: Python's client treats 0 as none given."""


def deduplicate(brokers: LocalBrokers, *, is_on: bool, topic: str = "") -> None:
    """Set the namespace's policy, or one topic's own."""
    path = f"{ADMIN}/namespaces/public/default/deduplication"
    if topic:
        path = f"{ADMIN}/persistent/public/default/{topic}/deduplicationEnabled"
    assert Http(brokers.http_url)("POST", path, is_on)[0] == 204


@pytest.fixture
def deduplicated(mortal: LocalBrokers) -> Iterator[LocalBrokers]:
    deduplicate(mortal, is_on=True)
    yield mortal
    deduplicate(mortal, is_on=False)


def receipt_of(client: RawClient, producer: RawProducer, number: int) -> tuple[int, int]:
    producer.send(b"%d" % number, number)
    found = client.expect(SendReceipt, lambda receipt: receipt.sequence_id == number)
    assert found.message_id is not None
    return tuple(found.message_id.position)  # type: ignore[return-value]  # two numbers


def test_a_stock_client_continues_where_its_name_left_off(
    deduplicated: LocalBrokers, stock: StockClients, topic: str
) -> None:
    client = stock(deduplicated.service_url)
    producer = client.create_producer(topic, producer_name="source")
    assert producer.last_sequence_id() == -1
    for number in range(10):
        producer.send(b"%d" % number)
        assert producer.last_sequence_id() == number
    producer.close()
    producer = client.create_producer(topic, producer_name="source")
    assert producer.last_sequence_id() == 9
    for number in (8, 9, 10):
        producer.send(b"%d" % number, sequence_id=number)
    producer.close()
    assert contents_of(deduplicated.address(), topic) == [b"%d" % n for n in range(11)]


def test_a_replay_by_another_exclusive_writer_of_that_name_after_the_broker_died(
    deduplicated: LocalBrokers, stock: StockClients, topic: str
) -> None:
    client = stock(deduplicated.service_url)
    first = client.create_producer(topic, producer_name="source", access_mode=Mode.Exclusive)
    for number in range(FIRST, 100):
        first.send_async(b"%d" % number, None, sequence_id=number)
    first.flush()
    deduplicated.kill()
    deduplicated.restart(0)
    second = stock(deduplicated.service_url).create_producer(
        topic, producer_name="source", access_mode=Mode.ExclusiveWithFencing
    )
    assert second.last_sequence_id() == 99
    for number in range(FIRST, 120):  # a source that restarts from an old checkpoint
        second.send_async(b"%d" % number, None, sequence_id=number)
    second.flush()
    assert contents_of(deduplicated.address(), topic) == [b"%d" % n for n in range(FIRST, 120)]


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        ("unbatched", "Exclusive"),
        ("batched", "Shared"),
        ("chunked", "Exclusive"),
        # each shape and each mode is one of those above
        pytest.param("unbatched", "Shared", marks=pytest.mark.full),
        pytest.param("batched", "Exclusive", marks=pytest.mark.full),
        pytest.param("chunked", "Shared", marks=pytest.mark.full),
    ],
)
def test_replays_of_every_shape_leave_each_message_once(
    deduplicated: LocalBrokers, stock: StockClients, topic: str, mode: str, shape: str
) -> None:
    shapes: dict[str, dict[str, Any]] = {
        "unbatched": {"batching_enabled": False},
        "batched": {"batching_enabled": True, "batching_max_messages": 7},
        "chunked": {"batching_enabled": False, "chunking_enabled": True},
    }
    options = shapes[shape]
    size = 6 * 1024 * 1024 if shape == "chunked" else 20
    contents = [(b"%d;" % number).ljust(size, b".") for number in range(3 if size > 20 else 50)]
    client = stock(deduplicated.service_url)
    for _ in range(3):
        producer = client.create_producer(
            topic, producer_name="source", access_mode=getattr(Mode, mode), **options
        )
        for number, content in enumerate(contents, FIRST):
            producer.send_async(content, None, sequence_id=number)
        producer.flush()
        producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(60_000).data())
    assert read == contents


def test_a_topic_of_its_own_mind(deduplicated: LocalBrokers, raw: RawClients, topic: str) -> None:
    client = raw(deduplicated.address())
    producer = client.producer(topic, name="source")
    assert receipt_of(client, producer, 3) != NOWHERE
    assert receipt_of(client, producer, 3) == NOWHERE
    deduplicate(deduplicated, is_on=False, topic=topic)
    assert receipt_of(client, producer, 3) != NOWHERE
    http = Http(deduplicated.http_url)
    path = f"{ADMIN}/persistent/public/default/{topic}/deduplicationEnabled"
    assert http("GET", path) == (200, False)
    assert http("DELETE", path)[0] == 204
    assert http("GET", path) == (200, "")
    assert http("GET", f"{path}?applied=true") == (200, True)
    assert receipt_of(client, producer, 4) != NOWHERE  # earlier sends do not count
    assert receipt_of(client, producer, 4) == NOWHERE
    stats = f"{ADMIN}/persistent/public/default/{topic}/stats"
    assert http("GET", stats)[1]["deduplicationStatus"] == "Enabled"


def test_a_waiter_learns_the_sequence_when_it_is_granted(
    deduplicated: LocalBrokers, raw: RawClients, topic: str
) -> None:
    here, there = raw(deduplicated.address()), raw(deduplicated.address())
    holder = here.producer(topic, EXCLUSIVE, name="holder")
    waiter = there.waiter(topic, name="standby")
    assert waiter.last_sequence_id == -1
    holder.publish(b"once", 5)
    holder.close()
    assert waiter.ready().last_sequence_id == -1, "the number is the name's, not the topic's"
    again = here.waiter(topic, name="holder")
    waiter.close()
    assert again.ready().last_sequence_id == 5


def test_the_policy_reaches_topics_on_every_broker(raw: RawClients, topic: str) -> None:
    with forked_brokers(brokers=2) as brokers:
        targets = {
            topic_of(brokers, number, f"{topic}-{kind}"): number
            for number in range(2)
            for kind in ("a", "b")
        }
        names = list(targets)
        placed(brokers, *names)
        open_producers = {}
        for name in names:
            client = raw(brokers.address(targets[name]))
            open_producers[name] = (client, client.producer(name, name="source"))
        deduplicate(brokers, is_on=True)

        def is_on(name: str) -> bool:
            client, producer = open_producers[name]
            return NOWHERE in {receipt_of(client, producer, 1), receipt_of(client, producer, 1)}

        for name in names:
            eventually(lambda name=name: is_on(name), what=f"{name} is not deduplicated")  # type: ignore[misc]  # the loop's
