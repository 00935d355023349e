"""Common options of producer tests, and a message with an unknown result."""

from __future__ import annotations

import asyncio

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, begin

from onewriter import AccessMode, Client, Producer, ProducerOptions, Unavailable
from onewriter_core.wire.values import Send

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE, name="writer")

WAIT = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE, name="writer", queue_priority=7)


async def cut_in_flight(broker: FakeBroker, producer: Producer) -> asyncio.Future[object]:
    """A message that was written to a connection which then broke, without a receipt."""
    broker.answers[Send] = None
    sent = len(broker.sends())
    receipt = await producer.submit(b"in flight")
    await broker.eventually(lambda: len(broker.sends()) == sent + 1)
    del broker.answers[Send]
    broker.links[-1].cut()
    return receipt  # type: ignore[return-value]  # whatever it ends with


async def never_made(client: Client, trouble: str, options: ProducerOptions = EXCLUSIVE) -> None:
    """A producer that is waited for in vain: what kept it is named in the end."""
    is_known = asyncio.Event()

    def record(producer: Producer) -> None:
        if trouble in str(producer.trouble):
            is_known.set()

    making = begin(client.create_producer("orders", options, timeout_seconds=60, on_change=record))
    await is_known.wait()
    skip(60)
    with pytest.raises(Unavailable, match=trouble):
        await making
