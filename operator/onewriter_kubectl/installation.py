"""Finds the onewriter installation in a cluster, its pods and its leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onewriter_core.errors import ConfigurationError
from onewriter_kubectl.kubectl import Forbidden, Json, Kubectl, Missing, label_selector
from onewriter_kubectl.objects import metadata, seconds, spec

NAME_LABEL: Final = "app.kubernetes.io/name"
RELEASE_LABEL: Final = "app.kubernetes.io/instance"
PART_LABEL: Final = "app.kubernetes.io/component"
NAME: Final = "onewriter"

LEASE_DURATIONS: Final = 2.0
"""After this multiple of its duration without a renewal, a Lease has no holder any more."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A release of the chart."""

    namespace: str
    release: str

    def component(self, part: str) -> str:
        """The name of a component's objects."""
        return f"{self.release}-{part}"

    def labels(self, part: str = "") -> Mapping[str, str]:
        """The label selector of all objects, or of one component's."""
        found = {NAME_LABEL: NAME, RELEASE_LABEL: self.release}
        return found | ({PART_LABEL: part} if part else {})

    def __str__(self) -> str:
        return f"{self.namespace}/{self.release}"


def find(kubectl: Kubectl, given: str = "") -> Installation:
    """The installation; ``given`` is NAMESPACE/RELEASE, NAMESPACE, or empty to search for it.

    Raises ConfigurationError if there are several, Missing if there is none, Forbidden if the caller
    lacks the right to search and has to name it.
    """
    namespace, _, release = given.partition("/")
    if release:
        return Installation(namespace, release)
    wanted = label_selector({NAME_LABEL: NAME, PART_LABEL: "broker"})
    try:
        services = kubectl.items("services", wanted, namespace=namespace or "*")
    except Forbidden as error:
        raise Forbidden(
            f"which installation is meant? --installation NAMESPACE/RELEASE names it; to look for it"
            f" you may not: {error}"
        ) from error
    found = {
        Installation(str(about["namespace"]), str((about.get("labels") or {})[RELEASE_LABEL]))
        for about in map(metadata, services)
        if RELEASE_LABEL in (about.get("labels") or {})
    }
    if len(found) == 1:
        return found.pop()
    if found:
        names = ", ".join(sorted(map(str, found)))
        raise ConfigurationError(f"there are several installations: --installation one of {names}")
    where = f"namespace {namespace}" if namespace else "this cluster"
    raise Missing(f"no installation of onewriter was found in {where} (--installation)")


def operator_problem(kubectl: Kubectl, installation: Installation, now: float) -> str:
    """Why the operator does not lead; empty if it does. Raises the errors of kubectl.

    ``now`` is Unix time. The Lease contains times of the operator's clock.
    """
    name = installation.component("operator")
    try:
        lease = kubectl.json("get", "leases", name, namespace=installation.namespace)
    except Missing:
        return f"there is no Lease {installation.namespace}/{name}: no operator has ever led"
    holder = spec(lease).get("holderIdentity")
    if not holder:
        return "no operator leads just now"
    renewed = seconds(spec(lease).get("renewTime"))
    patience = LEASE_DURATIONS * float(spec(lease).get("leaseDurationSeconds") or 15)
    if renewed is not None and now - renewed > patience:
        return f"operator {holder} has not renewed its Lease for {now - renewed:.0f} s"
    return ""


def pods(kubectl: Kubectl, installation: Installation, part: str = "") -> list[Json]:
    """All pods, or those of one component, the ready ones first. Raises the errors of kubectl."""
    found = kubectl.items(
        "pods", label_selector(installation.labels(part)), namespace=installation.namespace
    )
    return sorted(found, key=lambda pod: (not is_ready(pod), str(metadata(pod)["name"])))


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def port(pod: Json, named: str, default: int) -> int:
    """The number of a pod's named port."""
    for container in spec(pod).get("containers") or ():
        for each in container.get("ports") or ():
            if each.get("name") == named:
                return int(each["containerPort"])
    return default
