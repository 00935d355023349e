"""The SDK leads all partitions of a topic under one epoch, on a real broker."""

from __future__ import annotations

import pytest
from tests.integration.conftest import StockClients
from tests.integration.sinks import full, partitioned
from tests.integration.test_atomic_publish import Reader, epoch_of, holder

import onewriter.sync
from onewriter import AccessMode, Client, ConfigurationError, Fenced, Unavailable
from onewriter_testing.processes import LocalBrokers


async def test_a_leader_of_a_partitioned_topic_leads_each_partition_under_one_epoch(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 3)
    async with Client(broker.service_url) as client:
        assert await client.partitions_of(topic) == 3
        async with client.lead(topic, announce=False) as leadership:
            assert leadership.topic == full(topic)
            assert [each.epoch for each in leadership.partitions] == 3 * [leadership.epoch]
            assert epoch_of(broker, topic) == leadership.epoch
            for number, producer in enumerate(leadership.partitions):
                await producer.send(b"%d" % number)
            with pytest.raises(ConfigurationError, match=r"partitions\[number\].send"):
                await leadership.send(b"nowhere")
            await leadership.check()
        assert leadership.is_over
        async with client.lead(topic) as successor:
            assert successor.epoch > leadership.epoch
    reader = stock(broker.service_url)
    found = [Reader(reader, f"{topic}-partition-{number}").numbers() for number in range(3)]
    assert found == [[0], [1], [2]]


async def test_losing_one_partition_ends_the_leadership_of_all(
    broker: LocalBrokers, topic: str, stock: StockClients
) -> None:
    partitioned(broker, topic, 2)
    async with Client(broker.service_url) as client, client.lead(topic) as leadership:
        holder(stock(broker.service_url), f"{topic}-partition-1")
        assert isinstance(await leadership.over(), Fenced)
        for producer in leadership.partitions:
            await producer.ended()


async def test_a_leader_that_does_not_wait_is_refused_and_one_that_fences_deposes(
    broker: LocalBrokers, topic: str
) -> None:
    partitioned(broker, topic, 2)
    for name in (topic, f"{topic}-plain"):
        async with (
            Client(broker.service_url) as client,
            Client(broker.service_url) as other,
            client.lead(name, announce=False) as leadership,
        ):
            with pytest.raises(Fenced, match="exclusive producer"):
                async with other.lead(name, access_mode=AccessMode.EXCLUSIVE):
                    pytest.fail("two leaders")
            with pytest.raises(Unavailable, match="not the leader"):
                async with other.lead(name, timeout_seconds=0.2):
                    pytest.fail("two leaders")
            fencing = AccessMode.EXCLUSIVE_WITH_FENCING
            async with other.lead(name, access_mode=fencing, announce=False) as successor:
                assert successor.epoch > leadership.epoch
                assert isinstance(await leadership.over(), Fenced)


async def test_a_leader_of_a_partitioned_topic_announces_nothing(
    broker: LocalBrokers, topic: str
) -> None:
    partitioned(broker, topic, 2)
    async with Client(broker.service_url) as client:
        with pytest.raises(ConfigurationError, match="no leader is announced"):
            async with client.lead(topic, metadata={"offset": 7}):
                pytest.fail("it was announced")


def test_a_program_without_a_loop_leads_partitions_too(broker: LocalBrokers, topic: str) -> None:
    partitioned(broker, topic, 2)
    with onewriter.sync.Client(broker.service_url) as client, client.lead(topic) as leadership:
        for producer in leadership.partitions:
            producer.send(b"1")
        assert client.partitions_of(topic) == 2
