"""The results of a producer's messages after a fence: definite or unknown."""

from __future__ import annotations

import pytest
from tests.unit.client.fake_broker import Clock, FakeBroker, begin, client_of
from tests.unit.client.producing import EXCLUSIVE, WAIT, cut_in_flight

from onewriter import Client, Fenced, OutcomeUnknown, ProducerState, Refused
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send


async def test_later_sends_of_a_fenced_producer_fail_immediately(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].write(replies.close_producer(1))
    end = await producer.ended()
    assert isinstance(end, Fenced)
    assert (end.current_epoch, producer.state) == (8, ProducerState.ENDED)
    with pytest.raises(Fenced) as found:
        await producer.send(b"late")
    assert (found.value.epoch, found.value.current_epoch) == (7, 8)
    assert broker.sends() == []


async def test_fenced_on_the_connection_that_brought_it_is_definite(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    broker.answers[pb.CommandProducer] = broker.fence
    receipt = await producer.submit(b"refused")
    await broker.eventually(lambda: len(broker.sends()) == 1)
    broker.links[-1].write(replies.close_producer(1))
    with pytest.raises(Fenced):
        await receipt


async def test_a_receipt_after_the_close_counts(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    receipt = await producer.submit(b"stored by then")
    await broker.eventually(lambda: len(broker.sends()) == 1)
    broker.answers[pb.CommandLookup] = None  # the answer of which would come too soon
    link = broker.links[-1]
    link.write(replies.close_producer(1))
    await broker.received_of(pb.CommandLookup, 2)
    broker.receipt(link, broker.sends()[0])
    assert (await receipt).entry == 1


async def test_on_pulsar_the_same_is_unknown(pulsar_broker: FakeBroker) -> None:
    """There a message may be stored behind the close, without a receipt."""
    broker = pulsar_broker
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        broker.answers[Send] = None
        broker.answers[pb.CommandProducer] = broker.fence
        receipt = await producer.submit(b"who knows")
        await broker.eventually(lambda: len(broker.sends()) == 1)
        broker.links[-1].write(replies.close_producer(1))
        with pytest.raises(OutcomeUnknown):
            await receipt


async def test_a_message_in_flight_on_a_broken_connection_is_unknown_after_a_fence(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandProducer] = None
    in_flight = await cut_in_flight(broker, producer)
    request = await broker.received_of(pb.CommandProducer, 2)
    never_written = await producer.submit(b"not yet written")
    broker.fence(broker.links[-1], request)
    with pytest.raises(OutcomeUnknown):
        await in_flight
    with pytest.raises(Fenced):
        await never_written
    assert broker.contents() == [b"in flight"]


async def test_a_resend_that_is_fenced_is_unknown_even_on_one_connection(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    receipt = await cut_in_flight(broker, producer)
    broker.answers[Send] = None
    await broker.eventually(lambda: len(broker.sends()) == 2)
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].write(replies.close_producer(1))
    with pytest.raises(OutcomeUnknown):
        await receipt


async def test_a_message_refused_by_the_broker_is_not_stored_unless_the_store_failed(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = lambda link, send: link.write(
        replies.send_error(1, send.sequence_id, ServerError.CHECKSUM_ERROR, "damaged")
    )
    with pytest.raises(Refused, match="damaged"):
        await producer.send(b"x")
    broker.answers[Send] = lambda link, send: link.write(
        replies.send_error(1, send.sequence_id, ServerError.PERSISTENCE_ERROR, "disk?")
    )
    with pytest.raises(OutcomeUnknown):
        await producer.send(b"x")
    del broker.answers[Send]
    await producer.send(b"it goes on")


async def test_after_a_pause_the_broker_is_asked_before_anything_is_written(
    broker: FakeBroker, client: Client, clock: Clock
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    await producer.send(b"fresh")
    pings = len(broker.all(pb.CommandPing))
    clock.ahead += 60.0
    await producer.send(b"after the pause")
    assert len(broker.all(pb.CommandPing)) > pings
    kinds = [type(command) for _, command, _ in broker.received]
    assert kinds.index(pb.CommandPing) < len(kinds) - 1 - kinds[::-1].index(Send)


async def test_a_woken_writer_that_was_deposed_writes_nothing(
    broker: FakeBroker, client: Client, clock: Clock
) -> None:
    """What the socket still holds from before the freeze proves nothing."""
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandPing] = None
    broker.answers[pb.CommandProducer] = broker.fence
    clock.ahead += 60.0
    sending = begin(producer.send(b"zombie"))
    broker.links[-1].write(replies.PING)  # as if it had lain in the buffer
    await broker.received_of(pb.CommandPong)
    assert broker.sends() == []
    broker.links[-1].cut()
    with pytest.raises(Fenced):
        await sending
    assert broker.sends() == []


async def test_a_grant_that_is_old_news_is_not_believed(
    broker: FakeBroker, client: Client, clock: Clock
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    producer = client.start_producer("orders", WAIT)
    request = await broker.received_of(pb.CommandProducer)
    broker.answers[pb.CommandPing] = None
    clock.ahead += 60.0  # frozen; the grant came meanwhile, and it was deposed again
    broker.grant(broker.links[-1], request)
    await broker.received_of(pb.CommandPing)
    assert producer.state is ProducerState.WAITING
    del broker.answers[pb.CommandPing]
    broker.answers[pb.CommandProducer] = lambda link, command: (
        broker.fence if command.HasField("topic_epoch") else broker.queue
    )(link, command)
    broker.links[-1].cut()
    await broker.eventually(lambda: len(broker.all(pb.CommandProducer)) == 3)
    carried = [
        command.topic_epoch if command.HasField("topic_epoch") else None
        for command in broker.all(pb.CommandProducer)
    ]
    assert carried == [None, 7, None], "it asked to go on, then queued anew"
    assert producer.end is None
