"""Cleans up before onewriter is uninstalled: removes what would block objects without an operator.

If the CRDs stay, the objects stay, and the clean-up removes onewriter's finalizers, which no operator
would remove later. If the CRDs go too, it deletes the objects first, while the operator can still follow
their deletion policies. Brokers stop while they still have the right to record which buckets they
release. The clean-up never touches anchors, volumes and logs.

The chart's Job is part of every rendering, so ``helm template | kubectl apply`` runs it too. It
therefore acts only if the release is being uninstalled: Helm records that in the Secret of the
release's revision before it runs the first hook. Other ways to uninstall need a confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from onewriter_core.errors import Unavailable
from onewriter_core.kubernetes.kinds import (
    CLAIM,
    FIELD_MANAGER,
    LEASE,
    SECRET,
    SLICE,
    SLICE_MANAGER_LABEL,
    TOPIC,
    Kind,
)
from onewriter_core.kubernetes.names import GROUP
from onewriter_core.kubernetes.objects import KubeObject, parse, parse_lease
from onewriter_operator.configuration import Configuration
from onewriter_operator.election import Observation, Timing, judge, observe
from onewriter_operator.installation import names
from onewriter_operator.installation.names import INSTANCE_LABEL
from onewriter_operator.kube import ApiRefused, Kube
from onewriter_operator.release.readiness import DEPLOYMENT, STATEFUL_SET

POLL_SECONDS: Final = 0.5

ATTEMPTS_MAX: Final = 5
"""Attempts to remove the finalizers of an object that keeps changing."""

BROKERS_SECONDS_MAX: Final = 40.0
"""Time for brokers to stop in order. Nothing is blocked otherwise, so it is short, for example for a
broker on a lost node."""

LEADER_SECONDS_MAX: Final = 60.0
"""Time for the operator to give its Lease back, or for the Lease to expire."""

CANDIDATE: Final = "clean-up"
"""The name under which the clean-up asks whether the operator's Lease is free. It never takes the Lease."""

DELETION_SHARE: Final = 0.6
"""Share of the time for the operator's deletions; the rest is for removing finalizers."""

UNINSTALL: Final = f"{GROUP}/uninstall"
"""Annotation of the operator's Deployment: ``true`` confirms the end of the installation."""

HELM_REVISIONS_READ: Final = 20
"""Number of revisions to read: a rollback is a later revision with the hooks of an earlier one."""

Report = Callable[[str], None]


class NotBeingUninstalled(Exception):
    """The installation is not being uninstalled; the clean-up changed nothing."""


async def check_uninstalling(
    kube: Kube, configuration: Configuration, helm_release: str, helm_revision: int
) -> None:
    """Check that the installation is being uninstalled, by Helm's record or a confirmation.

    Raises NotBeingUninstalled, ApiRefused, ApiUnreachable.
    """
    operator = names.component(configuration, names.OPERATOR)
    deployment = await kube.get(DEPLOYMENT, configuration.namespace, operator)
    if deployment is not None and parse(deployment).is_set(UNINSTALL):
        return
    found = "no Secret of Helm exists for it"
    for revision in range(helm_revision, helm_revision + HELM_REVISIONS_READ):
        name = f"sh.helm.release.v1.{helm_release}.v{revision}"
        secret = await kube.get(SECRET, configuration.namespace, name) if helm_release else None
        if secret is None:
            continue
        status = parse(secret).labels.get("status", "")
        if status == "uninstalling":
            return
        if status != "superseded":
            found = f"Helm's Secret {name} has the status {status!r}"
    raise NotBeingUninstalled(
        f"release {helm_release or configuration.release} is not being uninstalled ({found}); "
        "nothing was changed. Install with --no-hooks where `helm template` is piped into "
        "`kubectl apply`. To end the installation without Helm, first run: "
        f"kubectl annotate deployment {operator} -n {configuration.namespace} {UNINSTALL}=true"
    )


