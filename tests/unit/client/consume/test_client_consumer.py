"""A consumer against a scripted broker: receiving, acknowledging, seeking, reconnecting."""

from __future__ import annotations

import asyncio

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import begin
from tests.unit.client.fake_topic import LEDGER, NOON_MS, FakeTopic

from onewriter import (
    EARLIEST,
    Client,
    Closed,
    ConfigurationError,
    Consumer,
    ConsumerOptions,
    Message,
    MessageId,
    NoMessage,
    OutcomeUnknown,
    Refused,
    SubscriptionType,
    Unavailable,
    Unreadable,
)
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack, Flow

SHARED = ConsumerOptions(kind=SubscriptionType.SHARED, negative_acknowledgement_seconds=0.01)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_seconds=60) for _ in range(count)]


async def contents(consumer: Consumer, count: int) -> list[bytes]:
    return [message.content for message in await take(consumer, count)]


# ---------------------------------------------------------------- subscribing


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_subscribe_carries_the_options(
    topic: FakeTopic, client: Client, kind: SubscriptionType
) -> None:
    options = ConsumerOptions(
        kind=kind,
        name="anna",
        start=EARLIEST,
        priority_level=3,
        read_compacted=True,
        properties={"pod": "p-1"},
        subscription_properties={"team": "shop"},
    )
    consumer = await client.subscribe("orders", "audit", options)
    requests = topic.broker.all(pb.CommandSubscribe)[0]
    assert requests.topic == "persistent://public/default/orders"
    assert (requests.subscription, requests.sub_type, requests.durable) == (
        "audit",
        kind.value,
        True,
    )
    assert (requests.consumer_name, requests.priority_level, requests.read_compacted) == (
        "anna",
        3,
        True,
    )
    assert requests.initial_position == pb.CommandSubscribe.EARLIEST
    assert [(pair.key, pair.value) for pair in requests.metadata] == [("pod", "p-1")]
    assert [(pair.key, pair.value) for pair in requests.subscription_properties] == [
        ("team", "shop")
    ]
    assert requests.HasField("consumer_epoch") == (kind is not SubscriptionType.SHARED)
    assert consumer.is_attached
    assert consumer.is_active


async def test_a_refusal_is_final_and_leaves_nothing(topic: FakeTopic, client: Client) -> None:
    topic.broker.answers[pb.CommandSubscribe] = topic.broker.refuse(ServerError.CONSUMER_BUSY)
    with pytest.raises(Refused) as refused:
        await client.subscribe("orders", "audit")
    assert refused.value.code is ServerError.CONSUMER_BUSY
    assert len(topic.broker.all(pb.CommandSubscribe)) == 1


async def test_a_broker_that_is_not_ready_is_asked_again(topic: FakeTopic, client: Client) -> None:
    busy = topic.broker.refuse(ServerError.SERVICE_NOT_READY)
    topic.broker.answers[pb.CommandSubscribe] = busy
    subscribing = begin(client.subscribe("orders", "audit"))
    await topic.broker.received_of(pb.CommandSubscribe, 2)
    topic.broker.answers[pb.CommandSubscribe] = topic.subscribe
    assert (await subscribing).is_attached


async def test_no_answer_in_time(topic: FakeTopic, client: Client) -> None:
    topic.broker.answers[pb.CommandSubscribe] = None
    asking = begin(client.subscribe("orders", "audit", timeout_seconds=60))
    await topic.broker.received_of(pb.CommandSubscribe)
    skip(60)
    with pytest.raises(Unavailable, match="within"):
        await asking
    await topic.broker.received_of(pb.CommandCloseConsumer)


async def test_closed_while_its_broker_is_looked_up(topic: FakeTopic, client: Client) -> None:
    """It leaves no consumer behind that nobody reads."""
    topic.broker.answers[pb.CommandLookup] = None
    with pytest.raises(Unavailable):
        await client.subscribe("orders", "audit", timeout_seconds=0.02)
    request = await topic.broker.received_of(pb.CommandLookup)
    topic.broker.links[-1].write(replies.lookup_connect(request.request_id, topic.broker.url))
    del topic.broker.answers[pb.CommandLookup]
    assert (await client.subscribe("orders", "audit")).is_attached
    assert len(topic.broker.all(pb.CommandSubscribe)) == 1


