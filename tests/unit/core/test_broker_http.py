"""How commands name topics and understand what brokers answer."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.pki import Authority

from onewriter_core.broker_http import Broker, topic_path
from onewriter_core.errors import ConfigurationError, Refused, Unavailable, Undecided


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next response of its server's script."""

    script: list[tuple[int, dict[str, str], bytes]]
    seen: list[tuple[str, str, bytes, str]]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        token = self.headers.get("Authorization", "")
        self.seen.append((self.command, self.path, body, token))
        status, headers, answer = self.script.pop(0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = _answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[tuple[str, type[Scripted]]]:
    handler = type("Handler", (Scripted,), {"script": [], "seen": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("orders", "public/default/orders"),
        ("shop/eu/orders", "shop/eu/orders"),
        ("persistent://shop/eu/a/b c", "shop/eu/a%2Fb%20c"),
        ("orders-partition-3", "public/default/orders"),
    ],
)
def test_a_topic_may_be_named_briefly(written: str, path: str) -> None:
    assert topic_path(written) == f"/onewriter/v1/topics/{path}"


def test_a_wrong_topic_name_is_a_mistake_of_usage() -> None:
    with pytest.raises(ConfigurationError):
        topic_path("a/b")


def test_a_redirect_takes_body_and_token_along(server: tuple[str, type[Scripted]]) -> None:
    url, handler = server
    handler.script[:] = [(307, {"Location": f"{url}/there"}, b""), (200, {}, b'{"epoch": 3}')]
    assert Broker(url, "secret").post("/here", {"ifEpoch": 2}) == {"epoch": 3}
    assert handler.seen == [
        ("POST", "/here", b'{"ifEpoch": 2}', "Bearer secret"),
        ("POST", "/there", b'{"ifEpoch": 2}', "Bearer secret"),
    ]


def test_a_redirect_can_go_through_a_tunnel(
    server: tuple[str, type[Scripted]],
) -> None:
    url, handler = server
    named = "http://broker-1.brokers.svc:8080/there?a=1"
    handler.script[:] = [(307, {"Location": named}, b""), (200, {}, b"{}")]
    requests: list[str] = []

    def route(to: str) -> str:
        requests.append(to)
        return f"{url}/tunnel"

    assert Broker(url, "secret", route).get("/here") == {}
    assert requests == [named]
    assert [path for _, path, *_ in handler.seen] == ["/here", "/tunnel"]


def test_brokers_that_point_at_each_other_are_given_up(server: tuple[str, type[Scripted]]) -> None:
    url, handler = server
    handler.script[:] = [(307, {"Location": "/again"}, b"")] * 9
    with pytest.raises(Unavailable):
        Broker(url).get("/here")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ConfigurationError),
        (401, Refused),
        (403, Refused),
        (404, Refused),
        (409, Refused),
        (412, Refused),
        (429, Unavailable),
        (503, Unavailable),
        (500, Undecided),
        (504, Undecided),
    ],
)
def test_the_status_decides_the_kind_of_error(
    server: tuple[str, type[Scripted]], status: int, kind: type[Exception]
) -> None:
    url, handler = server
    handler.script[:] = [(status, {}, json.dumps({"reason": "because"}).encode())]
    with pytest.raises(kind, match="because"):
        Broker(url).get("/x")


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b"\xff", b'{"status": 200}'])
def test_an_address_that_is_not_a_broker_is_reported(
    server: tuple[str, type[Scripted]], answer: bytes
) -> None:
    url, handler = server
    handler.script[:] = [(404, {}, answer)]
    with pytest.raises(Unavailable, match="not a onewriter broker"):
        Broker(url).get("/x")


def test_https_is_checked_against_the_authority_that_is_named(
    server: tuple[str, type[Scripted]], tmp_path: Path
) -> None:
    url, handler = server
    authority = Authority(tmp_path)
    authority.server("server", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    secured = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    secured.socket = context.wrap_socket(secured.socket, server_side=True)
    thread = threading.Thread(target=secured.serve_forever)
    thread.start()
    try:
        there = f"https://127.0.0.1:{secured.server_address[1]}"
        handler.script[:] = [(307, {"Location": f"{there}/there"}, b""), (200, {}, b"{}")]
        assert Broker(url, "secret", ca_file=authority.certificate).get("/here") == {}
        assert [token for *_, token in handler.seen] == ["Bearer secret"] * 2
        for wrong in (None, Authority(tmp_path / "stranger").certificate):
            with pytest.raises(ConfigurationError, match="is not trusted"):
                Broker(there, "secret", ca_file=wrong).get("/there")
        with pytest.raises(ConfigurationError, match="--ca-file"):
            Broker(there, "secret", ca_file=tmp_path / "none").get("/there")
        assert len(handler.seen) == 2, "the token went nowhere else"
    finally:
        secured.shutdown()
        secured.server_close()
        thread.join()
