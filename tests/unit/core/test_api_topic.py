"""ExclusiveTopic as a value: defaults, bounds, and the topic that it names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from onewriter_core.api import (
    Access,
    DeletionPolicy,
    Durability,
    ExclusiveTopic,
    ExclusiveTopicSpec,
    Metadata,
    PodPolicy,
)
from onewriter_core.ids import TOPIC_NAME_LENGTH_MAX, TopicName
from onewriter_core.topic.model import AccessMode, PromotionPolicy


def declared(
    spec: dict[str, Any] | None = None, name: str = "orders", **metadata: Any
) -> ExclusiveTopic:
    return ExclusiveTopic.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {"name": name, **metadata},
            "spec": spec or {},
        }
    )


def test_a_bare_topic_gets_every_default() -> None:
    spec = declared().spec
    assert spec.partitions == 0
    assert spec.access.modes == (
        AccessMode.EXCLUSIVE,
        AccessMode.WAIT_FOR_EXCLUSIVE,
        AccessMode.EXCLUSIVE_WITH_FENCING,
    )
    assert spec.access.require_claim
    assert spec.promotion.policy is PromotionPolicy.PRIORITY
    assert (spec.detection.ping_interval_seconds, spec.detection.ping_failures) == (1, 3)
    assert spec.detection.progress_deadline_seconds == 0
    assert spec.handover.timeout_seconds == 5
    assert spec.durability is Durability.LOCAL
    retention = spec.retention
    assert (retention.max_age_seconds, retention.max_bytes, retention.max_entries) == (None,) * 3
    assert retention.keep_unacknowledged
    assert not spec.compaction.enabled
    assert spec.fencing.pod_policy is PodPolicy.EVICT
    assert spec.fencing.min_interval_seconds == 30
    assert spec.leader_service is None
    assert spec.deletion_policy is DeletionPolicy.RETAIN


def test_a_whole_specification_is_read_and_written_back_as_it_stood() -> None:
    spec = {
        "topic": "persistent://shop/default/orders",
        "partitions": 8,
        "access": {
            "modes": ["Shared", "Exclusive"],
            "requireClaim": False,
            "consumers": {
                "everyone": False,
                "namespaces": ["analytics"],
                "subjects": ["system:serviceaccount:bank:reader", "alice"],
            },
        },
        "promotion": {"policy": "Fifo"},
        "detection": {
            "pingIntervalSeconds": 0.5,
            "pingFailures": 2,
            "progressDeadlineSeconds": 60.0,
        },
        "handover": {"timeoutSeconds": 1.5},
        "durability": "AllReplicas",
        "retention": {
            "maxAgeSeconds": 60,
            "maxBytes": 1000,
            "maxEntries": 10,
            "keepUnacknowledged": False,
        },
        "compaction": {"enabled": True, "thresholdBytes": 1_000_000},
        "fencing": {"podPolicy": "None", "minIntervalSeconds": 0.0},
        "leaderService": {
            "name": "orders-leader",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
        "deletionPolicy": "Delete",
    }
    assert declared(spec).spec.model_dump(mode="json") == spec


@pytest.mark.parametrize(
    ("metadata", "topic"),
    [
        ({}, "persistent://public/default/orders"),
        ({"namespace": "default"}, "persistent://public/default/orders"),
        ({"namespace": "shop"}, "persistent://shop/default/orders"),
    ],
)
def test_a_topic_is_named_after_its_object_by_default(metadata: dict[str, Any], topic: str) -> None:
    assert declared(**metadata).topic_name == TopicName.parse(topic)
    chosen = declared({"topic": "persistent://a/b/Kubernetes_Forbids=This"}, **metadata)
    assert str(chosen.topic_name) == "persistent://a/b/Kubernetes_Forbids=This"


def test_python_code_builds_the_same_values_by_their_python_names() -> None:
    access = Access(modes=(AccessMode.SHARED,), require_claim=False)
    built = ExclusiveTopic(metadata=Metadata(name="orders"), spec=ExclusiveTopicSpec(access=access))
    assert built == declared({"access": {"modes": ["Shared"], "requireClaim": False}})


def test_fields_of_the_api_server_are_accepted_and_ignored() -> None:
    stored = ExclusiveTopic.from_document(
        {
            "apiVersion": "onewriter.dev/v1alpha1",
            "kind": "ExclusiveTopic",
            "metadata": {
                "name": "orders",
                "uid": "1f",
                "generation": 3,
                "resourceVersion": "9",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "kubectl"}],
                "ownerReferences": [],
                "finalizers": ["onewriter.dev/topic-cleanup"],
            },
            "spec": {},
            "status": {"epoch": 7, "conditions": [{"type": "Ready"}]},
        }
    )
    assert stored == declared()


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("partitions", [0, 1, 1024], [-1, 1025, "3", 1.5, True, None]),
        ("detection.pingIntervalSeconds", [0.1, 1, 60], [0, 0.05, 61, "1", float("nan")]),
        ("detection.pingFailures", [1, 100], [0, 101, 2.5]),
        ("detection.progressDeadlineSeconds", [0, 86_400], [-1, 86_401, float("inf")]),
        ("handover.timeoutSeconds", [0.1, 600], [0, 601]),
        ("durability", ["None", "Replicated"], ["none", "", 1, None]),
        ("retention.maxAgeSeconds", [1, None], [0, -1, 10**12]),
        ("retention.maxBytes", [1, 2**53 - 1], [0, 2**53, "10Gi"]),
        ("retention.maxEntries", [1, 2**53 - 1], [0, 2**53]),
        ("retention.keepUnacknowledged", [True, False], ["yes", 1]),
        ("fencing.podPolicy", ["Evict", "Delete", "None"], ["Kill"]),
        ("fencing.minIntervalSeconds", [0, 86_400], [-1, 86_401]),
        ("promotion.policy", ["Fifo", "Priority", "Balanced"], ["fifo", "Random"]),
        ("deletionPolicy", ["Retain", "DeleteIfEmpty", "Delete"], ["Keep"]),
        ("access.modes", [["Shared"], ["Exclusive", "Shared"]], [[], ["Shared", "Shared"], [1], "Shared", ["SHARED"]]),
        ("access.requireClaim", [True, False], ["true", 0]),
        (
            "topic",
            [None, "persistent://t/n/x", "persistent://t/n/ünïcode", "persistent://t/n/" + "x" * 450],
            [
                "x",
                "t/n/x",
                "non-persistent://t/n/x",
                "persistent://t/n/",
                "persistent://t/n/a b",
                "persistent://t/n/x-partition-0",
                "persistent://t/n/" + "x" * TOPIC_NAME_LENGTH_MAX,
                "persistent://t/n/" + "ü" * 300,
                1,
            ],
        ),
        (
            "leaderService",
            [{"name": "l", "ports": [{"port": 1}]}, {"name": "l", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}],
            [
                {"name": "l", "ports": []},
                {"name": "l"},
                {"name": "1l", "ports": [{"port": 1}]},
                {"name": "l", "ports": [{"port": 0}]},
                {"name": "l", "ports": [{"port": 65_536}]},
                {"name": "l", "ports": [{"port": 1}, {"name": "b", "port": 2}]},
                {"name": "l", "ports": [{"name": "b", "port": 1}, {"name": "b", "port": 2}]},
            ],
        ),
    ],
)  # fmt: skip
def test_each_bound_accepts_its_edge_and_refuses_more(
    field: str, accepted: list[Any], refused: list[Any]
) -> None:
    def with_value(value: Any) -> dict[str, Any]:
        for part in reversed(field.split(".")):
            value = {part: value}
        return dict(value)

    for value in accepted:
        declared(with_value(value))
    for value in refused:
        with pytest.raises(ValidationError):
            declared(with_value(value))


def test_every_partition_of_the_longest_name_is_a_topic_name() -> None:
    base = "persistent://t/n/"
    longest = base + "x" * (TOPIC_NAME_LENGTH_MAX - len("-partition-1023") - len(base))
    topic = declared({"topic": longest, "partitions": 1024}).topic_name
    assert TopicName.parse(str(topic.with_partition(1023))).partition == 1023
    with pytest.raises(ValidationError):
        declared({"topic": longest + "x"})


@pytest.mark.parametrize(
    "name", ["Orders", "-a", "a-", "a..b", "", "a" * 254, "orders-partition-3"]
)
def test_an_object_needs_a_name_that_kubernetes_and_pulsar_allow(name: str) -> None:
    with pytest.raises(ValidationError):
        declared(name=name)


def test_a_name_like_a_partition_is_fine_for_an_object_that_names_its_topic() -> None:
    topic = declared({"topic": "persistent://t/n/x"}, name="orders-partition-3")
    assert topic.topic_name.partition is None


def test_unknown_fields_and_python_spellings_are_refused_at_every_level() -> None:
    for spec in ({"partition": 1}, {"access": {"require_claim": True}}, {"retention": {"max": 1}}):
        with pytest.raises(ValidationError):
            declared(spec)
    with pytest.raises(ValidationError):
        declared(lables={})


def test_a_topic_cannot_be_changed_in_place() -> None:
    topic = declared()
    with pytest.raises(ValidationError):
        topic.spec.partitions = 3  # type: ignore[misc]  # that it is refused is the point


def test_the_detection_of_silence_permits_a_takeover_within_three_seconds() -> None:
    assert declared().spec.detection.silence_seconds == 2.5


def test_the_schema_says_in_openapi_what_the_model_enforces() -> None:
    schema = ExclusiveTopic.model_json_schema()["$defs"]
    assert schema["Detection"]["properties"]["pingIntervalSeconds"]["minimum"] == 0.1
    assert schema["Access"]["properties"]["modes"]["items"]["enum"][2] == "WaitForExclusive"
    assert schema["Access"]["properties"]["modes"]["minItems"] == 1
    assert schema["ExclusiveTopicSpec"]["properties"]["partitions"]["maximum"] == 1024
    assert not schema["ExclusiveTopicSpec"]["additionalProperties"]
