"""Pages of other sites, clients that use too much, and strangers at the metrics achieve nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, token_of
from tests.attacks.http_bytes import answer, connected, request, send
from tests.integration.http_calls import ADMIN, OWN, Http

from onewriter_broker.app import BrokerLimits
from onewriter_http.limits import Limits
from onewriter_testing.in_process import InProcessBroker, in_process_broker
from onewriter_testing.ports import free_ports

SCRAPE_TOKEN = "a-token-for-prometheus"  # noqa: S105 - made for this test


@pytest.fixture(scope="module")
def anonymous() -> Iterator[InProcessBroker]:
    """A broker of one machine: every client that reaches it is an administrator."""
    with in_process_broker() as broker:
        yield broker


FOREIGN = {
    "rebound": ("evil.example:8080", ["Origin: http://evil.example:8080"]),
    "rebound, without an origin": ("evil.example", []),
    "another origin": ("localhost", ["Origin: http://evil.example"]),
    "no origin": ("localhost", ["Origin: null"]),
    "an origin that is none": ("localhost", ["Origin: http://[::1"]),
    "another site": ("localhost", ["Sec-Fetch-Site: cross-site"]),
    "a sister site": ("localhost", ["Sec-Fetch-Site: same-site"]),
    "a host that is none": ("[::1", []),
    "an empty host": ("", []),
}


@pytest.mark.parametrize(("host", "headers"), FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/onewriter/v1/topics"),
        ("GET", "/metrics"),
        ("POST", f"{OWN}/x/fence"),
        ("PUT", f"{ADMIN}/persistent/public/default/x"),
        ("DELETE", f"{ADMIN}/persistent/public/default/x?force=true"),
    ],
)
def test_a_page_of_another_site_neither_reads_nor_changes(
    anonymous: InProcessBroker, method: str, path: str, host: str, headers: list[str]
) -> None:
    found = send(anonymous.http_url, request(method, path, *headers, host=host))
    assert found.status in {400, 403}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:80"])
def test_the_machines_own_names_are_served(anonymous: InProcessBroker, host: str) -> None:
    for path in ("/onewriter/v1/topics", "/metrics"):
        assert send(anonymous.http_url, request("GET", path, host=host)).status == 200


def test_slow_bodies_of_an_identity_use_only_its_share(guarded: GuardedBrokers) -> None:
    broker = guarded()
    head = (
        f"PUT {OWN}/x/acknowledged/reader HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {token_of('greedy')}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(broker.http_url)) for _ in range(256)]
        for each in slow:
            each.sendall(head.encode())
        assert http_as(broker, "somebody")("GET", "/onewriter/v1/topics")[0] == 200
        assert http_as(broker, ADMINISTRATOR)("GET", "/onewriter/v1/brokers")[0] == 200
        for path in ("/healthz", "/readyz"):
            assert Http(broker.http_url)("GET", path)[0] == 200
        last = answer(slow[-1])
        assert last.status == 429
        assert b"\r\nRetry-After: " in last.data


def test_watches_of_an_identity_do_not_use_up_the_quota_of_the_operator(
    guarded: GuardedBrokers,
) -> None:
    broker = guarded()
    head = "GET /onewriter/v1/watch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    with contextlib.ExitStack() as stack:
        for subject in ["greedy"] * 16 + [ADMINISTRATOR]:
            watching = stack.enter_context(connected(broker.http_url))
            watching.sendall(f"{head}{token_of(subject)}\r\n\r\n".encode())
        assert watching.recv(12) == b"HTTP/1.1 200"


def test_metrics_are_for_observers_and_the_scrape_token(
    guarded: GuardedBrokers, tmp_path: Path
) -> None:
    file = tmp_path / "metrics-token"
    file.write_text(SCRAPE_TOKEN + "\n")
    port = free_ports(1)
    broker = guarded(probe_port=port, metrics_token_file=file, observer_subjects="watcher")
    for url in (broker.http_url, f"http://127.0.0.1:{port}"):
        for token, status in {
            "": 401,
            "x": 401,
            SCRAPE_TOKEN: 200,
            SCRAPE_TOKEN[:-1]: 401,
            token_of("somebody"): 403,
            token_of("watcher"): 200,
            token_of(ADMINISTRATOR): 200,
        }.items():
            assert Http(url, token)("GET", "/metrics")[0] == status
        assert Http(url)("GET", "/healthz")[0] == Http(url)("GET", "/readyz")[0] == 200
    assert Http(broker.http_url, SCRAPE_TOKEN)("GET", "/onewriter/v1/topics")[0] == 401
    assert Http(f"http://127.0.0.1:{port}", token_of(ADMINISTRATOR))("GET", OWN)[0] == 404


def test_the_probes_port_answers_while_every_other_place_is_taken(
    guarded: GuardedBrokers,
) -> None:
    port = free_ports(1)
    limits = BrokerLimits(http=Limits(connections_max=4))
    broker = guarded(limits=limits, probe_port=port)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            held = stack.enter_context(connected(broker.http_url))
            held.sendall(
                b"GET /onewriter/v1/watch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                + f"{token_of(ADMINISTRATOR)}\r\n\r\n".encode()
            )
            assert held.recv(12) == b"HTTP/1.1 200"
        assert send(broker.http_url, request("GET", "/healthz")).status == 0
        for path in ("/healthz", "/readyz"):
            assert Http(f"http://127.0.0.1:{port}")("GET", path)[0] == 200


@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_short_or_missing_scrape_token_opens_nothing(
    guarded: GuardedBrokers, tmp_path: Path, length: int
) -> None:
    file = tmp_path / "metrics-token"
    if length:
        file.write_text("x" * length)
    broker = guarded(metrics_token_file=file)
    assert Http(broker.http_url, "x" * length)("GET", "/metrics")[0] == 401
