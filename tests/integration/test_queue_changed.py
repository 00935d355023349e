"""A holder with onewriter's SDK is notified of the number of waiters; stock clients never get the command."""

from __future__ import annotations

import asyncio

from tests.integration.conftest import RawClients

from onewriter import AccessMode, Client, ProducerOptions
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

SECONDS = 120


async def test_a_holder_is_notified_of_waiting_stock_clients(
    broker: LocalBrokers, topic: str, raw: RawClients
) -> None:
    async with Client(broker.service_url) as client, asyncio.timeout(SECONDS):
        first = await client.create_producer(
            topic, ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
        )
        stock = await asyncio.to_thread(lambda: raw(broker.address(), extensions_version=0))
        waiter = await asyncio.to_thread(stock.waiter, topic)
        assert await first.waited_for() == 1
        third = client.start_producer(
            topic, ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        )
        while first.waiting != 2:  # noqa: ASYNC110 - the broker reports it
            await asyncio.sleep(0.01)
        await first.close()
        await asyncio.to_thread(waiter.ready_at_last)
        await asyncio.to_thread(stock.ping)
        assert not stock.has_received(pb.CommandQueueChanged), "a stock client does not know it"
        await asyncio.to_thread(waiter.close)
        await third.ready()
        assert third.waiting == 0
