"""ServiceAccounts for tests: the broker's, which has exactly a broker's rights, and those of pods."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane

from onewriter_broker.kubernetes_api import ApiServer

AUDIENCE = "onewriter"

TOKEN_SECONDS = 3_600
"""Lifetime of a pod's token: longer than any test."""

BROKER_RULES = [
    {
        "apiGroups": ["onewriter.dev"],
        "resources": ["bucketanchors"],
        "verbs": ["get", "create", "update"],
    }
]
"""A broker's rights in its own namespace."""

REVIEW_RULES = [
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
]
"""A broker's rights in the whole cluster."""


def broker_account(cluster: ControlPlane, namespace: str, directory: Path) -> ApiServer:
    """Create a ServiceAccount with a broker's rights. The file of its token is in ``directory``."""
    name = f"broker-{uuid.uuid4().hex[:8]}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    cluster.apply(
        service_account(name),
        rbac("Role", name, rules=BROKER_RULES),
        rbac("RoleBinding", name, roleRef=reference("Role", name), subjects=[subject]),
        namespace=namespace,
    )
    cluster_name = f"{namespace}-{name}"
    role = reference("ClusterRole", cluster_name)
    cluster.apply(
        rbac("ClusterRole", cluster_name, rules=REVIEW_RULES),
        rbac("ClusterRoleBinding", cluster_name, roleRef=role, subjects=[subject]),
    )
    user = f"system:serviceaccount:{namespace}:{name}"
    anchors, reviews = "bucketanchors.onewriter.dev", "tokenreviews.authentication.k8s.io"
    cluster.until_allowed(user, "update", anchors, namespace=namespace)
    cluster.until_allowed(user, "create", reviews)
    directory.mkdir(parents=True, exist_ok=True)
    token = directory / f"{name}.token"
    token.write_text(cluster.kubectl("create", "token", name, namespace=namespace).stdout)
    return ApiServer(cluster.url, cluster.authority.certificate, token, namespace)


def service_account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def reference(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}


def rbac(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        **fields,
    }


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that runs on no node. It is sufficient to bind a token to."""

    name: str
    uid: str
    account: str


def make_pod(
    cluster: ControlPlane,
    namespace: str,
    account: str = "writer",
    *,
    node: str = "",
    labels: Mapping[str, str] | None = None,
) -> Pod:
    """Create a pod and, if it is missing, its ServiceAccount."""
    name = f"pod-{uuid.uuid4().hex[:8]}"
    spec: dict[str, Any] = {
        "serviceAccountName": account,
        "containers": [{"name": "writer", "image": "localhost/none:1"}],
    }
    if node:
        spec["nodeName"] = node
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec,
    }
    cluster.apply(service_account(account), document, namespace=namespace)
    uid = cluster.get("pod", name, namespace=namespace)["metadata"]["uid"]
    return Pod(name, uid, account)


def delete_pod(cluster: ControlPlane, namespace: str, pod: Pod) -> None:
    """Delete a pod at once, because there is no kubelet that confirms its end."""
    cluster.kubectl("delete", "pod", pod.name, "--force", "--grace-period=0", namespace=namespace)


def pod_token(
    cluster: ControlPlane,
    namespace: str,
    pod: Pod,
    *,
    audience: str = AUDIENCE,
    seconds: int = TOKEN_SECONDS,
) -> str:
    """Return the token that a kubelet would project into the pod."""
    return cluster.kubectl(
        *("create", "token", pod.account, f"--audience={audience}", f"--duration={seconds}s"),
        *("--bound-object-kind=Pod", f"--bound-object-name={pod.name}"),
        f"--bound-object-uid={pod.uid}",
        namespace=namespace,
    ).stdout.strip()
