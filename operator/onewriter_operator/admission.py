"""Injection of the sidecar into labelled pods: builds the JSON patch of a pod. Pure.

A pod requests it with the label ``onewriter.dev/inject: "true"``. With the annotation ``onewriter.dev/topic`` the
sidecar leads that topic; with ``onewriter.dev/relay: "true"`` it relays stock Pulsar clients. The sidecar is a native
one (an init container with ``restartPolicy: Always``): later containers wait until it has started, its readiness counts
for the pod, and it ends after them. Injection is idempotent. It does not change the containers of the pod or of other
injectors, except that a relay's address is added to their environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onewriter_core.ids import InvalidTopicName, TopicName
from onewriter_core.json_values import Json, mapping, mappings, text
from onewriter_core.kubernetes.names import (
    CA_ANNOTATION,
    CLAIM_LABEL,
    INJECT_LABEL,
    PRIORITY_ANNOTATION,
    READY_WHEN_ANNOTATION,
    RELAY_ANNOTATION,
    TOPIC_ANNOTATION,
)

CONTAINER: Final = "onewriter-sidecar"
TOKEN_VOLUME: Final = "onewriter-token"  # noqa: S105 - the name of a volume
CA_VOLUME: Final = "onewriter-broker-ca"
TOKEN_DIRECTORY: Final = "/run/onewriter/token"  # noqa: S105 - a directory
CA_DIRECTORY: Final = "/run/onewriter/broker-ca"
RELEASE_KEY_FILE: Final = "/dev/shm/onewriter-release-key"  # noqa: S108 - its permissions protect it
"""In the memory that all containers of a pod share: no volume, which would hinder ``kubectl drain``."""

HEALTH_PORT: Final = 6681
RELAY_PORT: Final = 6650
SERVICE_URL: Final = "ONEWRITER_SERVICE_URL"
"""The variable with the relay's address in the other containers."""
TOKEN_SECONDS: Final = 600
"""Shortest lifetime of a projected token in Kubernetes."""

PRE_STOP: Final = (
    'read -r name </proc/1/comm && [ "$name" = onewriter ] && kill -s USR1 1'
    " || exec onewriter sidecar release"
)
"""Makes the sidecar release the topic and stay out of the queue.

Kubernetes runs it as soon as the pod is deleted, while the containers of the pod still run, so the next waiter becomes
the holder at once. The signal comes from a shell, because an interpreter takes seconds to start with the CPU that a
sidecar requests. Process 1 is another program only in a pod that shares process IDs; there the command does it.
"""

NATIVE_SIDECARS_SINCE: Final = (1, 29)
"""Older API servers drop ``restartPolicy``; the pod would never start."""

_READY_WHEN = ("standing-by", "leading")
_PRIORITY = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Injection:
    """The settings of every injected sidecar. ``authority`` is a PEM, empty without TLS."""

    image: str
    pull_policy: str
    service_url: str
    audience: str = "onewriter"
    authority: str = ""
    resources: Mapping[str, Any] = field(default_factory=dict)


class NotInjectable(Exception):
    """The sidecar cannot be injected into the pod; the message is for the pod's author."""


def patch_of(pod: Json, namespace: str, injection: Injection) -> list[Json]:
    """The JSON patch that adds the sidecar; empty if there is nothing to add.

    ``namespace`` is the pod's: a pod under admission may lack it. Raises NotInjectable.
    """
    if _metadata(pod, "labels").get(INJECT_LABEL) != "true":
        return []
    if any(each.get("name") == CONTAINER for each in mappings(_spec(pod).get("initContainers"))):
        return []
    patch = _Patch(pod)
    patch.append("/spec/initContainers", _container(pod, namespace, injection))
    patch.append("/spec/volumes", _token(injection.audience))
    if _has_relay(pod):
        url = {"name": SERVICE_URL, "value": f"pulsar://127.0.0.1:{RELAY_PORT}"}
        for number in range(len(mappings(_spec(pod).get("containers")))):
            patch.append(f"/spec/containers/{number}/env", url)
    if injection.authority:
        patch.append("/spec/volumes", _authority())
        patch.put("/metadata/annotations", CA_ANNOTATION, injection.authority)
    if CLAIM_LABEL not in _metadata(pod, "labels"):
        patch.put("/metadata/labels", CLAIM_LABEL, "injected")
    return patch.operations


