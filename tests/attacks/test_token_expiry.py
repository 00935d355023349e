"""A token is valid until its expiry and no longer; a client that renews it notices nothing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import jwt
import pytest
from tests.attacks.guarded import SECRET, GuardedBrokers, address_of, token_of
from tests.integration.conftest import RawClients
from tests.integration.raw import eventually
from tests.integration.raw_connection import RefusedByBroker

from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker, in_process_broker


def wall_seconds() -> float:
    return time.time_ns() / 1e9


def expiring(subject: str, seconds: float) -> str:
    return token_of(subject, exp=wall_seconds() + seconds)


def test_no_command_is_handled_after_the_token_has_expired(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    """Whatever the client does about the challenge: this one shows the same token again."""
    broker = guarded()
    for seconds in (2, 10, 50):  # long enough for this machine to begin in time
        token = expiring("writer", seconds)
        ends = jwt.decode(token, SECRET, algorithms=["HS256"], options={"verify_exp": False})["exp"]
        with contextlib.suppress(RefusedByBroker, TimeoutError, OSError):
            client = raw(address_of(broker), token=token)
            producer = client.producer("topic", pb.EXCLUSIVE_WITH_FENCING)
            break
    with contextlib.suppress(TimeoutError, OSError):  # the connection is closed
        while True:
            producer.publish(b"x")
    client.wait_closed()
    assert ends <= wall_seconds() < ends + 15  # and not after the time for an answer to a challenge
    with pytest.raises(RefusedByBroker, match="AUTHENTICATION_ERROR"):
        raw(address_of(broker), token=token)


def test_a_client_that_renews_its_token_continues_without_interruption(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded()
    client = raw(address_of(broker), token=expiring("writer", 6))
    producer = client.producer("topic", pb.EXCLUSIVE)
    client.expect(pb.CommandAuthChallenge)
    data = pb.AuthData(auth_method_name="token", auth_data=token_of("writer").encode())
    client.say(pb.CommandAuthResponse(response=data))
    (link,) = broker._broker.clients.connections
    eventually(lambda: link._expires_at is None)  # type: ignore[attr-defined]
    producer.publish(b"still the writer")


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 10**400},
        {"exp": -(10**400)},
        {"exp": float("inf")},
        {"nbf": 10**400},
        {"exp": "9" * 5000},
        {"exp": [1]},
        {"exp": True},
    ],
    ids=str,
)
def test_a_token_with_an_impossible_time_is_refused(
    guarded: GuardedBrokers,
    raw: RawClients,
    claims: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = guarded()
    payload = json.dumps({"sub": "writer", **claims}).encode()
    token = jwt.api_jws.encode(payload, SECRET, algorithm="HS256")
    with pytest.raises(RefusedByBroker, match="AUTHENTICATION_ERROR"):
        raw(address_of(broker), token=token)
    assert "Traceback" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def served() -> Iterator[InProcessBroker]:
    with in_process_broker() as broker:
        yield broker


@pytest.mark.parametrize("value", ["9" * 5000, "\u0663", "-1", "1e3", "", "\u00b2", "0x1"])
@pytest.mark.parametrize(
    "name", ["onewriter.if-epoch", "onewriter.guard-number", "onewriter.serve-seconds"]
)
def test_a_property_that_is_no_number_is_refused(
    served: InProcessBroker, raw: RawClients, name: str, value: str
) -> None:
    client = raw(address_of(served))
    properties = {name: value}
    if name == "onewriter.guard-number":
        properties["onewriter.guard"] = "persistent://public/default/other"
    with pytest.raises(RefusedByBroker, match="NOT_ALLOWED_ERROR"):
        client.producer("topic", pb.EXCLUSIVE, properties=properties)
    client.write(encode_command(pb.CommandPing()))
    client.expect(pb.CommandPong)
