"""The order of transactions and their producers' sends, against a scripted broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of
from tests.unit.client.produce.test_client_guarded import Proofs, stored
from tests.unit.client.slow_socket import SlowSocket

from onewriter import (
    AccessMode,
    Client,
    Closed,
    Fenced,
    Leadership,
    MessageId,
    NotSent,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
)
from onewriter_core.wire import replies
from onewriter_core.wire.messages import entry_payload
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

AUDIT = "{orders}-audit"
ROOM = 8
"""Messages without a receipt that each producer may have."""

STREAM_MAX = 400
"""Messages of a steady stream: it ends, that a failing test does, too."""

OPTIONS = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, pending_messages_max=ROOM)


class Orders:
    """A leader of ``orders`` who also writes the topic beside it."""

    def __init__(self, broker: FakeBroker, leadership: Leadership, audit: Producer) -> None:
        self.broker = broker
        self.leadership = leadership
        self.own = leadership.producer
        self.audit = audit

    def received(self, producer: Producer) -> list[tuple[int, bytes]]:
        """Number and content of all that the broker was sent for it, however, in that order."""
        producer_id = self.id_of(producer)
        found = []
        for _, command, payload in self.broker.received:
            if isinstance(command, Send) and command.producer_id == producer_id:
                found.append((command.sequence_id, bytes(entry_payload(payload))))
            if isinstance(command, pb.CommandPublishTogether):
                found += [
                    (part.sequence_id, bytes(entry_payload(part.entry)))
                    for part in command.parts
                    if part.producer_id == producer_id
                ]
        return found

    def id_of(self, producer: Producer) -> int:
        requests = self.broker.all(pb.CommandProducer)
        return next(each.producer_id for each in requests if each.topic == str(producer.topic))

    def contents(self, producer: Producer) -> list[bytes]:
        return [content for _, content in self.received(producer)]

    def commit(self, *parts: tuple[str, bytes]) -> asyncio.Future[list[MessageId]]:
        """A commit that has begun, and has come as far as it can without anybody's doing."""
        transaction = self.leadership.transaction(announce=False)
        for topic, content in parts:
            transaction.send(content, topic=topic)
        return begin(transaction.commit())

    async def fill(self, producer: Producer) -> None:
        """Leave no room: the broker answers nothing yet."""
        self.broker.answers[Send] = None
        for number in range(ROOM):
            await producer.submit(b"%d" % number)

    def answer_sends(self) -> None:
        """What was not answered, and all that comes."""
        del self.broker.answers[Send]
        for link, command, _ in list(self.broker.received):
            if isinstance(command, Send):
                self.broker.receipt(link, command)


@pytest.fixture
async def orders(broker: FakeBroker) -> AsyncIterator[Orders]:
    Proofs(broker).is_atomic = True
    broker.answers[pb.CommandPublishTogether] = stored
    async with client_of(broker) as client:
        yield await orders_of(broker, client)


async def orders_of(broker: FakeBroker, client: Client) -> Orders:
    leadership = Leadership(await client.create_producer("orders", OPTIONS), client)
    guarded = leadership.guarded(AUDIT, ProducerOptions(pending_messages_max=ROOM))
    return Orders(broker, leadership, await guarded.producer())


async def steps() -> None:
    """Let everybody come as far as they can; a standstill of the machine counts as one step."""
    for _ in range(10):
        await asyncio.sleep(0.002)


