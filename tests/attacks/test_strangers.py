"""A client without a token, or with a forged one, changes nothing and reaches nothing."""

from __future__ import annotations

import jwt
import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN, Http

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

FENCE = f"{OWN}/target/fence"
FORGED = jwt.encode({"sub": ADMINISTRATOR}, "k" * 32, algorithm="HS256")
UNSIGNED = jwt.encode({"sub": ADMINISTRATOR}, "", algorithm="none")


@pytest.mark.parametrize("token", ["", FORGED, UNSIGNED], ids=["none", "forged", "unsigned"])
def test_an_administrators_order_without_the_token_is_refused(
    guarded: GuardedBrokers, raw: RawClients, token: str
) -> None:
    broker = guarded()
    writer = wire_as(broker, raw, "writer").producer("target", pb.EXCLUSIVE)
    status, _ = Http(broker.http_url, token)("POST", FENCE)
    assert status == 401
    writer.publish(b"still the writer")
    assert http_as(broker, "somebody")("POST", FENCE)[0] == 403
    writer.publish(b"still the writer")
    assert http_as(broker, ADMINISTRATOR)("POST", FENCE)[0] == 200
