"""If the API server reviews tokens, a key of the installation names no ServiceAccount."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw_connection import RefusedByBroker

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

ACCOUNT = "system:serviceaccount:shop:web"
OPERATOR = "system:serviceaccount:onewriter:operator"
ORDERS = "persistent://shop/default/orders"
MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders, namespace: shop}
spec: {}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: web, namespace: shop}
spec: {topicRef: {name: orders}, subject: {serviceAccountName: web}}
"""


@pytest.mark.parametrize(
    "subject", [ACCOUNT, OPERATOR, "system:serviceaccount:", "system:serviceaccount:shop"]
)
def test_a_key_proves_no_service_account_where_the_api_server_does(
    guarded: GuardedBrokers, raw: RawClients, subject: str
) -> None:
    broker = guarded(token_review=True, manifests=MANIFESTS, admin_subjects=OPERATOR)
    with pytest.raises(RefusedByBroker, match="only a token of the Kubernetes API server"):
        wire_as(broker, raw, subject)
    assert http_as(broker, subject)("GET", "/onewriter/v1/topics")[0] == 401


def test_a_subject_that_is_called_like_a_service_account_is_not_that_account(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded(token_review=True, manifests=MANIFESTS, consumers_default="namespace")
    with pytest.raises(RefusedByBroker, match="lacks the right"):
        wire_as(broker, raw, "web").producer(ORDERS, pb.EXCLUSIVE)
    with pytest.raises(RefusedByBroker, match="lacks the right"):
        wire_as(broker, raw, "web").subscribe(ORDERS, "s")


@pytest.mark.parametrize("subject", [ACCOUNT, "web"])
def test_without_an_api_server_a_key_names_accounts(
    guarded: GuardedBrokers, raw: RawClients, subject: str
) -> None:
    broker = guarded(manifests=MANIFESTS)
    wire_as(broker, raw, subject).producer(ORDERS, pb.EXCLUSIVE).publish(b"x")
