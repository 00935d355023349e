"""Checks whether all installed workloads are ready; the judgement itself is pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from onewriter_core.api.common import API_VERSION
from onewriter_core.errors import Unavailable
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import TOPIC, Kind
from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

POLL_SECONDS: Final = 1.0

DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
STATEFUL_SET: Final = Kind("apps", "v1", "StatefulSet", "statefulsets")

Workload = tuple[Kind, str]


def workloads(configuration: Configuration) -> list[Workload]:
    """The workloads that must run."""
    sets = [names.component(configuration, names.BROKER)]
    if not configuration.external_store.is_used:
        sets = [*names.store_sets(configuration), *sets]
    return [
        (DEPLOYMENT, names.component(configuration, names.OPERATOR)),
        *((STATEFUL_SET, name) for name in sets),
    ]


def problem(workload: Workload, document: Mapping[str, Any] | None, digest: str) -> str:
    """Why a workload is not ready; empty if it is.

    ``digest``: the configuration's digest, which the operator writes into the objects that it installs.
    """
    kind, name = workload
    title = f"{kind.kind} {name}"
    if document is None:
        return f"{title} does not exist"
    noted = (document["metadata"].get("annotations") or {}).get(names.CONFIGURATION)
    if kind is STATEFUL_SET and noted != digest:
        return f"{title} is that of another configuration: the operator has not come to it"
    wanted = document["spec"].get("replicas", 1)
    status = document.get("status", {})
    if status.get("observedGeneration", 0) < document["metadata"]["generation"]:
        return f"{title} has not been looked at since it changed"
    for count, word in (("updatedReplicas", "updated"), ("readyReplicas", "ready")):
        found = status.get(count, 0)
        if found < wanted:
            return f"{title}: {found} of {wanted} pods are {word}"
    return ""


async def wait(
    kube: Kube, configuration: Configuration, timeout_seconds: float, report: Callable[[str], None]
) -> None:
    """Return when all workloads are ready; ``report`` receives each change of the missing ones.

    Raises Unavailable after ``timeout_seconds``, naming what is missing.
    """
    reported: list[str] | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                missing = await _missing(kube, configuration)
                if missing != reported:
                    reported = missing
                    for each in missing:
                        report(each)
                if not missing:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        missing = reported or ["nothing could be asked"]
        raise Unavailable(f"not ready after {timeout_seconds:g} s: {'; '.join(missing)}") from error


async def _missing(kube: Kube, configuration: Configuration) -> list[str]:
    found = []
    try:
        refusal = await _topics_are_refused(kube, configuration.namespace)
        if refusal:
            found.append(refusal)
        for workload in workloads(configuration):
            kind, name = workload
            document = await kube.get(kind, configuration.namespace, name)
            found.append(problem(workload, document, names.digest(configuration)))
    except (ApiRefused, ApiUnreachable) as error:
        found.append(f"the API server does not say: {error}")
    return [each for each in found if each]


async def _topics_are_refused(kube: Kube, namespace: str) -> str:
    """Check that the API server has the CRDs, with a dry run."""
    probe: Json = {
        "apiVersion": API_VERSION,
        "kind": TOPIC.kind,
        "metadata": {"name": "readiness", "namespace": namespace},
    }
    try:
        await kube.create(TOPIC, probe, is_trial=True)
    except ApiRefused as refused:
        return "" if refused.status == 409 else f"topics cannot be declared: {refused.reason}"
    return ""