def topic_name(pod: Json, namespace: str) -> str:
    """The Pulsar topic that a pod names: in full, or as an ExclusiveTopic of its own namespace.

    Raises NotInjectable.
    """
    named = _annotation(pod, TOPIC_ANNOTATION)
    if not named:
        raise NotInjectable(
            f"annotation {TOPIC_ANNOTATION} is missing: set it to the topic that the sidecar leads. For a sidecar that "
            f'only relays stock clients, set {RELAY_ANNOTATION}: "true"'
        )
    tenant = "public" if namespace == "default" else namespace
    full = named if "://" in named else f"persistent://{tenant}/default/{named}"
    try:
        name = TopicName.parse(full)
    except InvalidTopicName as error:
        raise NotInjectable(f"annotation {TOPIC_ANNOTATION}: {error}") from error
    if name.partition is not None or name.domain != "persistent":
        raise NotInjectable(
            f"annotation {TOPIC_ANNOTATION} must name a whole persistent topic, not {full}"
        )
    return str(name)


# ------------------------------------------------------------ labels, annotations and spec of the pod
#
# A pod under admission may have no name yet (generateName), so it is not a PodObject.


def _metadata(pod: Json, name: str) -> Json:
    """The pod's labels or annotations."""
    return mapping(mapping(pod.get("metadata")).get(name))


def _annotation(pod: Json, name: str) -> str:
    return text(_metadata(pod, "annotations").get(name)).strip()


def _has_relay(pod: Json) -> bool:
    """Whether the pod requests a relay. Raises NotInjectable."""
    requested = _annotation(pod, RELAY_ANNOTATION)
    if requested not in {"", "true", "false"}:
        raise NotInjectable(
            f"annotation {RELAY_ANNOTATION} must be true or false, not {requested[:40]!r}"
        )
    if requested == "true" and _spec(pod).get("hostNetwork"):
        raise NotInjectable(
            f"annotation {RELAY_ANNOTATION}: a pod with hostNetwork shares the node's loopback with others, which "
            "could write with the pod's token"
        )
    return requested == "true"


def _leads(pod: Json) -> bool:
    """Whether the sidecar leads a topic: always, unless it only relays. Raises NotInjectable."""
    if _annotation(pod, TOPIC_ANNOTATION) or not _has_relay(pod):
        return True
    for each in (PRIORITY_ANNOTATION, READY_WHEN_ANNOTATION):
        if _annotation(pod, each):
            raise NotInjectable(f"annotation {each} needs {TOPIC_ANNOTATION}")
    return False


def _spec(pod: Json) -> Json:
    return mapping(pod.get("spec"))


# ------------------------------------------------------------ the sidecar's container and volumes


def _container(pod: Json, namespace: str, injection: Injection) -> Json:
    container: Json = {
        "name": CONTAINER,
        "image": injection.image,
        "imagePullPolicy": injection.pull_policy,
        "restartPolicy": "Always",
        "command": ["onewriter", "sidecar"],
        "env": _environment(pod, namespace, injection),
        "ports": [{"name": "onewriter", "containerPort": HEALTH_PORT}],
        "startupProbe": _probe("/healthz", period_seconds=1, failures=60),
        "readinessProbe": _probe("/readyz", period_seconds=2, failures=2),
        "resources": dict(injection.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": True},
            *(
                [{"name": CA_VOLUME, "mountPath": CA_DIRECTORY, "readOnly": True}]
                if injection.authority
                else []
            ),
        ],
    }
    if _leads(pod):
        container["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", PRE_STOP]}}}
    return container


