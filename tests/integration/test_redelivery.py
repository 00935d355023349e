"""Redelivery without a race (PIP-84) on a real broker; every round provokes the race.

In full length: ``ONEWRITER_ROUNDS=10000 pytest tests/integration/test_redelivery.py -k race``.
"""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from tests.integration.conftest import ROUNDS, RawClients
from tests.integration.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.integration.forked_brokers import forked_brokers
from tests.integration.raw import RawClient, RawConsumer, RawProducer, RefusedByBroker, full

from onewriter import Client, Consumer, ConsumerOptions, NoMessage, SubscriptionType
from onewriter._consume.stream import Stream
from onewriter_broker.connection.consumers import PARKED_MAX
from onewriter_core.errors import ServerError
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.encoding import encode_flow
from onewriter_core.wire.messages import entry_payload
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

UNACKNOWLEDGED_MAX = 30
CUTS_MAX = 100
"""Pauses between attempts grow while one connection after the other is cut."""

Redeliver = pb.CommandRedeliverUnacknowledgedMessages


class Race:
    """One consumer, and a writer that writes exactly when redelivery is requested."""

    def __init__(self, consumer: Consumer, producer: RawProducer, seed: int) -> None:
        self.is_overtaken = False
        """Whether a message came that is neither the oldest unacknowledged one nor after it."""
        self._consumer = consumer
        self._producer = producer
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._unacknowledged: list[int] = []

    async def play(self) -> None:
        """Play one round."""
        self._publish(self._random.randint(1, 3))
        received = [await self._consumer.receive(timeout_seconds=60) for _ in self._unacknowledged]
        if self._random.random() < 0.5 or len(received) > UNACKNOWLEDGED_MAX:
            kept = min(self._random.randint(0, 2), len(received) - 1)
            await self._consumer.acknowledge_cumulative(received[-1 - kept])
            self._unacknowledged = self._unacknowledged[-kept:] if kept else []
        # This blocks the event loop: when it continues, all messages are in transit and none was read.
        self._publish(self._random.randint(1, 8))
        if self._random.random() < 0.3:
            await asyncio.sleep(0)
        await self._consumer.redeliver_unacknowledged()
        found: list[int] = []
        while len(found) < len(self._unacknowledged):
            message = await self._consumer.receive(timeout_seconds=60)
            found.append(int(message.content))
        self.is_overtaken = found != self._unacknowledged
        await self._consumer.redeliver_unacknowledged()

    def _publish(self, count: int) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        sent = [self._producer.send(b"%d" % number) for number in numbers]
        for sequence_id in sent:
            self._producer.receipt(sequence_id)
        self._unacknowledged += numbers


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each delivery that was dropped because of its older epoch."""
    found: list[None] = []
    is_stale = Stream._is_stale

    def counted(self: Stream, *arguments: object) -> bool:
        stale = is_stale(self, *arguments)  # type: ignore[arg-type]  # as they came
        if stale:
            found.append(None)
        return stale

    monkeypatch.setattr(Stream, "_is_stale", counted)
    return found


@pytest.mark.campaign
@pytest.mark.timeout(360 + ROUNDS)
@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
async def test_the_race_is_never_lost(
    broker: LocalBrokers,
    raw: RawClients,
    topic: str,
    dropped: list[None],
    kind: SubscriptionType,
) -> None:
    producer = raw(broker.address()).producer(topic)
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s", ConsumerOptions(kind=kind))
        race = Race(consumer, producer, seed=1)
        for _ in range(ROUNDS):
            await race.play()
            assert not race.is_overtaken
    assert len(dropped) > ROUNDS // 2, "the race was not provoked"


async def test_without_epochs_the_race_is_lost(
    broker: LocalBrokers, raw: RawClients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same consumer without the filter: messages in transit come before the oldest."""
    monkeypatch.setattr(Stream, "_is_stale", lambda *_arguments: False)
    producer = raw(broker.address()).producer(topic)
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        race = Race(consumer, producer, seed=1)
        await race.play()
    assert race.is_overtaken