async def test_a_partitioned_topic_is_refused(topic: FakeTopic, client: Client) -> None:
    topic.broker.answers[pb.CommandPartitionedMetadata] = lambda link, command: link.write(
        replies.partitions(command.request_id, 3)
    )
    with pytest.raises(Refused, match="orders-partition-0"):
        await client.subscribe("orders", "audit")
    topic.broker.answers.pop(pb.CommandPartitionedMetadata)
    assert (await client.subscribe("orders-partition-1", "audit")).is_attached


async def test_wrong_options_are_named(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="begins at"):
        ConsumerOptions(start=MessageId(1, 2))
    with pytest.raises(ConfigurationError, match="no name"):
        await client.subscribe("orders", "")
    with pytest.raises(ConfigurationError):
        await client.subscribe("nonsense://", "audit")
    await client.__aexit__(None, None, None)
    with pytest.raises(Closed, match="not open"):
        await client.subscribe("orders", "audit")


# ---------------------------------------------------------------- receiving


async def test_messages_with_all_that_they_carry(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"first")
    topic.publish_batch(b"second", b"third")
    consumer = await client.subscribe("orders", "audit")
    first, second, third = await take(consumer, 3)
    assert (first.content, first.key, dict(first.properties)) == (b"first", "key", {"shop": "7"})
    assert (first.publish_time_ms, first.producer_name) == (NOON_MS, "writer")
    assert (first.id, first.batch_size, first.ends_entry) == (MessageId(LEDGER, 0), 1, True)
    assert second.id == MessageId(LEDGER, 1, batch_index=0)
    assert second.id.position == third.id.position
    assert (second.batch_size, second.ends_entry, third.ends_entry) == (2, False, True)
    assert first.id < second.id < third.id


