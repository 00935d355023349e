"""With ``tls_only``, no client in the network reaches or learns of a port that would accept a token in plain
text.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, token_of
from tests.cluster.pki import Authority

from onewriter_core.wire.client import ClientConnection
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker
from onewriter_testing.ports import free_ports

ELSEWHERE = "127.0.0.2"
"""Of this machine, as a pod's address is: a server that listens on 127.0.0.1 alone is not there."""

SECONDS = 60

NAMING = (
    "/lookup/v2/topic/persistent/public/default/orders",
    "/admin/v2/brokers/standalone",
    "/admin/v2/brokers/leaderBroker",
    "/admin/v2/clusters/standalone",
    "/onewriter/v1/brokers",
    "/onewriter/v1/topics",
    "/onewriter/v1/topics/public/default/orders",
    "/onewriter/v1/ownerships",
)
"""Paths whose answers name brokers."""


class Served:
    """A broker with TLS, as seen from the network."""

    def __init__(self, make: GuardedBrokers, folder: Path, **settings: object) -> None:
        self.authority = Authority(folder)
        self.authority.server("broker", [ELSEWHERE, "127.0.0.1"])
        self.ports = free_ports(4)
        self.broker: InProcessBroker = make(
            host="0.0.0.0",
            advertised_host="127.0.0.1",
            port=self.ports,
            http_port=self.ports + 1,
            tls_port=self.ports + 2,
            https_port=self.ports + 3,
            tls_cert_file=folder / "broker.crt",
            tls_key_file=folder / "broker.key",
            tls_ca_file=self.authority.certificate,
            **settings,
        )

    def connected(self, port: int, host: str = ELSEWHERE) -> socket.socket:
        """A connection to one of its ports: over TLS to those with TLS. Raises OSError."""
        link = socket.create_connection((host, self.ports + port), timeout=SECONDS)
        if port < 2:
            return link
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        return context.wrap_socket(link, server_hostname=host)

    def get(self, path: str) -> bytes:
        """What it answers its administrator over HTTPS."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        link = http.client.HTTPSConnection(
            ELSEWHERE, self.ports + 3, timeout=SECONDS, context=context
        )
        link.request("GET", path, headers={"Authorization": f"Bearer {token_of(ADMINISTRATOR)}"})
        content = link.getresponse().read()
        _end(link.sock)
        link.close()
        return content

    def looked_up(self, port: int, host: str = ELSEWHERE) -> pb.CommandLookupResponse:
        """The answer to a look-up over Pulsar's protocol."""
        wire = ClientConnection()
        with self.connected(port, host) as link:
            token = token_of(ADMINISTRATOR)
            link.sendall(wire.connect("attack", auth_method="token", auth_data=token.encode()))
            while data := link.recv(65536):
                for command, _ in wire.feed(data):
                    if isinstance(command, pb.CommandConnected):
                        link.sendall(wire.encode(pb.CommandLookup(topic="orders", request_id=1)))
                    if isinstance(command, pb.CommandLookupResponse):
                        _end(link)
                        return command
        raise AssertionError("the broker closed the connection")


def _end(link: socket.socket) -> None:
    """Have the broker end its side of a connection over TLS, too, before it is stopped."""
    if isinstance(link, ssl.SSLSocket):
        link.unwrap()


@pytest.fixture
def served(guarded: GuardedBrokers, tmp_path: Path) -> Callable[..., Served]:
    return lambda **settings: Served(guarded, tmp_path / "certificates", **settings)


def test_the_plain_ports_are_refused_at_every_address_but_loopback(
    served: Callable[..., Served],
) -> None:
    site = served(tls_only=True)
    for port in (0, 1):
        with pytest.raises(ConnectionRefusedError):
            site.connected(port)
        site.connected(port, "127.0.0.1").close()
    assert site.looked_up(2).response == pb.CommandLookupResponse.CONNECT
    assert site.get("/healthz")


def test_no_answer_names_a_plain_address(served: Callable[..., Served]) -> None:
    site = served(tls_only=True)
    for path in NAMING:
        answer = site.get(path).decode()
        assert not re.findall(r"(?:pulsar|http)://[^\"]*", answer), path
        assert not re.findall(rf":(?:{site.ports}|{site.ports + 1})\b", answer), path
    found = json.loads(site.get(NAMING[0]))
    assert found["brokerUrlTls"] == f"pulsar+ssl://127.0.0.1:{site.ports + 2}"
    assert found["serviceUrlTls"] == found["brokerUrlTls"]
    for port, host in ((2, ELSEWHERE), (0, "127.0.0.1")):
        named = site.looked_up(port, host)
        assert not named.HasField("broker_service_url")
        assert named.broker_service_url_tls == found["brokerUrlTls"]


def test_where_plain_is_offered_beside_tls_both_are_named(served: Callable[..., Served]) -> None:
    """The control: the tests above would find a plain address."""
    site = served()
    site.connected(0).close()
    assert site.looked_up(2).broker_service_url == f"pulsar://127.0.0.1:{site.ports}"
    assert f"http://127.0.0.1:{site.ports + 1}" in site.get(NAMING[0]).decode()
