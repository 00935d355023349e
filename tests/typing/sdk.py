"""What the SDK's types are, as mypy sees them in an application; never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import assert_type

import onewriter.sync
from onewriter import (
    Batching,
    Candidacy,
    Client,
    Compression,
    LeaderInfo,
    Leadership,
    Message,
    MessageId,
    OnewriterError,
    Producer,
    ProducerOptions,
)


async def producing(client: Client) -> None:
    options = ProducerOptions(batching=Batching(), compression=Compression.LZ4, queue_priority=1)
    producer = await client.create_producer("orders", options)
    assert_type(producer, Producer)
    assert_type(await producer.send(b"content", key="k"), MessageId)
    assert_type(await producer.submit(b"content"), asyncio.Future[MessageId])
    assert_type(producer.epoch, int | None)
    assert_type(producer.queue_priority, int)
    producer.queue_priority = 2  # type: ignore[misc]
    options.queue_priority = 2  # type: ignore[misc]
    await producer.send("text")  # type: ignore[arg-type]


async def leading(client: Client) -> None:
    async with client.lead("orders", priority=10, metadata={"offset": 1}) as leadership:
        assert_type(leadership, Leadership)
        assert_type(leadership.epoch, int)
        assert_type(await leadership.lost, OnewriterError)
        assert_type(leadership.lost.reason, OnewriterError | None)
        assert_type(leadership.predecessor, LeaderInfo | None)
    assert_type(await client.leader("orders"), LeaderInfo | None)
    async with Candidacy(client, "orders") as candidacy:
        async for term in candidacy.terms():
            assert_type(term, Leadership)


def blocking(client: onewriter.sync.Client) -> None:
    with client.lead("orders") as leadership:
        assert_type(leadership, onewriter.sync.Leadership)
        assert_type(leadership.send(b"content"), MessageId)
        assert_type(leadership.lost.wait(timeout_seconds=1.0), OnewriterError | None)
        receipt = leadership.producer.submit(b"content")
        assert_type(receipt, concurrent.futures.Future[MessageId])
        assert_type(leadership.producer, onewriter.sync.Producer)
        assert_type(leadership.epoch, int)
        assert_type(leadership.guarded("audit"), onewriter.sync.Guarded)
        assert_type(leadership.guarded("audit").send(b"content"), MessageId)
        with leadership.transaction() as transaction:
            assert_type(transaction.send(b"content"), concurrent.futures.Future[MessageId])
        leadership.producer.queue_priority = 2  # type: ignore[assignment]
        leadership.send("text")  # type: ignore[arg-type]
    assert_type(client.leader("orders"), LeaderInfo | None)
    with client.subscribe("orders", "books") as consumer:
        assert_type(consumer, onewriter.sync.Consumer)
        assert_type(consumer.receive(timeout_seconds=1.0), Message)
        for message in consumer:
            assert_type(message, Message)
    with client.own("group", ["resource"]) as (owned,):
        assert_type(owned.generation, int)
        assert_type(owned.subscribe(), onewriter.sync.Consumer)
    with onewriter.sync.Candidacy(client, "orders") as candidacy:
        for term in candidacy.terms():
            assert_type(term, onewriter.sync.Leadership)


def blocking_map(client: onewriter.sync.Client) -> None:
    with onewriter.sync.SharedMap(client, "prices", str, int) as prices:
        assert_type(prices.get("pear"), int | None)
        assert_type(prices.get_or_default("pear", "none"), int | str)
        assert_type(prices.update("pear", lambda cents: (cents or 0) + 1), int | None)
        assert_type(prices.scan(len), int)
        prices.put("pear", "expensive")  # type: ignore[arg-type]
        with prices.watch() as watch:
            for change in watch:
                assert_type(change.value, int | None)