async def test_without_epochs_messages_are_lost(
    broker: LocalBrokers, raw: RawClients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the next message for the oldest, acknowledges up to there, and dies."""
    monkeypatch.setattr(Stream, "_is_stale", lambda *_arguments: False)
    lost = await _fail_after_redelivery(broker, raw(broker.address()).producer(topic), topic)
    assert lost, "nothing was lost"


async def test_with_epochs_none_is(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    assert not await _fail_after_redelivery(broker, raw(broker.address()).producer(topic), topic)


async def _fail_after_redelivery(
    broker: LocalBrokers, producer: RawProducer, topic: str
) -> set[bytes]:
    """Return the messages that no consumer received after the redelivery that should repeat them all."""
    async with Client(broker.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        written = [b"%d" % number for number in range(10)]
        for content in written[:5]:
            producer.publish(content)
            await consumer.receive(timeout_seconds=60)
        for content in written[5:]:
            producer.publish(content)  # the loop is blocked: in transit, not read
        await consumer.redeliver_unacknowledged()
        processed = await consumer.receive(timeout_seconds=60)
        await consumer.acknowledge_cumulative(processed)
        await consumer.close()
        seen = {processed.content}
        successor = await client.subscribe(topic, "s")
        while await successor.has_message_available():
            seen.add((await successor.receive(timeout_seconds=60)).content)
    return set(written) - seen


@pytest.mark.campaign
@pytest.mark.timeout(360 + 5 * ROUNDS)
async def test_redelivery_survives_lost_connections(raw: RawClients, topic: str) -> None:
    """It returns with redelivery, and no message stays filtered."""
    with forked_brokers(settings={"advertised_host": PROXY_HOST}) as brokers:
        producer = raw(brokers.address()).producer(topic)
        written = [b"%d" % number for number in range(20)]
        for content in written:
            producer.publish(content)
        with CuttingProxy(brokers.address(), cuts=0, bytes_between=2) as proxy:
            async with Client(proxy.url) as client:
                loop = asyncio.get_running_loop()
                options = ConsumerOptions(kind=SubscriptionType.FAILOVER)
                consumer = await client.subscribe(topic, "s", options)
                await consumer.seek(0)
                for number in range(min(ROUNDS, CUTS_MAX)):
                    for content in written[: number % 20]:
                        message = await consumer.receive(timeout_seconds=60)
                        assert message.content == content
                    cutting = loop.run_in_executor(None, proxy.cut)
                    if number % 3:
                        await asyncio.sleep(0.001 * (number % 7))
                    await consumer.redeliver_unacknowledged()
                    await cutting
                    await consumer.redeliver_unacknowledged()


async def test_shared_redelivery_goes_to_all_consumers(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    options = ConsumerOptions(kind=SubscriptionType.SHARED)
    async with Client(broker.service_url) as client:
        first = await client.subscribe(topic, "s", options)
        for number in range(60):
            producer.publish(b"%d" % number)
        held = {(await first.receive(timeout_seconds=60)).content for _ in range(60)}
        second = await client.subscribe(topic, "s", options)
        await first.redeliver_unacknowledged()
        seen: list[bytes] = []
        others = 0
        while len(seen) < 60:
            for consumer in (first, second):
                message = consumer.receive_nowait()
                if message is not None:
                    seen.append(message.content)
                    others += consumer is second
                    assert message.redelivery_count == 1
            await asyncio.sleep(0)
    assert sorted(seen) == sorted(held), "each of them once"
    assert 0 < others < 60


async def test_a_standby_that_asks_changes_nothing_for_the_active_one(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    kind = SubscriptionType.FAILOVER
    async with Client(broker.service_url) as client:
        anna = await client.subscribe(topic, "s", ConsumerOptions(kind=kind, name="anna"))
        ben = await client.subscribe(topic, "s", ConsumerOptions(kind=kind, name="ben"))
        while ben.is_active:
            await ben.changed()
        for number in range(3):
            producer.publish(b"%d" % number)
            await anna.receive(timeout_seconds=60)
        await ben.redeliver_unacknowledged()
        with pytest.raises(NoMessage):
            await anna.receive(timeout_seconds=0.2)
        await anna.close()
        found = [(await ben.receive(timeout_seconds=60)).content for _ in range(3)]
        assert found == [b"0", b"1", b"2"], "its epoch is the broker's: nothing is filtered"


# ---------------------------------------------------------------- on the wire


def subscribing(client: RawClient, topic: str, consumer_id: int, **fields: int) -> bytes:
    """Return an encoded SUBSCRIBE."""
    return encode_command(
        pb.CommandSubscribe(
            topic=full(topic),
            subscription="s",
            sub_type=pb.CommandSubscribe.EXCLUSIVE,
            consumer_id=consumer_id,
            request_id=client.next_request_id(),
            initial_position=pb.CommandSubscribe.EARLIEST,
            consumer_epoch=fields.get("consumer_epoch", 0),
        )
    )


def redelivering(client: RawClient, consumer_id: int, epoch: int) -> Redeliver:
    return Redeliver(
        consumer_id=consumer_id, consumer_epoch=epoch, request_id=client.next_request_id()
    )


def deliveries(consumer: RawConsumer, count: int) -> list[tuple[int | None, bytes]]:
    """Return epoch and content of the next deliveries."""
    found = [consumer.receive() for _ in range(count)]
    return [(each.consumer_epoch, bytes(entry_payload(payload))) for each, payload in found]


def test_a_redelivery_before_subscribe_is_answered_counts(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    raw(broker.address()).producer(topic).publish(b"0")
    client = raw(broker.address())
    command = redelivering(client, 900, epoch=4)
    client.write(subscribing(client, topic, 900) + encode_command(command))
    client.answer(pb.CommandSuccess, command.request_id)
    client.write(encode_flow(900, 10))
    assert deliveries(RawConsumer(client, 900), 1) == [(4, b"0")]


def test_redelivery_requests_that_wait_for_one_consumer_are_limited(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    commands = [redelivering(client, 905, epoch) for epoch in range(1, PARKED_MAX + 11)]
    client.write(subscribing(client, topic, 905) + b"".join(map(encode_command, commands)))
    for command in commands[:PARKED_MAX]:
        client.answer(pb.CommandSuccess, command.request_id)
    for command in commands[PARKED_MAX:]:
        with pytest.raises(RefusedByBroker):
            client.answer(pb.CommandSuccess, command.request_id)


def test_a_redelivery_for_a_consumer_that_is_not_there_is_refused(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    client = raw(broker.address())
    command = redelivering(client, 901, epoch=4)
    client.say(command)
    with pytest.raises(RefusedByBroker) as refused:
        client.answer(pb.CommandSuccess, command.request_id)
    assert refused.value.code is ServerError.CONSUMER_NOT_FOUND
    busy = raw(broker.address())
    busy.subscribe(topic, "s")
    command = redelivering(client, 902, epoch=1)
    client.write(subscribing(client, topic, 902) + encode_command(command))
    with pytest.raises(RefusedByBroker):
        client.answer(pb.CommandSuccess, command.request_id)


def test_after_the_answer_no_earlier_message_is_written(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    producer = raw(broker.address()).producer(topic)
    for number in range(200):
        producer.publish(b"%d" % number)
    client = raw(broker.address())
    client.write(subscribing(client, topic, 903))
    client.expect(pb.CommandSuccess)
    consumer = RawConsumer(client, 903)
    consumer.flow(1)
    consumer.acknowledge(consumer.receive()[0].message_id)
    for epoch in range(1, 20):
        # In one packet: the broker begins to deliver, and is asked to start again.
        command = redelivering(client, 903, epoch)
        client.write(encode_flow(903, 40) + encode_command(command))
        client.answer(pb.CommandSuccess, command.request_id)
    consumer.flow(1_000)
    epochs = [0]
    content = b""
    while content != b"199":
        of, content = deliveries(consumer, 1)[0]
        assert of is not None
        assert of >= epochs[-1], "an older one behind a newer one"
        if of > epochs[-1]:
            assert content == b"1", "each begins with the oldest"
        epochs.append(of)
    assert epochs[-1] == 19
    assert len(set(epochs)) > 2, "nothing was on its way"


def test_an_older_epoch_is_not_taken_and_a_newer_subscribe_is(
    broker: LocalBrokers, raw: RawClients, topic: str
) -> None:
    raw(broker.address()).producer(topic).publish(b"0")
    client = raw(broker.address())
    client.write(subscribing(client, topic, 904, consumer_epoch=7))
    client.expect(pb.CommandSuccess)
    client.write(encode_flow(904, 100))
    consumer = RawConsumer(client, 904)
    assert deliveries(consumer, 1) == [(7, b"0")]
    client.say(redelivering(client, 904, epoch=3))
    assert deliveries(consumer, 1) == [(7, b"0")]
    client.write(subscribing(client, topic, 904, consumer_epoch=9))
    assert deliveries(consumer, 1) == [(9, b"0")]
