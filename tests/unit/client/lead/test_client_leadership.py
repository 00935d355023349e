"""Candidacies: terms that never return, losses reported at once, handover, release without rejoining."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fake_broker import FakeBroker, begin

from onewriter import (
    Candidacy,
    Client,
    Closed,
    Fenced,
    Leadership,
    Phase,
    ProducerOptions,
    Standing,
    Unavailable,
)
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


def fence_whoever_returns(broker: FakeBroker) -> None:
    """A producer with an epoch is fenced, one without gets the next epoch."""
    broker.answers[pb.CommandProducer] = lambda link, command: (
        broker.fence if command.HasField("topic_epoch") else broker.grant
    )(link, command)


async def test_every_term_has_its_own_epoch_session_and_producer(
    broker: FakeBroker, client: Client
) -> None:
    fence_whoever_returns(broker)
    terms: list[Leadership] = []
    async with Candidacy(client, "orders") as candidate:
        async for term in candidate.terms():
            terms.append(term)
            await term.send(b"mine")
            if len(terms) == 3:
                break
            broker.links[-1].write(replies.close_producer(len(terms)))
    assert [term.epoch for term in terms] == [7, 8, 9]
    assert len({term.session for term in terms}) == 3
    assert all(term.session.startswith(f"{term.epoch}-") for term in terms)
    for term in terms[:2]:
        with pytest.raises(Fenced):
            await term.send(b"for a term that is over")
    assert broker.contents() == [b"mine"] * 3


async def test_a_loss_is_reported_immediately_with_both_epochs(
    broker: FakeBroker, client: Client
) -> None:
    seen: list[Standing] = []
    async with Candidacy(client, "orders", on_change=seen.append) as candidate:
        term = await candidate.lead()
        broker.answers[pb.CommandProducer] = broker.fence
        broker.links[-1].write(replies.close_producer(1))
        assert isinstance(await term.over(), Fenced)
        phases = [(standing.phase, standing.is_connected) for standing in seen]
        suspended = phases.index((Phase.LEADING, False))
        assert phases[suspended + 1] == (Phase.QUEUEING, False)
        lost = seen[suspended + 1]
        assert (lost.term, lost.last_term, lost.latest_epoch) == (None, term, 8)
        assert isinstance(lost.loss, Fenced)
        versions = [standing.version for standing in seen]
        assert versions == sorted(set(versions))


async def test_a_resumed_term_is_the_same_term(broker: FakeBroker, client: Client) -> None:
    async with Candidacy(client, "orders") as candidate:
        term = await candidate.lead()
        broker.links[-1].cut()
        await broker.received_of(pb.CommandProducer, 2)
        await term.send(b"go on")
        assert candidate.term is term
        assert term.epoch == 7


async def test_release_completes_messages_and_queues_again_after_others(
    broker: FakeBroker, client: Client
) -> None:
    async with Candidacy(client, "orders") as candidate:
        term = await candidate.lead()
        receipts = [await term.producer.submit(b"x") for _ in range(10)]
        broker.answers[pb.CommandProducer] = broker.queue
        await candidate.release()
        assert all(receipt.done() and receipt.exception() is None for receipt in receipts)
        assert isinstance(await term.over(), Closed)
        request = await broker.received_of(pb.CommandProducer, 2)
        assert not request.HasField("topic_epoch"), "it queues like a new client"
        assert candidate.standing.phase is Phase.QUEUEING
        broker.grant(broker.links[-1], request)
        assert (await candidate.lead()).epoch == 8


async def test_a_candidate_stands_aside_until_the_next_request(
    broker: FakeBroker, client: Client
) -> None:
    async with Candidacy(client, "orders") as candidate:
        await candidate.lead()
        await candidate.release(rejoin=False)
        assert candidate.standing.phase is Phase.STANDING_ASIDE
        await asyncio.sleep(0.1)
        assert len(broker.all(pb.CommandProducer)) == 1
        candidate.rejoin()
        assert (await candidate.lead()).epoch == 8


async def test_a_waiter_may_stand_aside_too(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    async with Candidacy(client, "orders") as candidate:
        await broker.received_of(pb.CommandProducer)
        await candidate.release(rejoin=False)
        await broker.received_of(pb.CommandCloseProducer)
        while candidate.standing.phase is not Phase.STANDING_ASIDE:
            await candidate.change(candidate.standing.version)


async def test_two_concurrent_releases_are_one(broker: FakeBroker, client: Client) -> None:
    async with Candidacy(client, "orders") as candidate:
        await candidate.lead()
        broker.answers[pb.CommandProducer] = broker.queue
        await asyncio.gather(candidate.release(), candidate.release())
        assert len(broker.all(pb.CommandCloseProducer)) == 1


async def test_leading_begins_after_on_elected(broker: FakeBroker, client: Client) -> None:
    phases: list[Phase] = []

    async def first(term: Leadership) -> None:
        phases.append(candidate.standing.phase)
        await term.send(b"it is me")

    candidate = Candidacy(client, "orders", on_elected=first)
    async with candidate:
        await candidate.lead()
        assert phases == [Phase.QUEUEING]
        assert broker.contents() == [b"it is me"]


async def test_a_leader_whose_on_elected_fails_gives_the_topic_back(
    broker: FakeBroker, client: Client
) -> None:
    attempts: list[int] = []

    async def first(term: Leadership) -> None:
        attempts.append(term.epoch)
        if len(attempts) == 1:
            raise Unavailable("not now")

    async with Candidacy(client, "orders", on_elected=first) as candidate:
        assert (await candidate.lead()).epoch == 8
        assert attempts == [7, 8]
        assert len(broker.all(pb.CommandCloseProducer)) == 1


async def test_a_refused_candidate_retries_and_reports_why(
    broker: FakeBroker, client: Client
) -> None:
    """Its claim may be on its way."""
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.AUTHORIZATION_ERROR, "no claim")
    async with Candidacy(client, "orders") as candidate:
        await broker.received_of(pb.CommandProducer, 2)
        assert candidate.standing.trouble == "no claim"
        del broker.answers[pb.CommandProducer]
        await candidate.lead()
        assert candidate.standing.trouble == ""


async def test_requeueing_after_a_loss_is_delayed_by_priority(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []

    def delay(priority: int) -> float:
        requests.append(priority)
        return 0.0

    monkeypatch.setattr("onewriter._produce.tenure.requeue_delay_seconds", delay)
    fence_whoever_returns(broker)
    async with Candidacy(client, "orders", ProducerOptions(queue_priority=5)) as candidate:
        await candidate.lead()
        assert requests == []
        broker.links[-1].write(replies.close_producer(1))
        while (term := await candidate.lead()).epoch == 7:
            await term.over()
        assert requests == [5]


async def test_the_end_of_the_loop_ends_all_waiting_calls(
    broker: FakeBroker, client: Client
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    async with Candidacy(client, "orders") as candidate:
        waiting = begin(candidate.lead())
        await broker.received_of(pb.CommandProducer)
    with pytest.raises(Closed):
        await waiting
    assert [term async for term in candidate.terms()] == []
