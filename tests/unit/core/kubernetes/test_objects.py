"""Objects are parsed once. Fields of a newer version and unreadable values do not stop a reader."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_core.kubernetes.objects import (
    ClaimObject,
    FencedPod,
    LeaderService,
    LeaseRecord,
    OneWriterObject,
    PodContainer,
    PodObject,
    ServicePort,
    StoreMemory,
    TopicObject,
    TopicSpec,
    parse,
    parse_lease,
    parse_one_writer,
    parse_pod,
    parse_topic,
)

Json = dict[str, Any]

FENCED: Json = {
    "podUID": "u0",
    "epoch": 2,
    "cause": "Silent",
    "at": "2026-01-01T00:00:00Z",
    "outcome": "Pending",
    "since": "2026-01-01T00:00:01Z",
}


def document(kind: str = "ExclusiveTopic", **parts: Any) -> Json:
    return {"apiVersion": "onewriter.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}} | parts


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("ExclusiveTopic", TopicObject),
        ("ProducerClaim", ClaimObject),
        ("OneWriter", OneWriterObject),
        ("Pod", PodObject),
    ],
)
def test_each_watched_kind_has_a_class_of_its_own(kind: str, cls: type) -> None:
    assert type(parse(document(kind))) is cls


def test_an_object_without_spec_and_status_has_the_defaults() -> None:
    found = parse_topic(document())
    assert found.spec == TopicSpec()
    assert not found.spec.deletes_log
    assert (found.status.observed_generation, found.status.epoch) == (-1, None)
    assert found.status.condition("Ready").status == ""
    assert (found.key.namespace, found.uid, found.generation) == ("", "", 0)


def test_the_parts_of_a_spec_that_the_operator_uses_are_read() -> None:
    ports = [{"port": 80}, {"port": 443, "targetPort": "tls", "name": "https", "protocol": "UDP"}]
    spec = {
        "partitions": 3,
        "deletionPolicy": "DeleteIfEmpty",
        "fencing": {"podPolicy": "None", "minIntervalSeconds": 0.5},
        "leaderService": {"name": "leader", "ports": ports},
    }
    found = parse_topic(document(spec=spec)).spec
    assert (found.partitions, found.deletes_log) == (3, True)
    assert (found.pod_policy, found.min_interval_seconds) == ("None", 0.5)
    assert found.leader_service == LeaderService(
        "leader", (ServicePort(80, 80), ServicePort(443, "tls", "https", "UDP"))
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": None, "status": None},
        {"spec": [], "status": "x"},
        {"spec": {"partitions": "many", "fencing": 3, "leaderService": []}},
        {"status": {"epoch": "x", "transitions": {}, "fencedPods": [1], "conditions": [None]}},
        {"metadata": {"name": "a", "labels": None, "annotations": 3, "ownerReferences": "x"}},
        {"metadata": {"name": "a", "finalizers": None, "managedFields": [{"fieldsV1": None}]}},
    ],
)
def test_an_unreadable_value_has_its_default(broken: Json) -> None:
    found = parse_topic(document(**broken))
    assert found.spec.partitions == 0
    assert found.status.fenced_pods == ()
    assert found.status_editor({"epoch"}) == ("", "")
    assert parse(document("ProducerClaim", **broken)).uid == ""
    assert parse(document("Pod", **broken)).labels == {}


def test_fields_of_a_newer_version_are_written_back() -> None:
    entry = FENCED | {"pod": "writer-0", "newer": {"field": 1}}
    (pod,) = parse_topic(document(status={"fencedPods": [entry]})).status.fenced_pods
    assert isinstance(pod, FencedPod)
    assert pod.identifier == "u0@2"
    assert pod.to_document() == entry


def test_a_fenced_pod_without_uid_or_epoch_is_left_out() -> None:
    entries = [FENCED | {"podUID": None}, FENCED | {"epoch": None}, FENCED]
    found = parse_topic(document(status={"fencedPods": entries})).status.fenced_pods
    assert [pod.pod_uid for pod in found] == ["u0"]


def test_a_producer_of_a_claim_survives_a_round_trip() -> None:
    producers = [
        {"producerName": "w1", "state": "Granted", "pod": "p", "podUID": "u", "epoch": 0},
        {"producerName": "w2", "state": "Waiting", "queuePosition": 1, "priority": -3, "new": "x"},
    ]
    found = parse(document("ProducerClaim", status={"producers": producers}))
    assert isinstance(found, ClaimObject)
    assert [each.to_document() for each in found.status.producers] == producers


def test_an_empty_pod_selector_selects_every_labelled_pod() -> None:
    without = parse(document("ProducerClaim", spec={"subject": {}}))
    empty = parse(document("ProducerClaim", spec={"subject": {"podSelector": {}}}))
    assert isinstance(without, ClaimObject)
    assert isinstance(empty, ClaimObject)
    assert (without.spec.pod_labels, empty.spec.pod_labels) == (None, {})


def test_a_pod_of_a_listing_needs_no_kind() -> None:
    pod = parse_pod({"metadata": {"name": "p", "uid": "u"}, "status": {"podIP": "10.0.0.1"}})
    assert (pod.key.kind, pod.ip, pod.node, pod.phase) == ("Pod", "10.0.0.1", "", "")


def test_managed_fields_are_not_kept() -> None:
    metadata = {"name": "a", "resourceVersion": "7", "managedFields": [{"manager": "x"}]}
    found = parse_topic(document(metadata=metadata))
    assert found.document["metadata"] == {"name": "a", "resourceVersion": "7"}
    assert found.version_number == 7


def test_a_transition_of_a_status_has_the_types_of_a_brokers_report() -> None:
    entries = [
        {"epoch": 7, "cause": "Silent", "at": "T", "producerName": "w1", "pod": "p", "outageMs": 5},
        {"epoch": 6, "cause": "Released", "at": "T"},
    ]
    first, second = parse_topic(document(status={"transitions": entries})).status.transitions
    assert first.holder is not None
    assert (first.holder.producer_name, first.holder.pod, first.outage_ms) == ("w1", "p", 5)
    assert (second.holder, second.outage_ms) == (None, None)


def test_the_store_of_an_installation_survives_a_round_trip() -> None:
    store = {
        "state": "Reachable",
        "managed": True,
        "url": "redis://store:6379",
        "memory": {"summary": "0%", "usedBytes": 0, "growthBytesPerHour": 0},
    }
    found = parse_one_writer(document("OneWriter", status={"store": store})).status
    assert found.store.to_document() == store
    assert found.store.memory == StoreMemory("0%", 0, None, 0)
    assert (found.buckets_waiting, found.certificates) == (None, ())


def test_a_pod_has_its_readiness_named_ports_and_restarts() -> None:
    ports = [{"name": "http", "containerPort": 8080}, {"containerPort": 1}]
    pod = parse_pod(
        {
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "broker", "ports": ports}, {"name": "relay"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "relay", "restartCount": 2}],
            },
        }
    )
    assert pod.is_ready
    assert pod.containers == (
        PodContainer("broker", {"http": 8080}, has_restarted=False),
        PodContainer("relay", {}, has_restarted=True),
    )
    assert (pod.port("http"), pod.port("probes")) == (8080, None)


def test_a_lease_without_a_spec_has_no_holder() -> None:
    spec = {"holderIdentity": "op-1", "renewTime": "T", "leaseDurationSeconds": 15}
    assert parse_lease({"spec": spec}) == LeaseRecord("op-1", "T", 0, 15)
    assert parse_lease({"spec": None}) == LeaseRecord()
