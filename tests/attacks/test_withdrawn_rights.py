"""A client that loses the right to read a topic gets no further message of it, also if it is connected."""

from __future__ import annotations

from typing import Any

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RefusedByBroker

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TOPIC = "persistent://shop/default/orders"
OWN = "system:serviceaccount:shop:web"
AUDITOR = "system:serviceaccount:bank:auditor"


def orders(*subjects: str) -> dict[str, Any]:
    """``orders``, which the subjects and its own namespace may read."""
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {
            "access": {
                "requireClaim": False,
                "consumers": {"namespaces": ["shop"], "subjects": list(subjects)},
            }
        },
    }


def test_a_connected_consumer_is_closed_when_its_name_is_removed(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded(consumers_default="namespace", require_declared=True)
    administrator = http_as(broker, ADMINISTRATOR)

    def declare(revision: int, *subjects: str) -> None:
        body = {"revision": str(revision), "topics": [orders(*subjects)], "claims": []}
        assert administrator("PUT", "/onewriter/v1/desired", body)[0] == 200

    declare(1, AUDITOR, "alice")
    writer = wire_as(broker, raw, OWN).producer(TOPIC, pb.EXCLUSIVE)
    own = wire_as(broker, raw, OWN).subscribe(TOPIC, "own")
    alice = wire_as(broker, raw, "alice").subscribe(TOPIC, "alice")
    client = wire_as(broker, raw, AUDITOR)
    durable = client.subscribe(TOPIC, "audit")
    reader = client.subscribe(TOPIC, "reader", durable=False)
    declare(2, "alice")
    closed = {client.expect(pb.CommandCloseConsumer).consumer_id for _ in range(2)}
    assert closed == {durable.consumer_id, reader.consumer_id}
    writer.publish(b"secret")
    assert own.contents(1) == alice.contents(1) == [b"secret"]
    assert not [each for each, _ in client.received if isinstance(each, pb.CommandMessage)]
    with pytest.raises(RefusedByBroker) as refused:
        client.subscribe(TOPIC, "audit")
    assert refused.value.code == ServerError.AUTHORIZATION_ERROR
