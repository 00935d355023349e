"""Finds the onewriter installation in a cluster, its pods and its leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onewriter_core.errors import ConfigurationError
from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_core.kubernetes.objects import PodObject, parse, parse_lease, parse_pod
from onewriter_kubectl.kubectl import Forbidden, Kubectl, Missing, label_selector

NAME_LABEL: Final = "app.kubernetes.io/name"
RELEASE_LABEL: Final = "app.kubernetes.io/instance"
PART_LABEL: Final = "app.kubernetes.io/component"
NAME: Final = "onewriter"

LEASE_DURATIONS: Final = 2.0
"""After this multiple of its duration without a renewal, a Lease has no holder any more."""

LEASE_SECONDS: Final = 15.0
"""The duration of a Lease that does not state it: the default of the operator."""


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
        services = list(map(parse, kubectl.items("services", wanted, namespace=namespace or "*")))
    except Forbidden as error:
        raise Forbidden(
            f"which installation is meant? --installation NAMESPACE/RELEASE names it; to look for it"
            f" you may not: {error}"
        ) from error
    found = {
        Installation(each.key.namespace, each.labels[RELEASE_LABEL])
        for each in services
        if RELEASE_LABEL in each.labels
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
        found = kubectl.json("get", "leases", name, namespace=installation.namespace)
    except Missing:
        return f"there is no Lease {installation.namespace}/{name}: no operator has ever led"
    lease = parse_lease(found)
    if not lease.holder:
        return "no operator leads just now"
    renewed = seconds_of(lease.renewed)
    patience = LEASE_DURATIONS * (lease.duration_seconds or LEASE_SECONDS)
    if renewed is not None and now - renewed > patience:
        return f"operator {lease.holder} has not renewed its Lease for {now - renewed:.0f} s"
    return ""


def pods(kubectl: Kubectl, installation: Installation, part: str = "") -> list[PodObject]:
    """All pods, or those of one component, the ready ones first. Raises the errors of kubectl."""
    found = kubectl.items(
        "pods", label_selector(installation.labels(part)), namespace=installation.namespace
    )
    return sorted(map(parse_pod, found), key=lambda pod: (not pod.is_ready, pod.key.name))
