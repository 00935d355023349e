"""Requests to another broker: the connection, the trusted authorities, and the handling of responses."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.cluster.pki import Authority

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.http.peers import (
    ANSWER_BYTES_MAX,
    READINESS_BYTES_MAX,
    REASON_LENGTH_MAX,
    PeerRefused,
    Peers,
)
from onewriter_broker.settings import Settings
from onewriter_core.errors import Unavailable
from onewriter_testing.ports import free_ports

CREDENTIALS = "Bearer secret"


class Other:
    """Another broker's two ports: what arrived at the plain one and at the one with TLS."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "authority")
        self.port = free_ports(4)
        self.at_plain: list[web.BaseRequest] = []
        self.at_tls: list[web.BaseRequest] = []
        self.status = 204
        self.body = b""
        self.headers: dict[str, str] = {}
        self._certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._runners: list[web.ServerRunner] = []
        self.certified("127.0.0.1")

    def certified(self, host: str, authority: Authority | None = None) -> None:
        """Serve a certificate for this host from now on."""
        authority = authority or self.authority
        authority.server("other", [host])
        folder = authority.directory
        self._certificate.load_cert_chain(folder / "other.crt", folder / "other.key")

    @property
    def addresses(self) -> Addresses:
        return Addresses(f"pulsar://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}")

    def settings(self, **more: object) -> Settings:
        """Those of a broker beside it."""
        chosen: dict[str, object] = {
            "port": self.port,
            "http_port": self.port + 1,
            "tls_port": self.port + 2,
            "https_port": self.port + 3,
            "tls_cert_file": self.authority.directory / "other.crt",
            "tls_key_file": self.authority.directory / "other.key",
            "tls_ca_file": self.authority.certificate,
        }
        return Settings.model_validate(chosen | more)

    async def start(self) -> None:
        for port, seen, context in (
            (self.port + 1, self.at_plain, None),
            (self.port + 3, self.at_tls, self._certificate),
        ):

            async def answer(
                request: web.BaseRequest, seen: list[web.BaseRequest] = seen
            ) -> web.Response:
                seen.append(request)
                return web.Response(status=self.status, body=self.body, headers=self.headers)

            runner = web.ServerRunner(web.Server(answer))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
            self._runners.append(runner)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Other]:
    made = Other(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def ask(other: Other, peers: Peers) -> None:
    await peers.ask(other.addresses, "DELETE", "/there?force=true", CREDENTIALS)


async def test_with_tls_the_credentials_travel_over_tls_alone(other: Other) -> None:
    await ask(other, Peers(other.settings()))
    (request,) = other.at_tls
    assert (request.method, str(request.rel_url)) == ("DELETE", "/there?force=true")
    assert request.headers["Authorization"] == CREDENTIALS
    assert other.at_plain == []


async def test_without_tls_the_plain_port_is_asked(other: Other) -> None:
    peers = Peers(other.settings(tls_cert_file=None, tls_key_file=None, tls_ca_file=None))
    await ask(other, peers)
    assert [each.headers["Authorization"] for each in other.at_plain] == [CREDENTIALS]
    assert other.at_tls == []


@pytest.mark.parametrize("wrong", ["host", "authority", "no authority named"])
async def test_a_certificate_that_proves_nothing_gets_no_request(
    other: Other, tmp_path: Path, wrong: str
) -> None:
    settings = other.settings()
    match wrong:
        case "host":
            other.certified("broker.elsewhere")
        case "authority":
            other.certified("127.0.0.1", Authority(tmp_path / "stranger"))
        case _:
            settings = other.settings(tls_ca_file=None)
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await ask(other, Peers(settings))
    assert other.at_tls == other.at_plain == []


async def test_a_renewed_certificate_and_a_renewed_authority_are_used_immediately(
    other: Other, tmp_path: Path
) -> None:
    peers = Peers(other.settings())
    await ask(other, peers)
    other.certified("127.0.0.1")
    await ask(other, peers)
    successor = Authority(tmp_path / "successor")
    other.certified("127.0.0.1", successor)
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await ask(other, peers)
    other.authority.certificate.write_bytes(successor.certificate.read_bytes())
    await ask(other, peers)
    assert len(other.at_tls) == 3


@pytest.mark.parametrize("content", [None, b"", b"no certificate", "größer".encode()])
async def test_a_file_without_authorities_is_named_and_nothing_is_sent(
    other: Other, content: bytes | None
) -> None:
    file = other.authority.certificate
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(Unavailable, match=r"tls_ca_file .*ca\.crt"):
        await ask(other, Peers(other.settings()))
    assert other.at_tls == other.at_plain == []


async def test_comments_in_the_file_of_authorities_do_no_harm(other: Other) -> None:
    file = other.authority.certificate
    file.write_bytes("Zertifizierungsstelle Münster\n".encode() + file.read_bytes())
    await ask(other, Peers(other.settings()))
    assert len(other.at_tls) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason": "no such topic"}', "no such topic"),
        (b'{"trace": "' + b"x" * 50_000 + b'", "reason": "behind it"}', "behind it"),
        (b"\xff", "\ufffd"),
        (b"[" * 2000, "[" * REASON_LENGTH_MAX),
        (b"x" * (2 * ANSWER_BYTES_MAX), "x" * REASON_LENGTH_MAX),
        (b'{"reason": "' + b"y" * 1000 + b'"}', "y" * REASON_LENGTH_MAX),
    ],
    ids=["reason", "reason in a later packet", "binary", "deep", "long", "long reason"],
)
async def test_a_refusal_is_passed_on_within_bounds(other: Other, body: bytes, reason: str) -> None:
    other.status, other.body = 404, body
    with pytest.raises(PeerRefused) as refused:
        await ask(other, Peers(other.settings()))
    assert (refused.value.status, str(refused.value)) == (404, reason)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_redirect_is_not_followed(other: Other, scheme: str) -> None:
    port = other.port + (1 if scheme == "http" else 3)
    other.status, other.headers = 307, {"Location": f"{scheme}://127.0.0.1:{port}/else"}
    with pytest.raises(Unavailable, match="retry"):
        await ask(other, Peers(other.settings()))
    assert len(other.at_tls) == 1
    assert other.at_plain == []