async def test_waiting_for_a_message_ends_in_time_or_with_it(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await client.subscribe("orders", "audit")
    with pytest.raises(NoMessage):
        await consumer.receive(timeout_seconds=0.01)
    with pytest.raises(TimeoutError):
        await consumer.receive(timeout_seconds=0.01)
    assert consumer.receive_nowait() is None
    waiting = begin(consumer.receive())
    await asyncio.sleep(0)
    topic.publish(b"now")
    assert (await waiting).content == b"now"


async def test_iteration_ends_when_the_consumer_is_closed(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(b"0", b"1", b"2")
    seen = []
    async for message in consumer:
        seen.append(message.content)
        if len(seen) == 3:
            await consumer.close()
    assert seen == [b"0", b"1", b"2"]
    with pytest.raises(Closed):
        await consumer.receive()
    await consumer.close()


async def test_permits_follow_what_the_application_takes(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit", ConsumerOptions(queue_messages_max=10))
    topic.publish(*(b"%d" % number for number in range(100)))
    await topic.broker.eventually(lambda: topic.subscribers[0].next == 10)
    await asyncio.sleep(0.02)
    assert topic.subscribers[0].next == 10, "the broker was told to send more than fits"
    assert await contents(consumer, 100) == [b"%d" % number for number in range(100)]
    flows = [command for _, command, _ in topic.broker.received if isinstance(command, Flow)]
    assert sum(flow.permits for flow in flows) <= 110


async def test_a_damaged_entry_is_an_error_in_its_place(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(b"good")
    topic.store(topic.entries[0].payload[:-1] + b"!")
    topic.publish(b"also good")
    assert await contents(consumer, 1) == [b"good"]
    with pytest.raises(Unreadable, match="checksum") as unreadable:
        await consumer.receive(timeout_seconds=60)
    assert unreadable.value.message_id == MessageId(LEDGER, 1)
    await consumer.acknowledge(unreadable.value.message_id)
    assert topic.acknowledged == [1]
    assert await contents(consumer, 1) == [b"also good"]


async def test_the_last_message_id_is_the_end_of_the_topic(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await client.subscribe("orders", "audit")
    assert await consumer.last_message_id() is None
    assert not await consumer.has_message_available()
    topic.publish(b"0")
    assert await consumer.has_message_available()
    assert await consumer.last_message_id() == MessageId(LEDGER, 0)
    assert await contents(consumer, 1) == [b"0"]
    assert not await consumer.has_message_available()


async def test_whether_there_is_more_for_it(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1")
    consumer = await client.subscribe("orders", "audit")
    await consumer.acknowledge_cumulative((await take(consumer, 2))[-1])
    assert not await consumer.has_message_available()
    topic.publish(b"2")
    await take(consumer, 1)
    assert not await consumer.has_message_available()
    topic.is_silent = True
    await consumer.redeliver_unacknowledged()
    assert await consumer.has_message_available(), "it is to come again"
    topic.is_silent = False
    topic.deliver()
    await consumer.acknowledge((await take(consumer, 1))[0])
    await consumer.close()
    successor = await client.subscribe("orders", "audit")
    assert not await successor.has_message_available()


# ---------------------------------------------------------------- acknowledging


async def test_an_acknowledgement_waits_for_the_receipt(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(b"0", b"1", b"2")
    first, second, third = await take(consumer, 3)
    await consumer.acknowledge(second)
    assert topic.acknowledged == [1]
    await consumer.acknowledge_cumulative(third)
    assert topic.acknowledged == [0, 1, 2]
    topic.ack_error = ServerError.NOT_ALLOWED_ERROR
    with pytest.raises(Refused):
        await consumer.acknowledge(first)
    topic.broker.answers[Ack] = lambda link, _ack: link.cut()
    with pytest.raises(OutcomeUnknown):
        await consumer.acknowledge(first)


async def test_parts_of_a_batch(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish_batch(b"0", b"1", b"2", b"3")
    batch = await take(consumer, 4)
    await consumer.acknowledge(batch[1])
    assert topic.entries[0].remaining == 0b1101
    await consumer.acknowledge_cumulative(batch[2])
    assert topic.entries[0].remaining == 0b1000
    topic.ack_error = ServerError.NOT_ALLOWED_ERROR
    with pytest.raises(Refused):
        await consumer.acknowledge(batch[3])
    topic.ack_error = None
    await consumer.acknowledge(batch[3])
    assert topic.acks[-1].message_ids[0].ack_set == (), "all of it is"
    with pytest.raises(ConfigurationError, match="the message itself"):
        await consumer.acknowledge(batch[3].id)


async def test_the_unacknowledged_rest_of_a_batch_is_redelivered(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish_batch(b"0", b"1", b"2")
    batch = await take(consumer, 3)
    await consumer.acknowledge(batch[1])
    await consumer.redeliver_unacknowledged()
    again = await take(consumer, 2)
    assert [message.content for message in again] == [b"0", b"2"]
    assert [message.id.batch_index for message in again] == [0, 2]
    await consumer.acknowledge(again[0])
    await consumer.acknowledge(again[1])
    assert topic.acknowledged == [0]


async def test_acknowledging_without_a_receipt(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(b"0")
    consumer.acknowledge_soon(await consumer.receive(timeout_seconds=60))
    await topic.broker.eventually(lambda: topic.acknowledged == [0])
    assert topic.acks[0].request_id is None


async def test_a_message_in_chunks_is_acknowledged_whole(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish_chunk("u", 0, 3, b"one ")
    topic.publish(b"between")
    topic.publish_chunk("u", 1, 3, b"message ")
    topic.publish_chunk("u", 2, 3, b"in chunks")
    assert await contents(consumer, 1) == [b"between"]
    whole = await consumer.receive(timeout_seconds=60)
    assert whole.content == b"one message in chunks"
    assert whole.id == MessageId(LEDGER, 3)
    await consumer.acknowledge(whole)
    assert topic.acknowledged == [0, 2, 3]


async def test_a_negative_acknowledgement_brings_it_again(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit", SHARED)
    topic.publish(b"0", b"1")
    messages = await take(consumer, 2)
    consumer.negative_acknowledge(messages[1])
    assert await contents(consumer, 1) == [b"1"]
    request = await topic.broker.received_of(pb.CommandRedeliverUnacknowledgedMessages)
    assert [each.entry_id for each in request.message_ids] == [1]
    consumer.negative_acknowledge(messages[0])
    await consumer.acknowledge(messages[0])
    with pytest.raises(NoMessage):
        await consumer.receive(timeout_seconds=0.05)


async def test_an_ordered_subscription_redelivers_everything(
    topic: FakeTopic, client: Client
) -> None:
    options = ConsumerOptions(negative_acknowledgement_seconds=0.01)
    consumer = await client.subscribe("orders", "audit", options)
    topic.publish(b"0", b"1", b"2")
    messages = await take(consumer, 3)
    consumer.negative_acknowledge(messages[1])
    assert await contents(consumer, 3) == [b"0", b"1", b"2"]


# ---------------------------------------------------------------- moving and ending


async def test_a_seek_continues_elsewhere(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(*(b"%d" % number for number in range(9)))
    await contents(consumer, 4)
    await consumer.seek(MessageId(LEDGER, 1))
    assert await contents(consumer, 2) == [b"1", b"2"]
    await consumer.seek(NOON_MS + 7)
    assert await contents(consumer, 2) == [b"7", b"8"]


async def test_a_refused_seek_loses_nothing(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(b"0", b"1", b"2")
    await consumer.acknowledge(await consumer.receive(timeout_seconds=60))
    topic.broker.answers[pb.CommandSeek] = topic.broker.refuse(ServerError.NOT_ALLOWED_ERROR)
    with pytest.raises(Refused):
        await consumer.seek(MessageId(LEDGER, 0))
    assert await contents(consumer, 2) == [b"1", b"2"]
    topic.broker.answers[pb.CommandSeek] = lambda link, _command: link.cut()
    with pytest.raises(OutcomeUnknown):
        await consumer.seek(MessageId(LEDGER, 0))


async def test_a_consumer_continues_at_its_position_after_a_reconnect(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await client.subscribe("orders", "audit")
    topic.publish(*(b"%d" % number for number in range(6)))
    for _ in range(2):
        await consumer.acknowledge(await consumer.receive(timeout_seconds=60))
    await contents(consumer, 1)
    topic.broker.links[-1].cut()
    await topic.broker.received_of(pb.CommandSubscribe, 2)
    assert await contents(consumer, 4) == [b"2", b"3", b"4", b"5"]
    topic.close_consumers()
    await topic.broker.received_of(pb.CommandSubscribe, 3)
    assert await contents(consumer, 4) == [b"2", b"3", b"4", b"5"]
    names = {command.consumer_name for command in topic.broker.all(pb.CommandSubscribe)}
    ids = {command.consumer_id for command in topic.broker.all(pb.CommandSubscribe)}
    assert (len(names), len(ids)) == (1, 3), "what comes late for an earlier one is nobody's"


async def test_coming_back_may_take_a_while_and_may_be_refused_for_good(
    topic: FakeTopic, client: Client
) -> None:
    consumer = await client.subscribe("orders", "audit")
    busy = topic.broker.refuse(ServerError.CONSUMER_BUSY)
    topic.broker.answers[pb.CommandSubscribe] = busy
    topic.broker.links[-1].cut()
    await topic.broker.received_of(pb.CommandSubscribe, 3)
    assert consumer.end is None
    topic.broker.answers[pb.CommandSubscribe] = topic.broker.refuse(ServerError.NOT_ALLOWED_ERROR)
    assert isinstance(await consumer.ended(), Refused)
    with pytest.raises(Refused):
        await consumer.receive()
    with pytest.raises(Refused):
        await consumer.redeliver_unacknowledged()


async def test_a_consumer_that_becomes_inactive_returns_its_messages(
    topic: FakeTopic, client: Client
) -> None:
    options = ConsumerOptions(kind=SubscriptionType.FAILOVER)
    consumer = await client.subscribe("orders", "audit", options)
    topic.publish(b"0", b"1", b"2")
    assert await contents(consumer, 1) == [b"0"]
    subscriber = topic.subscribers[0]
    number = subscriber.command.consumer_id
    subscriber.link.write(replies.active_consumer_change(number, is_active=False))
    await consumer.changed()
    assert not consumer.is_active
    assert consumer.receive_nowait() is None, "somebody else gets it"
    subscriber.link.write(replies.active_consumer_change(number, is_active=True))
    await consumer.changed()
    assert consumer.is_active


async def test_unsubscribing_ends_it(topic: FakeTopic, client: Client) -> None:
    consumer = await client.subscribe("orders", "audit")
    await consumer.unsubscribe()
    assert isinstance(consumer.end, Closed)
    assert topic.broker.all(pb.CommandCloseConsumer) == []
