"""A producer's life against a scripted broker: granted, waiting, resumed, fenced, frozen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.client.fake_broker import Clock, FakeBroker, FakeLink, begin, client_of

from onewriter import (
    AccessMode,
    Client,
    Closed,
    Fenced,
    Limits,
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
from onewriter_core.wire.hot import Send
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, name="writer")
WAIT = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, name="writer", queue_priority=7)


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    async with client_of(broker) as opened:
        yield opened


async def cut_in_flight(broker: FakeBroker, producer: Producer) -> asyncio.Future[object]:
    """A message that was written to a connection which then broke, without a receipt."""
    broker.answers[Send] = None
    sent = len(broker.sends())
    receipt = await producer.submit(b"in flight")
    await broker.eventually(lambda: len(broker.sends()) == sent + 1)
    del broker.answers[Send]
    broker.links[-1].cut()
    return receipt  # type: ignore[return-value]  # whatever it ends with


# ---------------------------------------------------------------- getting the topic


@pytest.mark.parametrize("mode", AccessMode)
async def test_each_access_mode_is_asked_for_and_its_epoch_kept(
    broker: FakeBroker, client: Client, mode: AccessMode
) -> None:
    producer = await client.create_producer("orders", ProducerOptions(access_mode=mode))
    asked = broker.all(pb.CommandProducer)[0]
    assert asked.producer_access_mode == mode.value
    assert not asked.HasField("topic_epoch")
    assert not asked.HasField("producer_name")
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
    asked = {item.key: item.value for item in broker.all(pb.CommandProducer)[0].metadata}
    assert asked == {"team": "orders", "onewriter.queue-priority": "-3", "onewriter.if-epoch": "6"}


async def test_a_waiter_waits_beyond_every_time_out(broker: FakeBroker) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    limits = Limits(operation_timeout_seconds=0.05, request_timeout_seconds=0.05)
    async with client_of(broker, limits=limits) as client:
        creating = begin(client.create_producer("orders", WAIT))
        asked = await broker.heard_of(pb.CommandProducer)
        await asyncio.sleep(0.3)
        assert not creating.done()
        broker.grant(broker.links[-1], asked)
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
    await broker.heard_of(pb.CommandProducer)
    assert delays == [], "the first time is no reconnect"
    broker.links[-1].cut()
    again = await broker.heard_of(pb.CommandProducer, 2)
    assert delays == [0.01]
    assert not again.HasField("topic_epoch")
    broker.grant(broker.links[-1], again)
    await producer.ready()


async def test_who_stops_waiting_leaves_no_registration_behind(
    broker: FakeBroker, client: Client
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    with pytest.raises(Unavailable, match="not its turn"):
        await client.create_producer("orders", WAIT, timeout_seconds=0.1)
    await broker.heard_of(pb.CommandCloseProducer)


async def test_a_definite_no_is_not_asked_again(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_BUSY, "taken")
    with pytest.raises(Refused, match="taken") as found:
        await client.create_producer("orders", WAIT)
    assert found.value.code is ServerError.PRODUCER_BUSY
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_FENCED, "taken")
    with pytest.raises(Fenced):
        await client.create_producer("orders", EXCLUSIVE)
    assert len(broker.all(pb.CommandProducer)) == 2


async def test_not_now_is_asked_again(broker: FakeBroker, client: Client) -> None:
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
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.create_producer("orders", EXCLUSIVE, timeout_seconds=0.2)


async def test_sequence_ids_begin_behind_what_the_name_has_stored(
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
    written = [payload for _, command, payload in broker.heard if isinstance(command, Send)]
    assert written[1] == written[2]
    assert len(written) == 3
    assert producer.state is ProducerState.READY


async def test_a_holders_own_ghost_is_waited_out(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.PRODUCER_BUSY, "connected")
    broker.links[-1].cut()
    await broker.heard_of(pb.CommandProducer, 3)
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
    await broker.heard_of(pb.CommandCloseProducer)


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


# ---------------------------------------------------------------- losing it: what is definite


async def test_a_fenced_producers_later_sends_are_refused_at_once(
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


async def test_a_receipt_behind_the_close_still_counts(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    receipt = await producer.submit(b"stored by then")
    await broker.eventually(lambda: len(broker.sends()) == 1)
    broker.answers[pb.CommandLookup] = None  # the answer of which would come too soon
    link = broker.links[-1]
    link.write(replies.close_producer(1))
    await broker.heard_of(pb.CommandLookup, 2)
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


async def test_what_was_in_flight_when_the_connection_broke_is_unknown_after_a_fence(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandProducer] = None
    in_flight = await cut_in_flight(broker, producer)
    asked = await broker.heard_of(pb.CommandProducer, 2)
    never_written = await producer.submit(b"not yet written")
    broker.fence(broker.links[-1], asked)
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


async def test_a_message_that_the_broker_looked_at_and_refused(
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


# ---------------------------------------------------------------- frozen


async def test_after_a_pause_the_broker_is_asked_before_anything_is_written(
    broker: FakeBroker, client: Client, clock: Clock
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    await producer.send(b"fresh")
    pings = len(broker.all(pb.CommandPing))
    clock.ahead += 60.0
    await producer.send(b"after the pause")
    assert len(broker.all(pb.CommandPing)) > pings
    kinds = [type(command) for _, command, _ in broker.heard]
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
    await broker.heard_of(pb.CommandPong)
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
    asked = await broker.heard_of(pb.CommandProducer)
    broker.answers[pb.CommandPing] = None
    clock.ahead += 60.0  # frozen; the grant came meanwhile, and it was deposed again
    broker.grant(broker.links[-1], asked)
    await broker.heard_of(pb.CommandPing)
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


# ---------------------------------------------------------------- bounds and time-outs


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


async def test_a_time_out_says_whether_the_message_left(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[Send] = None
    with pytest.raises(OutcomeUnknown):
        await producer.send(b"left", timeout_seconds=0.1)
    broker.answers[pb.CommandLookup] = None
    broker.links[-1].cut()
    await broker.heard_of(pb.CommandLookup, 2)
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
    metadata = parse_metadata(broker.heard[-1][2])
    assert (metadata.producer_name, metadata.partition_key, metadata.event_time) == (
        "writer",
        "k",
        5,
    )
    assert [(item.key, item.value) for item in metadata.properties] == [("a", "b")]
    assert metadata.publish_time > 0


# ---------------------------------------------------------------- leaving


async def test_closing_sends_everything_and_leaves_behind_it(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    receipts = [await producer.submit(b"%d" % number) for number in range(100)]
    await producer.close()
    assert all(receipt.done() and receipt.exception() is None for receipt in receipts)
    kinds = [type(command) for _, command, _ in broker.heard]
    assert kinds[-1] is pb.CommandCloseProducer
    assert kinds.count(pb.CommandCloseProducer) == 1
    with pytest.raises(Closed):
        await producer.send(b"late")


async def test_closing_goes_on_through_a_broken_connection(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    receipt = await cut_in_flight(broker, producer)
    await producer.close()
    assert receipt.done()
    assert receipt.exception() is None


async def test_closing_in_vain_says_what_is_certain(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    broker.answers[pb.CommandLookup] = None
    in_flight = await cut_in_flight(broker, producer)
    await broker.heard_of(pb.CommandLookup, 2)
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


async def test_changes_are_told_at_once(broker: FakeBroker, client: Client) -> None:
    seen: list[ProducerState] = []
    producer = await client.create_producer(
        "orders", EXCLUSIVE, on_change=lambda each: seen.append(each.state)
    )
    broker.answers[pb.CommandProducer] = broker.fence
    broker.links[-1].cut()
    await producer.ended()
    assert seen == [ProducerState.READY, ProducerState.DETACHED, ProducerState.ENDED]


async def test_verifying_asks_the_broker(broker: FakeBroker, client: Client, clock: Clock) -> None:
    producer = await client.create_producer("orders", EXCLUSIVE)
    clock.ahead += 60.0
    broker.answers[pb.CommandPing] = None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await producer.verify()
    broker.links[-1].write(replies.PONG)
    await producer.verify()


# ---------------------------------------------------------------- flushing


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
    await asyncio.wait_for(flushing, 10.0)
    assert producer.pending_messages == 0
    assert all(receipt.done() for receipt in receipts)


async def test_flushing_does_not_wait_for_what_came_later(
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
    await asyncio.wait_for(flushing, 10.0)
    assert producer.pending_messages == 1


async def test_a_message_that_is_withdrawn_ends_flushing_and_makes_room(
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
    await asyncio.wait_for(flushing, 10.0)
    await asyncio.wait_for(next_one, 10.0)
    assert producer.pending_messages == 1