def without_ours(finalizers: Iterable[str]) -> list[str]:
    """The finalizers that others set."""
    return [each for each in finalizers if not each.startswith(f"{GROUP}/")]


async def clean_up(
    kube: Kube,
    configuration: Configuration,
    timeout_seconds: float,
    report: Report,
    *,
    deletes_objects: bool,
    deletion_share: float = DELETION_SHARE,
) -> None:
    """Clean up. Raises Unavailable if it takes too long, ApiRefused, ApiUnreachable."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if deletes_objects:
                await _delete_all(kube, configuration, timeout_seconds * deletion_share, report)
            # Without the operator, finalizers and slices do not return.
            await _stop(kube, configuration, DEPLOYMENT, names.OPERATOR, report)
            await _until_nobody_leads(kube, configuration, report)
            for kind in (TOPIC, CLAIM):
                for each in await _all(kube, configuration, kind):
                    await _release(kube, kind, each, report)
            await _delete_slices(kube, configuration, report)
            await _stop_brokers(kube, configuration, report)
            await _delete_lease(kube, configuration, report)
            for line in remains(configuration, await _counts(kube, configuration)):
                report(line)
    except TimeoutError as error:
        raise Unavailable(f"not done after {timeout_seconds:g} s") from error


def remains(configuration: Configuration, counts: Mapping[str, int]) -> list[str]:
    """What stays behind when the release is uninstalled, and how to delete it.

    ``counts``: the number of objects of each kind.
    """
    here = f"-n {configuration.namespace}"
    found: list[tuple[str, str]] = []
    if any(counts.values()):
        text = ", ".join(f"{count} {kind}s" for kind, count in counts.items() if count)
        found.append(
            ("kubectl delete xt,pclaim -A --all", f"{text}; their status no longer changes")
        )
    if configuration.brokers.storage.size or not configuration.external_store.is_used:
        of_release = f"{here} -l {INSTANCE_LABEL}={configuration.release}"
        found.append((f"kubectl delete pvc {of_release}", "the volumes: all messages"))
    found += [
        (f"kubectl delete xanchor --all {here}", "who owns which data, and the epochs given out"),
        (
            f"kubectl delete secret {configuration.release}-ca {here} --ignore-not-found",
            "the authority that running sidecars trust",
        ),
        (
            "kubectl delete crd -l app.kubernetes.io/name=onewriter",
            "the definitions, with all objects of all installations in this cluster",
        ),
    ]
    return [
        "These remain, and a new installation of the same name continues with them.",
        "To delete them, in this order:",
        *(f"  {command}   # {what}" for command, what in found),
    ]


async def _counts(kube: Kube, configuration: Configuration) -> dict[str, int]:
    return {kind.kind: len(await _all(kube, configuration, kind)) for kind in (TOPIC, CLAIM)}


async def _until_nobody_leads(kube: Kube, configuration: Configuration, report: Report) -> None:
    """Wait until no operator writes: a stopped Deployment does not count pods that are still stopping.

    A leader gives its Lease back after its last write. The Lease of a leader that was lost expires.
    """
    name = names.component(configuration, names.OPERATOR)
    of = configuration.operator.lease
    timing = Timing(of.duration_seconds, of.renew_seconds, of.retry_seconds)
    now = asyncio.get_running_loop().time
    seen: Observation | None = None
    try:
        async with asyncio.timeout(LEADER_SECONDS_MAX):
            while True:
                document = await kube.get(LEASE, configuration.namespace, name)
                seen = None if document is None else observe(seen, parse_lease(document), now())
                is_free = judge(CANDIDATE, seen, now(), timing) == "Take"
                if is_free:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except ApiRefused as refused:  # without the right to read the Lease
        report(
            f"cannot read the operator's Lease, so an operator may still set finalizers: {refused}"
        )
    except TimeoutError:
        holder = seen.record.holder if seen is not None else "an operator"
        report(f"{holder} still leads: it may set finalizers again")


async def _delete_lease(kube: Kube, configuration: Configuration, report: Report) -> None:
    """Delete the Lease of the operator's replicas, which stopped."""
    name = names.component(configuration, names.OPERATOR)
    try:
        found = await kube.get(LEASE, configuration.namespace, name)
    except ApiRefused:  # without the right, the Lease stays and does no harm
        return
    if found is not None:
        await _delete(kube, LEASE, [parse(found)], report)