async def test_a_broker_without_tls_is_not_asked_over_plain(other: Other) -> None:
    """As in an update that turns TLS on: the broker of before is asked again once it is replaced."""
    settings = other.settings(https_port=free_ports(1))
    with pytest.raises(Unavailable, match="did not answer"):
        await ask(other, Peers(settings))
    assert other.at_plain == []


# ------------------------------------------------------------ whether another broker reaches the store


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("is_reached", [True, False])
async def test_any_broker_reports_whether_it_reaches_the_store(
    other: Other, status: int, is_reached: bool
) -> None:
    other.status, other.body = status, json.dumps({"store": {"reachable": is_reached}}).encode()
    assert await Peers(other.settings()).reaches_store(other.addresses) is is_reached
    (request,) = other.at_tls
    assert (request.method, str(request.rel_url)) == ("GET", "/readyz")
    assert "Authorization" not in request.headers
    assert other.at_plain == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b'{"store": null}',
        b'{"store": {"reachable": "yes"}}',
        b'{"ready": true, "problems": [], "buckets": {}}',
        b"[" * 100_000,
        b'{"store": {"reachable": true}, "more": "' + b"x" * READINESS_BYTES_MAX + b'"}',
    ],
    ids=["nothing", "text", "list", "null", "word", "earlier version", "deep", "too long"],
)
async def test_an_answer_without_the_field_leaves_the_result_unknown(
    other: Other, body: bytes
) -> None:
    other.status, other.body = 200, body
    assert await Peers(other.settings()).reaches_store(other.addresses) is None


async def test_a_broker_that_does_not_answer_is_unknown(other: Other, tmp_path: Path) -> None:
    settings = other.settings()
    assert (
        await Peers(settings).reaches_store(Addresses("pulsar://127.0.0.1:1", "http://127.0.0.1:1"))
        is None
    )
    await other.stop()
    assert await Peers(settings).reaches_store(other.addresses) is None
    missing = other.settings(tls_ca_file=tmp_path / "missing.crt")
    assert await Peers(missing).reaches_store(other.addresses) is None


async def test_a_broker_whose_certificate_is_not_trusted_is_unknown(
    other: Other, tmp_path: Path
) -> None:
    other.status, other.body = 200, b'{"store": {"reachable": true}}'
    unauthorized = Authority(tmp_path / "stranger").certificate
    assert (
        await Peers(other.settings(tls_ca_file=unauthorized)).reaches_store(other.addresses) is None
    )
    assert other.at_tls == other.at_plain == []
