"""Every later release opens the data of an earlier release, and continues with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, ProducerAccessMode
from tests.compatibility.content import (
    ANSWER_MILLISECONDS_MAX,
    MANIFESTS,
    MAP,
    RESOURCES,
    messages_of,
    observe,
    values_of,
)
from tests.compatibility.write import FIXTURES, OBSERVED
from tests.integration.offloading import offload
from tests.integration.sinks import rows, target_of, write

from onewriter import Client
from onewriter.state import SharedMap
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FIXTURES.glob("*.tar.xz"))


@dataclass(frozen=True, slots=True)
class Opened:
    """A fixture that brokers of this tree have opened, and what was observed when it was written."""

    brokers: LocalBrokers
    tables: Path
    observed: dict[str, Any]


def unpacked(name: str, folder: Path) -> dict[str, Any]:
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        # As an argument, Python 3.11.3 and earlier do not know it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)  # noqa: S202 - our own archive
    observed: dict[str, Any] = json.loads((folder / OBSERVED).read_text())
    return observed


@pytest.fixture(scope="module", params=NAMES)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("fixture")
    observed = unpacked(request.param, folder)
    brokers = LocalBrokers(folder, manifests=MANIFESTS)
    try:
        brokers.start()
        yield Opened(brokers, folder / "tables", observed)
    finally:
        brokers.stop()


@pytest.fixture
def stock(opened: Opened) -> Iterator[pulsar.Client]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(opened.brokers.service_url, logger=quiet)
    yield client
    client.close()


def test_there_are_fixtures() -> None:
    assert NAMES


def test_clients_see_what_they_saw_when_it_was_written(opened: Opened) -> None:
    expected = dict(opened.observed)
    tables = expected.pop("tables")
    found = observe(opened.brokers)
    # A broker that starts opens new ledgers, so the history continues.
    found["history"] = found["history"][: len(expected["history"])]
    assert json.loads(json.dumps(found)) == expected
    assert values_of(opened.tables) == tables


def test_epochs_rise_from_where_they_were(opened: Opened, stock: pulsar.Client) -> None:
    producer = stock.create_producer("tenures", access_mode=ProducerAccessMode.Exclusive)
    place = producer.send(b"written by a later release")
    producer.close()
    assert place.ledger_id() > opened.observed["epochs"]["tenures"]


def test_subscriptions_continue_after_the_acknowledged_entries(stock: pulsar.Client) -> None:
    exclusive = stock.subscribe("subscribed", "exclusive")
    assert next_number(exclusive) == 6
    exclusive.close()
    shared = stock.subscribe("subscribed", "shared", consumer_type=ConsumerType.Shared)
    assert {next_number(shared) for _ in range(5)} == {2, 6, 7, 8, 9}
    shared.close()


def next_number(consumer: Any) -> int:
    return int(consumer.receive(ANSWER_MILLISECONDS_MAX).properties()["n"])


def test_generations_and_maps_continue(opened: Opened) -> None:
    async def go_on() -> None:
        async with Client(opened.brokers.service_url) as client:
            async with client.own("workers", list(RESOURCES)) as owned:
                for each in owned:
                    assert each.generation == opened.observed["ownerships"][each.resource] + 1
            async with SharedMap(client, MAP, str, int) as shared:
                assert await shared.put("key-0", 100) == opened.observed["map"]["key-0"]

    asyncio.run(go_on())


def test_a_published_version_is_recognized(opened: Opened) -> None:
    target = target_of(opened.brokers, "published")
    (again,) = write(target, 2, rows(range(20, 30))).values()
    assert again.is_duplicate
    (new,) = write(target, 3, rows(range(30, 40))).values()
    assert not new.is_duplicate


@pytest.mark.parametrize("kind", FORMATS)
def test_an_offload_continues_in_an_earlier_table(
    opened: Opened, stock: pulsar.Client, kind: str
) -> None:
    producer = stock.create_producer("tenures", access_mode=ProducerAccessMode.Exclusive)
    producer.send(b"for the %s table" % kind.encode())
    producer.close()
    tables = Tables(str(opened.tables / kind), kind=kind)
    before = values_of(opened.tables)[kind]
    assert offload(Access(opened.brokers.http_url), tables, "tenures", with_audit=True).rows
    after = values_of(opened.tables)[kind]
    assert after[: len(before)] == before
    assert after[-1] == f"for the {kind} table"


def test_the_stored_logs_are_verified(opened: Opened) -> None:
    program = "from onewriter_broker.verify.cli import verify_command; verify_command()"
    data = str(opened.brokers.data_directory)
    done = subprocess.run(
        [sys.executable, "-c", program, "--all", "--data-dir", data],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_that_lost_something_is_noticed(name: str, tmp_path: Path) -> None:
    observed = unpacked(name, tmp_path)
    (log,) = tmp_path.glob("data/valkey/appendonlydir/*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size * 9 // 10)
    brokers = LocalBrokers(tmp_path, manifests=MANIFESTS)
    try:
        brokers.start()
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(brokers.service_url, logger=quiet)
        assert messages_of(client, "published") != observed["messages"]["published"]
        client.close()
    finally:
        brokers.stop()
