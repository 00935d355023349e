"""Consumers and readers of the stock client: all subscription types, seeking, redelivery, acknowledgements,
and backlogs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId
from tests.integration.conftest import RawClients, StockClients
from tests.integration.http_calls import Http
from tests.integration.raw import FENCING, eventually

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_testing.processes import LocalBrokers

RECEIVE_MS = 60_000
"""Time limit for expected messages: a machine may be slow, and a failing test may take that long."""


@pytest.fixture
def client(broker: LocalBrokers, stock: StockClients) -> Any:
    return stock(broker.service_url)


@pytest.fixture
def publish(client: Any, topic: str) -> Callable[..., list[Any]]:
    """Publish messages "0", "1", ...: ``publish(count, first, batched)`` returns their ids."""

    def publish_some(count: int, first: int = 0, *, batched: bool = False) -> list[Any]:
        producer = client.create_producer(
            topic, batching_enabled=batched, batching_max_publish_delay_ms=60_000
        )
        if not batched:
            ids = [producer.send(b"%d" % number) for number in range(first, first + count)]
        else:
            ids = []
            for number in range(first, first + count):
                producer.send_async(b"%d" % number, lambda _, message_id: ids.append(message_id))
            producer.flush()
        producer.close()
        return ids

    return publish_some


def numbers(consumer: Any, count: int) -> list[int]:
    return [int(consumer.receive(RECEIVE_MS).data()) for _ in range(count)]


def nothing_more(consumer: Any) -> bool:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    return True


def read_all(reader: Any) -> list[int]:
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(RECEIVE_MS).data()))
    return found


def test_a_durable_subscription_continues_where_it_was(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    publish(20)
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    received = [consumer.receive(RECEIVE_MS) for _ in range(20)]
    consumer.acknowledge_cumulative(received[9])
    consumer.acknowledge(received[11])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert numbers(consumer, 9) == [10, *range(12, 20)]
    assert nothing_more(consumer)


def test_seeking_by_id_and_by_time(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    consumer = client.subscribe(topic, "s")
    ids = publish(10)
    time.sleep(0.02)  # the eleventh has a later time than the tenth
    publish(10, first=10)
    assert numbers(consumer, 10) == list(range(10))
    eleventh = consumer.receive(RECEIVE_MS)
    consumer.seek(ids[4])
    assert numbers(consumer, 15) == list(range(5, 20))
    consumer.seek(eleventh.publish_timestamp())
    assert numbers(consumer, 10) == list(range(10, 20))
    consumer.seek(MessageId.earliest)
    assert numbers(consumer, 20) == list(range(20))
    consumer.seek(MessageId.latest)
    assert nothing_more(consumer)
    inclusive = client.subscribe(topic, "i", start_message_id_inclusive=True)
    inclusive.seek(ids[4])
    assert numbers(inclusive, 16) == list(range(4, 20))


def test_readers_start_anywhere_and_know_when_they_are_done(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    reader = client.create_reader(topic, MessageId.earliest)
    assert not reader.has_message_available()
    ids = publish(20)
    assert read_all(reader) == list(range(20))
    reader.seek(ids[14])
    assert read_all(reader) == list(range(15, 20))
    at_end = client.create_reader(topic, MessageId.latest)
    assert not at_end.has_message_available()
    publish(1, first=20)
    assert read_all(at_end) == [20]
    assert read_all(client.create_reader(topic, ids[17])) == [18, 19, 20]
    inclusive = client.create_reader(topic, ids[17], start_message_id_inclusive=True)
    assert read_all(inclusive) == [17, 18, 19, 20]


def test_trimmed_messages_are_not_delivered_again(
    broker: LocalBrokers, client: Any, topic: str, raw: RawClients
) -> None:
    http = Http(broker.http_url)
    path = f"/admin/v2/persistent/public/default/{topic}"
    connection = raw(broker.address())
    writer = connection.producer(topic, FENCING)
    for number in range(19):
        writer.send(b"%d" % number)
    writer.publish(b"19")
    waiting = client.create_reader(topic, MessageId.earliest, receiver_queue_size=1)
    assert int(waiting.read_next(RECEIVE_MS).data()) == 0
    reader = client.create_reader(topic, MessageId.earliest)
    first = reader.read_next(RECEIVE_MS).message_id()
    assert read_all(reader) == list(range(1, 20))
    # This begins a new ledger: only older ones are trimmed.
    connection.producer(topic, FENCING).publish(b"20")
    with Broker(Access(broker.http_url)) as pipeline:
        before = Position(first.ledger_id(), first.entry_id() + 14)
        done = pipeline.trim(topic, before, epoch=pipeline.segments(topic).epoch)
        assert (done.before, done.limited_by) == (before, None)
    kept = list(range(14, 21))
    reader.seek(MessageId.earliest)
    assert read_all(reader) == kept
    reader.seek(first)
    assert read_all(reader) == kept
    assert read_all(client.create_reader(topic, MessageId.earliest)) == kept
    # At most the messages that the client has asked for before the trim are left from the trimmed part.
    rest = read_all(waiting)
    assert rest[-len(kept) :] == kept
    assert len(rest) <= len(kept) + 2
    for kind in (ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared):
        consumer = client.subscribe(
            topic, f"{kind}", consumer_type=kind, initial_position=InitialPosition.Earliest
        )
        assert numbers(consumer, len(kept)) == kept
        consumer.seek(MessageId.earliest)
        assert numbers(consumer, len(kept)) == kept
        consumer.close()
    assert http("GET", f"{path}/ledger/{first.ledger_id()}/entry/{first.entry_id()}")[0] == 404
    assert http("GET", f"{path}/ledger/{before.ledger}/entry/{before.entry}")[0] == 200


def test_a_reader_starts_inside_a_batch(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    ids = publish(10, batched=True)
    assert len({message_id.entry_id() for message_id in ids}) == 1
    assert read_all(client.create_reader(topic, ids[6])) == [7, 8, 9]
    last = client.create_reader(topic, MessageId.latest, start_message_id_inclusive=True)
    assert read_all(last) == [9]


def test_shared_consumers_split_the_messages_and_get_back_what_others_leave(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    first, second = (
        client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
        for _ in range(2)
    )
    publish(40)
    own = [first.receive(RECEIVE_MS) for _ in range(20)]
    other = [second.receive(RECEIVE_MS) for _ in range(20)]
    assert sorted(int(message.data()) for message in own + other) == list(range(40))
    for message in own:
        first.acknowledge(message)
    second.close()
    assert sorted(numbers(first, 20)) == sorted(int(message.data()) for message in other)


def test_negative_acknowledgements_are_counted(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    publish(1)
    for count in range(3):
        message = consumer.receive(RECEIVE_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)


def test_a_consumer_gets_all_it_holds_again_when_it_asks(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    publish(3)
    numbers(consumer, 3)
    consumer.redeliver_unacknowledged_messages()
    assert sorted(numbers(consumer, 3)) == [0, 1, 2]


def test_parts_of_a_batch_are_acknowledged(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    options = {"consumer_type": ConsumerType.Shared, "batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", **options)
    publish(10, batched=True)
    for message in [consumer.receive(RECEIVE_MS) for _ in range(10)][::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", **options)
    assert numbers(consumer, 5) == [1, 3, 5, 7, 9]
    assert nothing_more(consumer)


def test_failover_continues_with_the_next_consumer(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    anna = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="anna")
    ben = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="ben")
    publish(10)
    received = [anna.receive(RECEIVE_MS) for _ in range(10)]
    assert nothing_more(ben)
    anna.acknowledge_cumulative(received[3])
    anna.close()
    assert numbers(ben, 6) == list(range(4, 10))


def test_a_taken_subscription_is_busy(
    client: Any, broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    others = stock(broker.service_url)
    with pytest.raises(pulsar.ConsumerBusy):
        others.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        others.subscribe(topic, "s", ConsumerType.Shared)
    consumer.close()
    others.subscribe(topic, "s").unsubscribe()


def test_the_last_message_id_names_the_last_of_a_batch(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    consumer = client.subscribe(topic, "s")
    single = publish(1)[0]
    assert consumer.get_last_message_id() == single
    batch = publish(5, batched=True)
    assert consumer.get_last_message_id().entry_id() == batch[-1].entry_id()
    assert consumer.get_last_message_id().batch_index() == 4


def test_dead_letters_find_their_topic_and_its_subscription(
    client: Any, topic: str, publish: Callable[..., list[Any]]
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(
        max_redeliver_count=2,
        dead_letter_topic=f"{topic}-dead",
        initial_subscription_name="undertaker",
    )
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    publish(3)
    for _ in range(9):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    # The client created its producer for dead letters. The broker created the subscription with it,
    # so that later consumers find all of them.
    found: list[int] = []

    def all_three() -> bool:
        dead_letters = client.subscribe(f"{topic}-dead", "undertaker", ConsumerType.Shared)
        try:
            found[:] = [int(dead_letters.receive(5_000).data()) for _ in range(3)]
        except pulsar.Timeout:
            return False
        finally:
            dead_letters.close()
        return True

    time.sleep(0.5)
    eventually(all_three, what="three dead letters")
    assert sorted(found) == [0, 1, 2]


def test_delayed_messages_wait_in_shared_subscriptions_only(
    broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    client = stock(broker.service_url)
    shared = client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
    ordered = client.subscribe(topic, "ordered", consumer_type=pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(topic)
    producer.send(b"much later", deliver_after=timedelta(hours=1))
    asked_at = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(seconds=1))
    assert [ordered.receive(RECEIVE_MS).data() for _ in range(2)] == [b"much later", b"later"]
    assert shared.receive(RECEIVE_MS).data() == b"later"
    assert time.monotonic() - asked_at > 0.99
    producer.send(b"now")
    assert shared.receive(RECEIVE_MS).data() == b"now"
    assert nothing_more(shared)
