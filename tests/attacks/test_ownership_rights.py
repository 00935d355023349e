"""An ownership cannot take a group from its consumers, or a name from its subject."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.owners import DeniedByBroker, own
from tests.integration.raw import RawClient, eventually

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

ORDERS = "persistent://shop/default/orders"
PAYMENTS = "persistent://shop/default/payments"
WEB = "system:serviceaccount:shop:web"
RIVAL = "system:serviceaccount:rival:web"
HIGHEST = 2**47 - 1

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders, namespace: shop}
spec: {access: {requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: payments, namespace: shop}
spec: {}
"""


def refusal(client: RawClient, name: str, generation: int = 1, group: str = "billing") -> str:
    with pytest.raises(DeniedByBroker) as denied:
        own(client, name, generation, group=group)
    assert denied.value.code is ServerError.AUTHORIZATION_ERROR
    return str(denied.value)


def test_owning_a_topic_requires_the_right_to_read_it(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded(manifests=MANIFESTS, consumers_default="namespace")
    wire_as(broker, raw, WEB).subscribe(ORDERS, "billing", pb.CommandSubscribe.SHARED)
    assert "lacks the right own" in refusal(wire_as(broker, raw, RIVAL), ORDERS)
    assert "lacks the right own" in refusal(wire_as(broker, raw, RIVAL), ORDERS, HIGHEST)
    assert "lacks the right own" in refusal(wire_as(broker, raw, WEB), PAYMENTS)


def test_a_group_that_others_consume_for_is_not_taken(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    """Also for a topic that every subject may read: its stock consumers would be refused from then on."""
    broker = guarded(manifests=MANIFESTS)
    victim = wire_as(broker, raw, WEB)
    consumer = victim.subscribe(ORDERS, "billing", pb.CommandSubscribe.SHARED)
    unauthorized = wire_as(broker, raw, RIVAL)
    assert "another identity" in refusal(unauthorized, ORDERS)
    assert "another identity" in refusal(unauthorized, ORDERS, HIGHEST)
    producer = wire_as(broker, raw, WEB).producer(ORDERS, pb.EXCLUSIVE)
    producer.publish(b"still read")
    assert consumer.contents(1) == [b"still read"]
    assert own(unauthorized, ORDERS, 1, group="mine") == 1
    assert own(wire_as(broker, raw, WEB), ORDERS, 1, group="billing") == 1  # its own consumers


def test_a_name_stays_with_its_subject_until_it_is_released_or_dropped(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded()
    alice, mallory = wire_as(broker, raw, "alice"), wire_as(broker, raw, "mallory")
    generation = own(alice, "the-lock", 1, group="")
    assert "lacks the right own" in refusal(mallory, "the-lock", HIGHEST, group="")
    alice.close()  # gone, and not released
    assert "alice" not in refusal(mallory, "the-lock", generation + 1, group="")
    again = wire_as(broker, raw, "alice")
    assert own(again, "the-lock", generation, group="") > generation
    again.close()
    administrator = http_as(broker, ADMINISTRATOR)

    def is_dropped() -> bool:
        return bool(administrator("DELETE", "/onewriter/v1/ownerships?group=")[1]["dropped"])

    eventually(is_dropped)
    own(mallory, "the-lock", 1, group="")


def test_ownerships_of_others_are_not_listed(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(manifests=MANIFESTS, consumers_default="namespace")
    own(wire_as(broker, raw, "alice"), "the-lock", 1, group="")
    own(wire_as(broker, raw, WEB), ORDERS, 1, group="billing")

    def seen(subject: str) -> set[str]:
        rows = http_as(broker, subject)("GET", "/onewriter/v1/ownerships")[1]["ownerships"]
        return {row["resource"] for row in rows}

    assert seen("alice") == {"the-lock"}
    assert seen(WEB) == {ORDERS}
    assert seen(RIVAL) == set()
    assert seen(ADMINISTRATOR) == {"the-lock", ORDERS}
    assert http_as(broker, WEB)("DELETE", "/onewriter/v1/ownerships?group=")[0] == 403
