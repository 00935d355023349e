"""Objects of the Kubernetes API as they come over the wire: names, kinds, and careful looking in.

Documents are plain JSON, never models: what the API server holds may be newer than this program,
and what is not ours must survive it. Nothing here does I/O.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Json = dict[str, Any]

GROUP: Final = "onewriter.dev"

FIELD_MANAGER: Final = "onewriter-operator"
"""Whose fields are whose: the name under which this operator applies."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
CLAIM_LABEL: Final = "onewriter.dev/claim"
"""Pods that carry it, whatever its value, are watched and may be selected by a podSelector."""

EPOCH_LABEL: Final = "onewriter.dev/epoch"
TOPIC_FINALIZER: Final = "onewriter.dev/topic-cleanup"

PAUSED: Final = "onewriter.dev/paused"
UNMANAGED: Final = "onewriter.dev/unmanaged"
RECONCILE_AT: Final = "onewriter.dev/reconcile-at"
FENCE: Final = "onewriter.dev/fence"
HANDOVER: Final = "onewriter.dev/handover"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where the API has it."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of an object, or of its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.is_namespaced and namespace:
            root += f"/namespaces/{namespace}"
        parts = [root, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


TOPIC: Final = Kind(GROUP, "v1alpha1", "ExclusiveTopic", "exclusivetopics")
CLAIM: Final = Kind(GROUP, "v1alpha1", "ProducerClaim", "producerclaims")
POD: Final = Kind("", "v1", "Pod", "pods")
SERVICE: Final = Kind("", "v1", "Service", "services")
SLICE: Final = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events")


class Key(NamedTuple):
    """What names an object; also what a queue holds."""

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
    """What tells an object from the others of its namespace: ``kind/name``."""
    return f"{key.kind}/{key.name}"


def metadata(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's metadata; empty when it has none."""
    found: Mapping[str, Any] = document.get("metadata") or {}
    return found


def uid_of(document: Mapping[str, Any]) -> str:
    return str(metadata(document).get("uid", ""))


def generation_of(document: Mapping[str, Any]) -> int:
    return int(metadata(document).get("generation", 0))


def spec_of(document: Mapping[str, Any]) -> Json:
    """An object's spec; empty when it has none."""
    found: Json = document.get("spec") or {}
    return found


def status_of(document: Mapping[str, Any]) -> Json:
    """An object's status; empty when nobody has written one."""
    found: Json = document.get("status") or {}
    return found


def annotation(document: Mapping[str, Any], name: str) -> str:
    """An annotation's text; empty when it is not there."""
    return str((metadata(document).get("annotations") or {}).get(name, ""))


def labels_of(document: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = metadata(document).get("labels") or {}
    return found


def is_set(document: Mapping[str, Any], name: str) -> bool:
    """Whether a switch among the annotations is on."""
    return annotation(document, name).strip().lower() in {"true", "yes", "1"}


def is_going(document: Mapping[str, Any]) -> bool:
    """Whether somebody deleted the object and finalizers keep it."""
    return bool(metadata(document).get("deletionTimestamp"))


def finalizers_of(document: Mapping[str, Any]) -> list[str]:
    return list(metadata(document).get("finalizers") or ())


def is_owned_by(document: Mapping[str, Any], uid: str) -> bool:
    """Whether an object belongs to the object of that uid."""
    owners = metadata(document).get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def version_number(document: Mapping[str, Any]) -> int | None:
    """The resourceVersion as a number (comparable by KEP-5504); None when it is none."""
    text = str(metadata(document).get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdecimal() else None


def timestamp(seconds: float) -> str:
    """A moment as metav1.Time writes it: whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def micro_timestamp(seconds: float) -> str:
    """A moment as metav1.MicroTime writes it."""
    micros = round(seconds * 1_000_000)
    return f"{timestamp(micros // 1_000_000)[:-1]}.{micros % 1_000_000:06d}Z"


def seconds_of(text: object) -> float | None:
    """The moment that ``timestamp`` wrote, or with a fraction; None for anything else."""
    if not isinstance(text, str) or not text.endswith("Z"):
        return None
    whole, _, fraction = text[:-1].partition(".")
    try:
        parsed = time.strptime(whole, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None
    digits = fraction if fraction.isascii() and fraction.isdecimal() else "0"
    return calendar.timegm(parsed) + float(f"0.{digits}")


def taken_in(document: Json) -> Json:
    """An object as it is kept: of who wrote which field only what concerns its status."""
    about = dict(metadata(document))
    writers = [
        each for each in about.pop("managedFields", ()) if each.get("subresource") == "status"
    ]
    if writers:
        about["managedFields"] = writers
    return document | {"metadata": about}


def status_editor(document: Mapping[str, Any], fields: Container[str]) -> tuple[str, str]:
    """Who else wrote some of these fields of the status, and when; empty when nobody did."""
    for entry in metadata(document).get("managedFields") or ():
        if entry.get("subresource") != "status" or entry.get("manager") == FIELD_MANAGER:
            continue
        written = ((entry.get("fieldsV1") or {}).get("f:status") or {}).keys()
        if any(name.removeprefix("f:") in fields for name in written):
            return str(entry.get("manager", "somebody")), str(entry.get("time", ""))
    return "", ""
