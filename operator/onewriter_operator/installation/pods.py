"""The common parts of all pods: they run as an unprivileged user, with a read-only file system.

The ``restricted`` Pod Security Standard requires all of it
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).
"""

from __future__ import annotations

from typing import Any, Final

from onewriter_operator.configuration import (
    Configuration,
    PodOptions,
    Resources,
    Spreading,
    Storage,
)
from onewriter_operator.installation import names

Json = dict[str, Any]

USER: Final = 65532
"""User and group of every container."""

READ_BY_GROUP: Final = 0o440
"""Mode of mounted secrets."""

POD_SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

_ZONE = "topology.kubernetes.io/zone"
_NODE = "kubernetes.io/hostname"


def template(
    configuration: Configuration,
    part: str,
    options: PodOptions,
    spec: Json,
    annotations: dict[str, str] | None = None,
) -> Json:
    """A pod template: ``spec`` and the common parts of all pods."""
    # No label that changes with each release: it would replace the pods.
    own = names.selector(configuration, part) | {"app.kubernetes.io/part-of": "onewriter"}
    metadata: Json = {"labels": {**options.labels, **own}}
    noted = {**options.annotations, **(annotations or {})}
    if noted:
        metadata["annotations"] = noted
    whole: Json = {
        "securityContext": POD_SECURITY,
        "enableServiceLinks": False,
        **spec,
    }
    constraints = _spreading(configuration, part, options)
    if constraints:
        whole["topologySpreadConstraints"] = constraints
    if configuration.image.pull_secrets:
        whole["imagePullSecrets"] = [{"name": name} for name in configuration.image.pull_secrets]
    if options.node_selector:
        whole["nodeSelector"] = options.node_selector
    if options.tolerations:
        whole["tolerations"] = list(options.tolerations)
    affinity = _affinity(configuration, part, options)
    if affinity:
        whole["affinity"] = affinity
    if options.priority_class_name:
        whole["priorityClassName"] = options.priority_class_name
    return {"metadata": metadata, "spec": whole}


def _spreading(configuration: Configuration, part: str, options: PodOptions) -> list[Json]:
    """The topology spread constraints."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": Spreading.DO_NOT_SCHEDULE.value,
            "labelSelector": {"matchLabels": names.selector(configuration, part)},
        }
        for key in _keys(options, Spreading.DO_NOT_SCHEDULE)
    ]


def _affinity(configuration: Configuration, part: str, options: PodOptions) -> Json:
    """The configured affinity, and the preferred spread of the pods.

    The spread is a preferred anti-affinity, because the scheduler ignores all constraints of a pod on
    nodes that lack one of their labels: pods in a cluster without zones would share a node.
    """
    terms = [
        {
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": key,
                "labelSelector": {"matchLabels": names.selector(configuration, part)},
            },
        }
        for key in _keys(options, Spreading.SCHEDULE_ANYWAY)
    ]
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    return {**(apart if terms else {}), **options.affinity}


def keep_apart(pod: Json, labels: dict[str, str]) -> None:
    """Never run the pod on a node with another pod that has these labels, whatever its configured affinity says."""
    affinity = {**pod.get("affinity", {})}
    apart = {**affinity.get("podAntiAffinity", {})}
    term = {"topologyKey": _NODE, "labelSelector": {"matchLabels": dict(labels)}}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    apart[kind] = [*apart.get(kind, ()), term]
    pod["affinity"] = {**affinity, "podAntiAffinity": apart}


def _keys(options: PodOptions, wanted: Spreading) -> list[str]:
    spread = {_ZONE: options.spread.zones, _NODE: options.spread.nodes}
    return [key for key, spreading in spread.items() if spreading is wanted]


def resources(wanted: Resources) -> Json:
    """A container's resources."""
    found = {"requests": dict(wanted.requests), "limits": dict(wanted.limits)}
    return {kind: amounts for kind, amounts in found.items() if amounts}


def claim(storage: Storage, labels: dict[str, str]) -> Json:
    """The template of each pod's volume named ``data``."""
    spec: Json = {
        "accessModes": [storage.access_mode],
        "resources": {"requests": {"storage": storage.size}},
        "volumeMode": "Filesystem",
    }
    if storage.class_name:
        spec["storageClassName"] = "" if storage.class_name == "-" else storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": labels},
        "spec": spec,
    }


def data_volume(stateful_set_spec: Json, storage: Storage, labels: dict[str, str]) -> None:
    """Add the volume ``data`` to a StatefulSet's pods: persistent, or deleted with the pod."""
    if storage.size:
        stateful_set_spec["volumeClaimTemplates"] = [claim(storage, labels)]
        stateful_set_spec["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
    else:
        pod = stateful_set_spec["template"]["spec"]
        pod["volumes"] = [*pod["volumes"], {"name": "data", "emptyDir": {}}]
