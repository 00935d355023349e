"""The objects behind the transcripts in the docs. Their statuses are those that the operator's plans write."""

from __future__ import annotations

from typing import Any

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.kubernetes.objects import parse_claim, parse_one_writer, parse_topic
from onewriter_core.topic_view import parse_view
from onewriter_operator.plan.broker_report import parse_report
from onewriter_operator.plan.claim import plan_claim
from onewriter_operator.plan.facts import (
    Acceptance,
    Applied,
    BucketFacts,
    ClaimFacts,
    FleetState,
    PodFacts,
    RemovalAttempt,
    StoredTopic,
    TopicFacts,
)
from onewriter_operator.plan.installation import InstallationFacts, plan_installation
from onewriter_operator.plan.topic import plan_topic

API = "onewriter.dev/v1alpha1"
TOPIC = "persistent://shop/default/orders"
GRANTED = "2026-01-01T00:00:00.000Z"


def _unix(timestamp: str) -> float:
    found = seconds_of(timestamp)
    assert found is not None
    return found


NOW = _unix("2026-01-01T00:03:20Z")
"""The time of the transcripts."""

_WRITTEN = _unix("2026-01-01T00:00:12Z")

_FORMER: Json = {
    "producerName": "w0",
    "claim": "primary",
    "pod": "writer-0",
    "podUID": "u0",
    "node": "worker-1",
    "epoch": 5,
}
_HOLDER: Json = {
    "producerName": "w1",
    "claim": "primary",
    "pod": "writer-1",
    "podUID": "u1",
    "node": "worker-2",
    "address": "10.0.2.7:51234",
    "since": GRANTED,
    "epoch": 7,
}
_WAITER: Json = {
    "producerName": "w2",
    "claim": "primary",
    "pod": "writer-2",
    "podUID": "u2",
    "node": "worker-3",
    "place": 1,
}
_VIEW = parse_view(
    {
        "state": "Held",
        "epoch": 7,
        "served": True,
        "broker": "onewriter-broker-1",
        "durability": "Local",
        "holder": _HOLDER,
        "holders": [_HOLDER],
        "waiters": [_WAITER],
        "waiting": 1,
        "slots": [{"partition": None, "epoch": 7, "ledger": 7, "holder": "w1"}],
        "transitions": [
            {
                "epoch": 7,
                "cause": "Silent",
                "at": GRANTED,
                "holder": _HOLDER,
                "previous": _FORMER,
                "leaderlessMs": 143,
                "detectionMs": 2_512,
                "handoverMs": 143,
                "outageMs": 2_655,
                "firstMessageMs": 12,
            },
            {
                "epoch": 5,
                "cause": "Initial",
                "at": "2025-12-31T23:58:20.000Z",
                "holder": _FORMER,
            },
        ],
    }
)
_SHARED: dict[str, Any] = {
    "now": _WRITTEN,
    "acceptance": Acceptance(topic=TOPIC),
    "applied": Applied(brokers=3, is_everywhere=True),
    "brokers": FleetState(expected=3, synced=3),
    "view": _VIEW,
}


def _metadata(name: str, namespace: str) -> Json:
    return {"name": name, "namespace": namespace, "generation": 1}


def topic() -> Json:
    """The ExclusiveTopic ``shop/orders``, whose former writer was fenced and has a pod that a budget protects."""
    document: Json = {
        "apiVersion": API,
        "kind": "ExclusiveTopic",
        "metadata": _metadata("orders", "shop"),
        "spec": {},
    }
    refusal = "Cannot evict pod as it would violate the pod's disruption budget."
    facts = TopicFacts(
        parse_topic(document),
        **_SHARED,
        stored=StoredTopic(exists=True, is_declared=True, epoch=7),
        pods={"u0": PodFacts(), "u1": PodFacts()},
        fenced_seconds={"u0@5": 11.0},
        attempts={"u0@5": RemovalAttempt("BlockedByPDB", message=refusal)},
    )
    return document | {"status": plan_topic(facts).status}


def claim(name: str) -> Json:
    """A ProducerClaim for the topic: ``primary`` is used, ``standby`` is not."""
    document: Json = {
        "apiVersion": API,
        "kind": "ProducerClaim",
        "metadata": _metadata(name, "shop"),
        "spec": {"topicRef": {"name": "orders"}, "subject": {"serviceAccountName": "writer"}},
    }
    facts = ClaimFacts(parse_claim(document), **_SHARED, topic=parse_topic(topic()))
    return document | {"status": plan_claim(facts).status}


def one_writer() -> Json:
    """The object of an installation that is in order."""
    document: Json = {
        "apiVersion": API,
        "kind": "OneWriter",
        "metadata": _metadata("onewriter", "onewriter"),
    }
    report = parse_report(
        {
            "version": "0.1.0",
            "store": {
                "url": "redis://onewriter-valkey:6379",
                "topology": "Single",
                "reachable": True,
                "durability": "Local",
                "memoryBytesUsed": 128_849_019,
                "memoryBytesMax": 1_073_741_824,
                "full": False,
                "faults": [],
                "refusesWrites": False,
            },
            "certificates": [{"name": "broker", "notAfter": "2026-12-31T23:59:59Z"}],
        }
    )
    facts = InstallationFacts(
        parse_one_writer(document),
        _WRITTEN,
        version="0.1.0",
        brokers_ready=3,
        brokers_desired=3,
        fleet=FleetState(expected=3, synced=3),
        reports={f"onewriter-broker-{number}": report for number in range(3)},
        buckets=BucketFacts(total=64),
        growth_bytes_per_hour=10_737_418.0,
    )
    return document | {"status": plan_installation(facts).status}


def budget() -> Json:
    """The PodDisruptionBudget that protects the former writer's pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "writers", "namespace": "shop"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "writer"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1},
    }


def former_pod() -> Json:
    """The former writer's pod."""
    labels = {"app": "writer"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer-0", "namespace": "shop", "uid": "u0", "labels": labels},
    }
