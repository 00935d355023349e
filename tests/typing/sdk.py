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
    assert_type(client.leader("orders"), LeaderInfo | None)
