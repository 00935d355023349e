"""A broker that froze, was replaced and woke up: nothing of it enters the log or moves a cursor.

It runs without a supervisor, which would kill it. What its clients sent meanwhile is in its sockets, and is
the first thing that it reads.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools

import pytest
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.following import at_owner, follow, placed
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    RawConsumer,
    RawProducer,
    contents_of,
    eventually,
)

from onewriter_core.errors import Unavailable
from onewriter_core.wire.encoding import encode_ack
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId, SendReceipt
from onewriter_testing.processes import LocalBrokers

IN_FLIGHT = 200
"""Messages being sent when the broker freezes."""


def agreed_owner(brokers: LocalBrokers, topic: str) -> int:
    """Return the topic's owner once all brokers name the same one."""
    found: list[int] = []

    def agree() -> bool:
        with contextlib.suppress(Unavailable, OSError):
            found[:] = [brokers.owner_of(topic, through=n) for n in range(len(brokers.names))]
        return len(set(found)) == 1

    eventually(agree)
    return found[0]


def served_by(brokers: LocalBrokers, topic: str, number: int) -> bool:
    with contextlib.suppress(Unavailable, OSError):
        return brokers.owner_of(topic, through=number) == number
    return False


def receipts(producer: RawProducer) -> list[int]:
    return [
        command.sequence_id
        for command, _ in producer.client.received
        if isinstance(command, SendReceipt) and command.producer_id == producer.producer_id
    ]


def acknowledge_unheard(consumer: RawConsumer, message_id: MessageId) -> int:
    request_id = consumer.client.next_request_id()
    consumer.client.write(encode_ack(consumer.consumer_id, 0, [message_id], request_id))
    return request_id


def ask_to_delete(brokers: LocalBrokers, number: int, topic: str) -> http.client.HTTPConnection:
    """Tell a broker to trim the topic completely. The answer is read later."""
    address = brokers.http_urls[number].removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("DELETE", f"/admin/v2/persistent/public/default/{topic}?force=true")
    return connection


@pytest.mark.campaign
@pytest.mark.timeout(360 + 15 * ROUNDS)
def test_a_zombie_broker_changes_nothing(mortal_pair: LocalBrokers, raw: RawClients) -> None:
    """It resumes and tries to write, in most rounds. In the others it learns first what it has lost."""
    numbers = itertools.count()
    for number in itertools.islice(numbers, ROUNDS):
        one_round(mortal_pair, raw, f"zombie-{number}")
    while not was_refused(mortal_pair):  # the rounds so far have proved nothing
        number = next(numbers)
        assert number < ROUNDS + 10, "no broker that woke up tried to write"
        one_round(mortal_pair, raw, f"zombie-{number}")


def was_refused(brokers: LocalBrokers) -> bool:
    return any(event["outcome"] == "fenced" for event in brokers.events("bucket.refenced"))


def one_round(brokers: LocalBrokers, raw: RawClients, topic: str) -> None:
    placed(brokers, topic)  # the broker that woke up in the round before gets its buckets back
    old = agreed_owner(brokers, topic)
    holder = follow(brokers, raw, topic, EXCLUSIVE, asked=old, name="holder")
    holder.publish(b"0")
    consumer = at_owner(brokers, raw, topic, asked=old).subscribe(topic, "durable", permits=1)
    first, _ = consumer.receive()
    for sequence in range(1, IN_FLIGHT):
        holder.send(b"%d" % sequence, sequence)

    frozen = brokers.freeze(old)
    try:
        for sequence in range(IN_FLIGHT, 2 * IN_FLIGHT):
            holder.send(b"%d" % sequence, sequence)
        acknowledgement = acknowledge_unheard(consumer, first.message_id)
        deletion = ask_to_delete(brokers, old, topic)
        new = 1 - old
        eventually(lambda: served_by(brokers, topic, new))
        successor = follow(brokers, raw, topic, FENCING, asked=new)
        successor.publish(b"mine")
    finally:
        brokers.thaw(frozen)

    with contextlib.closing(deletion):
        assert deletion.getresponse().status >= 300, "a zombie has deleted the topic"
    holder.client.wait_closed_or(pb.CommandCloseProducer)
    successor.publish(b"and mine")
    stored = contents_of(brokers.address(new), topic)
    acknowledged = receipts(holder)
    before = stored[:-2]
    assert stored[-2:] == [b"mine", b"and mine"]
    assert before == [b"%d" % n for n in range(len(before))], "a hole, or something twice"
    assert len(before) <= IN_FLIGHT, "sent to a broker that had lost the topic"
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    assert len(acknowledged) < len(before), "a receipt for what is not in the log"
    assert not consumer.client.has_received(
        pb.CommandAckResponse,
        lambda answer: answer.request_id == acknowledgement and not answer.HasField("error"),
    )
    again = at_owner(brokers, raw, topic, asked=new).subscribe(topic, "durable", permits=1)
    assert again.receive()[0].message_id.position == first.message_id.position
    successor.close()
    for client in (holder.client, consumer.client, successor.client, again.client):
        client.close()
    assert brokers.pid(old) == frozen, "the zombie has died of it"
