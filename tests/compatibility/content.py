"""What a compatibility fixture holds: how it is written, and how it is read back.

``fill`` writes a bit of everything that brokers, clients and the pipeline store, with real components. ``observe``
describes a running installation in plain values. A fixture keeps what ``observe`` said when it was written; every later
tree must say the same of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulsar
from pulsar import CompressionType, ConsumerType, InitialPosition, MessageId, ProducerAccessMode
from tests.integration.http_calls import OWN, PERSISTENT, Http
from tests.integration.offloading import offload, stored
from tests.integration.raw import eventually
from tests.integration.sinks import rows, target_of, write

from onewriter import Client
from onewriter.state import SharedMap
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: partitioned}
spec: {partitions: 3, access: {requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: ordered}
spec: {promotion: {policy: Fifo}, access: {requireClaim: false}}
"""

ANSWER_MILLISECONDS_MAX = 60_000

COMPRESSIONS = {
    "plain": CompressionType.NONE,
    "zlib": CompressionType.ZLib,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
    "snappy": CompressionType.SNAPPY,
}

TOPICS = (
    "tenures",
    *(f"partitioned-partition-{number}" for number in range(3)),
    "shared",
    *(f"compressed-{name}" for name in COMPRESSIONS),
    "chunked",
    "compacted",
    "subscribed",
    "published",
    "terminated",
)
"""The logs that are read message by message."""

SUBSCRIPTIONS = ("exclusive", "shared")
RESOURCES = ("task-1", "task-2")
MAP = "settings"


