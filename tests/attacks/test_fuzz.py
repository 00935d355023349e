"""A broker survives input that no client would send; ``make soak`` runs the same attack at length
(tests/attacks/fuzzing).
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.attacks.fuzzing import http, routes, wire
from tests.attacks.fuzzing.attackers import Shown, attack_http, attack_wire
from tests.attacks.fuzzing.routes import STAGED
from tests.attacks.guarded import (
    ADMINISTRATOR,
    GuardedBrokers,
    address_of,
    http_as,
    token_of,
    wire_as,
)
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN, epoch_of

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

FRAMES = 1_500
REQUESTS = 250
ATTACKS_MAX = 40
"""An attack aborts what a busy broker does not answer within 50 ms, so one may be too short to publish anything."""


DEFECTS = ("Traceback", "http.defect", "connection.failed")
"""What a broker's log has when an input met no check of its own."""


def check_log(capfd: pytest.CaptureFixture[str]) -> None:
    output = "".join(capfd.readouterr())
    found = [defect for defect in DEFECTS if defect in output]
    assert not found, output[output.index(found[0]) - 500 :][:3000]


def test_hostile_frames_do_not_stop_other_clients(
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


def test_hostile_requests_do_not_stop_other_clients(
    guarded: GuardedBrokers, raw: RawClients, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = guarded()
    holder = wire_as(broker, raw, "writer").producer("bystander", pb.EXCLUSIVE)
    holder.publish(b"before")
    host, _, port = broker.http_url.removeprefix("http://").partition(":")
    served = routes.listed(broker._broker.http.routes)
    for token in ("", token_of("stranger"), token_of(ADMINISTRATOR)):
        attack = attack_http((host, int(port)), 11, REQUESTS, served, shown=Shown(token))
        sent = asyncio.run(attack)
        assert sent.pieces > REQUESTS / 2
    wire_as(broker, raw, "writer").ping()
    check_log(capfd)


def test_hostile_parts_and_publishes_do_not_stop_other_clients(
    guarded: GuardedBrokers, raw: RawClients, capfd: pytest.CaptureFixture[str]
) -> None:
    """The holder's own registration is shown, so that bodies are read: some are staged, some published."""
    broker = guarded()
    holder = wire_as(broker, raw, "writer").producer(http.HELD_TOPIC, pb.EXCLUSIVE)
    host, _, port = broker.http_url.removeprefix("http://").partition(":")
    shown = Shown(token_of("writer"), holder.registration, epoch_of(holder))
    staging = [each for each in routes.listed(broker._broker.http.routes) if STAGED in each[1]]
    published = 0
    for attack in range(ATTACKS_MAX):
        asyncio.run(attack_http((host, int(port)), attack, REQUESTS, staging, shown=shown))
        segments = http_as(broker, ADMINISTRATOR)("GET", f"{OWN}/{http.HELD_TOPIC}/segments")[1]
        published = sum(each["messages"] for each in segments["segments"])
        if published and attack >= 2:
            break
    assert published, "none of its publishes was in order"
    holder.publish(b"after")
    check_log(capfd)


def test_the_same_seed_sends_the_same() -> None:
    assert list(wire.frames(Random(3), 50)) == list(wire.frames(Random(3), 50))
    one, other = (http.request(Random(5), routes.sidecar(), "h") for _ in range(2))
    assert one == other
