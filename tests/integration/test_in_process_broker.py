"""The fixture ``onewriter_broker`` for tests of applications, and each fault that it can cause."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import Any

import pulsar
import pytest
from tests.integration.conftest import StockClients

from onewriter import AccessMode, Client, Fenced, Limits, ProducerOptions
from onewriter.testing import InProcessBroker, in_process_broker
from onewriter_core.errors import ConfigurationError, Unavailable

EXCLUSIVE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)
WAITING = ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
SECONDS_MAX = 120.0


@pytest.fixture(autouse=True)
def nobody_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of this file have their own default, because their users' tests wait for it."""
    monkeypatch.delenv("ONEWRITER_SILENT_AFTER_SECONDS", raising=False)


BALANCED = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders}
spec:
  topic: persistent://public/default/orders
  access: {modes: [Exclusive], requireClaim: false}
"""


def asked(broker: InProcessBroker, what: str) -> Any:
    address = f"{broker.http_url}/onewriter/v1/{what}"
    with urllib.request.urlopen(address) as answer:  # noqa: S310 - the broker of this test
        return json.load(answer)


def test_a_sync_test_writes_and_reads_with_the_stock_client(
    onewriter_broker: InProcessBroker, stock: StockClients
) -> None:
    client = stock(onewriter_broker.service_url)
    consumer = client.subscribe("orders", "audit")
    client.create_producer("orders").send(b"first")
    assert consumer.receive(60_000).data() == b"first"
    names = [topic["name"] for topic in asked(onewriter_broker, "topics")["topics"]]
    assert names == ["persistent://public/default/orders"]


def test_each_test_has_a_broker_of_its_own(onewriter_broker: InProcessBroker) -> None:
    with in_process_broker() as other:
        assert other.service_url != onewriter_broker.service_url


class TestWithTopics:
    @pytest.fixture
    def onewriter_manifests(self) -> str:
        return BALANCED

    def test_topics_can_be_declared(
        self, onewriter_broker: InProcessBroker, stock: StockClients
    ) -> None:
        client = stock(onewriter_broker.service_url)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("orders")  # Shared, which is not among the declared modes
        client.create_producer("orders", access_mode=pulsar.ProducerAccessMode.Exclusive)


async def test_fence_deposes_the_writer_and_promotes_the_next(
    onewriter_broker: InProcessBroker,
) -> None:
    async with asyncio.timeout(SECONDS_MAX), Client(onewriter_broker.service_url) as client:
        first = await client.create_producer("orders", EXCLUSIVE)
        second = client.start_producer("orders", WAITING)
        await first.waited_for()
        epoch = await asyncio.to_thread(onewriter_broker.fence, "orders")
        with pytest.raises(Fenced):
            await first.send(b"too late")
        await second.ready()
        assert second.epoch is not None
        assert second.epoch > epoch


def test_the_stock_client_is_fenced_as_by_any_broker(
    onewriter_broker: InProcessBroker, stock: StockClients
) -> None:
    producer = stock(onewriter_broker.service_url).create_producer(
        "orders", access_mode=pulsar.ProducerAccessMode.Exclusive
    )
    producer.send(b"mine")
    onewriter_broker.fence("orders")
    with pytest.raises(pulsar.ProducerFenced):
        producer.send(b"too late")


async def test_hand_over_leaves_no_gap(onewriter_broker: InProcessBroker) -> None:
    async with asyncio.timeout(SECONDS_MAX), Client(onewriter_broker.service_url) as client:
        first = await client.create_producer("orders", EXCLUSIVE)
        with pytest.raises(Unavailable, match="no producer is waiting"):
            await asyncio.to_thread(onewriter_broker.hand_over, "orders")
        second = client.start_producer("orders", WAITING)
        await first.waited_for()
        epoch = await asyncio.to_thread(onewriter_broker.hand_over, "orders")
        await second.ready()
        assert second.epoch == epoch


async def test_a_writer_cut_off_by_a_partition_is_succeeded_and_notified(
    onewriter_broker: InProcessBroker,
) -> None:
    patient = Limits(silent_after_seconds=SECONDS_MAX)  # it returns after the loss is noticed
    async with (
        asyncio.timeout(SECONDS_MAX),
        Client(onewriter_broker.service_url, limits=patient) as here,
        Client(onewriter_broker.service_url) as there,
    ):
        first = await here.create_producer("orders", EXCLUSIVE)
        await first.send(b"before")
        await asyncio.to_thread(onewriter_broker.partition, "orders")
        second = there.start_producer("orders", WAITING)
        await second.ready()
        await asyncio.to_thread(onewriter_broker.heal)
        assert isinstance(await first.ended(), Fenced)
        await second.send(b"after")


async def test_while_all_are_cut_off_no_message_passes_and_then_all_continue(
    onewriter_broker: InProcessBroker,
) -> None:
    quick = Limits(ping_after_seconds=0.3, silent_after_seconds=0.6, connect_timeout_seconds=0.5)
    async with (
        asyncio.timeout(SECONDS_MAX),
        Client(onewriter_broker.service_url, limits=quick) as client,
    ):
        producer = await client.create_producer("orders", EXCLUSIVE)
        await producer.send(b"before")
        await asyncio.to_thread(onewriter_broker.partition)
        with pytest.raises(Unavailable):
            await client.create_producer("another", EXCLUSIVE, timeout_seconds=1.5)
        pending = await producer.submit(b"meanwhile")
        await asyncio.to_thread(onewriter_broker.heal)
        await pending
        assert producer.end is None


async def test_data_under_way_at_a_partition_arrives_after_the_heal(
    onewriter_broker: InProcessBroker,
) -> None:
    async with asyncio.timeout(SECONDS_MAX), Client(onewriter_broker.service_url) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        await producer.send(b"before")
        epoch = producer.epoch
        await asyncio.to_thread(onewriter_broker.partition, "orders")
        pending = await producer.submit(b"meanwhile")
        await asyncio.sleep(0.1)
        assert not pending.done()
        await asyncio.to_thread(onewriter_broker.heal)
        await pending
        assert producer.epoch == epoch


def test_an_unused_topic_has_no_client_to_cut_off(
    onewriter_broker: InProcessBroker,
) -> None:
    with pytest.raises(Unavailable, match="no producer holds"):
        onewriter_broker.partition("orders")


async def test_a_failover_keeps_the_writer_and_its_epoch(onewriter_broker: InProcessBroker) -> None:
    async with asyncio.timeout(SECONDS_MAX), Client(onewriter_broker.service_url) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        before = await producer.send(b"before")
        epoch = producer.epoch
        for _ in range(2):
            await asyncio.to_thread(onewriter_broker.fail_over)
            after = await producer.send(b"after")
            assert after.ledger > before.ledger, "another ledger, the same epoch"
            before = after
        assert producer.epoch == epoch


async def test_a_failover_to_a_lagging_replica_loses_what_it_had_not(
    onewriter_broker: InProcessBroker,
) -> None:
    async with asyncio.timeout(SECONDS_MAX), Client(onewriter_broker.service_url) as client:
        producer = await client.create_producer("orders", EXCLUSIVE)
        await producer.send(b"kept")
        await asyncio.to_thread(onewriter_broker.lag)
        await producer.send(b"lost")
        await asyncio.to_thread(onewriter_broker.fail_over)
        await producer.send(b"after")
        async with await client.create_reader("orders") as reader:
            contents = [(await reader.next()).content for _ in range(2)]
    assert contents == [b"kept", b"after"]
    losses = await asyncio.to_thread(asked, onewriter_broker, "losses")
    assert "orders" in json.dumps(losses)


def test_an_invalid_setting_is_reported_immediately() -> None:
    with pytest.raises(ValueError, match="buckets"), in_process_broker(settings={"buckets": 0}):
        raise AssertionError("it started")


def test_without_the_broker_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onewriter_testing.in_process", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[broker,embedded,testing\]'"):
        in_process_broker()
