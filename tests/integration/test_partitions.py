"""Partitioned topics are granted as a group, all partitions or none, whatever the timing of the clients."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode
from tests.integration.conftest import RawClients, StockClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import (
    EXCLUSIVE,
    WAIT,
    RawClient,
    RawProducer,
    RefusedByBroker,
    eventually,
    full,
)

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers

PARTITIONS = 4
MANIFESTS = "---".join(
    f"""
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {{name: group-{number}, namespace: default}}
spec:
  partitions: {PARTITIONS}
  access: {{modes: [Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing], requireClaim: false}}
"""
    for number in range(10)
)


@pytest.fixture(scope="module")
def partitioned() -> Iterator[LocalBrokers]:
    with forked_brokers(manifests=MANIFESTS) as brokers:
        yield brokers


def ask_all(client: RawClient, topic: str, mode: Any, order: list[int]) -> dict[int, RawProducer]:
    """Ask like the C++ library: for every partition at once, in any order."""
    return {n: client.ask_producer(f"{topic}-partition-{n}", mode) for n in order}


def test_the_topic_has_the_partitions_of_its_manifest(
    partitioned: LocalBrokers, raw: RawClients
) -> None:
    client = raw(partitioned.address())
    assert client.partitions("group-0") == PARTITIONS
    assert client.partitions("group-0-partition-1") == 0
    with pytest.raises(RefusedByBroker) as found:
        client.producer(f"group-0-partition-{PARTITIONS}", EXCLUSIVE)
    assert found.value.code is ServerError.TOPIC_NOT_FOUND


def is_granted(producer: RawProducer) -> bool:
    """Whether it is granted. The next caller reads a refusal again."""
    request_id = producer.command.request_id
    eventually(lambda: producer.client.has_received(object, lambda c: _answers(c, request_id)))
    return producer.is_ready


def _answers(command: object, request_id: int) -> bool:
    return getattr(command, "request_id", None) == request_id


def test_of_two_exclusive_clients_one_wins_all_partitions(
    partitioned: LocalBrokers, raw: RawClients
) -> None:
    one = ask_all(raw(partitioned.address()), "group-1", EXCLUSIVE, [3, 1, 0, 2])
    other = ask_all(raw(partitioned.address()), "group-1", EXCLUSIVE, [2, 0, 1, 3])
    winners, losers = (one, other) if is_granted(one[0]) else (other, one)
    for producer in losers.values():
        with pytest.raises(RefusedByBroker) as found:
            producer.ready()
        assert found.value.code is ServerError.PRODUCER_FENCED
    epochs = {producer.epoch or producer.ready().epoch for producer in winners.values()}
    assert len(epochs) == 1
    for producer in winners.values():
        producer.publish(b"all mine")


def test_two_waiting_clients_do_not_block_each_other(
    partitioned: LocalBrokers, raw: RawClients
) -> None:
    one = ask_all(raw(partitioned.address()), "group-2", WAIT, [0, 1, 2, 3])
    for producer in one.values():
        producer.ready()
    other = ask_all(raw(partitioned.address()), "group-2", WAIT, [3, 2, 1, 0])
    for producer in other.values():
        producer.waits()
    one[0].client.close()
    epochs = {producer.ready().epoch for producer in other.values()}
    assert len(epochs) == 1
    assert epochs > {one[0].epoch} or min(e or 0 for e in epochs) > (one[0].epoch or 0)


@pytest.mark.parametrize("rounds", [5])
def test_stock_clients_race_for_a_partitioned_topic(
    partitioned: LocalBrokers, stock: StockClients, rounds: int
) -> None:
    """In Pulsar's broker each may win some partitions, and then both fail."""
    clients = [stock(partitioned.service_url) for _ in range(2)]
    for _ in range(rounds):
        outcomes: list[Any] = [None, None]

        def race(number: int, outcomes: list[Any] = outcomes) -> None:
            try:
                outcomes[number] = clients[number].create_producer(
                    "group-3", access_mode=Mode.Exclusive
                )
            except pulsar.PulsarException as error:
                outcomes[number] = error

        racers = [threading.Thread(target=race, args=(n,)) for n in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        winners = [o for o in outcomes if isinstance(o, pulsar.Producer)]
        assert len(winners) == 1, outcomes
        for number in range(2 * PARTITIONS):
            winners[0].send(str(number).encode())
        winners[0].close()


def test_stock_clients_hand_a_partitioned_topic_over(
    partitioned: LocalBrokers, stock: StockClients
) -> None:
    first = stock(partitioned.service_url).create_producer(
        "group-4", access_mode=Mode.WaitForExclusive
    )
    won: list[Any] = []
    waiting = stock(partitioned.service_url)

    def wait() -> None:
        won.append(waiting.create_producer("group-4", access_mode=Mode.WaitForExclusive))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    first.send(b"first")
    assert not won
    first.close()
    waiter.join(60)
    for number in range(2 * PARTITIONS):
        won[0].send(str(number).encode())


def test_by_name_a_single_partition_is_competed_for(
    partitioned: LocalBrokers, stock: StockClients, raw: RawClients
) -> None:
    """Clients that ask for the metadata of one partition mean this partition, and not the group."""
    alone = stock(partitioned.service_url).create_producer(
        full("group-5-partition-2"), access_mode=Mode.Exclusive
    )
    alone.send(b"only this one")
    with pytest.raises(pulsar.ProducerFenced):
        stock(partitioned.service_url).create_producer("group-5", access_mode=Mode.Exclusive)
    neighbour = stock(partitioned.service_url).create_producer(
        full("group-5-partition-1"), access_mode=Mode.Exclusive
    )
    neighbour.send(b"and I have another")
    waiting = ask_all(raw(partitioned.address()), "group-5", WAIT, [0, 1, 2, 3])
    for producer in waiting.values():
        producer.waits()
    alone.close()
    neighbour.close()
    assert len({producer.ready().epoch for producer in waiting.values()}) == 1


def test_a_connection_that_named_a_partition_competes_for_the_whole_topic_later(
    partitioned: LocalBrokers, stock: StockClients
) -> None:
    client = stock(partitioned.service_url)
    partition = full("group-6-partition-1")
    alone = client.create_producer(partition, access_mode=Mode.Exclusive)
    alone.send(b"only this one")
    alone.close()
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"only this one"
    for _ in range(2):
        whole = client.create_producer("group-6", access_mode=Mode.Exclusive)
        whole.send(b"to any of them")
        whole.close()


def test_partitions_added_while_the_topic_is_held_belong_to_the_holder(
    partitioned: LocalBrokers, raw: RawClients
) -> None:
    topic = "grows"
    admin(partitioned, "PUT", topic, 2)
    client = raw(partitioned.address())
    held = ask_all(client, topic, EXCLUSIVE, [1, 0])
    for producer in held.values():
        producer.ready()
    rival = ask_all(raw(partitioned.address()), topic, WAIT, [0, 1])
    for producer in rival.values():
        producer.waits()
    admin(partitioned, "POST", topic, 4)
    added = ask_all(client, topic, EXCLUSIVE, [3, 2])
    for producer in added.values():
        producer.ready().publish(b"the holder's too")
    unauthorized = raw(partitioned.address()).ask_producer(f"{topic}-partition-3", EXCLUSIVE)
    with pytest.raises(RefusedByBroker):
        unauthorized.ready()
    client.close()
    late = ask_all(rival[0].client, topic, WAIT, [2, 3])
    for producer in (*rival.values(), *late.values()):
        producer.ready_at_last().publish(b"all four change hands together")


def admin(brokers: LocalBrokers, method: str, topic: str, partitions: int) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    connection = http.client.HTTPConnection(brokers.http_url.removeprefix("http://"))
    try:
        connection.request(method, path, str(partitions), {"Content-Type": "application/json"})
        assert connection.getresponse().status in {200, 204}
    finally:
        connection.close()
