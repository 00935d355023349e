"""The end of a terminated topic, for readers and consumers of a scripted broker."""

from __future__ import annotations

import pytest
from tests.unit.client.fake_broker import begin
from tests.unit.client.fake_topic import LEDGER, FakeTopic

from onewriter import (
    EARLIEST,
    LATEST,
    Client,
    Closed,
    Consumer,
    ConsumerOptions,
    EndOfTopic,
    MessageId,
    NoMessage,
    Reader,
)
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

FROM_THE_START = ConsumerOptions(start=EARLIEST)


async def rest(source: Reader | Consumer) -> list[bytes]:
    return [message.content async for message in source]


async def test_a_reader_ends_after_the_last_message(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1")
    topic.publish_batch(b"2", b"3")
    reader = await client.create_reader("orders")
    topic.terminate()
    assert await rest(reader) == [b"0", b"1", b"2", b"3"]
    assert reader.has_reached_end_of_topic
    assert reader.end is None, "it may be sought back"
    with pytest.raises(EndOfTopic, match="orders is terminated"):
        await reader.next(timeout_seconds=60)
    assert reader.next_nowait() is None
    assert await rest(reader) == []


async def test_a_waiting_reader_is_notified(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0")
    reader = await client.create_reader("orders")
    reading = begin(rest(reader))
    await topic.broker.eventually(lambda: bool(topic.acks))
    assert not reader.has_reached_end_of_topic
    topic.terminate()
    assert await reading == [b"0"]


@pytest.mark.parametrize(
    "start", [LATEST, MessageId(LEDGER, 1), MessageId(LEDGER, 1, batch_index=1)]
)
async def test_a_reader_that_begins_at_the_end_is_there(
    topic: FakeTopic, client: Client, start: MessageId
) -> None:
    topic.publish(b"0")
    topic.publish_batch(b"1", b"2")
    topic.terminate()
    assert await rest(await client.create_reader("orders", start)) == []


async def test_a_topic_that_never_had_a_message(topic: FakeTopic, client: Client) -> None:
    topic.terminate()
    assert await rest(await client.create_reader("orders")) == []
    assert await rest(await client.subscribe("orders", "books", FROM_THE_START)) == []


async def test_seeking_back_reads_it_again(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1")
    topic.terminate()
    reader = await client.create_reader("orders")
    assert await rest(reader) == [b"0", b"1"]
    await reader.seek(MessageId(LEDGER, 0))
    assert not reader.has_reached_end_of_topic
    assert await rest(reader) == [b"1"]


async def test_a_lost_connection_does_not_take_the_end_back(
    topic: FakeTopic, client: Client
) -> None:
    topic.publish(b"0")
    topic.terminate()
    reader = await client.create_reader("orders")
    assert await rest(reader) == [b"0"]
    topic.broker.links[-1].cut()
    await topic.broker.received_of(pb.CommandSubscribe, 2)
    assert await rest(reader) == []


async def test_messages_after_the_end_are_received(topic: FakeTopic, client: Client) -> None:
    """The topic was deleted and made anew, under a consumer that stayed."""
    topic.publish(b"0")
    topic.terminate()
    reader = await client.create_reader("orders")
    assert await rest(reader) == [b"0"]
    changed = begin(reader.changed())
    topic.is_terminated = False
    topic.publish(b"1")
    await changed
    assert not reader.has_reached_end_of_topic
    assert (await reader.next(timeout_seconds=60)).content == b"1"


async def test_a_consumer_ends_when_everything_is_acknowledged(
    topic: FakeTopic, client: Client
) -> None:
    topic.publish(b"0", b"1")
    consumer = await client.subscribe("orders", "books", FROM_THE_START)
    first, second = await consumer.receive(), await consumer.receive()
    topic.terminate()
    await consumer.acknowledge(second)
    with pytest.raises(NoMessage):
        await consumer.receive(timeout_seconds=0.05)
    await consumer.acknowledge(first)
    assert await rest(consumer) == []
    with pytest.raises(EndOfTopic):
        await consumer.receive()


async def test_moving_the_subscription_continues(topic: FakeTopic, client: Client) -> None:
    topic.publish(b"0", b"1")
    consumer = await client.subscribe("orders", "books", FROM_THE_START)
    topic.terminate()
    async for message in consumer:
        consumer.acknowledge_soon(message)
    await consumer.seek(MessageId(LEDGER, 1))
    assert (await consumer.receive(timeout_seconds=60)).content == b"1"


async def test_the_end_of_another_consumer_is_nothing_to_this_one(
    topic: FakeTopic, client: Client
) -> None:
    topic.publish(b"0")
    reader = await client.create_reader("orders")
    link, command = topic.subscribers[0].link, topic.subscribers[0].command
    link.write(replies.reached_end_of_topic(command.consumer_id + 7))
    assert (await reader.next(timeout_seconds=60)).content == b"0"
    with pytest.raises(NoMessage):
        await reader.next(timeout_seconds=0.05)


async def test_progress_is_reported_once_for_many_messages(
    topic: FakeTopic, client: Client
) -> None:
    topic.publish(*[b"%d" % number for number in range(50)])
    reader = await client.create_reader("orders")
    for _ in range(50):
        await reader.next(timeout_seconds=60)
    await topic.broker.eventually(lambda: bool(topic.acks))
    assert [ack.message_ids[0].entry for ack in topic.acks] == [49]
    topic.publish(b"never told")
    await reader.next(timeout_seconds=60)
    await reader.close()
    with pytest.raises(Closed):
        await reader.next()
    assert len(topic.acks) == 1
