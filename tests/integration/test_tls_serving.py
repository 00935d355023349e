"""TLS beside plain and alone: both protocols, look-ups that stay on TLS, renewed certificates."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from cryptography import x509
from tests.cluster.pki import Authority
from tests.integration.conftest import RawClients, StockClients
from tests.integration.following import follow, placed
from tests.integration.http_calls import ADMIN, Http
from tests.integration.raw import EXCLUSIVE, FENCING, contents_of, eventually
from urllib3.exceptions import InsecureRequestWarning

from onewriter import AccessMode, Client, Limits, ProducerOptions, Tls, Unavailable
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Invalid
from onewriter_testing.ports import free_ports
from onewriter_testing.processes import LocalBrokers, running_brokers

NAMES = [f"tls-{number}" for number in range(8)]
"""Topics, of which each broker serves some."""

ATTEMPTS_SECONDS = (2, 10, 60)
"""Limits of the SDK until it gives up, one after the other."""

ALONE = ProducerOptions(access_mode=AccessMode.EXCLUSIVE)


class Site:
    """Two brokers with a certificate, and the authority that issued it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.authority.server("broker", ["127.0.0.1", "localhost"])
        self.port, self.https_port = free_ports(2), free_ports(2)
        self.settings: dict[str, object] = {
            "tls_cert_file": str(directory / "broker.crt"),
            "tls_key_file": str(directory / "broker.key"),
            "tls_ca_file": str(self.authority.certificate),
            "tls_port": self.port,
            "https_port": self.https_port,
        }

    def shown(self, port: int) -> x509.Certificate:
        """Return the certificate that a new connection receives."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            found = link.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found)

    def get(self, path: str, broker: int = 0) -> bytes:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        url = f"https://127.0.0.1:{self.https_port + broker}{path}"
        with urllib.request.urlopen(url, timeout=60, context=context) as answer:
            content: bytes = answer.read()
        return content


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(site: Site) -> Iterator[LocalBrokers]:
    with running_brokers(brokers=2, settings=site.settings) as brokers:
        placed(brokers, *NAMES, *(f"sdk-{name}" for name in NAMES))
        assert {brokers.target_of(name) for name in NAMES} == {0, 1}
        yield brokers


def test_a_stock_client_stays_on_tls_from_broker_to_broker(
    site: Site, secured: LocalBrokers, stock: StockClients, raw: RawClients
) -> None:
    """Each broker is asked for topics of both. Its answers lead to TLS ports."""
    client = stock(
        f"pulsar+ssl://127.0.0.1:{site.port}",
        tls_trust_certs_file_path=str(site.authority.certificate),
        tls_validate_hostname=True,
    )
    for name in NAMES:
        producer = client.create_producer(name, access_mode=pulsar.ProducerAccessMode.Exclusive)
        consumer = client.subscribe(name, "test", initial_position=pulsar.InitialPosition.Earliest)
        producer.send(b"over tls")
        assert consumer.receive(timeout_millis=60_000).data() == b"over tls"
    found = raw(secured.address()).lookup(NAMES[0])
    assert found.broker_service_url in secured.service_urls
    assert found.broker_service_url_tls == (
        f"pulsar+ssl://127.0.0.1:{site.port + secured.owner_of(NAMES[0])}"
    )


async def test_the_sdk_stays_on_tls_from_broker_to_broker(
    site: Site, secured: LocalBrokers
) -> None:
    trusting = Tls(ca_file=site.authority.certificate)
    async with Client(f"pulsar+ssl://127.0.0.1:{site.port}", tls=trusting) as client:
        for name in NAMES:
            producer = await client.create_producer(f"sdk-{name}", ALONE)
            await producer.send(b"over tls")
            await producer.close()
    for name in NAMES:
        owner = secured.address(secured.owner_of(f"sdk-{name}"))
        assert await asyncio.to_thread(contents_of, owner, f"sdk-{name}") == [b"over tls"]


async def test_the_sdk_without_an_authority_cannot_connect(
    site: Site, secured: LocalBrokers
) -> None:
    await is_unavailable(f"pulsar+ssl://127.0.0.1:{site.port}", "tls-0", "certificate")


async def is_unavailable(url: str, topic: str, words: str) -> None:
    """Check that the SDK gives these words as the reason. Too short a limit for one attempt is followed by a longer one."""
    reasons: list[str] = []
    for seconds in ATTEMPTS_SECONDS:
        limits = Limits(operation_timeout_seconds=seconds)
        async with Client(url, limits=limits) as client:
            with pytest.raises(Unavailable) as found:
                await client.create_producer(topic, ALONE)
        reasons.append(str(found.value))
        if words in reasons[-1]:
            return
    raise AssertionError(reasons)


def test_a_stock_client_without_an_authority_cannot_connect(
    site: Site, secured: LocalBrokers, stock: StockClients
) -> None:
    client = stock(f"pulsar+ssl://127.0.0.1:{site.port}", operation_timeout_seconds=3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("tls-0")


def test_https_answers_as_http_does_and_redirects_to_https(
    site: Site, secured: LocalBrokers, raw: RawClients
) -> None:
    name = next(name for name in NAMES if secured.owner_of(name) == 1)
    raw(secured.address(1)).producer(name, EXCLUSIVE).publish(b"x")
    path = f"/onewriter/v1/topics/public/default/{name}"
    status = json.loads(site.get(path, broker=0))  # urllib follows redirects, to https only
    assert status["broker"].startswith("broker-1~")
    found = json.loads(site.get(f"/lookup/v2/topic/persistent/public/default/{name}"))
    assert found["brokerUrlTls"] == f"pulsar+ssl://127.0.0.1:{site.port + 1}"
    assert found["httpUrlTls"] == f"https://127.0.0.1:{site.https_port + 1}"


def test_a_broker_has_another_one_delete_topics_over_https(
    site: Site, secured: LocalBrokers, raw: RawClients
) -> None:
    first, second = (Http(url) for url in secured.http_urls)
    assert first("PUT", f"{ADMIN}/tenants/far", {"allowedClusters": ["standalone"]})[0] == 204
    assert first("PUT", f"{ADMIN}/namespaces/far/away")[0] == 204
    eventually(lambda: second("GET", f"{ADMIN}/namespaces/far") == (200, ["far/away"]))
    names = [f"persistent://far/away/{name}" for name in NAMES]
    assert {secured.target_of(name) for name in names} == {0, 1}
    for name in names:
        raw(secured.address(secured.owner_of(name))).producer(name, EXCLUSIVE).publish(b"x")
    unauthorized = Authority(site.authority.directory / "stranger")
    ours = site.authority.certificate.read_bytes()
    site.authority.certificate.write_bytes(unauthorized.certificate.read_bytes())
    status, answer = first("DELETE", f"{ADMIN}/namespaces/far/away?force=true")
    assert status == 503, "the certificate is checked"
    assert "certificate verify failed" in answer["reason"]
    site.authority.certificate.write_bytes(ours)
    assert first("DELETE", f"{ADMIN}/namespaces/far/away?force=true")[0] == 204
    assert first("GET", f"{ADMIN}/persistent/far/away")[0] == 404


def test_plain_connections_to_the_tls_port_are_refused(site: Site, secured: LocalBrokers) -> None:
    for port in (site.port, site.https_port):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = link.recv(1000)
            assert not answer.startswith(b"HTTP")
    site.get("/healthz")


def test_a_renewed_certificate_is_used_for_new_connections_only(
    site: Site, secured: LocalBrokers, stock: StockClients
) -> None:
    client = stock(
        f"pulsar+ssl://127.0.0.1:{site.port}",
        tls_trust_certs_file_path=str(site.authority.certificate),
    )
    producer = client.create_producer("renewed")
    producer.send(b"before")
    before = site.shown(site.port)
    metrics = site.get("/metrics").decode().splitlines()
    name = "onewriter_tls_certificate_not_after_seconds"
    (value,) = [line.split()[1] for line in metrics if line.startswith(f"{name} ")]
    assert float(value) == before.not_valid_after_utc.timestamp()
    site.authority.server("broker", ["127.0.0.1", "localhost"])
    secured.wait_for_event("tls.renewed", count=2)
    after = site.shown(site.port)
    assert after.serial_number != before.serial_number
    assert site.shown(site.https_port).serial_number == after.serial_number
    producer.send(b"after")


def test_inconsistent_files_change_nothing_and_are_reported(
    site: Site, secured: LocalBrokers
) -> None:
    before = site.shown(site.port).serial_number
    certificate = Path(str(site.settings["tls_cert_file"]))
    good = certificate.read_bytes()
    certificate.write_bytes(site.authority.certificate.read_bytes())  # it does not match the key
    refused = secured.wait_for_event("tls.unusable", count=2)
    assert "broker.crt" in str(refused["reason"])
    assert site.shown(site.port).serial_number == before
    certificate.write_bytes(good)


def test_wrong_files_are_refused_at_the_start(tmp_path: Path, site: Site) -> None:
    port = free_ports(2)
    ports = {"tls_port": port, "https_port": port + 1}
    settings = site.settings | ports | {"tls_key_file": str(tmp_path / "none")}
    brokers = LocalBrokers(tmp_path / "brokers", settings=settings)
    try:
        brokers.start(wait=False)
        refused = brokers.wait_for_event("broker.refused")
        assert "none: No such file" in str(refused["reason"])
    finally:
        brokers.stop()


def test_a_pipeline_reads_over_tls_and_is_sent_on_to_tls(
    secured: LocalBrokers, site: Site, raw: RawClients
) -> None:
    url = f"https://127.0.0.1:{site.https_port}"
    for name in NAMES:
        follow(secured, raw, f"{name}-read", FENCING).publish(b"x")
    with Broker(Access(url, ca_file=str(site.authority.certificate))) as client:
        for name in NAMES:
            assert sum(map(len, client.read(f"{name}-read"))) == 1
        assert all(each.startswith("https:") for each in client._connection._owners.values())
    with Broker(Access(url)) as unauthorized, pytest.raises(Invalid, match="is not trusted"):
        unauthorized.segments(NAMES[0])
    with Broker(Access(url, verify=False)) as trusting, pytest.warns(InsecureRequestWarning):
        assert trusting.segments(f"{NAMES[0]}-read").first.entry == 0


# ------------------------------------------------------------ TLS alone

PROGRAM = str(Path(sys.executable).with_name("onewriter"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, LocalBrokers]]:
    """Two brokers that serve the network over TLS alone, and this machine's loopback also without it."""
    made = Site(tmp_path_factory.mktemp("tls-only"))
    settings = made.settings | {
        "host": "0.0.0.0",
        "advertised_host": "127.0.0.1",
        "tls_only": True,
    }
    with running_brokers(brokers=2, settings=settings) as brokers:
        placed(brokers, *NAMES)
        yield made, brokers


