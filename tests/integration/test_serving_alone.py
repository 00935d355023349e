"""A leader that serves until a deadline, over real brokers: never two at once, whatever ends it."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.following import placed
from tests.integration.forked_brokers import forked_brokers

from onewriter import AccessMode, Client, Leadership, ProducerOptions
from onewriter_broker.testing import LocalBrokers

SECONDS = 1.0
OPTIONS = ProducerOptions(serve_seconds=SECONDS)
FENCING = ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
PATIENCE_SECONDS = 240
ATTEMPTS_MAX = 5


async def serves(leadership: Leadership) -> None:
    while not leadership.may_serve():  # noqa: ASYNC110 - by the clock, and nobody tells
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


async def test_handing_over_is_not_waited_for(broker: LocalBrokers, topic: str) -> None:
    """Otherwise three seconds would have to pass each time, on a machine of any speed."""
    async with asyncio.timeout(PATIENCE_SECONDS), Client(broker.service_url) as client:
        for _ in range(ATTEMPTS_MAX):
            if await handover_seconds(client, topic) < 2.0:
                return
    pytest.fail("a handover was waited for each time")


async def handover_seconds(client: Client, topic: str) -> float:
    """How long it takes until the successor of a leader that may serve for three seconds leads."""
    options = ProducerOptions(serve_seconds=3.0)
    async with client.lead(topic, options=options, announce=False) as leadership:
        await serves(leadership)
        successor = client.start_producer(
            topic, ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        )
        await leadership.producer.waited_for()
        begun = time.monotonic()
        await leadership.handover()
        assert not leadership.may_serve()
        await successor.ready()
        took = time.monotonic() - begun
        await successor.close()
    return took


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_leader_cut_off_from_a_dying_broker_stops_before_its_successor_begins(
    topic: str, brokers: int
) -> None:
    """The next broker knows from the store what the last one had granted."""
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
            latest = leadership._serving._until if leadership._serving else 0.0
            taking_over = await other.create_producer(topic, FENCING, timeout_seconds=120)
            assert time.monotonic() > latest
            assert not leadership.may_serve()
            assert taking_over.epoch is not None
            assert taking_over.epoch > leadership.epoch
            await leading.__aexit__(None, None, None)
