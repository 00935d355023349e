"""``client.lead``: waiting for the grant, the announcement, the loss, the handover."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin

from onewriter import (
    Client,
    Closed,
    ConfigurationError,
    Fenced,
    LeaderInfo,
    OnewriterError,
    ProducerOptions,
    Refused,
    Unavailable,
)
from onewriter._lead.announcement import leader_in
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.messages import parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send


def close_producer(broker: FakeBroker, producer_id: int = 1) -> None:
    broker.links[-1].write(replies.close_producer(producer_id))


# ---------------------------------------------------------------- leading


async def test_a_leader_waits_announces_itself_writes_and_hands_over(
    broker: FakeBroker, client: Client
) -> None:
    broker.answers[pb.CommandProducer] = broker.queue

    async def lead() -> None:
        async with client.lead(
            "orders", priority=10, identity="writer-0", metadata={"offset": 12}
        ) as leadership:
            assert leadership.epoch == 7
            assert not leadership.lost.is_set()
            await leadership.send(b"mine")
            receipt = await leadership.submit(b"seen through")
        assert receipt.result().entry == 3
        assert isinstance(await leadership.lost, Closed)
        assert leadership.is_over

    leading = begin(lead())
    request = await broker.received_of(pb.CommandProducer)
    properties = {each.key: each.value for each in request.metadata}
    assert properties == {"onewriter.queue-priority": "10", "onewriter.identity": "writer-0"}
    assert request.producer_access_mode == pb.WAIT_FOR_EXCLUSIVE
    assert broker.sends() == [], "it does not lead yet"
    broker.grant(broker.links[-1], request)
    await leading
    announcement, *rest = broker.contents()
    assert rest == [b"mine", b"seen through"]
    document = json.loads(announcement)
    assert (document["epoch"], document["priority"], document["resumeInfo"]) == (
        7,
        10,
        {"offset": 12},
    )
    kinds = [type(command) for _, command, _ in broker.received]
    assert kinds.index(pb.CommandCloseProducer) > max(
        number for number, kind in enumerate(kinds) if kind is Send
    ), "it leaves behind its last message"


async def test_an_announcement_is_recognized_by_its_property_and_key(
    broker: FakeBroker, client: Client
) -> None:
    async with client.lead("orders", metadata=b"\x00\xff") as leadership:
        metadata = parse_metadata(broker.payloads()[-1])
        properties = {each.key: each.value for each in metadata.properties}
        assert metadata.partition_key == "onewriter.leader"
        assert properties == {"onewriter.kind": "leader", "onewriter.epoch": "7"}
        found = leader_in(properties, broker.contents()[0])
        assert found == leadership.info(b"\x00\xff")
        await leadership.announce({"offset": 13})
        again = leader_in(properties, broker.contents()[1])
        assert again is not None
        assert again.metadata == {"offset": 13}


async def test_nothing_is_published_without_announce(broker: FakeBroker, client: Client) -> None:
    async with client.lead("orders", announce=False):
        assert broker.sends() == []


@pytest.mark.parametrize("metadata", [object(), {1, 2}])
async def test_invalid_metadata_is_refused_before_the_candidate_waits(
    broker: FakeBroker, client: Client, metadata: Any
) -> None:
    with pytest.raises(ConfigurationError, match="metadata"):
        client.lead("orders", metadata=metadata)
    assert broker.all(pb.CommandProducer) == []


@pytest.mark.parametrize(
    ("properties", "content"),
    [
        ({}, b"{}"),
        ({"onewriter.kind": "other"}, b"{}"),
        ({"onewriter.kind": "leader"}, b"\xff"),
        ({"onewriter.kind": "leader"}, b"[]"),
        ({"onewriter.kind": "leader"}, b'{"topic": "t", "epoch": "x", "identity": "i"}'),
        (
            {"onewriter.kind": "leader"},
            b'{"topic": "t", "epoch": 1, "identity": "i", "resumeInfoBase64": "?"}',
        ),
    ],
)
def test_an_invalid_announcement_names_no_leader(
    properties: dict[str, str], content: bytes
) -> None:
    assert leader_in(properties, content) is None


@pytest.mark.parametrize("metadata", [None, "text", b"bytes", [1, {"a": None}], 0, ""])
def test_an_announcement_contains_the_given_values(metadata: Any) -> None:
    info = LeaderInfo(topic="t", epoch=3, identity="i", host="h", priority=-1, metadata=metadata)
    message = info.announcement()
    assert leader_in(message.properties, message.content) == info


# ---------------------------------------------------------------- losing


async def test_a_loss_is_reported_immediately_and_to_the_next_call(
    broker: FakeBroker, client: Client
) -> None:
    reported: list[OnewriterError] = []
    later: list[OnewriterError] = []
    async with client.lead("orders", on_lost=reported.append) as leadership:
        waiting = begin(leadership.lost.wait())
        broker.answers[pb.CommandProducer] = broker.fence
        close_producer(broker)
        reason = await waiting
        assert isinstance(reason, Fenced)
        assert (reason.epoch, reason.current_epoch) == (7, 8)
        assert reported == [reason]
        assert leadership.lost.reason is reason
        leadership.lost.call(later.append)
        assert later == [reason], "who asks late is told at once"
        with pytest.raises(Fenced):
            await leadership.send(b"too late")
    assert len(broker.contents()) == 1, "who it was, and nothing else"


async def test_a_cut_connection_is_no_loss(broker: FakeBroker, client: Client) -> None:
    async with client.lead("orders", priority=100) as leadership:
        broker.links[-1].cut()
        request = await broker.received_of(pb.CommandProducer, 2)
        assert request.topic_epoch == 7, "a resume, at once whatever the priority"
        await leadership.send(b"on")
        assert not leadership.lost.is_set()


async def test_a_leader_that_is_fenced_before_its_announcement_queues_again(
    broker: FakeBroker, client: Client
) -> None:
    def fence_the_first(link: FakeLink, send: Send) -> None:
        if send.producer_id == 1:
            broker.answers[pb.CommandProducer] = fence_whoever_returns
            close_producer(broker)
        else:
            broker.receipt(link, send)

    def fence_whoever_returns(link: FakeLink, command: pb.CommandProducer) -> None:
        (broker.fence if command.HasField("topic_epoch") else broker.grant)(link, command)

    broker.answers[Send] = fence_the_first
    async with client.lead("orders") as leadership:
        assert leadership.epoch == 8


# ---------------------------------------------------------------- not leading


async def test_lead_waits_until_its_time_limit(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.queue
    leading = begin(client.lead("orders", timeout_seconds=60).__aenter__())
    await broker.received_of(pb.CommandProducer)
    skip(60)
    with pytest.raises(Unavailable, match="not the leader"):
        await leading
    await broker.received_of(pb.CommandCloseProducer)


async def test_a_definite_no_is_raised(broker: FakeBroker, client: Client) -> None:
    broker.answers[pb.CommandProducer] = broker.refuse(ServerError.AUTHORIZATION_ERROR, "no claim")
    with pytest.raises(Refused, match="no claim"):
        async with client.lead("orders"):
            raise AssertionError("it leads")


async def test_an_exception_of_the_block_is_raised_after_the_handover(
    broker: FakeBroker, client: Client
) -> None:
    async def lead() -> None:
        async with client.lead("orders") as leadership:
            await leadership.send(b"before")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lead()
    assert len(broker.all(pb.CommandCloseProducer)) == 1
    assert broker.contents()[1:] == [b"before"]


async def test_a_broker_without_epochs_is_refused(broker: FakeBroker, client: Client) -> None:
    def grant(link: FakeLink, command: pb.CommandProducer) -> None:
        link.write(replies.producer_success(command.request_id, "writer"))

    broker.answers[pb.CommandProducer] = grant
    with pytest.raises(Refused, match="without an epoch"):
        async with client.lead("orders"):
            raise AssertionError("it leads")


# ---------------------------------------------------------------- PIP-440


async def test_the_priority_cannot_be_changed_afterwards(
    broker: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("orders", ProducerOptions(queue_priority=4))
    assert producer.queue_priority == 4
    with pytest.raises(AttributeError):
        producer.queue_priority = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        producer.options.queue_priority = 5  # type: ignore[misc]


async def test_a_waiter_that_lost_its_connection_lets_lower_priorities_pass(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []

    def delay(priority: int) -> float:
        requests.append(priority)
        return 0.0

    monkeypatch.setattr("onewriter._produce.tenure.requeue_delay_seconds", delay)
    broker.answers[pb.CommandProducer] = broker.queue

    async def lead() -> int:
        async with client.lead("orders", priority=10) as leadership:
            return leadership.epoch

    leading = begin(lead())
    await broker.received_of(pb.CommandProducer)
    assert requests == [], "the first time is no reconnect"
    broker.links[-1].cut()
    again = await broker.received_of(pb.CommandProducer, 2)
    assert requests == [10]
    broker.grant(broker.links[-1], again)
    assert await leading == 7
