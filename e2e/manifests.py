"""A team's manifests: a topic, its claim, and writer pods that meet ``restricted``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e import images

Json = dict[str, Any]

API = "onewriter.dev/v1alpha1"
ACCOUNT = "writer"
PROGRAMS = Path(__file__).parent / "programs"
AUTHORITY = "ca.crt"
PORT = 8080
"""The HTTP port on which every writer states its name."""

STOCK = "stock"
SIDECAR = "sidecar"
KINDS = (STOCK, SIDECAR)
"""The kinds of writers: with Pulsar's own client, and through the injected sidecar."""

RELAYED = "relayed"
"""A third kind: Pulsar's own client through the relay of an injected sidecar."""


PATIENT: Json = {"detection": {"pingIntervalSeconds": 10}}
"""For topics of tests that do not test silence: a slow machine must not cost a writer its topic."""

PATIENT_WITH_SILENCE: Json = {"detection": {"pingIntervalSeconds": 2}}
"""For topics of tests in which one pod is silent and the others must not appear to be.

With the default, a pod that gets no processor for 2.5 s is silent.
"""


def account() -> Json:
    """Return the ServiceAccount of the writers."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}


def programs(authority: str) -> Json:
    """Return the writers' programs, for their pods to mount, and the authority of the brokers' certificate."""
    files = {path.name: path.read_text() for path in PROGRAMS.glob("*_writer.py")}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "programs"},
        "data": files | {AUTHORITY: authority},
    }


def topic(name: str, **spec: Any) -> Json:
    """Return a topic with a Service for its leader. Evictions follow each other at once, so that tests are short."""
    wanted = {
        "access": {"modes": ["WaitForExclusive", "ExclusiveWithFencing"], "requireClaim": True},
        "fencing": {"minIntervalSeconds": 0},
        "leaderService": {"name": f"{name}-leader", "ports": [{"port": 80, "targetPort": PORT}]},
    }
    return {
        "apiVersion": API,
        "kind": "ExclusiveTopic",
        "metadata": {"name": name},
        "spec": wanted | spec,
    }


def claim(name: str) -> Json:
    """Return a claim under which all pods of the account may lead the topic and take it over."""
    return {
        "apiVersion": API,
        "kind": "ProducerClaim",
        "metadata": {"name": name},
        "spec": {
            "topicRef": {"name": name},
            "subject": {"serviceAccountName": ACCOUNT},
            "allow": ["lead", "takeover"],
        },
    }


def workload(
    name: str, writer: str, service_url: str, topic: str, *, stateful: bool = False, **settings: str
) -> Json:
    """Return two pods that write: a Deployment, or a StatefulSet. ``settings``: the program's environment."""
    template = _template(name, writer, service_url, topic, settings)
    spec: Json = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    if stateful:
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet" if stateful else "Deployment",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, writer: str, service_url: str, topic: str) -> Json:
    """Return one of a workload's pods by itself."""
    found = _template(name, writer, service_url, topic, {})
    found["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **found}


def history(name: str, service_url: str, topic: str, **settings: str) -> Json:
    """Return a pod that writes numbered messages to a topic and ends. ``settings``: its environment."""
    found = _template(name, STOCK, service_url, topic, settings)
    found["metadata"]["name"] = name
    found["spec"]["restartPolicy"] = "Never"
    (container,) = found["spec"]["containers"]
    container["command"] = ["python", "/programs/history_writer.py"]
    del container["readinessProbe"], container["ports"]
    return {"apiVersion": "v1", "kind": "Pod", **found}


def budget(name: str, *, available: int) -> Json:
    """Return a PodDisruptionBudget for a workload."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": available, "selector": {"matchLabels": {"app": name}}},
    }


def _template(
    name: str, writer: str, service_url: str, topic: str, settings: dict[str, str]
) -> Json:
    labels = {"app": name}
    annotations = {}
    volumes: list[Json] = [{"name": "programs", "configMap": {"name": "programs"}}]
    mounts = [{"name": "programs", "mountPath": "/programs"}]
    environment = dict(settings)
    if writer == STOCK:
        token = {"audience": "onewriter", "expirationSeconds": 600, "path": "token"}
        volumes.append(
            {"name": "identity", "projected": {"sources": [{"serviceAccountToken": token}]}}
        )
        mounts.append({"name": "identity", "mountPath": "/run/identity"})
        environment |= {
            "TOPIC": topic,
            "SERVICE_URL": service_url,
            "TOKEN_FILE": "/run/identity/token",
            "CA_FILE": f"/programs/{AUTHORITY}",
        }
    elif writer == RELAYED:
        labels["onewriter.dev/inject"] = "true"
        annotations["onewriter.dev/relay"] = "true"
        environment |= {"TOPIC": topic}
    else:
        labels["onewriter.dev/inject"] = "true"
        annotations["onewriter.dev/topic"] = topic
    own = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "writer",
        "image": images.TAG,
        "imagePullPolicy": "Never",
        "command": ["python", f"/programs/{STOCK if writer == RELAYED else writer}_writer.py"],
        "env": [own, *({"name": key, "value": value} for key, value in environment.items())],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                    # A node that is being drained does not count as a node without a pod.
                    "nodeTaintsPolicy": "Honor",
                    "labelSelector": {"matchLabels": {"app": name}},
                }
            ],
            "containers": [container],
            "volumes": volumes,
        },
    }
