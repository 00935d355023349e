"""Stock clients with their default settings on a broker with tokens, TLS and authorization.

``make test`` runs the Python client. The same programs in Java and Go run in ``make test-all``
(tests/conformance/java/ClientSecured.java, tests/conformance/go/main.go).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId
from pulsar.schema import AvroSchema, Integer, Record, String
from tests.cluster.binaries import CannotBuild
from tests.conformance.go.program import program
from tests.integration.conftest import StockClients
from tests.integration.secured import (
    READER,
    REFRESHED_SECONDS,
    STRANGER,
    WRITER,
    Secured,
    secured_broker,
)
from tests.integration.test_clients_java import java_command

CASES = 6
"""Cases in each of the programs."""
ATTEMPTS_REFUSED = 4
"""Refused attempts in each of them: a stranger produces, subscribes and reads; a reader produces."""
RUN_SECONDS_MAX = 500.0
RECEIVE_MS = 60_000

JAVA_PROGRAM = Path(__file__).parents[1] / "conformance" / "java" / "ClientSecured.java"

Clients = Callable[[str], Any]
MODES = pulsar.ProducerAccessMode


class Order(Record):  # type: ignore[misc]  # the client ships no types
    number = Integer(required=True)


class Misfit(Record):  # type: ignore[misc]
    number = String(required=True)
    more = Integer(required=True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    languages = ("python", "java", "go")
    topics = [name for each in languages for name in (each, f"{each}-schema")]
    with secured_broker(tmp_path_factory.mktemp("secured"), *topics) as found:
        yield found


@pytest.fixture
def client_of(secured: Secured, stock: StockClients) -> Clients:
    """Make a client with default settings for a subject."""

    def make(subject: str) -> Any:
        return stock(
            secured.url,
            tls_trust_certs_file_path=secured.authorities,
            authentication=pulsar.AuthenticationToken(secured.token(subject)),
        )

    return make


def test_python_writes_in_each_mode_reads_and_seeks(client_of: Clients) -> None:
    writer, reader = client_of(WRITER), client_of(READER)
    for mode in (MODES.Shared, MODES.Exclusive, MODES.WaitForExclusive):
        producer = writer.create_producer("python", access_mode=mode)
        producer.send(str(mode).encode())
        if mode is not MODES.WaitForExclusive:
            producer.close()
    deposing = writer.create_producer("python", access_mode=MODES.ExclusiveWithFencing)
    deposing.send(b"last")
    with pytest.raises(pulsar.ProducerFenced):
        writer.create_producer("python", access_mode=MODES.Exclusive)
    expected = [str(mode).encode() for mode in (MODES.Shared, MODES.Exclusive)]
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover):
        consumer = reader.subscribe(
            "python", str(kind), kind, initial_position=InitialPosition.Earliest
        )
        for _ in range(2):
            for content in expected:
                message = consumer.receive(RECEIVE_MS)
                assert message.data() == content
                consumer.acknowledge(message)
            consumer.seek(MessageId.earliest)
        consumer.unsubscribe()
    reading = reader.create_reader("python", MessageId.earliest)
    assert [reading.read_next(RECEIVE_MS).data() for _ in range(4)][-1] == b"last"
    reading.seek(MessageId.earliest)
    assert reading.read_next(RECEIVE_MS).data() == expected[0]


def test_python_brings_schemas_and_reads_them(client_of: Clients) -> None:
    writer, reader = client_of(WRITER), client_of(READER)
    producer = writer.create_producer("python-schema", schema=AvroSchema(Order))
    producer.send(Order(number=7))
    producer.close()
    Misfit.__name__ = "Order"
    with pytest.raises(pulsar.IncompatibleSchema):
        writer.create_producer("python-schema", schema=AvroSchema(Misfit))
    consumer = reader.subscribe(
        "python-schema",
        "typed",
        schema=AvroSchema(Order),
        initial_position=InitialPosition.Earliest,
    )
    assert consumer.receive(RECEIVE_MS).value().number == 7


def test_the_python_client_is_refused_immediately_and_does_not_retry(
    secured: Secured, client_of: Clients
) -> None:
    unauthorized, reader = client_of(STRANGER), client_of(READER)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: unauthorized.create_producer("python"),
        lambda: unauthorized.subscribe("python", "foreign"),
        lambda: unauthorized.create_reader("python", MessageId.earliest),
        lambda: reader.create_producer("python"),
    )
    with secured.few_refusals(len(attempts)):
        for attempt in attempts:
            with pytest.raises(pulsar.AuthorizationError):
                attempt()


@pytest.mark.full  # test_token_refresh.py keeps the proof
def test_python_outlives_its_tokens(secured: Secured, stock: StockClients) -> None:
    with secured.renewed(WRITER) as token:
        client = stock(
            secured.url,
            tls_trust_certs_file_path=secured.authorities,
            authentication=pulsar.AuthenticationToken(token.read_text),
        )
        producer = client.create_producer("python", access_mode=MODES.ExclusiveWithFencing)
        ledgers, end = set(), time.monotonic() + REFRESHED_SECONDS
        while time.monotonic() < end:
            ledgers.add(producer.send(b"still me").ledger_id())
            time.sleep(0.1)
    assert len(ledgers) == 1, "it was fenced meanwhile"


def outcomes(secured: Secured, command: list[str], topic: str, url: str = "") -> list[str]:
    """Return a program's output about its cases. The broker refuses what it should, and few requests more.

    ``url``: where the program connects; by default to the broker.
    """
    with secured.renewed(WRITER) as token, secured.few_refusals(ATTEMPTS_REFUSED):
        words = [url or secured.url, secured.authorities, topic]
        words += [secured.token(subject) for subject in (WRITER, READER, STRANGER)]
        words += [str(token), str(REFRESHED_SECONDS)]
        run = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
    found = [line for line in run.stdout.splitlines() if line.startswith(("ok ", "FAIL "))]
    assert found, run.stderr[-4000:]
    return found


def go_command() -> list[str]:
    """The command that runs the Go program."""
    try:
        return [str(program())]
    except CannotBuild as missing:
        pytest.fail(str(missing))


@pytest.mark.full  # needs Java; the Python client keeps the proof
@pytest.mark.timeout(900)
def test_java_works_unchanged(secured: Secured) -> None:
    found = outcomes(secured, java_command(JAVA_PROGRAM), "java")
    assert [line for line in found if line.startswith("FAIL")] == []
    assert len(found) == CASES


@pytest.mark.full  # needs Go; the Python client keeps the proof
@pytest.mark.timeout(900)
def test_go_works_unchanged(secured: Secured) -> None:
    found = outcomes(secured, go_command(), "go")
    assert [line for line in found if line.startswith("FAIL")] == []
    assert len(found) == CASES
