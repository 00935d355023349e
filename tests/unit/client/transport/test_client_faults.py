"""Errors of the application, its files or a broker end the affected object, never the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import QUICK, FakeBroker, FakeLink, begin, client_of
from tests.unit.client.fake_topic import FakeTopic
from tests.unit.client.producing import never_made

from onewriter import (
    Candidacy,
    Client,
    Closed,
    ConfigurationError,
    Fenced,
    Leadership,
    OutcomeUnknown,
    Phase,
    ProducerOptions,
    Standing,
    Unavailable,
)
from onewriter._transport.connection import TOKEN_RETRY_SECONDS
from onewriter._transport.lookup import Directory
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Ack


@pytest.fixture
async def reported() -> AsyncIterator[list[BaseException]]:
    """What the loop's exception handler was told."""
    found: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: found.append(context["exception"]))
    yield found
    loop.set_exception_handler(None)


def fail(*_anything: object) -> None:
    raise ZeroDivisionError


# ---------------------------------------------------------------- reaching a broker


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
async def test_a_name_that_no_host_can_have_is_unavailable(host: str) -> None:
    async with Client(f"pulsar://{host}:6650") as client:
        await never_made(client, "cannot be reached")


async def test_a_token_source_that_fails_is_asked_again(broker: FakeBroker) -> None:
    failures = iter([ZeroDivisionError("vault away"), OSError("vault away")])

    async def token() -> str:
        if (failure := next(failures, None)) is not None:
            raise failure
        return "secret"

    async with client_of(broker, token=token) as client:
        producer = await client.create_producer("orders")
        await producer.send(b"mine")
    assert broker.all(pb.CommandConnect)[-1].auth_data == b"secret"


async def test_a_token_source_that_fails_at_a_challenge_is_asked_again(
    broker: FakeBroker,
) -> None:
    answers: list[Any] = ["first", ZeroDivisionError(), ConfigurationError("no"), "second"]

    async def token() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async with client_of(broker, token=token) as client:
        producer = await client.create_producer("orders")
        link = broker.links[-1]
        link.write(link.wire.challenge("fake", "token"))
        for left in (2, 1):
            await broker.eventually(lambda left=left: len(answers) == left)  # type: ignore[misc]
            skip(TOKEN_RETRY_SECONDS)
        response = await broker.received_of(pb.CommandAuthResponse)
        assert response.response.auth_data == b"second"
        await producer.send(b"mine")


async def test_a_wrong_file_ends_the_question_and_not_the_client(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.create_producer("orders")

    async def owner_of(*_anything: object) -> None:
        raise ConfigurationError("the certificate is not there")

    monkeypatch.setattr(Directory, "owner_of", owner_of)
    with pytest.raises(ConfigurationError):
        await client.check("orders")
    await producer.send(b"mine")


# ---------------------------------------------------------------- callbacks


async def test_a_callback_that_fails_is_reported_and_ends_nothing(
    broker: FakeBroker, client: Client, reported: list[BaseException]
) -> None:
    received: list[object] = []
    other = await client.create_producer("other", on_change=fail)
    async with client.lead("orders", on_lost=fail) as leadership:
        leadership.lost.call(received.append)
        broker.answers[pb.CommandProducer] = broker.fence
        broker.links[-1].write(replies.close_producer(2))
        assert isinstance(await leadership.lost, Fenced)
        await broker.eventually(lambda: bool(received))
        leadership.lost.call(fail)
    await other.send(b"still there")
    assert reported
    assert {type(each) for each in reported} == {ZeroDivisionError}


async def test_a_candidate_whose_on_elected_fails_ends_alone(
    client: Client, reported: list[BaseException]
) -> None:
    async def elected(_term: Leadership) -> None:
        raise ZeroDivisionError

    other = await client.create_producer("other")
    async with Candidacy(client, "orders", on_elected=elected) as candidate:
        with pytest.raises(Closed, match="ZeroDivisionError"):
            await candidate.lead()
        assert candidate.standing.phase is Phase.CLOSED
    assert [type(each) for each in reported] == [ZeroDivisionError]
    await other.send(b"still there")


async def test_a_candidate_leads_although_its_on_change_fails(
    client: Client, reported: list[BaseException]
) -> None:
    def changed(_standing: Standing) -> None:
        raise ZeroDivisionError

    async with Candidacy(client, "orders", on_change=changed) as candidate:
        term = await candidate.lead()
        await term.send(b"mine")
    assert reported


async def test_a_candidacy_whose_close_is_cancelled_is_over(
    broker: FakeBroker, client: Client
) -> None:
    candidate = Candidacy(client, "orders")
    await candidate.__aenter__()
    await candidate.lead()
    broker.answers[pb.CommandCloseProducer] = None
    closing = begin(candidate.close())
    await broker.received_of(pb.CommandCloseProducer)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert candidate.standing.phase is Phase.CLOSED
    requests = len(broker.all(pb.CommandProducer))
    candidate.rejoin()
    await asyncio.sleep(0.05)
    assert candidate.standing.phase is Phase.CLOSED
    assert len(broker.all(pb.CommandProducer)) == requests


# ---------------------------------------------------------------- leading


async def test_a_waiter_that_is_fenced_queues_again(broker: FakeBroker, client: Client) -> None:
    def fence_once(link: FakeLink, command: pb.CommandProducer) -> None:
        broker.answers[pb.CommandProducer] = broker.grant
        broker.fence(link, command)

    broker.answers[pb.CommandProducer] = fence_once
    async with client.lead("orders", timeout_seconds=60) as leadership:
        await leadership.send(b"mine")
    assert broker.contents()[1:] == [b"mine"]


async def test_a_condition_that_is_not_true_is_final(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.fence
    with pytest.raises(Fenced):
        async with client.lead("orders", options=ProducerOptions(if_epoch=3)):
            raise AssertionError("it leads")


# ---------------------------------------------------------------- the client ends


async def test_work_that_begins_while_the_client_closes_ends_with_it(broker: FakeBroker) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def ending(client: Client) -> None:
        try:
            await never()
        finally:
            client.spawn(never())

    async with client_of(broker) as client:
        client.spawn(ending(client))
        await asyncio.sleep(0)
    with pytest.raises(Closed):
        client.spawn(never())


# ---------------------------------------------------------------- a broker's nonsense


async def test_an_answer_of_another_kind_is_no_error_of_the_application(
    broker: FakeBroker, client: Client
) -> None:
    def success(link: FakeLink, command: Any) -> None:
        link.write(replies.success(command.request_id))

    topic = FakeTopic(broker)
    broker.answers[pb.CommandGetLastMessageId] = broker.answers[Ack] = success
    async with await client.subscribe("orders", "group") as consumer:
        topic.publish(b"one")
        message = await consumer.receive(timeout_seconds=60)
        acknowledging = begin(consumer.acknowledge(message))
        await broker.eventually(
            lambda: any(isinstance(each, Ack) for _, each, _ in broker.received)
        )
        asking = begin(consumer.last_message_id())
        await broker.received_of(pb.CommandGetLastMessageId)
        skip(QUICK.request_timeout_seconds)
        with pytest.raises(OutcomeUnknown):
            await acknowledging
        with pytest.raises(Unavailable):
            await asking
