"""``/map`` of real sidecars: two of them share a map through a real broker."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.sidecars import SECONDS_MAX, Sidecar

from onewriter_testing.processes import LocalBrokers

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "sidecar.md"

_numbers = itertools.count()


@pytest.fixture
def shared() -> str:
    """The topic of a new map."""
    return f"sidecar-map-{next(_numbers)}"


@pytest.fixture
def pair(broker: LocalBrokers, tmp_path: Path, topic: str) -> Iterator[list[Sidecar]]:
    """Two sidecars; one leads their topic, and both may write maps."""
    found: list[Sidecar] = []
    with contextlib.ExitStack() as stack:
        for name, phase in (("first", "leading"), ("second", "queueing")):
            sidecar = Sidecar(tmp_path, broker.service_url, topic, name)
            stack.callback(_end, sidecar)
            sidecar.until(phase)
            found.append(sidecar)
        yield found


def _end(sidecar: Sidecar) -> None:
    if sidecar.process.poll() is None:
        assert sidecar.stop() == 0, sidecar.log


def test_changes_are_sent_to_the_other_side(pair: list[Sidecar], shared: str) -> None:
    one, two = pair
    one.http("PUT", f"/map/{shared}/before", b"1")
    with socket.create_connection(("127.0.0.1", two.port), timeout=SECONDS_MAX) as link:
        link.sendall(
            f"GET /map/{shared}?initial=true HTTP/1.1\r\nHost: localhost\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        with link.makefile("rb") as lines:
            reported = (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
            assert next(reported)["key"] == "before"
            one.http("PUT", f"/map/{shared}/behind", b"2")
            change = next(reported)
            assert (change["key"], change["content"]) == ("behind", "2")
            one.http("DELETE", f"/map/{shared}/before")
            assert next(reported)["deleted"] is True


def test_a_map_is_not_the_topic_that_is_led(pair: list[Sidecar], topic: str) -> None:
    status, answer = pair[0].http("PUT", f"/map/{topic}/k", b"1")
    assert (status, answer["error"]) == (400, "bad-topic")


def test_the_map_survives_a_restart(pair: list[Sidecar], shared: str) -> None:
    one, _ = pair
    assert one.http("PUT", f"/map/{shared}/k", b"1")[0] == 201
    one.kill()
    one.restart()
    one.until("queueing")
    assert one.http("GET", f"/map/{shared}/k?latest=true") == (200, 1)
    assert one.http("PUT", f"/map/{shared}/k", b"2")[0] == 200


def test_the_documented_commands_work(pair: list[Sidecar], shared: str) -> None:
    section = DOCUMENTATION.read_text().partition("## `/map`")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0]
    commands = commands.partition("curl -sN")[0]  # this one does not end
    commands = commands.replace(
        "127.0.0.1:6680/map/limits", f"127.0.0.1:{pair[1].port}/map/{shared}"
    )
    script = f"curl() {{ command curl --noproxy '*' -w '|%{{http_code}}\\n' \"$@\"; }}\n{commands}"
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert [line.rpartition("|")[2] for line in answers] == ["201", "412", "200", "200", "200"]
    assert answers[2] == "100|200"
