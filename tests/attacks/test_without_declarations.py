"""A broker without its declarations does not treat declared topics as undeclared.

Otherwise, in the moments after its start, clients could read and write without the rights that declarations
require.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.attacks.guarded import (
    ADMINISTRATOR,
    GuardedBrokers,
    http_as,
    wire_as,
)
from tests.attacks.test_publish_rights import part_of
from tests.integration.conftest import RawClients
from tests.integration.http_calls import OWN, PERSISTENT
from tests.integration.raw import full

from onewriter_broker.auth.authorization import DECLARATIONS_UNKNOWN
from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker

TOPIC, STRANGER = "payments", "stranger"


@pytest.fixture
def untold(guarded: GuardedBrokers, raw: RawClients) -> InProcessBroker:
    """A broker that has a log, and does not know (any more) whether it is declared."""
    broker = guarded()
    wire_as(broker, raw, "writer").producer(TOPIC).client.close()
    broker._broker.desired.is_known = broker._broker.clients.has_declarations = False
    return broker


ASKED: list[tuple[str, str, object]] = [
    ("GET", f"{OWN}/{TOPIC}/segments", None),
    ("GET", f"{OWN}/{TOPIC}/blocks", None),
    ("GET", f"{OWN}/{TOPIC}/history", None),
    ("GET", f"{OWN}/{TOPIC}", None),
    ("GET", "/onewriter/v1/topics", None),
    ("GET", f"{PERSISTENT}/{TOPIC}/stats", None),
    ("PUT", f"{PERSISTENT}/{TOPIC}/subscription/evil", None),
    ("PUT", f"{OWN}/{TOPIC}/staged/app/1/part/attempt", part_of(b"evil")),
    ("POST", f"{OWN}/{TOPIC}/staged/app/1/layout", {}),
]

SCHEMA = pb.Schema(name="s", type=pb.Schema.STRING, schema_data=b"")
SAID: list[tuple[Any, Any]] = [
    (pb.CommandCheck(request_id=1, topic=full(TOPIC)), pb.CommandError),
    (pb.CommandGetSchema(request_id=2, topic=full(TOPIC)), pb.CommandGetSchemaResponse),
    (
        pb.CommandGetOrCreateSchema(request_id=3, topic=full(TOPIC), schema=SCHEMA),
        pb.CommandGetOrCreateSchemaResponse,
    ),
]


def test_an_uninformed_broker_reveals_and_accepts_nothing(
    untold: InProcessBroker, raw: RawClients
) -> None:
    unauthorized, client = http_as(untold, STRANGER), wire_as(untold, raw, STRANGER)
    for method, path, body in ASKED:
        status, reported = unauthorized(method, path, body)
        assert (status, reported.get("reason")) == (503, DECLARATIONS_UNKNOWN), path
    for command, answer in SAID:
        client.say(command)
        found = client.expect(answer)
        code = found.error if isinstance(found, pb.CommandError) else found.error_code
        assert code == ServerError.SERVICE_NOT_READY.value, command
    assert http_as(untold, ADMINISTRATOR)("GET", f"{OWN}/{TOPIC}")[0] == 200
