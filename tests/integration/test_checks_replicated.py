"""CHECK on a topic whose acknowledgements wait for a replica: the check is as durable as they are, and delays
no other topic.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.bare_brokers import bare_broker, declared
from tests.servers import running_pair

from onewriter import AccessMode, Client, Limits, ProducerOptions, Unavailable

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
CHECKS = 200
"""Simultaneous checks, each of another epoch: the SDK combines checks of the same epoch."""

SENDS = 20
PATIENT = Limits(operation_timeout_seconds=300.0)
IMPATIENT = Limits(operation_timeout_seconds=6.0)


async def test_only_checks_wait_for_the_replica(topic: str) -> None:
    manifests = declared((topic, "Replicated"), (f"{topic}-local", "Local"))
    with (
        running_pair() as (primary, replica),
        bare_broker(primary.url, manifests=manifests) as brokers,
    ):
        async with (
            Client(brokers.service_url, limits=PATIENT) as client,
            Client(brokers.service_url, limits=IMPATIENT) as impatient,
        ):
            careful = await client.create_producer(topic, EXCLUSIVE)
            epoch = careful.epoch or 0
            local = await client.create_producer(f"{topic}-local", EXCLUSIVE)
            answers = await asyncio.gather(
                *(client.check(topic, epoch + number) for number in range(CHECKS))
            )
            assert [each.is_current for each in answers] == [True] + [False] * (CHECKS - 1)
            replica.pause()
            checks = asyncio.gather(
                *(client.check(topic, epoch + number) for number in range(CHECKS))
            )
            for number in range(SENDS):  # meanwhile the store's replica does not answer
                await local.send(b"%d" % number)
            with pytest.raises(Unavailable, match="replicas do not answer"):
                await impatient.check(topic)
            await local.send(b"last")
            assert not checks.done()
            replica.resume()
            assert await checks == answers
            assert (await client.check(topic, epoch)).is_current
            await careful.send(b"still mine")
