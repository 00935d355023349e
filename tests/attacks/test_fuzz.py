"""A broker survives what no client would send; ``make soak`` runs the same attack at length (tests/attacks/fuzzing)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.attacks.fuzzing import http, wire
from tests.attacks.fuzzing.attackers import attack_http, attack_wire, broker_routes
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, address_of, token_of, wire_as
from tests.integration.conftest import RawClients

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

FRAMES = 1_500
REQUESTS = 250


DEFECTS = ("Traceback", "http.defect", "connection.failed")
"""What a broker's log has when an input met no check of its own."""


def check_log(capfd: pytest.CaptureFixture[str]) -> None:
    said = "".join(capfd.readouterr())
    found = [defect for defect in DEFECTS if defect in said]
    assert not found, said[said.index(found[0]) - 500 :][:3000]


def test_hostile_frames_stop_nobody(
    guarded: GuardedBrokers, raw: RawClients, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = guarded()
    holder = wire_as(broker, raw, "writer").producer("bystander", pb.EXCLUSIVE)
    holder.publish(b"before")
    for token in ("", token_of("stranger")):
        sent = asyncio.run(attack_wire(address_of(broker), 7, FRAMES, token=token))
        assert sent.pieces > FRAMES / 10
    holder.publish(b"after")
    check_log(capfd)


def test_hostile_requests_stop_nobody(
    guarded: GuardedBrokers, raw: RawClients, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = guarded()
    holder = wire_as(broker, raw, "writer").producer("bystander", pb.EXCLUSIVE)
    holder.publish(b"before")
    host, _, port = broker.http_url.removeprefix("http://").partition(":")
    for token in ("", token_of("stranger"), token_of(ADMINISTRATOR)):
        sent = asyncio.run(
            attack_http((host, int(port)), 11, REQUESTS, broker_routes(), token=token)
        )
        assert sent.pieces > REQUESTS / 2
    wire_as(broker, raw, "writer").ping()
    check_log(capfd)


def test_the_same_seed_sends_the_same() -> None:
    assert list(wire.frames(Random(3), 50)) == list(wire.frames(Random(3), 50))
    routes = broker_routes()
    assert len(routes) > 50
    one, other = (http.request(Random(5), routes, "h") for _ in range(2))
    assert one == other
