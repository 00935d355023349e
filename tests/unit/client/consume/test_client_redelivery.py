"""Redelivery without a race (PIP-84), against a broker that answers in the worst order."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of
from tests.unit.client.fake_topic import FakeTopic

from onewriter import (
    Client,
    Closed,
    Consumer,
    ConsumerOptions,
    Limits,
    NoMessage,
    SubscriptionType,
)
from onewriter._consume.stream import Stream
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

Redeliver = pb.CommandRedeliverUnacknowledgedMessages
SHARED = ConsumerOptions(kind=SubscriptionType.SHARED)


async def contents(consumer: Consumer, count: int) -> list[bytes]:
    return [(await consumer.receive(timeout_seconds=60)).content for _ in range(count)]


def late_before(topic: FakeTopic, *, is_answered_first: bool = False) -> None:
    """On REDELIVER one more message of before leaves first: it was on its way."""

    def redeliver(link: FakeLink, command: Redeliver) -> None:
        subscriber = topic.of(link, command.consumer_id)
        if is_answered_first and command.HasField("request_id"):
            link.write(replies.success(command.request_id))
            command.ClearField("request_id")
        latest = min(subscriber.next, len(topic.entries) - 1)
        topic.send(subscriber, latest, epoch=subscriber.epoch)
        topic.redeliver(link, command)

    topic.broker.answers[Redeliver] = redeliver


async def with_one_on_its_way(
    topic: FakeTopic, client: Client, options: ConsumerOptions | None = None
) -> Consumer:
    """Two messages received, one in the queue, and one that leaves when it is too late."""
    consumer = await client.subscribe("orders", "audit", options)
    topic.publish(b"0", b"1", b"2")
    await contents(consumer, 2)
    await topic.broker.eventually(lambda: topic.subscribers[0].next == 3)
    topic.is_silent = True
    topic.publish(b"3")
    topic.is_silent = False
    return consumer


async def test_without_epochs_a_message_overtakes_the_ones_before_it(
    topic: FakeTopic, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong without: the message that was on its way is handed out before the oldest."""
    monkeypatch.setattr(Stream, "_is_stale", lambda *_arguments: False)
    late_before(topic)
    consumer = await with_one_on_its_way(topic, client)
    await consumer.redeliver_unacknowledged()
    overtaking = await consumer.receive(timeout_seconds=60)
    assert overtaking.content == b"3"
    await consumer.acknowledge_cumulative(overtaking)
    assert topic.acknowledged == [0, 1, 2, 3], "three messages are lost if it ends here"


@pytest.mark.parametrize("is_answered_first", [False, True])
async def test_with_consumer_epochs_redelivery_begins_with_the_oldest_message(
    topic: FakeTopic, client: Client, *, is_answered_first: bool
) -> None:
    """By the answer's place, and by the epoch that the message carries."""
    late_before(topic, is_answered_first=is_answered_first)
    consumer = await with_one_on_its_way(topic, client)
    await consumer.redeliver_unacknowledged()
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
    requests = topic.broker.all(Redeliver)
    assert [command.consumer_epoch for command in requests] == [1]


async def test_shared_messages_of_before_the_answer_go_to_others(
    topic: FakeTopic, client: Client
) -> None:
    late_before(topic)
    consumer = await with_one_on_its_way(topic, client, SHARED)
    await consumer.redeliver_unacknowledged()
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
    assert not topic.broker.all(Redeliver)[0].HasField("consumer_epoch")


async def test_redelivery_works_with_a_broker_that_does_not_answer_it(
    pulsar_broker: FakeBroker,
) -> None:
    topic = FakeTopic(pulsar_broker)
    late_before(topic)
    async with client_of(pulsar_broker) as client:
        consumer = await with_one_on_its_way(topic, client)
        await consumer.redeliver_unacknowledged()
        assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
    requests = topic.broker.all(Redeliver)[0]
    assert not requests.HasField("request_id"), "it would not know that field"
    assert requests.consumer_epoch == 1


async def test_filtered_messages_give_their_permits_back(topic: FakeTopic, client: Client) -> None:
    late_before(topic)
    consumer = await with_one_on_its_way(topic, client, ConsumerOptions(queue_messages_max=4))
    for _ in range(20):
        await consumer.redeliver_unacknowledged()
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]
    topic.publish(b"4", b"5")
    assert await contents(consumer, 2) == [b"4", b"5"]


