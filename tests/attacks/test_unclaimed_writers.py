"""A topic that requires no claim accepts writers of its tenant, not every client of the cluster."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RefusedByBroker

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TOPIC = "persistent://shop/default/orders"
OWN = "system:serviceaccount:shop:writer"
RIVAL = "system:serviceaccount:rival:web"
OFFLOAD = "system:serviceaccount:onewriter:offload"

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders, namespace: shop}
spec: {access: {requireClaim: false}}
"""


def test_unauthorized_clients_and_roles_neither_write_nor_depose_the_holder(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded(
        manifests=MANIFESTS,
        consumers_default="namespace",
        require_declared=True,
        pipeline_subjects=OFFLOAD,
    )
    holder = wire_as(broker, raw, OWN).producer(TOPIC, pb.EXCLUSIVE)
    for subject in (RIVAL, OFFLOAD, ADMINISTRATOR, "alice"):
        client = wire_as(broker, raw, subject)
        for mode in (pb.EXCLUSIVE_WITH_FENCING, pb.WAIT_FOR_EXCLUSIVE):
            with pytest.raises(RefusedByBroker) as refused:
                client.producer(TOPIC, mode)
            assert refused.value.code == ServerError.AUTHORIZATION_ERROR
    holder.publish(b"still mine")


def test_on_one_machine_everybody_writes(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(manifests=MANIFESTS.replace("shop", "default"))
    topic = "persistent://public/default/orders"
    wire_as(broker, raw, RIVAL).producer(topic, pb.EXCLUSIVE).publish(b"as before")
