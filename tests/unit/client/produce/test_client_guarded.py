"""Checks, guarded writes and transactions against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of

from onewriter import (
    AccessMode,
    Client,
    Closed,
    Fenced,
    Leadership,
    Limits,
    MessageId,
    NotSent,
    OutcomeUnknown,
    ProducerOptions,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID
from onewriter_core.wire.values import MessageId as WireId

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
SHORT = Limits(operation_timeout_seconds=0.3, request_timeout_seconds=0.2)


class Proofs:
    """How the broker answers CHECK."""

    def __init__(self, broker: FakeBroker) -> None:
        self.current: int | None = None
        """None: whatever is asked about."""
        self._broker = broker
        broker.answers[pb.CommandCheck] = self.answer
        broker.answers[pb.CommandProducer] = self.grant
        self.is_atomic = False

    def answer(self, link: FakeLink, command: Any) -> None:
        current = command.epoch if self.current is None else self.current
        link.write(
            replies.check_response(
                command.request_id,
                epoch=current,
                is_current=command.epoch == current,
                last_message_id=WireId(3, 4) if command.epoch else EARLIEST_ID,
            )
        )

    def grant(self, link: FakeLink, command: Any) -> None:
        """As the scripted broker does by itself, and it says how a guard is compared."""
        is_guarded = any(item.key == "onewriter.guard" for item in command.metadata)
        self._broker.epoch += 0 if is_guarded or command.HasField("topic_epoch") else 1
        link.write(
            replies.producer_success(
                command.request_id,
                command.producer_name or "given",
                topic_epoch=0 if is_guarded else self._broker.epoch,
                guard_is_atomic=self.is_atomic if is_guarded else None,
            )
        )


@pytest.fixture
def proofs(broker: FakeBroker) -> Proofs:
    return Proofs(broker)


async def leadership_of(client: Client) -> Leadership:
    return Leadership(await client.create_producer("orders", EXCLUSIVE), client)


# --- checks


async def test_a_check_returns_what_the_broker_proved(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    assert await client.check("orders", 5) == (5, True, MessageId(3, 4))
    assert await client.check("orders") == (0, True, None)
    proofs.current = 9
    assert (await client.check("orders", 5))[:2] == (9, False)
    assert len(broker.all(pb.CommandLookup)) == 1, "whoever served it last is asked"


async def test_concurrent_waiters_share_the_next_request(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    """But never one that was asked before they came: it proves nothing of their time."""
    broker.answers[pb.CommandCheck] = None
    first = begin(client.check("orders", 5))
    await broker.received_of(pb.CommandCheck)
    others = [begin(client.check("orders", 5)) for _ in range(10)]
    await asyncio.sleep(0.01)
    proofs.answer(broker.links[-1], broker.all(pb.CommandCheck)[0])
    assert (await first).is_current
    second = await broker.received_of(pb.CommandCheck, 2)
    proofs.current = 9
    proofs.answer(broker.links[-1], second)
    assert {(await other).is_current for other in others} == {False}
    assert len(broker.all(pb.CommandCheck)) == 2


async def test_a_broker_that_does_not_serve_the_topic_any_more_is_left(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    await client.check("orders", 5)
    broker.answers[pb.CommandCheck] = broker.refuse(ServerError.SERVICE_NOT_READY)
    request = begin(client.check("orders", 5))
    await broker.received_of(pb.CommandCheck, 2)
    broker.answers[pb.CommandCheck] = proofs.answer
    assert (await request).is_current
    assert len(broker.all(pb.CommandLookup)) == 2


async def test_a_check_without_an_answer_is_unavailable(broker: FakeBroker) -> None:
    async with client_of(broker, limits=SHORT) as client:
        with pytest.raises(Unavailable, match="not checked"):
            await client.check("orders")


async def test_a_client_that_closes_ends_all_waiting_calls(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        request = begin(client.check("orders"))
        await broker.received_of(pb.CommandCheck)
        other = begin(client.check("orders"))
        await asyncio.sleep(0)
    for each in (request, other):
        with pytest.raises((Closed, Unavailable)):
            await each


async def test_apache_pulsar_cannot_be_asked(pulsar_broker: FakeBroker) -> None:
    pulsar_broker.has_extensions = False
    async with client_of(pulsar_broker) as client:
        with pytest.raises(Refused) as refused:
            await client.check("orders")
        leadership = await leadership_of(client)
        with pytest.raises(Refused) as unguarded:
            await leadership.guarded("audit").send(b"never")
    assert refused.value.code is unguarded.value.code is ServerError.UNSUPPORTED_VERSION_ERROR
    assert pulsar_broker.contents() == []
    assert pulsar_broker.all(pb.CommandCheck) == []


# --- guarded


async def test_in_another_bucket_each_write_is_proved_after_its_call(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    leadership = await leadership_of(client)
    guarded = leadership.guarded("far")
    await guarded.send(b"one")
    await guarded.send(b"two")
    assert len(broker.all(pb.CommandCheck)) == 2
    properties = {item.key: item.value for item in broker.all(pb.CommandProducer)[-1].metadata}
    assert properties["onewriter.guard"] == "persistent://public/default/orders"
    assert properties["onewriter.guard-number"] == str(leadership.epoch)
    proofs.current = leadership.epoch + 1
    with pytest.raises(Fenced) as fenced:
        await guarded.send(b"late")
    assert (fenced.value.epoch, fenced.value.current_epoch) == (leadership.epoch, proofs.current)
    assert broker.contents() == [b"one", b"two"]


async def test_beside_the_append_is_the_proof(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    proofs.is_atomic = True
    leadership = await leadership_of(client)
    await leadership.guarded("{orders}-audit").send(b"one")
    assert broker.all(pb.CommandCheck) == []


async def test_without_a_proof_nothing_is_sent(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    leadership = await leadership_of(client)
    broker.answers[pb.CommandCheck] = None
    with pytest.raises(NotSent):
        await leadership.guarded("far").send(b"never", timeout_seconds=0.1)
    assert broker.contents() == []


async def test_a_known_loss_sends_no_request(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    leadership = await leadership_of(client)
    guarded = leadership.guarded("far")
    await guarded.send(b"one")
    broker.answers[pb.CommandProducer] = broker.fence
    producer_id = broker.all(pb.CommandProducer)[0].producer_id
    broker.links[-1].write(replies.close_producer(producer_id))
    assert isinstance(await leadership.lost, Fenced)
    checks = len(broker.all(pb.CommandCheck))
    with pytest.raises(Fenced):
        await guarded.send(b"late")
    with pytest.raises(Fenced):
        await leadership.check()
    assert len(broker.all(pb.CommandCheck)) == checks


async def test_a_seal_is_requested_again_until_it_is_stored(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    leadership = await leadership_of(client)
    broker.answers[pb.CommandSeal] = broker.refuse(ServerError.SERVICE_NOT_READY)
    sealing = begin(leadership.seal("far"))
    await broker.received_of(pb.CommandSeal)
    broker.answers[pb.CommandSeal] = lambda link, c: link.write(replies.success(c.request_id))
    await sealing
    assert len(broker.all(pb.CommandSeal)) == 2


# --- transactions


def stored(link: FakeLink, command: Any) -> None:
    ids = [WireId(7, number) for number, _ in enumerate(command.parts, 1)]
    link.write(replies.published_together(command.request_id, ids))


async def test_a_transaction_is_one_request(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    proofs.is_atomic = True
    broker.answers[pb.CommandPublishTogether] = stored
    leadership = await leadership_of(client)
    async with leadership.transaction(announce=False) as transaction:
        first = transaction.send(b"own")
        second = transaction.send(b"audit", topic="{orders}-audit")
    assert (await first, await second) == (MessageId(7, 1), MessageId(7, 2))
    (command,) = broker.all(pb.CommandPublishTogether)
    assert len({part.producer_id for part in command.parts}) == 2
    assert broker.contents() == []


async def test_a_postponed_commit_is_requested_again(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    broker.answers[pb.CommandPublishTogether] = broker.refuse(ServerError.SERVICE_NOT_READY)
    leadership = await leadership_of(client)
    transaction = leadership.transaction()
    receipt = transaction.send(b"own")
    committing = begin(transaction.commit())
    await broker.received_of(pb.CommandPublishTogether)
    broker.answers[pb.CommandPublishTogether] = stored
    assert await committing == [MessageId(7, 1)]
    assert await receipt == MessageId(7, 1)


@pytest.mark.parametrize("is_cut", [True, False], ids=["connection lost", "no answer"])
async def test_a_commit_without_an_answer_is_unknown(
    broker: FakeBroker, proofs: Proofs, client: Client, *, is_cut: bool
) -> None:
    broker.answers[pb.CommandPublishTogether] = (lambda link, _: link.cut()) if is_cut else None
    leadership = await leadership_of(client)
    transaction = leadership.transaction(announce=False, timeout_seconds=60)
    receipt = transaction.send(b"own")
    committing = begin(transaction.commit())
    await broker.received_of(pb.CommandPublishTogether)
    if not is_cut:
        skip(60)
    with pytest.raises(OutcomeUnknown):
        await committing
    with pytest.raises(OutcomeUnknown):
        await receipt
    assert len(broker.all(pb.CommandPublishTogether)) == 1
    with pytest.raises(Closed):
        await transaction.commit()


async def test_a_definitely_refused_commit_reports_that_nothing_was_stored(
    broker: FakeBroker, proofs: Proofs, client: Client
) -> None:
    leadership = await leadership_of(client)
    for code, expected in (
        (ServerError.PRODUCER_FENCED, Fenced),
        (ServerError.NOT_ALLOWED_ERROR, Refused),
    ):
        broker.answers[pb.CommandPublishTogether] = broker.refuse(code)
        transaction = leadership.transaction(announce=False)
        transaction.send(b"own")
        with pytest.raises(expected):
            await transaction.commit()


async def test_a_commit_without_a_recipient_is_not_sent(
    broker: FakeBroker, proofs: Proofs, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = asyncio.Event()

    def for_long(_backoff: object) -> float:
        rests.set()
        return 3_600.0

    monkeypatch.setattr("onewriter._lead.transaction.Backoff.seconds", for_long)
    broker.answers[pb.CommandPublishTogether] = broker.refuse(ServerError.SERVICE_NOT_READY)
    leadership = await leadership_of(client)
    transaction = leadership.transaction(announce=False, timeout_seconds=60)
    transaction.send(b"own")
    committing = begin(transaction.commit())
    await rests.wait()
    skip(60)
    with pytest.raises(NotSent):
        await committing
