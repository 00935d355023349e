"""What tests of producers share: their options, and a message whose fate is open."""

from __future__ import annotations

import asyncio

from tests.unit.client.fake_broker import FakeBroker

from onewriter import AccessMode, Producer, ProducerOptions
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