def _environment(pod: Json, namespace: str, injection: Injection) -> list[Json]:
    values = {
        "SERVICE_URL": injection.service_url,
        "TOKEN_FILE": f"{TOKEN_DIRECTORY}/token",
        "HEALTH_PORT": str(HEALTH_PORT),
    }
    if _leads(pod):
        values["TOPIC"] = topic_name(pod, namespace)
        values["RELEASE_KEY_FILE"] = RELEASE_KEY_FILE
    if _has_relay(pod):
        values["RELAY_PORT"] = str(RELAY_PORT)
    if injection.authority:
        values["TLS_CA_FILE"] = f"{CA_DIRECTORY}/ca.crt"
    priority = _annotation(pod, PRIORITY_ANNOTATION)
    if priority:
        if not _PRIORITY.fullmatch(priority) or not -(2**31) <= int(priority) < 2**31:
            raise NotInjectable(
                f"annotation {PRIORITY_ANNOTATION} must be a signed 32-bit number, not {priority[:40]!r}"
            )
        values["PRIORITY"] = str(int(priority))
    ready_when = _annotation(pod, READY_WHEN_ANNOTATION)
    if ready_when:
        if ready_when not in _READY_WHEN:
            allowed = " or ".join(_READY_WHEN)
            raise NotInjectable(
                f"annotation {READY_WHEN_ANNOTATION} must be {allowed}, not {ready_when[:40]!r}"
            )
        values["READY_WHEN"] = ready_when
    own = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [
        {"name": "ONEWRITER_SIDECAR_IDENTITY", **own},
        *({"name": f"ONEWRITER_SIDECAR_{name}", "value": value} for name, value in values.items()),
    ]


def _probe(path: str, *, period_seconds: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": HEALTH_PORT},
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": 2,
    }


def _token(audience: str) -> Json:
    token = {"path": "token", "audience": audience, "expirationSeconds": TOKEN_SECONDS}
    # The sidecar's user can read it, whichever users the other containers have.
    return {
        "name": TOKEN_VOLUME,
        "projected": {"defaultMode": 0o444, "sources": [{"serviceAccountToken": token}]},
    }


def _authority() -> Json:
    """The brokers' CA from the pod's annotation: the pod's namespace has no copy of it."""
    item = {"path": "ca.crt", "fieldRef": {"fieldPath": f"metadata.annotations['{CA_ANNOTATION}']"}}
    return {"name": CA_VOLUME, "downwardAPI": {"defaultMode": 0o444, "items": [item]}}


class _Patch:
    """Collects JSON-patch operations against a pod that may lack lists and mappings."""

    def __init__(self, pod: Json) -> None:
        self.operations: list[Json] = []
        self._pod = pod
        self._created: set[str] = set()

    def append(self, path: str, value: Json) -> None:
        """Append an item to a list, unless the list has an item with its name."""
        present = self._at(path) or []
        if any(each.get("name") == value["name"] for each in present):
            return
        self._create(path, bool(present), [])
        self.operations.append({"op": "add", "path": f"{path}/-", "value": value})

    def put(self, path: str, name: str, value: str) -> None:
        """Set one entry of a mapping."""
        self._create(path, self._at(path) is not None, {})
        escaped = name.replace("~", "~0").replace("/", "~1")
        self.operations.append({"op": "add", "path": f"{path}/{escaped}", "value": value})

    def _create(self, path: str, exists: bool, empty: Any) -> None:
        """Add an empty list or mapping once, if the pod has none at this path."""
        if not exists and path not in self._created:
            self.operations.append({"op": "add", "path": path, "value": empty})
        self._created.add(path)

    def _at(self, path: str) -> Any:
        found: Any = self._pod
        for part in path.strip("/").split("/"):
            found = found[int(part)] if isinstance(found, list) else (found or {}).get(part)
        return found
