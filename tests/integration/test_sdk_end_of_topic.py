"""The end of a terminated topic in the SDK's readers, consumers, states and commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pulsar
import pytest
from tests.integration.conftest import RawClients, StockClients
from tests.integration.http_calls import PERSISTENT, Http

from onewriter import (
    EARLIEST,
    Batching,
    Client,
    ConsumerOptions,
    EndOfTopic,
    ProducerOptions,
    ReaderOptions,
    Refused,
    SharedMap,
    SubscriptionType,
)
from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers

SECONDS_MAX = 60.0
PROGRAM = str(Path(sys.executable).with_name("onewriter"))


@pytest.fixture
async def client(broker: LocalBrokers) -> AsyncIterator[Client]:
    async with Client(broker.service_url) as opened:
        yield opened


def terminate(broker: LocalBrokers, topic: str) -> None:
    assert Http(broker.http_url)("POST", f"{PERSISTENT}/{topic}/terminate")[0] == 200


async def write(client: Client, topic: str, *contents: bytes, key: str | None = None) -> None:
    options = ProducerOptions(batching=Batching(messages_max=2, delay_seconds=60.0))
    producer = await client.create_producer(topic, options)
    receipts = [await producer.submit(each, key=key) for each in contents]
    await producer.flush()
    for receipt in receipts:
        await receipt
    await producer.close()


async def test_a_reader_reads_all_of_it_and_ends(
    client: Client, broker: LocalBrokers, topic: str
) -> None:
    await write(client, topic, b"0", b"1", b"2")
    early = await client.create_reader(topic)
    terminate(broker, topic)
    late = await client.create_reader(topic)
    for reader in (early, late):
        assert [message.content async for message in reader] == [b"0", b"1", b"2"]
        assert reader.has_reached_end_of_topic
        with pytest.raises(EndOfTopic):
            await reader.next(timeout_seconds=SECONDS_MAX)
    last = early.position
    assert last is not None
    assert [message async for message in await client.create_reader(topic, last)] == []
    await early.seek(EARLIEST)
    assert [message.content async for message in early] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_consumer_ends_when_all_of_it_is_acknowledged(
    client: Client, broker: LocalBrokers, topic: str, kind: SubscriptionType
) -> None:
    await write(client, topic, b"0", b"1", b"2")
    terminate(broker, topic)
    options = ConsumerOptions(kind=kind, start=EARLIEST)
    consumer = await client.subscribe(topic, "books", options)
    seen = []
    async for message in consumer:
        assert not consumer.has_reached_end_of_topic
        seen.append(message.content)
        await consumer.acknowledge(message)
    assert seen == [b"0", b"1", b"2"]
    await consumer.close()
    again = await client.subscribe(topic, "books", options)
    assert [message async for message in again] == []


async def test_a_compacted_topic_ends_where_its_last_key_was_removed(
    client: Client, broker: LocalBrokers, topic: str
) -> None:
    await write(client, topic, b"old", b"new", key="a")
    await write(client, topic, b"gone", b"", key="b")
    http = Http(broker.http_url)
    assert http("PUT", f"{PERSISTENT}/{topic}/compaction")[0] in {200, 204}
    while http("GET", f"{PERSISTENT}/{topic}/compaction")[1]["status"] != "SUCCESS":
        pass
    terminate(broker, topic)
    reader = await client.create_reader(topic, EARLIEST, ReaderOptions(read_compacted=True))
    assert [message.content async for message in reader] == [b"new"]


async def test_a_stock_client_reads_it_and_waits(
    client: Client, broker: LocalBrokers, stock: StockClients, topic: str
) -> None:
    """The C++ client and those based on it are not notified: they would close their connection."""
    await write(client, topic, b"0", b"1")
    terminate(broker, topic)
    reader = stock(broker.service_url).create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(2)] == [b"0", b"1"]
    assert not reader.has_message_available()
    with pytest.raises(pulsar.Timeout):
        reader.read_next(300)


def test_consume_follows_to_the_end(broker: LocalBrokers, raw: RawClients, topic: str) -> None:
    producer = raw(broker.address()).producer(topic)
    for number in range(3):
        producer.publish(b"%d" % number)
    terminate(broker, topic)
    for words in ([], ["--subscription", "books"]):
        done = subprocess.run(
            [PROGRAM, "consume", topic, "--follow", *words],
            env={**os.environ, "ONEWRITER_SERVICE_URL": broker.service_url},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["0", "1", "2"]
        assert "is terminated, and all its messages were received" in done.stderr


async def test_the_last_leader_of_a_terminated_topic_is_still_known(
    client: Client, broker: LocalBrokers, topic: str
) -> None:
    async with client.lead(topic, metadata="the last") as leadership:
        await leadership.send(b"0")
    terminate(broker, topic)
    leader = await client.leader(topic)
    assert leader is not None
    assert leader.metadata == "the last"
    with pytest.raises(Refused) as refused:
        await client.lead(topic).__aenter__()
    assert refused.value.code is ServerError.TOPIC_TERMINATED_ERROR


async def test_a_shared_map_stays_readable_and_refuses_writes(
    client: Client, broker: LocalBrokers, topic: str
) -> None:
    async with (
        SharedMap(client, topic, str, int) as writer,
        SharedMap(client, topic, str, int) as follower,
    ):
        await writer.put("a", 1)
        terminate(broker, topic)
        for shared in (writer, follower):
            assert await shared.get("a", latest=True, timeout_seconds=SECONDS_MAX) == 1
            with pytest.raises(Refused) as refused:
                await shared.put("a", 2, timeout_seconds=SECONDS_MAX)
            assert refused.value.code is ServerError.TOPIC_TERMINATED_ERROR
            assert await shared.get("a", latest=True, timeout_seconds=SECONDS_MAX) == 1
            assert shared.state.trouble is None
    async with SharedMap(client, topic, str, int) as late:
        assert await late.list_keys(latest=True) == ["a"]
