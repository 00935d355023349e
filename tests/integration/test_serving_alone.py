"""A leader that serves until a deadline, over real brokers: never two at once, whatever ends it."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers

from onewriter import AccessMode, Client, Leadership, ProducerOptions
from onewriter_testing.processes import LocalBrokers

SECONDS = 1.0
OPTIONS = ProducerOptions(serve_seconds=SECONDS)
FENCING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
PATIENCE_SECONDS = 240


async def serves(leadership: Leadership) -> None:
    while not leadership.may_serve():  # noqa: ASYNC110 - by the clock, without an event
        await asyncio.sleep(0.01)


async def test_a_takeover_waits_until_the_former_leader_cannot_serve(
    broker: LocalBrokers, topic: str
) -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Client(broker.service_url) as client,
        Client(broker.service_url) as other,
        client.lead(topic, options=OPTIONS, announce=False) as leadership,
    ):
        await serves(leadership)
        first = leadership.serve_until
        while leadership.serve_until <= first:  # noqa: ASYNC110 - it is renewed
            await asyncio.sleep(0.01)
        latest = leadership.serve_until
        taking_over = other.start_producer(topic, FENCING)
        await leadership.lost
        assert not leadership.may_serve(), "it hears of its end at once"
        await taking_over.ready()
        assert time.monotonic() > latest
        await taking_over.close()


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_leader_cut_off_from_a_dying_broker_stops_before_its_successor_begins(
    topic: str, brokers: int
) -> None:
    """The next broker reads from the store what the last one had granted."""
    with forked_brokers(brokers=brokers) as local:
        placed(local, topic)
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            Client(local.service_url) as client,
            Client(local.service_url) as other,
        ):
            leading = client.lead(topic, options=OPTIONS, announce=False)
            leadership = await leading.__aenter__()
            await serves(leadership)
            await asyncio.to_thread(local.replace, local.owner_of(topic))
            latest = leadership._deadline._until if leadership._deadline else 0.0
            taking_over = await other.create_producer(topic, FENCING, timeout_seconds=120)
            assert time.monotonic() > latest
            assert not leadership.may_serve()
            assert taking_over.epoch is not None
            assert taking_over.epoch > leadership.epoch
            await leading.__aexit__(None, None, None)
