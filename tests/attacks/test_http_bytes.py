"""Arbitrary bytes on a broker's HTTP port cost little, and the log does not contain them."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator

import pytest
import structlog
from tests.attacks.guarded import (
    ADMINISTRATOR,
    GuardedBrokers,
    guarded_brokers,
    http_as,
    token_of,
)
from tests.attacks.http_bytes import answer, connected, request, send
from tests.integration.http_calls import ADMIN, OWN, Http

from onewriter_http import logs
from onewriter_http.limits import Limits
from onewriter_testing.in_process import InProcessBroker

HALF_SENT = 2_000
"""Connections that an attacker opens, each with a request that never ends."""

BOMB_BYTES = 20_000_000
SECRET_WORD = "hunter2-and-more"  # noqa: S105 - what must not be logged


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with guarded_brokers(tmp_path_factory.mktemp("keys")) as make:
        yield make()


@pytest.fixture
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line is written, however many there were."""
    monkeypatch.setattr(logs.Throttle, "passes", lambda self, kind: True)


@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, br"])
def test_compressed_bodies_are_refused_unread(
    broker: InProcessBroker, path: str, encoding: str
) -> None:
    inflated = b"[" * BOMB_BYTES
    bomb = zlib.compress(inflated) if encoding == "deflate" else gzip.compress(inflated)
    header = f"Content-Encoding: {encoding}"
    assert send(broker.http_url, request("POST", path, header, body=bomb)).status == 415


def test_a_body_of_identity_encoding_is_read(broker: InProcessBroker) -> None:
    headers = ("Content-Encoding: identity", f"Authorization: Bearer {token_of(ADMINISTRATOR)}")
    requested = request("POST", "/onewriter/v1/topics", *headers, body=b'{"topics": []}')
    assert send(broker.http_url, requested).status == 200


def test_half_sent_requests_do_not_block_other_clients(guarded: GuardedBrokers) -> None:
    broker = guarded()
    connections = []
    for _ in range(HALF_SENT):
        connection = connected(broker.http_url)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        connections.append(connection)
    try:
        for _ in range(10):
            assert Http(broker.http_url)("GET", "/healthz")[0] == 200
            assert http_as(broker, "somebody")("GET", "/onewriter/v1/topics")[0] == 200
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{ADMIN}/tenants/t"),
        ("POST", "/onewriter/v1/topics"),
        ("PUT", "/onewriter/v1/desired"),
    ],
)
def test_a_body_that_does_not_arrive_is_answered_and_its_place_is_free_again(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    monkeypatch.setattr(Limits, "seconds_for_body", lambda self, size: 0.2)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {token_of(ADMINISTRATOR)}\r\n\r\n"
    )
    with connected(broker.http_url) as slow:
        slow.sendall(head.encode() + b"{")
        assert answer(slow).status == 408


MALFORMED = {
    "a method of bytes": b"\x00\xff\x00 / HTTP/1.1\r\n\r\n",
    "a token in a header too long": request("GET", "/", f"Authorization: Bearer {SECRET_WORD * 900}"),
    "a header without a colon": request("GET", "/", f"Authorization {SECRET_WORD}"),
    "a header with a control character": request("GET", "/", f"Authorization: {SECRET_WORD}\x01"),
    "two lengths": request("POST", "/", "Content-Length: 1", "Content-Length: 2", f"X: {SECRET_WORD}"),
    "a bad length": request("POST", "/", f"Content-Length: {SECRET_WORD}"),
    "length and chunks": request("POST", "/", "Transfer-Encoding: chunked", body=b"hunter2-and-more"),
    "a bad chunk": request("POST", "/", "Transfer-Encoding: chunked") + f"{SECRET_WORD}\r\n".encode(),
    "a bad version": f"GET / HTTP/{SECRET_WORD}\r\n\r\n".encode(),
    "a bad target": f"GET http://[{SECRET_WORD} HTTP/1.1\r\n\r\n".encode(),
    "too many headers": request("GET", "/", *[f"X-{n}: {SECRET_WORD}" for n in range(20_000)]),
    "a line too long": f"GET /{SECRET_WORD * 900} HTTP/1.1\r\n\r\n".encode(),
}  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_bytes_that_are_not_http_are_refused_and_not_quoted(
    broker: InProcessBroker, unthrottled: None, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        found = send(broker.http_url, data)
    assert 400 <= found.status < 500
    assert b"aiohttp" not in found.data
    assert b"\r\nServer:" not in found.data
    assert caplog.records == []
    assert "hunter2" not in repr(lines)
    assert "Traceback" not in repr(lines)
    assert [line for line in lines if line["log_level"] in {"error", "critical"}] == []


def test_malformed_requests_write_a_bounded_number_of_lines(guarded: GuardedBrokers) -> None:
    broker = guarded()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3 * logs.LINES_MAX):
            send(broker.http_url, b"\x00\r\n\r\n")
    assert len(lines) == logs.LINES_MAX