@pytest.mark.parametrize("scheme", ["pulsar+ssl", "https"])
def test_a_stock_client_needs_no_plain_address(
    alone: tuple[Site, LocalBrokers], stock: StockClients, scheme: str
) -> None:
    """It looks topics up over Pulsar's protocol, or over HTTP."""
    site, _ = alone
    port = site.port if scheme == "pulsar+ssl" else site.https_port
    client = stock(
        f"{scheme}://127.0.0.1:{port}",
        tls_trust_certs_file_path=str(site.authority.certificate),
        tls_validate_hostname=True,
    )
    for name in NAMES:
        producer = client.create_producer(f"{name}-{len(scheme)}")
        consumer = client.subscribe(f"{name}-{len(scheme)}", "test")
        producer.send(b"x")
        assert consumer.receive(timeout_millis=60_000).data() == b"x"


async def test_the_sdk_needs_no_plain_address(alone: tuple[Site, LocalBrokers]) -> None:
    site, brokers = alone
    trusting = Tls(ca_file=site.authority.certificate)
    async with Client(f"pulsar+ssl://127.0.0.1:{site.port}", tls=trusting) as client:
        for name in NAMES:
            producer = await client.create_producer(name, ALONE)
            await producer.send(b"x")
        owned = await client.own("group", NAMES)
        assert [each.resource for each in owned] == NAMES
    await is_unavailable(brokers.service_urls[0], NAMES[0], "without a plain address")


