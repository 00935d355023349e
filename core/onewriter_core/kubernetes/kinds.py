"""Kinds, keys, names and timestamps of the Kubernetes API. No I/O."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from onewriter_core.kubernetes.names import GROUP

FIELD_MANAGER: Final = "onewriter-operator"
"""Name under which the operator applies fields (server-side apply)."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
"""Labels of an EndpointSlice: its Service, and the program that writes it."""

KUBERNETES_SLICE_MANAGER: Final = "endpointslice-controller.k8s.io"
"""The writer of the slices of Services with a selector."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and its path in the API."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The kind as an argument of kubectl."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of an object, or of its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.is_namespaced and namespace:
            root += f"/namespaces/{namespace}"
        parts = [root, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


TOPIC: Final = Kind(GROUP, "v1alpha1", "ExclusiveTopic", "exclusivetopics")
CLAIM: Final = Kind(GROUP, "v1alpha1", "ProducerClaim", "producerclaims")
ONE_WRITER: Final = Kind(GROUP, "v1alpha1", "OneWriter", "onewriters")
ANCHOR: Final = Kind(GROUP, "v1alpha1", "BucketAnchor", "bucketanchors")
POD: Final = Kind("", "v1", "Pod", "pods")
NODE: Final = Kind("", "v1", "Node", "nodes")
SERVICE: Final = Kind("", "v1", "Service", "services")
SLICE: Final = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events")


class Key(NamedTuple):
    """Identifies an object; the work queue holds keys."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(document: Mapping[str, Any]) -> Key:
    """The key of an object."""
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", ""), metadata["name"])


def named(key: Key) -> str:
    """``kind/name``: identifies an object within its namespace."""
    return f"{key.kind}/{key.name}"


def timestamp(seconds: float) -> str:
    """Unix time as metav1.Time writes it: whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def micro_timestamp(seconds: float) -> str:
    """Unix time as metav1.MicroTime writes it."""
    micros = round(seconds * 1_000_000)
    return f"{timestamp(micros // 1_000_000)[:-1]}.{micros % 1_000_000:06d}Z"


def seconds_of(text: object) -> float | None:
    """Unix time of a metav1.Time or MicroTime; None for any other value."""
    if not isinstance(text, str) or not text.endswith("Z"):
        return None
    whole, _, fraction = text[:-1].partition(".")
    try:
        parsed = time.strptime(whole, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None
    digits = fraction if fraction.isascii() and fraction.isdecimal() else "0"
    return calendar.timegm(parsed) + float(f"0.{digits}")