ODD_PATHS = [
    f"{OWN}/x?limit={'9' * 5_000}",
    "/onewriter/v1/topics?limit=0",
    "/onewriter/v1/topics?limit=-1",
    "/onewriter/v1/topics?limit=%D9%A3",
    "/onewriter/v1/topics?after=%00%ff%fe",
    "/onewriter/v1/topics?after=%ED%A0%80",
    "/onewriter/v1/topics?namespace=%ED%A0%80",
    "/onewriter/v1/topics?namespace=" + "%F0%9F%98%80" * 300,
    "/onewriter/v1/topics?" + "a=b&" * 1_500,
    "/onewriter/v1/topics/%ED%A0%80/default/x",
    "/onewriter/v1/topics/public/default/%00",
    "/onewriter/v1/audit/9999999999999999999999",
    "/onewriter/v1/audit/0?after=%ED%A0%80",
    f"{OWN}/x/history?after=%ED%A0%80",
    f"{OWN}/x/blocks?from=%ED%A0%80",
    f"{OWN}/x/blocks?from={'9' * 5_000}:0",
    f"{OWN}/x/segments?after=1:{'9' * 5_000}",
    f"{ADMIN}/persistent/public/default/%ED%A0%80/stats",
    f"{ADMIN}/persistent/public/default/x/ledger/{'9' * 4_000}/entry/1",
    f"{ADMIN}/namespaces/%ED%A0%80",
    f"{ADMIN}/tenants/%ED%A0%80",
    "/lookup/v2/topic/persistent/public/default/%ED%A0%80",
    "//healthz",
    "/%2e%2e/%2e%2e/etc/passwd",
]


@pytest.mark.parametrize("path", ODD_PATHS, ids=range(len(ODD_PATHS)))
def test_odd_paths_and_queries_are_no_defect(
    broker: InProcessBroker, unthrottled: None, path: str
) -> None:
    header = f"Authorization: Bearer {token_of(ADMINISTRATOR)}"
    with structlog.testing.capture_logs() as lines:
        found = send(broker.http_url, request("GET", path, header))
    assert 200 <= found.status < 500, found.data[:500]
    assert [line for line in lines if line["event"] == "http.defect"] == []


ODD_BODIES = {
    "a lone surrogate": b'{"topics": ["\\ud800"], "ifEpoch": "\\ud800", "to": "\\udfff", "\\ud800": 1}',
    "an endless number": b'{"topics": ' + b"9" * 200_000 + b"}",
    "an endless exponent": b'{"ifEpoch": 1e999999, "topics": 1e999999}',
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"topics":' * 20_000,
    "a constant": b'{"topics": [NaN, Infinity, -Infinity]}',
    "no text": b"\xff\xfe\x00" * 100,
    "another shape": b'{"topics": {"a": [1, null, {}]}, "ifEpoch": [], "to": {}, "before": 3}',
    "a list": b"[1, 2, 3]",
    "a huge epoch": b'{"ifEpoch": 18446744073709551616, "epoch": -1, "noted": 3, "topics": [1]}',
    "the same name many times": b'{"topics": [' + b'"a",' * 60_000 + b'"a"]}',
}

BODY_PATHS = [
    ("POST", "/onewriter/v1/topics"),
    ("POST", f"{OWN}/x/fence"),
    ("POST", f"{OWN}/x/handover"),
    ("POST", f"{OWN}/x/trim"),
    ("PUT", "/onewriter/v1/desired"),
    ("PUT", f"{OWN}/x/staged/app/1/layout"),
    ("POST", f"{OWN}/x/staged/app/1/publish"),
    ("PUT", f"{OWN}/x/acknowledged/reader"),
    ("PUT", f"{ADMIN}/tenants/t"),
    ("PUT", f"{ADMIN}/namespaces/public/n"),
    ("POST", f"{ADMIN}/namespaces/public/default/retention"),
    ("PUT", f"{ADMIN}/persistent/public/default/p/partitions"),
    ("POST", f"{ADMIN}/schemas/public/default/x/schema"),
    ("PUT", f"{ADMIN}/persistent/public/default/x/subscription/s"),
    ("POST", f"{ADMIN}/persistent/public/default/x/subscription/s/resetcursor"),
]


@pytest.mark.parametrize(("method", "path"), BODY_PATHS)
def test_odd_bodies_are_no_defect(
    broker: InProcessBroker, unthrottled: None, method: str, path: str
) -> None:
    header = f"Authorization: Bearer {token_of(ADMINISTRATOR)}"
    with structlog.testing.capture_logs() as lines:
        for what, body in ODD_BODIES.items():
            found = send(broker.http_url, request(method, path, header, body=body))
            assert found.status < 500 or found.status in {503, 504}, (what, found.data[:500])
    assert [line for line in lines if line["event"] in {"http.defect", "http.failed"}] == []
