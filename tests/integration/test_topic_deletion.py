"""A deleted topic: its messages are gone, its numbers are not."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import pulsar

from onewriter_broker.testing import LocalBrokers

BLOCKS = 2_500
"""More than the store drops in one call."""


def delete(brokers: LocalBrokers, topic: str) -> int:
    host, _, port = brokers.http_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request("DELETE", f"/admin/v2/persistent/public/default/{topic}?force=true")
        return connection.getresponse().status
    finally:
        connection.close()


def test_nothing_of_it_is_read_again_and_epochs_rise(
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
    assert reader.read_next(5_000).data() == b"new"
    assert first.ledger_id() > last.ledger_id()
