"""``/own`` of a real sidecar: an application in any language owns, is notified, and releases."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import RawClients
from tests.integration.owners import own
from tests.integration.sidecars import Sidecar, sidecars

from onewriter_testing.processes import LocalBrokers

_numbers = itertools.count()


@pytest.fixture
def resource() -> str:
    return f"sidecar, number {next(_numbers)}"


@pytest.fixture
def sidecar(broker: LocalBrokers, tmp_path: Path, topic: str) -> Iterator[Sidecar]:
    with sidecars(tmp_path, broker.service_url, topic, "app") as (running,):
        yield running


def asked(sidecar: Sidecar, body: object) -> list[Any]:
    status, answer = sidecar.http("POST", "/own", body)
    assert status == 200, answer
    return list(answer["ownerships"])


def events(sidecar: Sidecar, path: str) -> Generator[Any, None, None]:
    """Yield a stream's events. Like a browser's reader, it reconnects if it is cut off.

    A sidecar cuts off clients that connect and send nothing for five seconds, as on a busy machine.
    """
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    while True:
        with (
            socket.create_connection(("127.0.0.1", sidecar.port), timeout=60) as link,
            link.makefile("rb") as lines,
            contextlib.suppress(ConnectionError),
        ):
            link.sendall(request.encode())
            yield from (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))


def test_a_loss_is_an_event_and_a_stop_gives_back(
    broker: LocalBrokers, raw: RawClients, sidecar: Sidecar, resource: str
) -> None:
    body = {"group": "g", "resources": [resource, resource + "2"]}
    owned = asked(sidecar, body)
    assert asked(sidecar, body) == owned, "a restarted application continues"
    with contextlib.closing(events(sidecar, "/own?group=g")) as reported:
        present: set[str] = set()
        while present != {resource, resource + "2"}:
            shown = next(reported)
            assert shown["owned"]
            present.add(shown["resource"])
        assert own(raw(broker.address()), resource, 2, group="g") == 2
        lost = next(shown for shown in reported if not shown["owned"])
        assert (lost["resource"], lost["currentGeneration"]) == (resource, 2)
    assert sidecar.stop() == 0
    assert own(raw(broker.address()), resource + "2", group="g", identity="next") == 2


def test_invalid_requests_are_refused(sidecar: Sidecar) -> None:
    bodies: list[object] = [
        [],
        {},
        {"resources": []},
        {"resources": [1]},
        {"resources": ["a", "a"]},
        {"resources": [{"name": "a", "generation": "1"}]},
        {"group": 1, "resources": ["a"]},
        {"resources": [""]},
    ]
    for body in bodies:
        status, answer = sidecar.http("POST", "/own", body)
        assert (status, answer["stored"]) == (400, False), body