def fill(brokers: LocalBrokers, tables: Path) -> None:
    """Write the content of a fixture to fresh brokers, and tables of it to a folder."""
    client = pulsar.Client(
        brokers.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        _fill_topics(client, brokers)
    finally:
        client.close()
    asyncio.run(_fill_with_sdk(brokers.service_url))
    target = target_of(brokers, "published")
    for version in (1, 2):
        write(target, version, rows(range(10 * version, 10 * version + 10)))
    for kind in FORMATS:
        report = offload(
            Access(brokers.http_url),
            Tables(str(tables / kind), kind=kind),
            "tenures",
            with_audit=True,
        )
        assert report.rows


def _fill_topics(client: pulsar.Client, brokers: LocalBrokers) -> None:
    http = Http(brokers.http_url)

    def produce(topic: str, first: int, count: int, **options: Any) -> None:
        options.setdefault("batching_enabled", False)
        key = options.pop("key", lambda number: f"key-{number % 3}")
        producer = client.create_producer(topic, **options)
        for number in range(first, first + count):
            producer.send(
                b"%d of %s" % (number, topic.encode()),
                partition_key=key(number),
                properties={"n": str(number)},
            )
        producer.close()

    exclusive = {"access_mode": ProducerAccessMode.Exclusive}
    produce("tenures", 0, 8, producer_name="first", **exclusive)
    produce("tenures", 8, 8, producer_name="second", batching_enabled=True, **exclusive)
    assert http("POST", f"{OWN}/tenures/fence", {})[0] == 200
    produce("tenures", 16, 8, producer_name="third", **exclusive)
    produce("partitioned", 0, 12, **exclusive)
    for name in ("one", "two"):
        produce("shared", 0, 4, producer_name=name)
    for name, compression in COMPRESSIONS.items():
        produce(f"compressed-{name}", 0, 4, compression_type=compression, batching_enabled=True)
    large = client.create_producer("chunked", chunking_enabled=True, batching_enabled=False)
    large.send(b"chunk" * 1_200_000)  # more than one entry takes
    large.close()
    produce("compacted", 0, 12)
    assert http("PUT", f"{PERSISTENT}/compacted/compaction")[0] == 204
    eventually(lambda: http("GET", f"{PERSISTENT}/compacted/compaction")[1]["status"] == "SUCCESS")
    produce("compacted", 12, 2)
    produce("subscribed", 0, 10)
    _subscribe(client)
    produce("terminated", 0, 3)
    assert http("POST", f"{PERSISTENT}/terminated/terminate")[0] == 200
    produce("deleted", 0, 3)
    assert http("DELETE", f"{PERSISTENT}/deleted")[0] == 204


def _subscribe(client: pulsar.Client) -> None:
    """A cursor in the middle, and one with individual acknowledgements after an unacknowledged message."""
    for name, kind in zip(
        SUBSCRIPTIONS, (ConsumerType.Exclusive, ConsumerType.Shared), strict=True
    ):
        consumer = client.subscribe(
            "subscribed", name, consumer_type=kind, initial_position=InitialPosition.Earliest
        )
        for number in range(6):
            message = consumer.receive(ANSWER_MILLISECONDS_MAX)
            if kind is ConsumerType.Exclusive or number != 2:
                consumer.acknowledge(message)
        consumer.close()


async def _fill_with_sdk(url: str) -> None:
    async with Client(url) as client:
        for _ in range(2):
            async with client.own("workers", list(RESOURCES)) as owned:
                await owned[0].check()
        async with SharedMap(client, MAP, str, int) as shared:
            for number in range(20):
                await shared.put(f"key-{number % 5}", number)
        async with client.lead("led") as leadership:
            await leadership.send(b"led")
            await leadership.guarded("guarded").send(b"guarded")


# ------------------------------------------------------------------ reading back


def observe(brokers: LocalBrokers) -> dict[str, Any]:
    """What a client sees of an installation, as JSON values."""
    http = Http(brokers.http_url)
    client = pulsar.Client(
        brokers.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        return {
            "messages": {topic: messages_of(client, topic) for topic in TOPICS},
            "compacted": messages_of(client, "compacted", is_read_compacted=True),
            "epochs": {topic: _epoch(http, topic) for topic in (*TOPICS, "led", "guarded")},
            "history": _history(http, "tenures"),
            "backlogs": {name: _backlog(http, name) for name in SUBSCRIPTIONS},
            "ownerships": _ownerships(http),
            "map": asyncio.run(_map(brokers.service_url)),
            "deleted": http("GET", f"{PERSISTENT}/deleted/stats")[0],
        }
    finally:
        client.close()


def messages_of(client: pulsar.Client, topic: str, **options: Any) -> list[dict[str, Any]]:
    reader = client.create_reader(topic, MessageId.earliest, **options)
    found = []
    while reader.has_message_available():
        message = reader.read_next(ANSWER_MILLISECONDS_MAX)
        place = message.message_id()
        found.append(
            {
                "position": f"{place.ledger_id()}-{place.entry_id()}-{place.batch_index()}",
                "content": hashlib.sha256(message.data()).hexdigest()[:16],
                "key": message.partition_key(),
                "properties": dict(message.properties()),
            }
        )
    reader.close()
    return found


def _epoch(http: Http, topic: str) -> int:
    code, body = http("GET", f"{OWN}/{topic}")
    assert code == 200, body
    return int(body["epoch"])


def _history(http: Http, topic: str) -> list[dict[str, Any]]:
    code, body = http("GET", f"{OWN}/{topic}/history?limit=100")
    assert code == 200, body
    kept = ("kind", "epoch", "ledger", "cause")
    return [{name: record.get(name) for name in kept} for record in body["records"]]


def _backlog(http: Http, subscription: str) -> int:
    code, body = http("GET", f"{PERSISTENT}/subscribed/stats")
    assert code == 200, body
    return int(body["subscriptions"][subscription]["msgBacklog"])


def _ownerships(http: Http) -> dict[str, int]:
    code, body = http("GET", "/onewriter/v1/ownerships")
    assert code == 200, body
    return {each["resource"]: each["generation"] for each in body["ownerships"]}


async def _map(url: str) -> Mapping[str, int]:
    async with Client(url) as client, SharedMap(client, MAP, str, int) as shared:
        return await shared.scan(lambda content: dict(sorted(content.items())), latest=True)


def values_of(tables: Path) -> dict[str, list[str]]:
    """The values in the tables of each format, in the log's order."""
    return {
        kind: [value.decode() for value in stored(Tables(str(tables / kind), kind=kind))]
        for kind in FORMATS
    }
