"""A client without the right to read a topic learns nothing about it and moves no subscription."""

from __future__ import annotations

import pytest
from tests.attacks.guarded import ADMINISTRATOR, GuardedBrokers, http_as, wire_as
from tests.integration.conftest import RawClients
from tests.integration.raw import RefusedByBroker

from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.in_process import BUCKETS, InProcessBroker

TOPIC = "persistent://shop/default/orders"
SHARED = "persistent://shop/default/shared"
ELSEWHERE = "persistent://shop/default/never-declared"
WRITER = "system:serviceaccount:shop:writer"
READER = "system:serviceaccount:shop:reader"
ANALYST = "system:serviceaccount:analytics:job"
RIVAL = "system:serviceaccount:rival:web"
OFFLOAD = "system:serviceaccount:onewriter:offload"
PROMETHEUS = "prometheus"

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders, namespace: shop}
spec: {}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: shared, namespace: shop}
spec:
  access:
    consumers: {namespaces: [analytics], subjects: [alice]}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: writer, namespace: shop}
spec: {topicRef: {name: orders}, subject: {serviceAccountName: writer}}
"""
ADMIN_PATH = "/admin/v2/persistent/shop/default/orders"
OWN_PATH = "/onewriter/v1/topics/shop/default/orders"


@pytest.fixture
def broker(guarded: GuardedBrokers, raw: RawClients) -> InProcessBroker:
    """A broker as the chart sets it up; ``orders`` has a message and a subscription."""
    found = guarded(
        manifests=MANIFESTS,
        consumers_default="namespace",
        require_declared=True,
        pipeline_subjects=OFFLOAD,
        observer_subjects=PROMETHEUS,
    )
    wire_as(found, raw, WRITER).producer(TOPIC, pb.EXCLUSIVE).publish(b"secret")
    reader = wire_as(found, raw, READER).subscribe(TOPIC, "billing", pb.CommandSubscribe.SHARED)
    assert reader.contents(1) == [b"secret"]
    reader.close()
    return found


def test_an_unauthorized_client_neither_subscribes_nor_reads(
    broker: InProcessBroker, raw: RawClients
) -> None:
    for durable in (True, False):
        with pytest.raises(RefusedByBroker) as refused:
            wire_as(broker, raw, RIVAL).subscribe(TOPIC, "billing", durable=durable)
        assert refused.value.code == ServerError.AUTHORIZATION_ERROR
        assert "lacks the right consume" in str(refused.value)


def test_a_lookup_does_not_reveal_a_topic_to_an_unauthorized_client(
    broker: InProcessBroker, raw: RawClients
) -> None:
    rival = wire_as(broker, raw, RIVAL)
    answers = [rival.lookup(name) for name in (TOPIC, ELSEWHERE)]
    there, away = (
        (each.error, each.message.replace(name, ""))
        for each, name in zip(answers, (TOPIC, ELSEWHERE), strict=True)
    )
    assert there == away
    assert ServerError(answers[0].error) is ServerError.AUTHORIZATION_ERROR


def test_listings_show_a_tenant_its_own_topics(broker: InProcessBroker, raw: RawClients) -> None:
    def listed(subject: str) -> set[str]:
        client = wire_as(broker, raw, subject)
        request_id = client.next_request_id()
        client.say(pb.CommandGetTopicsOfNamespace(namespace="shop/default", request_id=request_id))
        found = set(client.answer(pb.CommandGetTopicsOfNamespaceResponse, request_id).topics)
        http = http_as(broker, subject)
        assert set(http("GET", "/admin/v2/persistent/shop/default")[1]) == found
        assert set(http("GET", "/admin/v2/namespaces/shop/default/topics")[1]) == found
        rows = http("GET", "/onewriter/v1/topics")[1]["topics"]
        assert {each["name"] for each in rows} == found
        request = http("POST", "/onewriter/v1/topics", {"topics": [TOPIC, SHARED]})[1]["topics"]
        assert set(request) == found
        return found

    assert listed(READER) == {TOPIC}
    assert listed(ANALYST) == {SHARED}
    assert listed(PROMETHEUS) == listed(ADMINISTRATOR) == {TOPIC, SHARED}
    assert listed(RIVAL) == set()


@pytest.mark.parametrize(
    "path",
    [
        f"{ADMIN_PATH}/stats",
        f"{ADMIN_PATH}/internalStats",
        f"{ADMIN_PATH}/subscriptions",
        f"{ADMIN_PATH}/lastMessageId",
        f"{ADMIN_PATH}/ledger/1/entry/1",
        f"{ADMIN_PATH}/messageid/0",
        f"{ADMIN_PATH}/subscription/billing/position/1",
        f"{ADMIN_PATH}/partitions",
        f"{ADMIN_PATH}/properties",
        "/admin/v2/schemas/shop/default/orders/schemas",
        "/lookup/v2/topic/persistent/shop/default/orders",
        OWN_PATH,
        f"{OWN_PATH}/history",
        f"{OWN_PATH}/segments",
        f"{OWN_PATH}/blocks",
        "/admin/v2/namespaces/shop/default",
        "/admin/v2/namespaces/shop/default/retention",
        "/onewriter/v1/watch",
        "/onewriter/v1/desired",
        "/metrics",
    ],
)
def test_no_path_reveals_a_topic_to_an_unauthorized_client(
    broker: InProcessBroker, path: str
) -> None:
    status, body = http_as(broker, RIVAL)("GET", path)
    assert status == 403, body
    assert "lacks the right" in body["reason"]
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{ADMIN_PATH}/subscription/billing?force=true", None),
        ("POST", f"{ADMIN_PATH}/subscription/billing/skip_all", None),
        ("POST", f"{ADMIN_PATH}/subscription/billing/skip/1", None),
        ("POST", f"{ADMIN_PATH}/subscription/billing/resetcursor/0", None),
        ("PUT", f"{ADMIN_PATH}/subscription/pin", None),
        ("PUT", f"{OWN_PATH}/acknowledged/pin", {"before": "1:1"}),
        ("POST", f"{OWN_PATH}/trim", {"before": "1:1", "epoch": 1}),
    ],
)
def test_an_unauthorized_client_changes_no_subscription(
    broker: InProcessBroker, method: str, path: str, body: object
) -> None:
    assert http_as(broker, RIVAL)(method, path, body)[0] == 403
    status, names = http_as(broker, READER)("GET", f"{ADMIN_PATH}/subscriptions")
    assert (status, names) == (200, ["billing"])


def test_the_audit_shows_a_tenant_the_records_of_its_topics(broker: InProcessBroker) -> None:
    def topics(subject: str) -> set[str]:
        http = http_as(broker, subject)
        pages = (http("GET", f"/onewriter/v1/audit/{bucket}")[1] for bucket in range(BUCKETS))
        return {each.get("topic") for page in pages for each in page["records"]}

    assert TOPIC in topics(READER)
    assert TOPIC in topics(OFFLOAD)
    assert topics(RIVAL) == set()


def test_named_consumers_read_and_the_topics_own_namespace_does_not_by_itself(
    broker: InProcessBroker, raw: RawClients
) -> None:
    wire_as(broker, raw, ANALYST).subscribe(SHARED, "a")
    wire_as(broker, raw, "alice").subscribe(SHARED, "b")
    for subject in (READER, RIVAL, "bob"):
        with pytest.raises(RefusedByBroker):
            wire_as(broker, raw, subject).subscribe(SHARED, "c")


def test_the_pipeline_reads_everything_and_administers_nothing(broker: InProcessBroker) -> None:
    pipeline = http_as(broker, OFFLOAD)
    assert pipeline("GET", f"{OWN_PATH}/segments")[0] == 200
    assert pipeline("PUT", f"{OWN_PATH}/acknowledged/offload", {"before": "1:1"})[0] == 200
    assert pipeline("POST", f"{OWN_PATH}/fence")[0] == 403
    assert pipeline("DELETE", f"{ADMIN_PATH}?force=true")[0] == 403


def test_an_observer_sees_metrics_and_status_and_reads_no_message(broker: InProcessBroker) -> None:
    observer = http_as(broker, PROMETHEUS)
    assert observer("GET", "/metrics")[0] == 200
    assert observer("GET", OWN_PATH)[0] == 200
    assert observer("GET", f"{OWN_PATH}/segments")[0] == 403
    assert observer("GET", f"{ADMIN_PATH}/messageid/0")[0] == 403


def test_a_refusal_is_counted(broker: InProcessBroker) -> None:
    http_as(broker, RIVAL)("GET", f"{OWN_PATH}/segments")
    _, text = http_as(broker, PROMETHEUS)("GET", "/metrics")
    assert 'onewriter_refusals_total{right="consume"} 1.0' in text
