"""Messages without a receipt: bounds, time limits, flush."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fake_broker import FakeBroker, begin, client_of
from tests.unit.client.producing import EXCLUSIVE

from onewriter import AccessMode, Client, NotSent, OutcomeUnknown, ProducerOptions, Refused
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send


async def test_pending_is_bounded_and_order_is_kept(broker: FakeBroker, client: Client) -> None:
    options = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, pending_messages_max=2)
    producer = await client.create_producer("orders", options)
    held: list[Send] = []
    broker.answers[Send] = lambda _link, send: held.append(send)
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(producer.send(b"%d" % number))
        await broker.eventually(lambda: len(held) == 2)
        await asyncio.sleep(0.05)
        assert len(held) == producer.pending_messages == 2
        for number in range(5):
            await broker.eventually(lambda number=number: len(held) > number)  # type: ignore[misc]
            broker.receipt(broker.links[-1], held[number])
    assert broker.contents() == [b"0", b"1", b"2", b"3", b"4"]
    assert producer.pending_bytes == 0


async def test_pending_bytes_are_bounded_but_one_message_always_goes(
    broker: FakeBroker, client: Client
) -> None:
    options = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, pending_bytes_max=100)
    producer = await client.create_producer("orders", options)
    broker.answers[Send] = None
    await producer.submit(b"x" * 1000)
    with pytest.raises(NotSent):
        await producer.send(b"y", timeout_seconds=0.1)
    assert producer.pending_messages == 1


async def test_a_timeout_reports_whether_the_message_was_sent(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    with pytest.raises(OutcomeUnknown):
        await producer.send(b"left", timeout_seconds=0.1)
    broker.answers[pb.CommandLookup] = None
    broker.links[-1].cut()
    await broker.received_of(pb.CommandLookup, 2)
    with pytest.raises(NotSent):
        await producer.send(b"never left", timeout_seconds=0.1)
    assert broker.contents() == [b"left"]
    assert producer.pending_messages == 1, "what was withdrawn takes no room"


async def test_a_message_beyond_the_brokers_limit_is_refused_here(broker: FakeBroker) -> None:
    broker.message_bytes_max = 1000
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        with pytest.raises(Refused, match="1000"):
            await producer.send(b"x" * 1000)
        assert broker.sends() == []
        await producer.send(b"x" * 500)


async def test_metadata_of_a_message(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    await producer.send(b"x", key="k", properties={"a": "b"}, event_time_ms=5)
    metadata = parse_metadata(broker.payloads()[-1])
    assert (metadata.producer_name, metadata.partition_key, metadata.event_time) == (
        "writer",
        "k",
        5,
    )
    assert [(item.key, item.value) for item in metadata.properties] == [("a", "b")]
    assert metadata.publish_time > 0


@pytest.mark.parametrize("cancelled", [(2,), (0, 1, 2)], ids=["the last", "all"])
async def test_flushing_waits_for_messages_whose_futures_were_cancelled(
    broker: FakeBroker, client: Client, cancelled: tuple[int, ...]
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    receipts = [await producer.submit(b"%d" % number) for number in range(3)]
    for number in cancelled:
        receipts[number].cancel()
    flushing = begin(producer.flush())
    await broker.eventually(lambda: len(broker.sends()) == 3)
    assert not flushing.done()
    del broker.answers[Send]
    broker.links[-1].cut()
    await asyncio.wait_for(flushing, 60)
    assert producer.pending_messages == 0
    assert all(receipt.done() for receipt in receipts)


async def test_flushing_does_not_wait_for_later_messages(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    await producer.submit(b"before")
    flushing = begin(producer.flush())
    await broker.eventually(lambda: len(broker.sends()) == 1)
    await producer.submit(b"behind")
    await broker.eventually(lambda: len(broker.sends()) == 2)
    first = broker.sends()[0]
    broker.receipt(broker.links[-1], first)
    await asyncio.wait_for(flushing, 60)
    assert producer.pending_messages == 1


async def test_a_withdrawn_message_ends_flushing_and_frees_its_memory(
    broker: FakeBroker, client: Client
) -> None:
    options = ProducerOptions(pending_messages_max=1)
    producer = await client.create_producer("orders", options)
    broker.answers[pb.CommandProducer] = None
    broker.links[-1].cut()
    await broker.eventually(lambda: not producer.is_ready)
    sending = begin(producer.send(b"withdrawn", timeout_seconds=0.1))
    await asyncio.sleep(0)
    flushing, next_one = begin(producer.flush()), begin(producer.submit(b"next"))
    with pytest.raises(NotSent):
        await sending
    await asyncio.wait_for(flushing, 60)
    await asyncio.wait_for(next_one, 60)
    assert producer.pending_messages == 1
