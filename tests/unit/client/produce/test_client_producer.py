"""A producer against a scripted broker: granted, waiting, resumed, closed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import QUICK, Clock, FakeBroker, FakeLink, begin, client_of
from tests.unit.client.producing import EXCLUSIVE, WAIT, cut_in_flight, never_made

from onewriter import (
    AccessMode,
    Client,
    Closed,
    Fenced,
    NotSent,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
    ProducerState,
    Refused,
    Unavailable,
)
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

# ---------------------------------------------------------------- getting the topic


@pytest.mark.parametrize("mode", AccessMode)
async def test_every_access_mode_is_requested_and_its_epoch_kept(
    broker: FakeBroker, client: Client, mode: AccessMode
) -> None:
    producer = await client.create_producer("orders", ProducerOptions(access_mode=mode))
    requests = broker.all(pb.CommandProducer)[0]
    assert requests.producer_access_mode == mode.value
    assert not requests.HasField("topic_epoch")
    assert not requests.HasField("producer_name")
    assert producer.name == "given-by-the-broker"
    assert producer.epoch == (None if mode is AccessMode.SHARED else 7)
    assert (await producer.send(b"first")).entry == 1


async def test_priority_and_condition_travel_as_properties(
    broker: FakeBroker, client: Client
) -> None:
    options = ProducerOptions(
        access_mode=AccessMode.EXCLUSIVE_WITH_FENCING,
        queue_priority=-3,
        if_epoch=6,
        properties={"team": "orders"},
    )
    await client.create_producer("orders", options)
    requests = {item.key: item.value for item in broker.all(pb.CommandProducer)[0].metadata}
    assert requests == {
        "team": "orders",
        "onewriter.queue-priority": "-3",
        "onewriter.if-epoch": "6",
    }


async def test_a_waiter_waits_beyond_every_time_out(broker: FakeBroker, client: Client) -> None:
    waits = asyncio.Event()

    def record(producer: Producer) -> None:
        if producer.state is ProducerState.WAITING:
            waits.set()

    broker.answers[pb.CommandProducer] = broker.queue
    creating = begin(client.create_producer("orders", WAIT, on_change=record))
    await waits.wait()
    skip(QUICK.operation_timeout_seconds + QUICK.request_timeout_seconds)
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not creating.done()
    broker.grant(broker.links[-1], broker.all(pb.CommandProducer)[0])
    producer = await creating
    assert producer.epoch == 7
    assert len(broker.all(pb.CommandProducer)) == 1, "it left its place in the line"


async def test_a_waiter_whose_connection_breaks_queues_again_after_its_delay(
    broker: FakeBroker, client: Client
) -> None:
    delays: list[float] = []

    def delay() -> float:
        delays.append(0.01)
        return 0.01

    broker.answers[pb.CommandProducer] = broker.queue
    options = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, requeue_delay=delay)
    producer = client.start_producer("orders", options)
    await broker.received_of(pb.CommandProducer)
    assert delays == [], "the first time is no reconnect"
    broker.links[-1].cut()
    again = await broker.received_of(pb.CommandProducer, 2)
    assert delays == [0.01]
    assert not again.HasField("topic_epoch")
    broker.grant(broker.links[-1], again)
    await producer.ready()


def give(value: Any) -> Callable[[], Any]:
    return lambda: value


def fail() -> float:
    raise ZeroDivisionError("the application's own")


@pytest.mark.parametrize(
    "delay", [fail, *map(give, (-0.1, math.nan, math.inf, -math.inf, None, "soon", 1j))]
)
async def test_a_delay_that_is_none_is_logged_and_the_default_one_counts(
    broker: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture, delay: Callable[[], Any]
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    options = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, requeue_delay=delay)
    producer = client.start_producer("orders", options)
    await broker.received_of(pb.CommandProducer)
    assert caplog.records == []
    broker.links[-1].cut()
    again = await broker.received_of(pb.CommandProducer, 2)
    broker.grant(broker.links[-1], again)
    await producer.ready()
    assert [each.message for each in caplog.records] == [
        "requeue_delay failed, so the default delay counts"
    ]
    assert (await producer.send(b"it lives")).entry == 1


def test_a_broken_delay_gives_way_to_the_priorities_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "onewriter._produce.tenure.requeue_delay_seconds", lambda priority: priority / 10
    )
    options = ProducerOptions(
        access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, queue_priority=7, requeue_delay=fail
    )
    assert options.requeue_seconds() == pytest.approx(0.7)
    assert replace(options, requeue_delay=lambda: 0).requeue_seconds() == 0


async def test_a_cancelled_wait_leaves_no_registration(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    making = begin(client.create_producer("orders", WAIT, timeout_seconds=60))
    await broker.received_of(pb.CommandProducer)
    skip(60)
    with pytest.raises(Unavailable, match="within 60 s"):
        await making
    await broker.received_of(pb.CommandCloseProducer)


async def test_a_definite_no_is_not_asked_again(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_BUSY, "taken")
    with pytest.raises(Refused, match="taken") as found:
        await client.create_producer("orders", WAIT)
    assert found.value.code is ServerError.PRODUCER_BUSY
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_FENCED, "taken")
    with pytest.raises(Fenced):
        await client.create_producer("orders", EXCLUSIVE)
    assert len(broker.all(pb.CommandProducer)) == 2


async def test_a_temporary_error_is_retried(broker: FakeBroker, client: Client) -> None:
    def twice_not_now(link: FakeLink, command: pb.CommandProducer) -> None:
        if len(broker.all(pb.CommandProducer)) < 3:
            broker.refuse(ServerError.SERVICE_NOT_READY)(link, command)
        else:
            broker.grant(link, command)

    broker.answers[pb.CommandProducer] = twice_not_now
    producer = await client.create_producer("orders", EXCLUSIVE)
    assert producer.epoch == 7
    assert producer.trouble is None


async def test_a_broker_that_is_away_is_named_in_the_end(broker: FakeBroker) -> None:
    await broker.stop()
    async with client_of(broker) as client:
        await never_made(client, "cannot be reached")


async def test_sequence_ids_continue_after_the_stored_ones(
    broker: FakeBroker, client: Client
) -> None:
    broker.answers[pb.CommandProducer] = lambda link, command: broker.grant(
        link, command, last_sequence_id=41
    )
    producer = await client.create_producer("orders", EXCLUSIVE)
    await producer.send(b"next")
    assert broker.sends()[0].sequence_id == 42


# ---------------------------------------------------------------- keeping it


async def test_a_resume_keeps_name_and_epoch_and_resends_byte_for_byte(
    broker: FakeBroker, client: Client
) -> None:
    delays: list[float] = []
    options = ProducerOptions(
        access_mode=AccessMode.WAIT_FOR_EXCLUSIVE,
        requeue_delay=lambda: delays.append(1.0) or 1.0,  # type: ignore[func-returns-value]
    )
    producer = await client.create_producer("orders", options)
    await producer.send(b"stored")
    receipt = await cut_in_flight(broker, producer)
    await receipt
    first, again = broker.all(pb.CommandProducer)
    assert (again.producer_name, again.topic_epoch) == (producer.name, 7)
    assert again.epoch > first.epoch
    assert again.user_provided_producer_name is False
    assert delays == [], "a resume is never delayed"
    written = [payload for _, command, payload in broker.received if isinstance(command, Send)]
    assert written[1] == written[2]
    assert len(written) == 3
    assert producer.state is ProducerState.READY


async def test_a_holder_waits_until_its_former_connection_is_closed(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_BUSY, "connected")
    broker.links[-1].cut()
    await broker.received_of(pb.CommandProducer, 3)
    del broker.answers[pb.CommandProducer]
    await producer.send(b"back")
    assert producer.epoch == 7


async def test_a_holder_that_is_queued_on_its_return_is_fenced(
    broker: FakeBroker, client: Client
) -> None:
    """Pulsar does that; waiting there would mean to ride on a grant won back."""
    producer = await client.create_producer("orders", WAIT)
    broker.answers[pb.CommandProducer] = broker.queue
    broker.links[-1].cut()
    assert isinstance(await producer.ended(), Fenced)
    await broker.received_of(pb.CommandCloseProducer)


async def test_a_holder_that_is_given_another_epoch_is_fenced(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", WAIT)
    broker.answers[pb.CommandProducer] = lambda link, command: link.write(
        replies.producer_success(command.request_id, "writer", topic_epoch=99)
    )
    broker.links[-1].cut()
    end = await producer.ended()
    assert isinstance(end, Fenced)
    assert (end.epoch, end.current_epoch) == (7, 99)


async def test_receipts_out_of_order_end_the_connection_not_the_producer(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    receipts = [await producer.submit(b"0"), await producer.submit(b"1")]
    await broker.eventually(lambda: len(broker.sends()) == 2)
    del broker.answers[Send]
    broker.receipt(broker.links[-1], broker.sends()[1])
    await asyncio.gather(*receipts)
    assert broker.contents() == [b"0", b"1", b"0", b"1"]


# ---------------------------------------------------------------- leaving


async def test_closing_sends_everything_and_then_leaves(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    receipts = [await producer.submit(b"%d" % number) for number in range(100)]
    await producer.close()
    assert all(receipt.done() and receipt.exception() is None for receipt in receipts)
    kinds = [type(command) for _, command, _ in broker.received]
    assert kinds[-1] is pb.CommandCloseProducer
    assert kinds.count(pb.CommandCloseProducer) == 1
    with pytest.raises(Closed):
        await producer.send(b"late")


async def test_closing_continues_through_a_broken_connection(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    receipt = await cut_in_flight(broker, producer)
    await producer.close()
    assert receipt.done()
    assert receipt.exception() is None


async def test_a_close_without_an_answer_reports_what_is_certain(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandLookup] = None
    in_flight = await cut_in_flight(broker, producer)
    await broker.received_of(pb.CommandLookup, 2)
    never_written = await producer.submit(b"x")
    await producer.close(timeout_seconds=0.1)
    assert isinstance(in_flight.exception(), OutcomeUnknown)
    assert isinstance(never_written.exception(), NotSent)


async def test_leaving_the_client_closes_what_is_open(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        raised = pytest.raises(ZeroDivisionError)  # as it is, in no group
    assert isinstance(producer.end, Closed)
    await broker.eventually(lambda: all(link.is_lost for link in broker.links))
    with raised:
        async with client_of(broker):
            _ = 1 // 0
    with pytest.raises(Closed):
        await client.create_producer("orders", EXCLUSIVE)


async def test_changes_are_reported_at_once(broker: FakeBroker, client: Client) -> None:
    seen: list[ProducerState] = []
    producer = await client.create_producer(
        "orders", EXCLUSIVE, on_change=lambda each: seen.append(each.state)
    )
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].cut()
    await producer.ended()
    states = [state for state in dict.fromkeys(seen) if state is not ProducerState.CONNECTING]
    assert states == [ProducerState.READY, ProducerState.DETACHED, ProducerState.ENDED]


async def test_verifying_asks_the_broker(broker: FakeBroker, client: Client, clock: Clock) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    clock.ahead += 60.0
    broker.answers[pb.CommandPing] = None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await producer.verify()
    broker.links[-1].write(replies.PONG)
    await producer.verify()