def test_commands_inside_of_a_pod_are_led_on_to_tls(
    alone: tuple[Site, LocalBrokers], raw: RawClients
) -> None:
    """They start at the plain loopback port that the variables of a broker's pod contain."""
    site, brokers = alone
    far = next(name for name in NAMES if brokers.owner_of(name) == 1)
    here = Http(brokers.http_urls[0])
    path = f"/onewriter/v1/topics/public/default/{far}"
    raw(brokers.address(1)).producer(far, EXCLUSIVE).publish(b"x")
    assert here("GET", path)[0] == 307
    assert here.location == f"https://127.0.0.1:{site.https_port + 1}{path}"
    for verb in (("status", far), ("topics",), ("ownerships",)):
        command = [PROGRAM, *verb, "--http-url", brokers.http_urls[0], "-o", "json"]
        known = {"ONEWRITER_TLS_CA_FILE": str(site.authority.certificate)}
        done = subprocess.run(command, capture_output=True, text=True, env=known, check=False)
        assert done.returncode == 0, done.stderr
        if verb[0] == "topics":
            rows = {row["name"]: row for row in json.loads(done.stdout)["topics"]}
            assert "epoch" in rows[f"persistent://public/default/{far}"], "its owner was asked"
        unauthorized = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
        assert "is not trusted" in unauthorized.stderr
