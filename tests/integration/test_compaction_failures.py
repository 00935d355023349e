"""Brokers that die during a compaction, on a real store: a view is complete, or it does not exist."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner
from tests.integration.conftest import ROUNDS, StockClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.http_calls import PERSISTENT, Http
from tests.integration.raw import eventually
from tests.servers import StoreServer, running_server

from onewriter_broker.verify.cli import verify_command
from onewriter_testing.processes import LocalBrokers

KEYS = 300
MESSAGES = 4_000
PADDING = b"." * 400

RETAINED = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: kept, namespace: default}
spec:
  topic: persistent://public/default/kept
  access: {modes: [Shared], requireClaim: false}
  retention: {maxEntries: 100}
  compaction: {enabled: true, thresholdBytes: 1000000000}
"""


@pytest.fixture
def valkey() -> Iterator[StoreServer]:
    with running_server("valkey") as server:
        yield server


@pytest.fixture
def brokers(valkey: StoreServer) -> Iterator[LocalBrokers]:
    with forked_brokers(brokers=2, redis_url=valkey.url, manifests=RETAINED) as running:
        yield running


def read(client: Any, topic: str) -> dict[str, bytes]:
    """Return the final state of a compacted reader; each of its messages is newer than the last."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found: dict[str, bytes] = {}
    last = (0, 0, 0)
    while reader.has_message_available():
        message = reader.read_next(60_000)
        number = message.message_id()
        position = (number.ledger_id(), number.entry_id(), number.batch_index())
        assert position > last
        last = position
        found[message.partition_key()] = message.data()
    reader.close()
    return found


def holds(valkey: StoreServer, topic: str) -> bool:
    result = CliRunner().invoke(
        verify_command, [topic, "--redis-url", valkey.url, "--buckets", str(BUCKETS)]
    )
    assert result.exit_code == 0, result.output
    return True


def asked_to_compact(brokers: LocalBrokers, topic: str) -> int:
    """Have the topic compacted; return the broker that does it, found although others just died."""
    found: list[int] = []

    def ask() -> bool:
        for number, url in enumerate(brokers.http_urls):
            with contextlib.suppress(OSError):
                if Http(url)("PUT", f"{PERSISTENT}/{topic}/compaction")[0] in {204, 409}:
                    found.append(number)
                    return True
        return False

    eventually(ask, seconds=120)
    return found[0]


def is_compacted(brokers: LocalBrokers, topic: str) -> bool:
    """Whether its broker has compacted the topic; asks again if it has moved to one that has not begun."""
    for url in brokers.http_urls:
        status, reported = Http(url)("GET", f"{PERSISTENT}/{topic}/compaction")
        if status == HTTPStatus.OK and reported["status"] == "NOT_RUN":
            Http(url)("PUT", f"{PERSISTENT}/{topic}/compaction")
        if status == HTTPStatus.OK and reported["status"] == "SUCCESS":
            return True
    return False


def test_keys_outlive_retention(
    brokers: LocalBrokers, stock: StockClients, valkey: StoreServer
) -> None:
    client = stock(brokers.service_url)
    producer = client.create_producer("kept", batching_enabled=False)
    for number in range(50):
        producer.send(b"%d" % number, partition_key=f"old-{number}")
    for number in range(3_000):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key="hot")
    producer.flush()
    # The ledger must end before any part of it can be trimmed.
    answers = {Http(url)("PUT", f"{PERSISTENT}/kept/unload")[0] for url in brokers.http_urls}
    assert 204 in answers
    producer.send(b"last", partition_key="hot")
    eventually(lambda: brokers.events("compaction.done") != [], seconds=120)
    eventually(lambda: brokers.events("retention.trimmed") != [], seconds=120)
    expected = {f"old-{number}": b"%d" % number for number in range(50)} | {"hot": b"last"}
    assert read(client, "kept") == expected
    plain = client.create_reader("kept", pulsar.MessageId.earliest)
    assert plain.read_next(60_000).partition_key() == "hot"
    assert holds(valkey, "kept")


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
def test_a_broker_that_dies_in_the_middle_leaves_every_key(
    brokers: LocalBrokers, stock: StockClients, valkey: StoreServer, topic: str
) -> None:
    chance = random.Random(7)
    client = stock(brokers.service_url)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    state: dict[str, bytes] = {}
    for round_number in range(max(3, ROUNDS // 3)):
        for number in range(MESSAGES):
            key = f"key-{chance.randrange(KEYS)}"
            content = b"%d %d" % (round_number, number) + PADDING
            if chance.random() < 0.02:
                content = b""
            producer.send_async(content, lambda *_: None, partition_key=key)
            state.pop(key, None)
            if content:
                state[key] = content
        producer.flush()
        owner = asked_to_compact(brokers, topic)
        time.sleep(chance.random() * 0.4)
        brokers.kill(owner)
        brokers.restart(owner)
        eventually(
            lambda: {key: value for key, value in read(client, topic).items() if value} == state,
            seconds=120,
        )
        assert holds(valkey, topic)
    asked_to_compact(brokers, topic)
    eventually(lambda: is_compacted(brokers, topic), seconds=120)
    assert read(client, topic) == state
    assert holds(valkey, topic)
    eventually(lambda: len(valkey.command("KEYS", f"ow:*:compacted?:*{topic}")) == 1)