async def _all(
    kube: Kube, configuration: Configuration, kind: Kind, labels: str = ""
) -> list[KubeObject]:
    """All objects of a kind that the operator manages; empty if the kind is unknown."""
    found: list[KubeObject] = []
    for namespace in configuration.operator.namespaces or ("",):
        try:
            found += map(parse, await kube.list(kind, namespace, labels))
        except ApiRefused as refused:
            if not refused.is_gone:
                raise
    return found


async def _delete(kube: Kube, kind: Kind, objects: Iterable[KubeObject], report: Report) -> None:
    """Delete these objects by uid, and no successors."""
    for each in objects:
        report(f"deleting {kind.kind} {each.key}")
        try:
            await kube.delete(kind, each.key.namespace, each.key.name, each.uid)
        except ApiRefused as refused:
            if not refused.is_gone and not refused.is_conflict:
                raise


async def _delete_all(
    kube: Kube, configuration: Configuration, timeout_seconds: float, report: Report
) -> None:
    for kind in (CLAIM, TOPIC):
        await _delete(kube, kind, await _all(kube, configuration, kind), report)
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                if not await _all(kube, configuration, TOPIC):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        report("some objects are still there: their finalizers are taken off")


async def _stop(
    kube: Kube, configuration: Configuration, kind: Kind, component: str, report: Report
) -> None:
    """Scale a workload to zero, and wait until its pods are gone."""
    name = names.component(configuration, component)
    found = await kube.get(kind, configuration.namespace, name)
    if found is None:
        return
    report(f"stopping {name}")
    await kube.merge(kind, parse(found).key, {"spec": {"replicas": 0}})
    while found is not None and (
        found["spec"].get("replicas") or found.get("status", {}).get("replicas", 0)
    ):
        await asyncio.sleep(POLL_SECONDS)
        found = await kube.get(kind, configuration.namespace, name)


async def _stop_brokers(kube: Kube, configuration: Configuration, report: Report) -> None:
    """Stop the brokers while they have their rights, so that holders can resume after a later install."""
    try:
        async with asyncio.timeout(BROKERS_SECONDS_MAX):
            await _stop(kube, configuration, STATEFUL_SET, names.BROKER, report)
    except TimeoutError:
        report("some brokers do not stop: their epochs end with them")


async def _release(kube: Kube, kind: Kind, held: KubeObject, report: Report) -> None:
    """Take our finalizers off an object."""
    key = held.key
    found: KubeObject | None = held
    for attempt in range(ATTEMPTS_MAX):
        if found is None:
            return
        kept = without_ours(found.finalizers)
        if tuple(kept) == found.finalizers:
            return
        report(f"releasing {kind.kind} {key}")
        try:
            await kube.set_finalizers(kind, found.document, kept)
        except ApiRefused as refused:
            if refused.is_gone:
                return
            if not refused.is_conflict or attempt == ATTEMPTS_MAX - 1:
                raise
            document = await kube.get(kind, key.namespace, key.name)
            found = None if document is None else parse(document)
        else:
            return


async def _delete_slices(kube: Kube, configuration: Configuration, report: Report) -> None:
    """Delete the leader slices: without an operator they would lead to a former writer for ever."""
    labels = f"{SLICE_MANAGER_LABEL}={FIELD_MANAGER}"
    await _delete(kube, SLICE, await _all(kube, configuration, SLICE, labels), report)
