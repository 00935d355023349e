"""A topic that is terminated over HTTP accepts nothing more, on any broker, and stays readable.

The answers are those of Apache Pulsar 4.0.7 to the same requests.
"""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.raw import EXCLUSIVE, WAIT, RefusedByBroker, contents_of

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import MessageId
from onewriter_testing.processes import LocalBrokers

JAVA = "Pulsar-Java-v4.0.7"


def id_of(answer: tuple[int, Any]) -> tuple[int, int]:
    status, body = answer
    assert status == 200
    return body["ledgerId"], body["entryId"]


def test_a_terminated_topic_names_its_last_message_and_refuses_producers(
    mortal: LocalBrokers, raw: RawClients, topic: str
) -> None:
    http, client = Http(mortal.http_url), raw(mortal.address())
    shared = client.producer(topic)
    last = [shared.publish(b"%d" % number).position for number in range(3)][-1]
    assert id_of(http("POST", f"{PERSISTENT}/{topic}/terminate")) == last
    shared.closed_by_broker()
    shared.send(b"too late")
    client.ping()
    for mode in (EXCLUSIVE, WAIT):
        with pytest.raises(RefusedByBroker) as refused:
            client.producer(topic, mode)
        assert refused.value.code is ServerError.TOPIC_TERMINATED_ERROR
    assert id_of(http("POST", f"{PERSISTENT}/{topic}/terminate")) == last, "twice is once"

    mortal.kill()
    mortal.restart(0)
    with pytest.raises(RefusedByBroker) as refused:
        raw(mortal.address()).producer(topic, EXCLUSIVE)
    assert refused.value.code is ServerError.TOPIC_TERMINATED_ERROR
    assert http("GET", f"{PERSISTENT}/{topic}/internalStats")[1]["state"] == "Terminated"
    assert contents_of(mortal.address(), topic) == [b"0", b"1", b"2"]


def test_messages_acknowledged_during_a_termination_are_before_the_end(
    mortal: LocalBrokers, stock: StockClients, topic: str
) -> None:
    producer = stock(mortal.service_url).create_producer(
        topic, max_pending_messages=200, block_if_queue_full=True, send_timeout_millis=60_000
    )
    acknowledged: list[bytes] = []
    flowing = threading.Event()

    def answered(result: Any, content: bytes) -> None:
        if result == pulsar.Result.Ok:
            acknowledged.append(content)
            if len(acknowledged) == 500:
                flowing.set()

    stop = threading.Event()

    def publish() -> None:
        number = 0
        while not stop.is_set() and number < 100_000:
            content = b"%d" % number
            producer.send_async(
                content, lambda result, _, content=content: answered(result, content)
            )
            number += 1

    writing = threading.Thread(target=publish)
    writing.start()
    assert flowing.wait(120)
    last = id_of(Http(mortal.http_url)("POST", f"{PERSISTENT}/{topic}/terminate"))
    stop.set()
    writing.join()
    assert last > (0, 0)
    stored = contents_of(mortal.address(), topic)
    assert set(acknowledged) <= set(stored)
    assert stored == [b"%d" % number for number in range(len(stored))]


def test_a_java_consumer_reaches_the_end_after_its_last_acknowledgement(
    mortal: LocalBrokers, raw: RawClients, topic: str
) -> None:
    http, client = Http(mortal.http_url), raw(mortal.address(), version=JAVA)
    position = client.producer(topic).publish(b"only").position
    http("POST", f"{PERSISTENT}/{topic}/terminate")
    late = client.subscribe(topic, "from-the-end", earliest=False)
    client.expect(pb.CommandReachedEndOfTopic, lambda c: c.consumer_id == late.consumer_id)
    audit = client.subscribe(topic, "audit")
    assert audit.contents(1) == [b"only"]
    client.ping()
    assert not client.has_received(pb.CommandReachedEndOfTopic)
    audit.acknowledge(MessageId(*position))
    client.expect(pb.CommandReachedEndOfTopic, lambda c: c.consumer_id == audit.consumer_id)
    audit.acknowledge(MessageId(*position))
    client.ping()
    assert not client.has_received(pb.CommandReachedEndOfTopic), "it is told once"


def test_clients_that_do_not_know_the_end_of_a_topic_are_spared_it(
    mortal: LocalBrokers, stock: StockClients, raw: RawClients, topic: str
) -> None:
    raw(mortal.address()).producer(topic).publish(b"only")
    Http(mortal.http_url)("POST", f"{PERSISTENT}/{topic}/terminate")
    consumer = stock(mortal.service_url).subscribe(
        topic, "audit", initial_position=pulsar.InitialPosition.Earliest
    )
    message = consumer.receive(60_000)
    consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    assert consumer.is_connected()
    with pytest.raises(pulsar.TopicTerminated):
        stock(mortal.service_url).create_producer(topic)


def test_partitions_end_one_by_one_or_all_together(
    mortal: LocalBrokers, raw: RawClients, topic: str
) -> None:
    http, client = Http(mortal.http_url), raw(mortal.address())
    assert http("PUT", f"{PERSISTENT}/{topic}/partitions", 3)[0] == 204
    last = client.producer(f"{topic}-partition-1").publish(b"x").position
    assert http("POST", f"{PERSISTENT}/{topic}/terminate")[0] == 405
    assert id_of(http("POST", f"{PERSISTENT}/{topic}-partition-1/terminate")) == last
    with pytest.raises(RefusedByBroker):
        client.producer(f"{topic}-partition-1")
    client.producer(f"{topic}-partition-2").publish(b"y")
    status, found = http("POST", f"{PERSISTENT}/{topic}/terminate/partitions")
    assert status == 200
    assert sorted(found) == ["0", "1", "2"]
    assert id_of((200, found["0"])) == (-1, -1)
    with pytest.raises(RefusedByBroker):
        client.producer(f"{topic}-partition-2")


def test_a_topic_of_the_same_name_begins_again_when_the_old_one_was_deleted(
    mortal: LocalBrokers, raw: RawClients, topic: str
) -> None:
    http, client = Http(mortal.http_url), raw(mortal.address())
    assert http("PUT", f"{PERSISTENT}/{topic}")[0] == 204
    assert id_of(http("POST", f"{PERSISTENT}/{topic}/terminate")) == (-1, -1)
    assert http("DELETE", f"{PERSISTENT}/{topic}")[0] == 204
    client.producer(topic, EXCLUSIVE).publish(b"new")
    assert contents_of(mortal.address(), topic) == [b"new"]
