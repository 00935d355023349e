"""A namespace declares, adopts, reads and deletes only topics of its own tenant, and never another's log.

The brokers trust the operator only about which objects exist. They check its declarations again, and a log
remembers the namespace that declared it first.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient, RefusedByBroker, eventually

from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import InProcessBroker

Json = dict[str, Any]

LEDGER = "persistent://shop/default/ledger"
PATH = "/onewriter/v1/topics/shop/default/ledger"
ADMIN_PATH = "/admin/v2/persistent/shop/default/ledger"
SHOP_WRITER = "system:serviceaccount:shop:writer"
RIVAL_WRITER = "system:serviceaccount:rival:writer"


def topic(namespace: str, name: str, **spec: Any) -> Json:
    access = {"requireClaim": False, "consumers": {"everyone": True}}
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"topic": LEDGER, "access": access} | spec,
    }


SHOP = topic("shop", "ledger")
RIVAL = topic("rival", "heir")


class Declaring:
    """Send the declared objects to the broker, like the operator."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker
        self._http = http_as(broker, ADMINISTRATOR)
        self._revision = 0

    def declare(self, *topics: Json) -> tuple[int, Any]:
        self._revision += 1
        body = {"revision": str(self._revision), "topics": list(topics), "claims": []}
        return self._http("PUT", "/onewriter/v1/desired", body)

    def looked_up(self) -> Json:
        status, answer = self._http("POST", "/onewriter/v1/topics", {"topics": [LEDGER]})
        assert status == 200, answer
        found: Json = answer["topics"].get(LEDGER, {})
        return found


@pytest.fixture
def declaring(guarded: GuardedBrokers) -> Declaring:
    """Brokers as in Kubernetes; ``rival`` may have topics of the tenant ``shop``, by an exception."""
    broker = guarded(require_declared=True, tenancy_enforced=True, tenancy_allow="rival=shop")
    return Declaring(broker)


def written(declaring: Declaring, raw: RawClients, text: bytes = b"of shop") -> None:
    """shop declares its topic and writes to it."""
    assert declaring.declare(SHOP)[0] == 200
    writer = wire_as(declaring.broker, raw, SHOP_WRITER).producer(LEDGER, pb.EXCLUSIVE)
    writer.publish(text)
    writer.close()


def refused(client: RawClient) -> str:
    with pytest.raises(RefusedByBroker) as error:
        client.producer(LEDGER, pb.EXCLUSIVE)
    return str(error.value)


def test_a_topic_of_a_foreign_tenant_is_refused_by_name(guarded: GuardedBrokers) -> None:
    declaring = Declaring(guarded(require_declared=True, tenancy_enforced=True))
    status, answer = declaring.declare(RIVAL)
    assert status == 400
    assert "ExclusiveTopic rival/heir" in answer["errors"][0]
    assert "does not belong to namespace rival" in answer["errors"][0]
    assert declaring.declare(SHOP)[0] == 200
    for namespace, name in (("other", "persistent://public/default/x"), ("public", "")):
        spec = {"topic": name} if name else {}
        document = topic(namespace, "x", **spec)
        document["spec"].pop("topic", None) if not name else None
        assert declaring.declare(document)[0] == 400, (namespace, name)
    own = topic("default", "x")
    del own["spec"]["topic"]
    assert declaring.declare(own, topic("default", "y", topic="persistent://default/a/y"))[0] == 200


def test_a_log_is_not_inherited_by_another_namespace(declaring: Declaring, raw: RawClients) -> None:
    written(declaring, raw)
    assert declaring.looked_up()["declaredBy"] == "shop"
    assert declaring.declare(RIVAL)[0] == 200, "an exception allows it by its name"
    assert declaring.looked_up()["declared"] is False
    answer = refused(wire_as(declaring.broker, raw, RIVAL_WRITER))
    assert "ExclusiveTopic" in answer or "declared" in answer
    with pytest.raises(RefusedByBroker):
        wire_as(declaring.broker, raw, RIVAL_WRITER).subscribe(LEDGER, "steal")
    declaring.declare(SHOP)
    writer = wire_as(declaring.broker, raw, SHOP_WRITER).producer(LEDGER, pb.EXCLUSIVE)
    writer.publish(b"still of shop")


