"""Reading the predecessor's announcement: in time, in order, and the latest one."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of
from tests.unit.client.fake_topic import FakeTopic, Subscriber

from onewriter import (
    EARLIEST,
    LATEST,
    Candidacy,
    Client,
    ConfigurationError,
    LeaderInfo,
    Limits,
    MessageId,
    Refused,
    Unavailable,
)
from onewriter._lead.search import ENTRIES_FIRST, newest_leader, search_ranges
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import Send

SEEN = LeaderInfo(topic="orders", epoch=3, identity="before", metadata={"offset": 12})


def announce(topic: FakeTopic, info: LeaderInfo) -> None:
    message = info.announcement()
    metadata = pb.MessageMetadata(
        producer_name="before",
        sequence_id=len(topic.entries),
        publish_time=1,
        partition_key=message.key,
        properties=[pb.KeyValue(key=key, value=value) for key, value in message.properties.items()],
    )
    topic.store(build_entry(metadata, message.content))


def announced(broker: FakeBroker) -> list[Any]:
    """The metadata of what we announced."""
    return [json.loads(content).get("resumeInfo") for content in broker.contents()]


# ---------------------------------------------------------------- at the beginning of a term


async def test_the_predecessors_metadata_is_read_before_the_first_write(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    announce(topic, SEEN)
    topic.publish(b"1", b"2")
    async with client.lead("orders", read_predecessor=True) as leadership:
        assert leadership.predecessor == SEEN
        assert leadership.metadata == {"offset": 12}
    assert announced(broker) == [{"offset": 12}], "it is not lost if this one ends at once"
    kinds = [type(command) for _, command, _ in broker.received]
    first_read = kinds.index(pb.CommandSubscribe)
    assert kinds.index(pb.CommandProducer) < first_read < kinds.index(Send)


async def test_metadata_of_its_own_goes_before_the_predecessors(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    announce(topic, SEEN)
    async with client.lead("orders", metadata="new", read_predecessor=True) as leadership:
        assert leadership.predecessor == SEEN
        assert leadership.metadata == "new"
    assert announced(broker) == ["new"]


async def test_a_transaction_continues_with_what_the_predecessor_left(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    announce(topic, SEEN)
    async with client.lead("orders", announce=False, read_predecessor=True) as leadership:
        assert leadership.predecessor == SEEN
        assert broker.sends() == []
        committing = begin(leadership.transaction().commit())
        together = await broker.received_of(pb.CommandPublishTogether)
        assert b'"resumeInfo": {"offset": 12}' in together.parts[0].entry
        committing.cancel()
        await asyncio.wait([committing])


async def test_the_first_leader_has_none(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    async with client.lead("orders", read_predecessor=True) as leadership:
        assert leadership.predecessor is None
        assert leadership.metadata is None
    assert announced(broker) == [None]


async def test_unread_is_not_the_same_as_none(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    announce(topic, SEEN)
    async with client.lead("orders") as leadership:
        with pytest.raises(ConfigurationError, match="read_predecessor"):
            _ = leadership.predecessor
    assert broker.all(pb.CommandSubscribe) == [], "nobody pays who did not ask"
    async with Candidacy(client, "orders") as candidacy:
        with pytest.raises(ConfigurationError):
            _ = (await candidacy.lead()).predecessor


async def test_a_loss_while_it_reads_ends_the_reading(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    def fence_whoever_returns(link: FakeLink, command: pb.CommandProducer) -> None:
        (broker.fence if command.HasField("topic_epoch") else broker.grant)(link, command)

    async def lead() -> tuple[int, LeaderInfo | None]:
        async with client.lead("orders", read_predecessor=True) as leadership:
            return leadership.epoch, leadership.predecessor

    announce(topic, SEEN)
    topic.is_silent = True
    leading = begin(lead())
    await broker.received_of(pb.CommandSubscribe, 2)
    broker.answers[pb.CommandProducer] = fence_whoever_returns
    broker.links[-1].write(replies.close_producer(1))
    await broker.received_of(pb.CommandProducer, 3)
    topic.is_silent = False
    topic.deliver()
    assert await leading == (8, SEEN)
    assert len(broker.sends()) == 1


async def test_a_leader_without_the_right_to_read_does_not_lead(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    broker.answers[pb.CommandSubscribe] = broker.refuse(ServerError.AUTHORIZATION_ERROR, "no right")
    with pytest.raises(Refused, match="no right"):
        async with client.lead("orders", read_predecessor=True):
            raise AssertionError("it leads")
    await broker.received_of(pb.CommandCloseProducer)
    assert broker.sends() == []


async def test_reading_counts_against_the_time_to_become_the_leader(
    broker: FakeBroker, topic: FakeTopic, client: Client
) -> None:
    announce(topic, SEEN)
    topic.is_silent = True
    leading = begin(client.lead("orders", read_predecessor=True, timeout_seconds=60).__aenter__())
    await broker.received_of(pb.CommandSubscribe)
    skip(60)
    with pytest.raises(Unavailable, match="not the leader"):
        await leading
    await broker.received_of(pb.CommandCloseProducer)
    assert broker.sends() == []


async def test_a_leader_that_cannot_read_now_queues_again(
    broker: FakeBroker, topic: FakeTopic
) -> None:
    announce(topic, SEEN)
    broker.answers[pb.CommandSubscribe] = broker.refuse(ServerError.SERVICE_NOT_READY)
    limits = Limits(operation_timeout_seconds=0.1, request_timeout_seconds=2.0)
    async with client_of(broker, limits=limits) as client:

        async def lead() -> tuple[int, LeaderInfo | None]:
            async with client.lead("orders", read_predecessor=True) as leadership:
                return leadership.epoch, leadership.predecessor

        leading = begin(lead())
        await broker.received_of(pb.CommandProducer, 2)
        broker.answers[pb.CommandSubscribe] = topic.subscribe
        epoch, predecessor = await leading
        assert epoch > 7
        assert predecessor == SEEN


# ---------------------------------------------------------------- finding it


async def test_the_newest_announcement_is_found_before_many_later_messages(
    topic: FakeTopic, client: Client
) -> None:
    for offset in range(3):
        announce(topic, LeaderInfo(topic="t", epoch=offset, identity="i", metadata=offset))
        topic.publish(*(b"%d" % number for number in range(ENTRIES_FIRST * 10)))
    found = await client.leader("orders")
    assert found is not None
    assert found.metadata == 2


async def test_announcing_again_makes_it_cheap(topic: FakeTopic, client: Client) -> None:
    sent = []
    deliver = topic.send

    def send(subscriber: Subscriber, number: int, epoch: int | None = None) -> None:
        sent.append(number)
        deliver(subscriber, number, epoch)

    topic.send = send  # type: ignore[method-assign]
    topic.publish(*(b"%d" % number for number in range(ENTRIES_FIRST * 10)))
    announce(topic, SEEN)
    assert await client.leader("orders") == SEEN
    assert min(sent) == len(topic.entries) - ENTRIES_FIRST


async def leader_after_short_silence(client: Client) -> LeaderInfo | None:
    """As ``Client.leader``, but 0.05 s without a message count as silence."""
    async with asyncio.timeout(60), await client.create_reader("orders", LATEST) as reader:
        return await newest_leader(reader, quiet_seconds=0.05)


async def test_an_older_one_is_not_taken_while_the_broker_is_away(
    broker: FakeBroker,
    topic: FakeTopic,
    client: Client,
) -> None:
    """It was away for longer than a topic may be quiet, between the older one and the newest."""
    announce(topic, LeaderInfo(topic="t", epoch=1, identity="older"))
    topic.publish(b"1", b"2")
    announce(topic, SEEN)
    deliver = topic.send
    refusals = itertools.count()

    def cut(subscriber: Subscriber, number: int, epoch: int | None = None) -> None:
        if number == 2:
            topic.send = deliver  # type: ignore[method-assign]
            broker.answers[pb.CommandSubscribe] = away
            subscriber.link.cut()
            subscriber.link.is_lost = True
        else:
            deliver(subscriber, number, epoch)

    def away(link: FakeLink, command: pb.CommandSubscribe) -> None:
        if next(refusals) < 3:
            broker.refuse(ServerError.SERVICE_NOT_READY)(link, command)
        else:
            topic.subscribe(link, command)

    topic.send = cut  # type: ignore[method-assign]
    assert await leader_after_short_silence(client) == SEEN
    assert next(refusals) >= 3


async def test_the_search_does_not_wait_for_trimmed_entries(
    broker: FakeBroker,
    topic: FakeTopic,
    client: Client,
) -> None:
    """The broker names a last message that it has no more."""
    topic.publish(b"1")
    topic.is_silent = True
    assert await leader_after_short_silence(client) is None


@given(ledger=st.integers(0, 10**6), entry=st.integers(0, 10**6))
def test_stretches_lead_back_to_the_beginning(ledger: int, entry: int) -> None:
    starts = list(search_ranges(MessageId(ledger, entry)))
    assert starts == sorted(set(starts), reverse=True)
    assert starts[-1] == EARLIEST
    assert len(starts) < 40
    if ledger > 0:
        assert MessageId(ledger, 0) in starts, "nothing of the ledger is left out"
    if ledger > 0 and entry >= ENTRIES_FIRST:
        assert starts[0] == MessageId(ledger, entry - ENTRIES_FIRST + 1)
