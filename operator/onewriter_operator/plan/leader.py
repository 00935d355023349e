"""The Service that leads to a topic's writer only: its Service and EndpointSlice. Pure.

The Service has no selector; the operator writes its only EndpointSlice. Both carry the epoch of the
writer as a label. The broker decides whether the writer is ready (it holds the topic and answers
pings), not a probe, so that no readiness gate can block a rollout.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import (
    FIELD_MANAGER,
    MANAGED_BY,
    SERVICE,
    SERVICE_NAME_LABEL,
    SLICE,
    SLICE_MANAGER_LABEL,
)
from onewriter_core.kubernetes.names import EPOCH_LABEL
from onewriter_core.kubernetes.objects import KubeObject, LeaderService, TopicObject
from onewriter_core.topic_view import ProducerView
from onewriter_operator.plan.facts import PodFacts


def slice_name(service: str, address_type: str) -> str:
    """Name of the slice; an address type cannot change, so each type has a slice of its own."""
    return f"{service}-leader-{address_type.lower()}"


def address_type(ip: str) -> str:
    """``IPv4`` or ``IPv6``; IPv4 if the text is not an address."""
    try:
        return f"IPv{ipaddress.ip_address(ip).version}"
    except ValueError:
        return "IPv4"


def service(topic: TopicObject, wanted: LeaderService, epoch: int) -> Json:
    """The Service of ``spec.leaderService``."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": _metadata(topic, wanted.name, {EPOCH_LABEL: str(epoch)}),
        "spec": {
            "type": "ClusterIP",
            # With one, Kubernetes itself would add slices of all pods that it selects.
            "selector": {},
            "ports": [
                {
                    **({"name": port.name} if port.name else {}),
                    "port": port.port,
                    "targetPort": port.target_port,
                    "protocol": port.protocol,
                }
                for port in wanted.ports
            ],
        },
    }


def endpoints(
    topic: TopicObject,
    wanted: LeaderService,
    epoch: int,
    holder: ProducerView | None,
    pod: PodFacts | None,
) -> Json:
    """The EndpointSlice: the holder's pod, or no endpoint while no producer writes."""
    ip = pod.ip if pod is not None and pod.exists else ""
    labels = {
        SERVICE_NAME_LABEL: wanted.name,
        SLICE_MANAGER_LABEL: FIELD_MANAGER,
        EPOCH_LABEL: str(epoch),
    }
    found: list[Json] = []
    if holder is not None and pod is not None and ip:
        found.append(
            {
                "addresses": [ip],
                "conditions": {
                    "ready": not pod.is_going,
                    "serving": True,
                    "terminating": pod.is_going,
                },
                **({"nodeName": pod.node} if pod.node else {}),
                "targetRef": {
                    "kind": "Pod",
                    "name": holder.pod,
                    "namespace": topic.key.namespace,
                    "uid": holder.pod_uid,
                },
            }
        )
    return {
        "apiVersion": SLICE.api_version,
        "kind": SLICE.kind,
        "metadata": _metadata(topic, slice_name(wanted.name, address_type(ip)), labels),
        "addressType": address_type(ip),
        "endpoints": found,
        "ports": [
            {
                "name": port.name,
                "port": port.target_port,
                "protocol": port.protocol,
            }
            for port in wanted.ports
        ],
    }


def is_ahead(epoch: int, slices: Iterable[KubeObject], service: KubeObject | None) -> bool:
    """Whether the Service or a slice has a later epoch than this one."""
    found = slices if service is None else (*slices, service)
    return any(epoch_of(each) > epoch for each in found)


def epoch_of(found: KubeObject) -> int:
    """The epoch in an object's label; -1 without one."""
    text = found.labels.get(EPOCH_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() else -1


def _metadata(topic: TopicObject, name: str, labels: Mapping[str, str]) -> Json:
    return {
        "name": name,
        "namespace": topic.key.namespace,
        "labels": {MANAGED_BY: FIELD_MANAGER, **labels},
        "ownerReferences": [
            {
                "apiVersion": topic.api_version,
                "kind": topic.key.kind,
                "name": topic.key.name,
                "uid": topic.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
