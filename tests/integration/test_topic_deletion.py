"""A deleted topic: its messages are gone, and its numbers are never reused."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import pulsar

from onewriter_testing.processes import LocalBrokers

BLOCKS = 2_500
"""More blocks than the store drops in one call."""


def delete(brokers: LocalBrokers, topic: str, switch: str = "force") -> int:
    host, _, port = brokers.http_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        connection.request("DELETE", f"/admin/v2/persistent/public/default/{topic}?{switch}=true")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_deleted_topic_is_never_read_again_and_epochs_rise(
    broker: LocalBrokers, stock: Callable[..., Any], topic: str
) -> None:
    client = stock(broker.service_url)
    before = client.create_producer(
        topic, access_mode=pulsar.ProducerAccessMode.Exclusive, batching_enabled=False
    )
    for _ in range(BLOCKS):
        last = before.send(b"old")  # one at a time: a block for each
    before.close()

    assert delete(broker, topic) == 204

    after = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    first = after.send(b"new")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"new"
    assert first.ledger_id() > last.ledger_id()


def test_a_topic_with_entries_in_an_earlier_ledger_is_not_empty(
    broker: LocalBrokers, stock: Callable[..., Any], topic: str
) -> None:
    client = stock(broker.service_url)

    def producer() -> pulsar.Producer:
        return client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)

    producer().close()
    assert delete(broker, topic, "onlyIfEmpty") == 204
    first = producer()
    first.send(b"kept")
    first.close()
    assert delete(broker, topic, "onlyIfEmpty") == 409
    producer().close()  # its own ledger, without an entry
    assert delete(broker, topic, "onlyIfEmpty") == 409
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"kept"
    reader.close()
    assert delete(broker, topic) == 204
    producer().close()
    assert delete(broker, topic, "onlyIfEmpty") == 204