def test_tenancy_applies_to_a_topic_that_is_in_use(declaring: Declaring, raw: RawClients) -> None:
    assert declaring.declare(SHOP)[0] == 200
    writer = wire_as(declaring.broker, raw, SHOP_WRITER).producer(LEDGER, pb.EXCLUSIVE)
    writer.publish(b"1")
    declaring.declare(RIVAL)
    assert refused(wire_as(declaring.broker, raw, RIVAL_WRITER))
    assert declaring.looked_up()["declared"] is False


def test_an_object_of_another_namespace_deletes_nothing(
    declaring: Declaring, raw: RawClients
) -> None:
    written(declaring, raw)
    declaring.declare(RIVAL)
    operator = http_as(declaring.broker, ADMINISTRATOR)
    status, answer = operator("DELETE", f"{ADMIN_PATH}?force=true&declaredBy=rival")
    assert status == 412
    assert "declared by namespace shop" in answer["reason"]
    assert declaring.looked_up()["epoch"] > 0
    declaring.declare(SHOP)
    assert operator("DELETE", f"{ADMIN_PATH}?force=true&declaredBy=shop")[0] == 204


def test_only_an_administrator_reassigns_and_it_is_audited(
    declaring: Declaring, raw: RawClients
) -> None:
    written(declaring, raw)
    body = {"to": "rival", "reason": "the team moved"}
    for subject in (RIVAL_WRITER, SHOP_WRITER):
        assert http_as(declaring.broker, subject)("POST", f"{PATH}/reassign", body)[0] == 403
    operator = http_as(declaring.broker, ADMINISTRATOR)
    assert operator("POST", f"{PATH}/reassign", {"to": "no namespace"})[0] == 400
    status, answer = operator("POST", f"{PATH}/reassign", body)
    assert (status, answer["from"], answer["to"]) == (200, "shop", "rival")
    records = operator("GET", f"{PATH}/history")[1]["records"]
    (record,) = [each for each in records if each["kind"] == "reassign"]
    assert (record["by"], record["reason"]) == (ADMINISTRATOR, "the team moved")
    declaring.declare(RIVAL)
    writer = wire_as(declaring.broker, raw, RIVAL_WRITER).producer(LEDGER, pb.EXCLUSIVE)
    writer.publish(b"of rival")
    declaring.declare(SHOP)
    assert refused(wire_as(declaring.broker, raw, SHOP_WRITER))


def test_a_log_that_was_there_before_belongs_to_the_first_who_declares_it(
    guarded: GuardedBrokers, raw: RawClients
) -> None:
    broker = guarded(tenancy_enforced=True, tenancy_allow="rival=shop", allow_undeclared="*")
    declaring = Declaring(broker)
    wire_as(broker, raw, SHOP_WRITER).producer(LEDGER, pb.EXCLUSIVE).publish(b"undeclared")
    assert declaring.looked_up()["declaredBy"] is None
    declaring.declare(SHOP)
    eventually(lambda: declaring.looked_up()["declaredBy"] == "shop")
    declaring.declare(RIVAL)
    assert declaring.looked_up()["declared"] is False


def test_on_one_machine_namespaces_decide_nothing(guarded: GuardedBrokers, raw: RawClients) -> None:
    broker = guarded(require_declared=True)
    declaring = Declaring(broker)
    written(declaring, raw)
    assert declaring.looked_up()["declaredBy"] is None
    assert declaring.declare(RIVAL)[0] == 200
    wire_as(broker, raw, RIVAL_WRITER).producer(LEDGER, pb.EXCLUSIVE).publish(b"as before")
    status, answer = http_as(broker, ADMINISTRATOR)("POST", f"{PATH}/reassign", {"to": "rival"})
    assert status >= 400
    assert "tenancy_enforced" in json.dumps(answer)