async def test_redelivery_returns_when_the_broker_has_accepted_it(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await with_one_on_its_way(topic, client)
    topic.broker.answers[Redeliver] = topic.rewind
    redelivering = begin(consumer.redeliver_unacknowledged())
    request = await topic.broker.received_of(Redeliver)
    assert consumer.receive_nowait() is None, "the queue is empty at once"
    await asyncio.sleep(0.02)
    assert not redelivering.done()
    topic.broker.links[-1].write(replies.success(request.request_id))
    await redelivering


async def test_requests_in_a_row_are_one_until_it_is_answered(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await with_one_on_its_way(topic, client)
    await asyncio.gather(*(consumer.redeliver_unacknowledged() for _ in range(50)))
    requests = topic.broker.all(Redeliver)
    assert [command.consumer_epoch for command in requests] == [1, 50]
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_a_cancelled_redelivery_changes_nothing(topic: FakeTopic, client: Client) -> None:
    """Nothing stays filtered for ever."""
    consumer = await with_one_on_its_way(topic, client)
    redelivering = begin(consumer.redeliver_unacknowledged())
    await asyncio.sleep(0)
    redelivering.cancel()
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_a_lost_connection_is_no_error(topic: FakeTopic, client: Client) -> None:
    consumer = await with_one_on_its_way(topic, client)
    topic.broker.answers[Redeliver] = lambda link, _command: link.cut()
    await consumer.redeliver_unacknowledged()
    subscribed = topic.broker.all(pb.CommandSubscribe)
    assert [command.consumer_epoch for command in subscribed] == [0, 1]
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_while_it_is_away_it_waits_until_it_is_back(topic: FakeTopic, client: Client) -> None:
    consumer = await with_one_on_its_way(topic, client)
    topic.broker.answers[pb.CommandSubscribe] = None
    topic.broker.links[-1].cut()
    waiting = await topic.broker.received_of(pb.CommandSubscribe, 2)
    assert waiting.consumer_epoch == 0
    redelivering = begin(consumer.redeliver_unacknowledged())
    await asyncio.sleep(0.02)
    assert not redelivering.done()
    topic.broker.answers[pb.CommandSubscribe] = topic.subscribe
    topic.subscribe(topic.broker.links[-1], waiting)
    await redelivering
    requests = topic.broker.all(Redeliver)
    assert [command.consumer_epoch for command in requests] == [1], "SUBSCRIBE did not carry it"
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_refuses_it_is_asked_by_subscribing(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await with_one_on_its_way(topic, client)
    topic.broker.answers[Redeliver] = topic.broker.refuse(ServerError.CONSUMER_NOT_FOUND)
    await consumer.redeliver_unacknowledged()
    assert len(topic.broker.all(pb.CommandSubscribe)) == 2
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_never_answers_is_asked_by_subscribing(broker: FakeBroker) -> None:
    topic = FakeTopic(broker)
    async with client_of(broker, limits=Limits(request_timeout_seconds=0.1)) as client:
        consumer = await with_one_on_its_way(topic, client)
        broker.answers[Redeliver] = None
        await consumer.redeliver_unacknowledged()
        assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_the_epoch_of_the_client_never_falls(topic: FakeTopic, client: Client) -> None:
    consumer = await with_one_on_its_way(topic, client)
    for _ in range(3):
        await consumer.redeliver_unacknowledged()
    for number in range(2, 5):
        topic.broker.links[-1].cut()
        await topic.broker.received_of(pb.CommandSubscribe, number)
    carried = [command.consumer_epoch for command in topic.broker.all(pb.CommandSubscribe)]
    assert carried == [0, 3, 3, 3]
    assert await contents(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_a_consumer_closed_during_redelivery(topic: FakeTopic, client: Client) -> None:
    consumer = await with_one_on_its_way(topic, client)
    topic.broker.answers[Redeliver] = None
    redelivering = begin(consumer.redeliver_unacknowledged())
    await topic.broker.received_of(Redeliver)
    consumer.abandon()
    with pytest.raises(Closed):
        await redelivering
    with pytest.raises(Closed):
        await consumer.redeliver_unacknowledged()


async def test_an_inactive_consumer_only_has_its_epoch_taken(
    topic: FakeTopic, client: Client
) -> None:
    options = ConsumerOptions(kind=SubscriptionType.FAILOVER)
    consumer = await client.subscribe("orders", "audit", options)
    subscriber = topic.subscribers[0]
    topic.is_silent = True
    number = subscriber.command.consumer_id
    subscriber.link.write(replies.active_consumer_change(number, is_active=False))
    await consumer.changed()
    await consumer.redeliver_unacknowledged()
    assert subscriber.epoch == 1
    topic.publish(b"0")
    with pytest.raises(NoMessage):
        await consumer.receive(timeout_seconds=0.02)
    topic.is_silent = False
    topic.deliver()
    assert await contents(consumer, 1) == [b"0"]
