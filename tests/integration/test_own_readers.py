"""A group's owner of a topic is its single reader: older owners neither get nor acknowledge anything (S9)."""

from __future__ import annotations

import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.owners import disown, lost, own, subscribe_with
from tests.integration.raw import (
    RawClient,
    RawConsumer,
    RefusedByBroker,
    eventually,
    full,
)

from onewriter_core.errors import ServerError
from onewriter_core.wire.encoding import encode_ack
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Delivery
from onewriter_testing.processes import LocalBrokers

GENERATION, NONCE = "onewriter.own-generation", "onewriter.own-nonce"


def refusal(
    client: RawClient, topic: str, properties: dict[str, str], group: str = "group"
) -> ServerError:
    with pytest.raises(RefusedByBroker) as found:
        subscribe_with(client, topic, group, properties)
    return found.value.code


def closed_by_broker(consumer: RawConsumer) -> None:
    consumer.client.expect(pb.CommandCloseConsumer, lambda c: c.consumer_id == consumer.consumer_id)


def test_a_deposed_owner_neither_reads_nor_acknowledges(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    raw(broker.address()).producer(topic).publish(b"first")
    former, client = raw(broker.address()), raw(broker.address())
    own(former, full(topic), identity="former")
    reader = subscribe_with(former, topic, "group", {GENERATION: "1"})
    delivery, _ = reader.receive()

    assert own(client, full(topic), 2, identity="next") == 2
    closed_by_broker(reader)
    assert lost(former).current_generation == 2
    with pytest.raises(RefusedByBroker) as found:
        reader.acknowledge(delivery.message_id)
    assert found.value.code is ServerError.CONSUMER_NOT_FOUND
    assert refusal(former, topic, {GENERATION: "1"}) is ServerError.PRODUCER_FENCED
    assert refusal(former, topic, {GENERATION: "2"}) is ServerError.NOT_ALLOWED_ERROR
    assert refusal(former, topic, {}) is ServerError.NOT_ALLOWED_ERROR

    follower = subscribe_with(client, topic, "group", {GENERATION: "2"})
    again, _ = follower.receive()
    assert again.message_id.position == delivery.message_id.position, "it was not acknowledged"
    follower.acknowledge(again.message_id)
    raw(broker.address()).producer(topic).publish(b"second")
    follower.receive()
    assert not former.has_received(Delivery)


def test_readers_of_before_there_was_an_owner_are_closed(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    plain, other = raw(broker.address()), raw(broker.address())
    before = plain.subscribe(topic, "group", pb.CommandSubscribe.SHARED)
    apart = plain.subscribe(topic, "another subscription")
    own(other, full(topic))
    closed_by_broker(before)
    assert refusal(plain, topic, {}) is ServerError.NOT_ALLOWED_ERROR
    raw(broker.address()).producer(topic).publish(b"for everybody else")
    assert apart.contents(1) == [b"for everybody else"]


def test_a_group_that_owned_a_topic_cannot_be_moved_over_http(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    positions = [producer.publish(b"%d" % number).position for number in range(3)]
    http, before = Http(broker.http_url), {"before": f"{positions[0].ledger}:2"}
    path = f"{OWN}/{topic}/acknowledged/"
    assert http("PUT", path + "group", before)[1]["before"] == before["before"]
    owner = raw(broker.address())
    assert own(owner, full(topic)) == 1
    status, answer = http("PUT", path + "group", {"before": "99:1"})
    assert (status, answer["reason"][:28]) == (405, "group group owns its topics:")
    reader = subscribe_with(owner, topic, "group", {GENERATION: "1"})
    assert reader.receive()[0].message_id.position == positions[1]
    disown(owner, full(topic), 1)
    assert http("PUT", path + "group", {"before": "99:1"})[0] == 405, "its record says whose turn"
    assert http("PUT", path + "others", {"before": "99:1"})[0] == 200


def test_the_record_of_a_topic_covers_its_partitions_over_http_too(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    http = Http(broker.http_url)
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 2)[0] == 204
    own(raw(broker.address()), full(topic))
    path = f"{OWN}/{topic}-partition-1/acknowledged/"
    assert http("PUT", path + "group", {"before": "0:0"})[0] == 405
    assert http("PUT", path + "others", {"before": "0:0"})[0] == 200


def test_a_group_that_never_owned_the_topic_reads_as_ever(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    own(client, full(topic), group="other")
    own(client, full(topic) + "-2")
    client.subscribe(topic, "group")


def test_a_reader_for_an_owner_is_refused_without_an_owner(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """The reader would believe to be the only one: "orders" may be owned as a text, and read as a topic."""
    client = raw(broker.address())
    own(client, topic)  # a text, not a topic
    assert refusal(client, topic, {GENERATION: "1"}) is ServerError.NOT_ALLOWED_ERROR


def test_a_reader_on_another_connection_proves_itself_by_the_nonce(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    owner, worker = raw(broker.address()), raw(broker.address())
    own(owner, full(topic), nonce="secret")
    assert refusal(worker, topic, {GENERATION: "1"}) is ServerError.NOT_ALLOWED_ERROR
    wrong = {GENERATION: "1", NONCE: "guessed"}
    assert refusal(worker, topic, wrong) is ServerError.NOT_ALLOWED_ERROR
    reader = subscribe_with(worker, topic, "group", {GENERATION: "1", NONCE: "secret"})
    disown(owner, full(topic), 1)
    closed_by_broker(reader)
    right = {GENERATION: "1", NONCE: "secret"}
    assert refusal(worker, topic, right) is ServerError.NOT_ALLOWED_ERROR


def test_the_owner_of_a_partition_reads_that_partition(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """The owner of a topic reads those of its partitions that have no owner of their own."""
    partitions = [f"{topic}-partition-{n}" for n in range(2)]
    producers = [raw(broker.address()).producer(name) for name in partitions]
    one, two = raw(broker.address()), raw(broker.address())
    own(one, full(topic), identity="one")
    first, second = (subscribe_with(one, name, "group", {GENERATION: "1"}) for name in partitions)
    own(two, full(partitions[1]), identity="two")
    closed_by_broker(second)
    producers[0].publish(b"0")
    producers[1].publish(b"1")
    assert first.contents(1) == [b"0"]
    taken = subscribe_with(two, partitions[1], "group", {GENERATION: "1"})
    assert taken.contents(1) == [b"1"]
    assert refusal(two, partitions[0], {GENERATION: "1"}) is ServerError.NOT_ALLOWED_ERROR


def test_acknowledgements_sent_before_a_takeover_and_read_after_it_move_no_cursor(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """They are sent before the reader is notified, and read by the broker after the takeover."""
    producer = raw(broker.address()).producer(topic)
    ids = [producer.publish(b"%d" % n) for n in range(20)]
    former = raw(broker.address())
    own(former, full(topic))
    reader = subscribe_with(former, topic, "group", {GENERATION: "1"})
    reader.contents(20)
    client = raw(broker.address())
    assert own(client, full(topic), 2) == 2
    for message_id in ids:
        former.write(encode_ack(reader.consumer_id, 0, [message_id]))
    former.ping()
    follower = subscribe_with(client, topic, "group", {GENERATION: "2"})
    assert follower.contents(20) == [b"%d" % n for n in range(20)]


def test_a_stock_consumer_reads_with_two_properties(
    broker: LocalBrokers, raw: RawClients, stock: StockClients, topic: str
) -> None:
    owner = raw(broker.address())
    own(owner, full(topic), nonce="secret")
    consumer = stock(broker.service_url).subscribe(
        topic, "group", properties={GENERATION: "1", NONCE: "secret"}
    )
    raw(broker.address()).producer(topic).publish(b"x")
    assert consumer.receive(timeout_millis=60_000).data() == b"x"


def test_an_owner_that_returns_reads_again(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    """Its former connection still looks alive, and so does its consumer."""
    former = raw(broker.address())
    own(former, full(topic), nonce="mine")
    left = subscribe_with(former, topic, "group", {GENERATION: "1"})
    back = raw(broker.address())
    assert own(back, full(topic), 1, nonce="mine", only_returns=True) == 1
    closed_by_broker(left)
    subscribe_with(back, topic, "group", {GENERATION: "1"})


def test_the_connection_of_an_owner_takes_its_reader_along(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    owner = raw(broker.address())
    own(owner, full(topic), identity="one")
    subscribe_with(owner, topic, "group", {GENERATION: "1"})
    owner.close()
    client = raw(broker.address())

    def taken() -> bool:
        return own(client, full(topic), 5, identity="two", nonce="n") >= 2

    eventually(taken)
    generation = own(client, full(topic), 1, identity="two", nonce="n")
    subscribe_with(client, topic, "group", {GENERATION: str(generation)})