async def test_a_transaction_waits_only_for_earlier_messages(
    broker: FakeBroker, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both producers always have something that the socket has not taken yet."""
    socket = SlowSocket(monkeypatch)
    connection = (await orders.own.linked()).connection
    submitted: dict[Producer, list[bytes]] = {orders.own: [], orders.audit: []}
    committing: asyncio.Future[list[MessageId]] | None = None

    async def stream(producer: Producer) -> None:
        while len(submitted[producer]) < STREAM_MAX and not (committing and committing.done()):
            content = b"%d" % len(submitted[producer])
            submitted[producer].append(content)
            await producer.submit(content)

    taking = begin(socket.run(connection))
    streams = [begin(stream(producer)) for producer in submitted]
    await broker.eventually(lambda: all(len(sent) > 2 * ROOM for sent in submitted.values()))
    before = {producer: len(sent) for producer, sent in submitted.items()}
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    await asyncio.gather(*streams)
    assert committing.done(), "it waits for as long as others send"
    await asyncio.gather(orders.own.flush(), orders.audit.flush())
    taking.cancel()
    for producer, sent in submitted.items():
        ids = [number for number, _ in orders.received(producer)]
        assert ids == sorted(set(ids)), "something was numbered in front and sent behind"
        contents = orders.contents(producer)
        # The stream itself asked for one more, which was in line behind it or in front of it.
        assert abs(contents.index(b"whole") - before[producer]) <= 1
        assert [content for content in contents if content != b"whole"] == sent


async def test_messages_sent_during_a_transaction_follow_it(
    broker: FakeBroker, orders: Orders
) -> None:
    """Until the answer: the broker would append in front of it what it has gathered by then."""
    broker.answers[pb.CommandPublishTogether] = None
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    command = await broker.received_of(pb.CommandPublishTogether)
    sending = [begin(orders.own.send(b"%d" % number)) for number in range(2 * ROOM)]
    sending.append(begin(orders.audit.send(b"audit")))
    await steps()
    assert orders.own.pending_messages == orders.audit.pending_messages == 0, "taken all the same"
    assert broker.sends() == []
    stored(broker.links[-1], command)
    await committing
    await asyncio.gather(*sending)
    assert orders.contents(orders.own) == [b"whole", *(b"%d" % n for n in range(2 * ROOM))]
    assert orders.contents(orders.audit) == [b"whole", b"audit"]


async def test_a_topic_without_a_message_of_it_continues(
    broker: FakeBroker, orders: Orders
) -> None:
    broker.answers[pb.CommandPublishTogether] = None
    committing = orders.commit((AUDIT, b"whole"))
    command = await broker.received_of(pb.CommandPublishTogether)
    await orders.own.send(b"meanwhile")
    stored(broker.links[-1], command)
    await committing


async def test_transactions_that_cross_do_not_wait_for_each_other(
    broker: FakeBroker, orders: Orders
) -> None:
    """Each finds both producers without room, so that it has to stand in line for both."""
    await orders.fill(orders.own)
    await orders.fill(orders.audit)
    waiting = [begin(each.send(b"in line")) for each in (orders.own, orders.audit)]
    await steps()
    commits = [
        orders.commit(("orders", b"first"), (AUDIT, b"first")),
        orders.commit((AUDIT, b"second"), ("orders", b"second")),
        orders.commit(("orders", b"third")),
        orders.commit((AUDIT, b"fourth")),
    ]
    await steps()
    assert broker.all(pb.CommandPublishTogether) == []
    orders.answer_sends()
    async with asyncio.timeout(60):
        await asyncio.gather(*commits, *waiting)
    assert orders.contents(orders.own)[ROOM:] == [b"in line", b"first", b"second", b"third"]
    assert orders.contents(orders.audit)[ROOM:] == [b"in line", b"first", b"second", b"fourth"]


@pytest.mark.parametrize("is_asked", [False, True], ids=["in line", "asked"])
async def test_a_cancelled_transaction_does_not_block_others(
    broker: FakeBroker, orders: Orders, *, is_asked: bool
) -> None:
    """At once, or when the broker has answered what was asked already."""
    broker.answers[pb.CommandPublishTogether] = None
    if not is_asked:
        await orders.fill(orders.audit)
        in_line = begin(orders.audit.send(b"in line"))
        await steps()
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    await steps()
    assert len(broker.all(pb.CommandPublishTogether)) == is_asked
    sending = [begin(each.send(b"behind")) for each in (orders.own, orders.audit)]
    await steps()
    committing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await committing
    if is_asked:
        await steps()
        assert broker.sends() == [], "it could be stored in front"
        stored(broker.links[-1], broker.all(pb.CommandPublishTogether)[0])
    else:
        orders.answer_sends()
        await in_line
    await asyncio.gather(*sending)
    assert orders.contents(orders.own)[-1] == orders.contents(orders.audit)[-1] == b"behind"
    assert (b"whole" in orders.contents(orders.own)) is is_asked


async def test_a_send_that_waits_for_a_transaction_keeps_its_time_limit(
    broker: FakeBroker, orders: Orders
) -> None:
    broker.answers[pb.CommandPublishTogether] = None
    committing = orders.commit(("orders", b"whole"))
    command = await broker.received_of(pb.CommandPublishTogether)
    with pytest.raises(NotSent):
        await orders.own.send(b"too late", timeout_seconds=0.05)
    stored(broker.links[-1], command)
    await committing
    await orders.own.send(b"behind")
    assert orders.contents(orders.own) == [b"whole", b"behind"]


async def test_a_transaction_that_times_out_in_the_queue_is_not_sent(
    broker: FakeBroker, orders: Orders
) -> None:
    await orders.fill(orders.audit)
    in_line = begin(orders.audit.send(b"in line"))
    await steps()
    transaction = orders.leadership.transaction(announce=False, timeout_seconds=0.1)
    transaction.send(b"whole")
    transaction.send(b"whole", topic=AUDIT)
    with pytest.raises(NotSent):
        await transaction.commit()
    orders.answer_sends()
    await in_line
    await orders.own.send(b"behind")
    await orders.audit.send(b"behind")
    assert broker.all(pb.CommandPublishTogether) == []


async def test_a_lost_connection_leaves_the_dispatch_rounds(
    broker: FakeBroker, orders: Orders
) -> None:
    broker.answers[pb.CommandPublishTogether] = lambda link, _: link.cut()
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    await broker.received_of(pb.CommandPublishTogether)
    sending = [begin(each.send(b"behind")) for each in (orders.own, orders.audit)]
    with pytest.raises(OutcomeUnknown):
        await committing
    await asyncio.gather(*sending)
    assert orders.contents(orders.own) == orders.contents(orders.audit) == [b"whole", b"behind"]


async def test_a_connection_lost_while_it_waits_is_waited_for(
    broker: FakeBroker, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked, so it is asked on the next one, behind what is sent again."""
    socket = SlowSocket(monkeypatch)
    await orders.audit.submit(b"before")
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    await steps()
    assert broker.all(pb.CommandPublishTogether) == []
    broker.links[-1].cut()
    socket.left = 1_000
    await committing
    assert orders.contents(orders.audit) == [b"before", b"whole"]


async def test_the_loss_of_the_topic_is_reported_to_all_waiting_calls(
    broker: FakeBroker, orders: Orders
) -> None:
    """Though the broker never answers the commit itself."""
    broker.answers[pb.CommandPublishTogether] = None
    committing = orders.commit(("orders", b"whole"), (AUDIT, b"whole"))
    await broker.received_of(pb.CommandPublishTogether)
    sending = begin(orders.own.send(b"behind"))
    await steps()

    def fence(link: FakeLink, command: Any) -> None:
        broker.fence(link, command)

    broker.answers[pb.CommandProducer] = fence
    broker.links[-1].write(replies.close_producer(orders.id_of(orders.own)))
    with pytest.raises(Fenced):
        await sending
    with pytest.raises(Fenced):
        await orders.own.send(b"later")
    assert not committing.done()
    broker.links[-1].cut()
    with pytest.raises(OutcomeUnknown):
        await committing


async def test_a_handover_fails_the_waiting_calls(broker: FakeBroker, orders: Orders) -> None:
    broker.answers[pb.CommandPublishTogether] = None
    committing = orders.commit(("orders", b"whole"))
    command = await broker.received_of(pb.CommandPublishTogether)
    sending = begin(orders.own.send(b"behind"))
    await steps()
    await orders.leadership.handover()
    with pytest.raises(Closed):
        await sending
    stored(broker.links[-1], command)
    assert await committing == [MessageId(7, 1)]


async def test_a_client_that_closes_leaves_no_commit_waiting(broker: FakeBroker) -> None:
    Proofs(broker).is_atomic = True
    broker.answers[pb.CommandPublishTogether] = None
    async with client_of(broker) as client:
        orders = await orders_of(broker, client)
        request = orders.commit(("orders", b"asked"))
        await broker.received_of(pb.CommandPublishTogether)
        in_line = orders.commit(("orders", b"in line"))
        await steps()
    with pytest.raises(OutcomeUnknown):
        await request
    with pytest.raises(Closed):
        await in_line
